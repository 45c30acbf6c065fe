#!/usr/bin/env python3
"""Set-up and the project's commands, with nothing but the standard library: ``python3 dev.py check|test|proof|demo``.

    demo    the main job on real input (examples/flights/); BROKER=kafka: on a real Kafka; MEMBERS=6: in six processes;
            PROCESSES=2: in two that one service keeps; RESET=1: afresh
    check   style, types and fast tests, on the sources; ROOM=group: those of a room, and of modules that use it;
            --python 3.13 takes another Python
    test    what a change has to pass, on the compiled package, with a real Kafka and Spark
    proof   everything else, in parts; it goes on where the last one ended; --help names the options
    soak    the simulation and the kills by the hour; it goes on where the last one ended; --help names the options
    bench   keylanes beside its peers (bench/compare.py), or the benchmarks that are named, with their options
    bench-full   the same at full size, within the hour; it goes on where the last one ended
    lock    writes requirements/*.txt anew (needs uv); --upgrade takes newer versions

Each makes or mends the environment in ``.venv`` first: with uv, or venv, or venv without pip and this Python's pip.
``check`` installs the small set, the others the full one; a stamp in the environment tells when it is out of date.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent
PYTHONS_SCRIPT = str(ROOT / "tests" / "pythons.py")
VENV = ROOT / os.environ.get("CHECK_VENV", ".venv")
STAMP = "keylanes-stamp.json"
WHEELS, COMPILED = VENV / "wheels", VENV / "compiled"
PYTHON_MIN = (3, 11)
WINDOWS = os.name == "nt"
SMALL, FULL, JAVA = "check.txt", "full.txt", "java.txt"
SIZES = {
    SMALL: "60 MB: the libraries, linters and test tools",
    FULL: "0.5 GB: Spark, Arrow, pandas, matplotlib, the flights of 2013",
    JAVA: "35 MB: a Java for machines that have none",
}
FAST = ("--tier=check", "-m", "not (broker or spark)", "-n", "2", "--dist", "loadfile")


def main(arguments: list[str]) -> int:
    """Run one command; its exit code."""
    require_python(arguments)
    # Without byte code every process that a test starts would compile all modules anew, and pytest all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=sorted(COMMANDS), metavar="|".join(COMMANDS))
    has_help = arguments[:1] == ["soak"]  # and options of its own
    parsed, rest = parser.parse_known_args(arguments[:1] if has_help else arguments)
    return COMMANDS[parsed.command](arguments[1:] if has_help else rest)


def demo(rest: list[str]) -> int:
    """The main job, which takes BROKER, MEMBERS, PROCESSES and RESET from the environment by itself."""
    if os.environ.get("BROKER") == "kafka":
        print("BROKER=kafka: a real Apache Kafka is fetched too (44 MB) unless it is cached", flush=True)
    python = environment([SMALL, FULL, *missing_java()])
    return hand_over([python, str(ROOT / "examples" / "flights" / "demo.py"), *rest], java_environment(python))


def test(rest: list[str]) -> int:
    """Everything. The last line is pytest's own."""
    python = environment([SMALL, FULL, JAVA])  # the wheel's Java is tested, also where there is another
    env = java_environment(python)
    failed, env = beside(checks(python), env, lambda: compiled(python, env))  # a compiler uses one core
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return run([*module(python, "tests.tiers.run"), *rest], env) or len(failed)


def proof(rest: list[str]) -> int:
    """The parts of the proof, on the compiled package."""
    python = environment([SMALL, FULL, JAVA])
    env = java_environment(python)
    env = env if {"--list", "--help", "-h"} & {*rest} else compiled(python, env)
    return hand_over([*module(python, "tests.tiers.proof"), *rest], env)


def check(rest: list[str]) -> int:
    """Style, types, and the fast tests, on the sources: no Java, no broker, no Spark."""
    if any(word.partition("=")[0] == "--python" for word in rest):
        return run([sys.executable, PYTHONS_SCRIPT, *rest], dict(os.environ))
    room = [f"--room={os.environ['ROOM']}"] if "ROOM" in os.environ else []
    python, env = environment([SMALL]), {"KEYLANES_HYPOTHESIS": "quick", **os.environ}
    tests = [pytest(python, *FAST, *room, *rest)]
    failed, code = beside(checks(python), env, lambda: steps(tests, env))  # a test process waits now and then
    return code or len(failed)


def soak(rest: list[str]) -> int:
    """The next slice of the long tests; one of all begins with ``check`` on the other Pythons and the group model."""
    if not soaks_broker(rest):
        return hand_over([*module(environment([SMALL]), "tests.simulation.soak"), *rest], dict(os.environ))
    if not {"--broker-only", "--cluster-only", "--group-only"} & {*rest}:
        model = [*module(environment([SMALL]), "tests.group.model"), "--search"]
        first = [("other Pythons", [sys.executable, PYTHONS_SCRIPT, "--all"]), ("group model", model)]
        if code := steps(first, dict(os.environ)):
            return code
    python = environment([SMALL, FULL, *missing_java()])
    return hand_over([*module(python, "tests.simulation.soak"), *rest], java_environment(python))


def soaks_broker(rest: list[str]) -> bool:
    """Whether a soak with these options starts a real Kafka."""
    alone = {"--simulation-only", "--seed", "--plan", "--report", "--help", "-h"}
    return not any(word.partition("=")[0] in alone for word in rest)


def bench(rest: list[str]) -> int:
    """The comparison, or the benchmarks that are named; from the first option or behind ``pairs`` all is for each."""
    first = next((i for i, word in enumerate(rest) if word[:1] == "-" or rest[i - 1 : i] == ["pairs"]), len(rest))
    names, options = rest[:first] or ["compare"], rest[first:]
    if missing := [name for name in names if not (ROOT / "bench" / f"{name}.py").is_file()]:
        stop(f"no such benchmark: {', '.join(missing)}", "ls bench")
    python = environment([SMALL, FULL, *missing_java()])
    commands = [(name, [python, f"bench/{name}.py", *options]) for name in names]
    return steps(commands, compiled(python, java_environment(python)))


def lock(rest: list[str]) -> int:
    """Write the hash-pinned files anew."""
    return run([sys.executable, str(ROOT / "requirements" / "lock.py"), *rest], dict(os.environ))


COMMANDS = {
    "demo": demo,
    "test": test,
    "check": check,
    "proof": proof,
    "soak": soak,
    "bench": bench,
    "bench-full": lambda rest: bench(["compare", "--full", *rest]),
    "lock": lock,
}


def checks(python: str) -> list[tuple[str, list[str]]]:
    """Style and types. ``-P`` keeps the checkout off the path, where ``import state`` would load a second copy."""
    return [
        ("ruff check", [python, "-P", "-m", "ruff", "check", "."]),
        ("ruff format", [python, "-P", "-m", "ruff", "format", "--check", "."]),
        ("mypy", [python, "-P", "-m", "mypy", "-p", "keylanes"]),
        # Not in one run: mypy takes a package or files.
        ("mypy beside it", [python, "-P", "-m", "mypy", "bench", "examples", "tests", "requirements", "dev.py"]),
    ]


def pytest(python: str, *options: str) -> tuple[str, list[str]]:
    """The tests; the import directions are among them."""
    return "pytest", [python, "-P", "-m", "pytest", *options]


def module(python: str, name: str) -> list[str]:
    """A module beside the package; the checkout comes last on the path, and the package from the environment."""
    code = f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_module({name!r}, run_name='__main__')"
    return [python, "-P", "-c", code]


def steps(commands: list[tuple[str, list[str]]], env: dict[str, str]) -> int:
    """Run all, also after a failure, so that one run shows everything; the first exit code that is not 0."""
    failed = {}
    for name, command in commands:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        if code := run(command, env):
            failed[name] = code
        if name != commands[-1][0]:
            print(f"   {name}: {'failed' if code else 'ok'}, {time.monotonic() - began:.1f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return next(iter(failed.values()), 0)


def beside(commands: list[tuple[str, list[str]]], env: dict[str, str], work: Callable[[], T]) -> tuple[list[str], T]:
    """Run commands beside some work, and say behind it what they said; those that failed, and what the work gives."""

    def ran(words: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    other = ThreadPoolExecutor(1)
    begun = [(name, other.submit(ran, words)) for name, words in commands]
    try:
        given, ended = work(), [(name, one.result()) for name, one in begun]
    finally:
        other.shutdown(cancel_futures=True)
    for name, answer in ended:
        print(f"== {name}: {'failed' if answer.returncode else 'ok'}\n{answer.stdout.decode(errors='replace')}", end="")
    return [name for name, answer in ended if answer.returncode], given


def run(command: list[str], env: dict[str, str]) -> int:
    """Run a child to its end. Told to stop, it ends in its own time, and then we do."""
    child = subprocess.Popen(command, cwd=ROOT, env=env)
    told: list[int] = []

    def interrupted(number: int, _frame: object) -> None:
        told.append(number)
        if number == signal.SIGTERM:  # an interrupt from the terminal reaches the child by itself
            child.terminate()

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    code = child.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if told:
        raise SystemExit(128 + told[0])
    return code


def hand_over(command: list[str], env: dict[str, str]) -> int:
    """Become the command, so that signals and exit code are its own; where that can't be, run it as a child."""
    if WINDOWS:
        return run(command, env)
    os.chdir(ROOT)
    sys.stdout.flush()
    return os.execve(command[0], command, env)


# The environment


def environment(files: list[str]) -> str:
    """Make ``.venv`` hold at least these pinned files and this checkout; the path of its Python."""
    digests = {name: digest((ROOT / "requirements" / name).read_bytes()) for name in files}
    if VENV.exists() and not (VENV / STAMP).exists():
        stop(f"{VENV} was not made by this script, which would replace it", f"mv {VENV} {VENV}.mine")
    usable, missing = plan(read_stamp(), digests)
    if missing:
        sizes = "".join(f"\n  about {SIZES[name]}" for name in missing)
        print(f"Setting up {VENV.name}; fetched unless cached:{sizes}", flush=True)
    if not usable:
        build(missing, digests)
    elif missing:
        grow(missing, digests)
    if read_stamp().get("modules") != modules():
        install_checkout()
    return str(python_of(VENV))


def plan(held: dict[str, Any], digests: dict[str, str]) -> tuple[bool, list[str]]:
    """From the stamp and the wanted files' digests: whether the environment can stay, and the files to install."""
    files: dict[str, str] = held.get("files", {})
    unchanged = all(digests.get(name, installed) == installed for name, installed in files.items())
    usable = held.get("place") == str(ROOT) and unchanged  # after a move, scripts name the old place
    return usable, [name for name in digests if not usable or name not in files]


def build(files: list[str], digests: dict[str, str]) -> None:
    """Make a new environment in a temporary folder and put it in the place of the old one, if any."""
    partial = ROOT / f".venv.{os.getpid()}"
    try:
        install = new_venv(partial)
        for name in files:
            fetch(install, name)
        rewrite_paths(partial)
        write_stamp(partial, {"place": str(ROOT), "files": digests})
        old = ROOT / f".venv.old.{os.getpid()}"
        if VENV.exists():
            VENV.rename(old)
        partial.rename(VENV)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def grow(files: list[str], digests: dict[str, str]) -> None:
    """Add sets to the environment. While that lasts its stamp is empty: an interrupted one is built anew."""
    held = read_stamp()
    write_stamp(VENV, {})
    for name in files:
        fetch(installer(VENV), name)
    write_stamp(VENV, {**held, "files": {**held["files"], **digests}})


def fetch(install: list[str], name: str) -> None:
    """Install one pinned file. The few that are built from source use the pinned setuptools of the small set."""
    isolation = [] if name == SMALL else ["--no-build-isolation"]
    began = time.monotonic()
    needs = f"{name} needs a network, or what PIP_INDEX_URL or PIP_FIND_LINKS names, unless its packages are cached"
    execute([*install, "--require-hashes", *isolation, "-r", str(ROOT / "requirements" / name)], needs)
    print(f"  {name} installed in {time.monotonic() - began:.0f} s", flush=True)


def install_checkout() -> None:
    """Install the checkout as the package: links to the files of the listed packages, made anew for a new module.

    pip refuses ``-e`` beside hashes, so it comes after the pinned files, without dependencies and build environment.
    """
    held = read_stamp()
    for stale in (ROOT / "build").glob("__editable__.keylanes*"):
        shutil.rmtree(stale)
    strict = ["--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=strict"]
    command = [str(python_of(VENV)), "-m", "pip", "install", *quiet(), *strict, "-e", str(ROOT)]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode != 0:  # when it works it only warns not to remove build/
        print(answer.stdout)
        raise SystemExit("dev.py: installing the checkout failed, see above")
    write_stamp(VENV, {**held, "modules": modules()})


def compiled(python: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a child that runs the package as it is installed: the wheel, unpacked beside the links."""
    built = wheel(python)
    held = read_stamp()
    if held.get("compiled") != held["wheel"] or not COMPILED.exists():
        shutil.rmtree(COMPILED, ignore_errors=True)
        options = [*quiet(), "--no-deps", "--no-index", "--target", str(COMPILED)]
        execute([python, "-P", "-m", "pip", "install", *options, str(built)])
        write_stamp(VENV, {**held, "compiled": held["wheel"]})
    return {**env, "PYTHONPATH": os.pathsep.join([str(COMPILED), *filter(None, [env.get("PYTHONPATH")])])}


def wheel(python: str) -> Path:
    """The package as it is installed, with its hot modules compiled; made anew when a source has changed."""
    held, sources = read_stamp(), digest(b"".join(path.read_bytes() for path in package_files()) + described())
    if held.get("wheel") != sources or not list(WHEELS.glob("*.whl")):
        print("Compiling the hot modules, one to two minutes", flush=True)
        began = time.monotonic()
        for stale in (WHEELS, *(ROOT / "build").glob("lib*"), *(ROOT / "build").glob("temp*")):
            shutil.rmtree(stale, ignore_errors=True)
        options = [*quiet(), "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(WHEELS)]
        execute([python, "-P", "-m", "pip", "wheel", *options, str(ROOT)])
        write_stamp(VENV, {**held, "wheel": sources})
        print(f"  compiled in {time.monotonic() - began:.0f} s", flush=True)
    (built,) = WHEELS.glob("*.whl")
    return built


def new_venv(folder: Path) -> list[str]:
    """Make an environment by the first way that works here; the command that installs into it."""
    if uv := shutil.which("uv"):
        execute([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        return installer(folder)
    if subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, check=False).returncode == 0:
        return installer(folder)
    shutil.rmtree(folder, ignore_errors=True)  # where ensurepip is missing, venv leaves half a folder
    helps = f"apt-get install -y python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        stop("this Python has neither a working venv nor pip, and uv is not on the path", helps)
    execute([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return [sys.executable, "-m", "pip", "--python", str(python_of(folder)), "install", *quiet()]


def installer(folder: Path) -> list[str]:
    """The command that installs into an environment that has pip (it is in the small set)."""
    uv, python = shutil.which("uv"), str(python_of(folder))
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", python]
    return [python, "-m", "pip", "install", *quiet()]


def quiet() -> list[str]:
    """Progress bars for a person, silence for a log."""
    return ["--disable-pip-version-check", "--no-input", *([] if sys.stdout.isatty() else ["--quiet"])]


def rewrite_paths(partial: Path) -> None:
    """Scripts name their Python by its full path: write the one it will have."""
    for path in (partial / ("Scripts" if WINDOWS else "bin")).iterdir():
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if os.fsencode(partial) in content and b"\0" not in content:
                path.write_bytes(content.replace(os.fsencode(partial), os.fsencode(VENV)))


def modules() -> str:
    """A digest of what the installed links depend on: the list of package files, and how the package is described."""
    return digest(described() + (ROOT / "__init__.py").read_bytes() + "\n".join(map(str, package_files())).encode())


def described() -> bytes:
    """How the package is described."""
    return (ROOT / "pyproject.toml").read_bytes() + (ROOT / "setup.py").read_bytes()


def package_files() -> list[Path]:
    """The files of the listed packages."""
    import tomllib  # here: this file must load on an older Python to say so

    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [ROOT.joinpath(*package.split(".")[1:]) for package in packages]
    return sorted(path for folder in folders for path in folder.glob("*") if path.suffix in (".py", ".txt"))


def read_stamp() -> dict[str, Any]:
    """What the environment holds; empty when it is missing, half made, or its Python is gone."""
    try:
        stamp = json.loads((VENV / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if python_of(VENV).exists() else {}


def write_stamp(folder: Path, stamp: dict[str, Any]) -> None:
    """Write the stamp in one step."""
    partial = folder / f"{STAMP}.partial"
    partial.write_text(json.dumps(stamp, indent=1))
    partial.replace(folder / STAMP)


def digest(content: bytes) -> str:
    """A short fingerprint."""
    return hashlib.sha256(content).hexdigest()[:16]


def python_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / "Scripts" / "python.exe" if WINDOWS else folder / "bin" / "python"


# Java


def missing_java() -> list[str]:
    """The pinned Java, unless this machine has one that will do: asks the package's own file, which runs alone."""
    spec = importlib.util.spec_from_file_location("keylanes_java", ROOT / "devkafka" / "java.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"can't load {spec}")
    java = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = java
    spec.loader.exec_module(java)
    return [] if java.find_system_java(os.environ) else [JAVA]


def java_environment(python: str) -> dict[str, str]:
    """The environment for a child that starts a JVM: the Java that the package finds, named in JAVA_HOME and PATH."""
    code = "import json, os; from keylanes.devkafka.java import java_home"
    code += "; print(json.dumps(java_home().environment(os.environ)))"
    answer = subprocess.run([python, "-P", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        raise SystemExit(answer.returncode)
    return dict(json.loads(answer.stdout))


# Small things


def require_python(arguments: list[str]) -> None:
    """Go on under a Python that is new enough, if there is one."""
    if sys.version_info >= PYTHON_MIN:
        return
    for name in ("python3.13", "python3.12", "python3.11"):
        newer = shutil.which(name)
        if newer and subprocess.run([newer, "-c", ""], capture_output=True, check=False).returncode == 0:
            raise SystemExit(subprocess.call([newer, __file__, *arguments]))
    if uv := shutil.which("uv"):
        raise SystemExit(subprocess.call([uv, "run", "--no-project", "--python", ">=3.11", __file__, *arguments]))
    seen = ".".join(str(part) for part in sys.version_info[:3])
    stop(f"keylanes needs Python 3.11 or newer, this is {seen}; uv would bring one along", "pip install uv")


def execute(command: list[str], needs: str = "") -> None:
    """Run one step of the set-up; stop with its exit code when it fails, and say what it needs."""
    if code := run(command, dict(os.environ)):
        print(f"dev.py: this failed with exit code {code}: {' '.join(command)}", file=sys.stderr)
        if needs:
            print(f"dev.py: {needs}", file=sys.stderr)
        raise SystemExit(code)


def stop(reason: str, helps: str) -> str:
    """End with what is wrong and the one command that helps."""
    raise SystemExit(f"dev.py: {reason}.\nThis helps:  {helps}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
