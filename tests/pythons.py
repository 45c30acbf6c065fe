"""``check`` with other Pythons: ``python3 dev.py check --python 3.13``. Standard library alone, and run by any Python.

Each Python gets an environment of its own, ``.venv.3.13``. One that is not on this machine is skipped, aloud. With
``--all`` every Python that the package names is run, unless it has passed with these very files (the soak asks so).
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("3.12", "3.13")
"""Beside 3.11, which everything else runs on."""
VENV_VARIABLE = "CHECK_VENV"
NEEDS_MORE = ("examples/flights", "devkafka/test_java.py")
"""Than these environments have."""
OF_TESTS = ("simulation/test_planted.py", "simulation/test_shrink.py", "offsets/test_fencing_model.py")
OF_SEEDS = "simulation/test_seeds.py::test_sixty_seeds_meet_every_fault_at_every_step"
"""These show that tests find what is wrong, and that rules are right: the same on every Python, and slow."""
WHOLE = (
    *("--tier=test", "-m", "not (broker or spark)"),
    *(f"--ignore=tests/{left_out}" for left_out in (*NEEDS_MORE, *OF_TESTS)),
    f"--deselect=tests/{OF_SEEDS}",
)
"""Also the tests of `test`: nothing else runs them with another Python."""
CANT_RUN = 77
"""The exit code where there is no such Python; with ``--all`` that is no failure."""
PASSED = ROOT / ".keylanes" / "pythons.json"
ROOMS_LEFT_OUT = (".venv", "build", ".keylanes")


def main(arguments: Sequence[str]) -> int:
    """Run ``check`` with the Pythons that are asked for; the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="dev.py check", allow_abbrev=False, description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--python", metavar="3.N", type=version_of, action="append", help="which one")
    which.add_argument("--all", action="store_true", help=f"{' and '.join(OTHERS)}, unless they have passed")
    options, rest = parser.parse_known_args(arguments)
    passed = read_passed() if options.all else {}
    code = 0
    for version in options.python or OTHERS:
        if passed.get(version) == digest():
            say(f"check with Python {version}: it has passed with these files")
            continue
        found = check_with(version, rest)
        code = code if options.all and found == CANT_RUN else found or code
    return code


def version_of(text: str) -> str:
    """A version like 3.13."""
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"a Python is named by its minor version, e.g. 3.13; seen {text!r}")
    return text


def check_with(version: str, rest: Sequence[str]) -> int:
    """Run ``check`` with one Python; its exit code, or CANT_RUN."""
    python = find(version)
    if python is None:
        say(f"check with Python {version}: SKIPPED, there is no such Python here (on the path, of pyenv, of uv)")
        return CANT_RUN
    say(f"check with Python {version}: {python}")
    files = digest()
    environment = {"KEYLANES_HYPOTHESIS": "check", **os.environ, VENV_VARIABLE: f".venv.{version}"}
    code = subprocess.call([python, str(ROOT / "dev.py"), "check", *WHOLE, *rest], cwd=ROOT, env=environment)
    say(f"check with Python {version}: {'failed' if code else 'passed'}")
    if code == 0 and not rest:
        PASSED.parent.mkdir(exist_ok=True)
        PASSED.write_text(json.dumps({**read_passed(), version: files}) + "\n", encoding="utf-8")
    return code


def find(version: str) -> str | None:
    """A Python of this minor version that runs; None when there is none."""
    return next((python for python in candidates(version) if runs(python) == version), None)


def candidates(version: str) -> Iterator[str]:
    """Where it may be: on the path, among those of pyenv (the newest first), known to uv."""
    if found := shutil.which(f"python{version}"):
        yield found
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    newest = sorted(versions.glob(f"{version}.*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    yield from (str(path / "bin" / "python") for path in reversed(newest))
    if uv := shutil.which("uv"):
        command = [uv, "python", "find", "--no-python-downloads", version]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        yield from answer.stdout.split("\n")[:1] if answer.returncode == 0 else []


def runs(python: str) -> str:
    """The minor version of a Python; "" when it does not run (pyenv has scripts for what it can't run)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def read_passed() -> dict[str, str]:
    """With which files each Python has passed."""
    try:
        return dict(json.loads(PASSED.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def digest() -> str:
    """A fingerprint of everything that ``check`` looks at."""
    found = hashlib.sha256()
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.glob("requirements/*.txt"), ROOT / "pyproject.toml"]):
        place = path.relative_to(ROOT)
        if not place.parts[0].startswith(ROOMS_LEFT_OUT):
            found.update(f"{place.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def say(line: str) -> None:
    """One line at once, before what the child says."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
