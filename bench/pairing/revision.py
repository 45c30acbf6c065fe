"""The package of another revision, built as ``dev.py`` builds that of the checkout: a wheel with compiled hot modules.

A clone of its own holds the revision until the wheel is built. The installed package stays in
``.keylanes/bench/pairs-base`` for the next comparison with the same commit. Another commit, another Python or another
pinned compiler replaces the package. The libraries are those of the environment that this process runs in.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rig.machine import git
from rig.places import FOLDER, ROOT

BUILT = FOLDER / "pairs-base"
BUILD_SECONDS_MAX = 900
SAID_LINES = 12
PIP = ("-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
LOOK = "import json, keylanes; print(json.dumps([keylanes.__file__, keylanes.IS_COMPILED]))"


class NoBase(Exception):
    """There is nothing to compare with; the text says why, and what would help."""


def commit_of(revision: str) -> str:
    """The full hash of the commit that a revision names. Raises NoBase."""
    commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not commit:
        raise NoBase(
            f"there is no revision {revision!r} in {ROOT}; allowed is what git rev-parse knows: HEAD~1, a branch"
        )
    return commit


def package_of(commit: str) -> Path:
    """The folder that holds the package of a commit, compiled; made when it is missing. Raises NoBase."""
    folder = BUILT / f"{commit[:12]}-{tools()}"
    if not folder.exists():
        shutil.rmtree(BUILT, ignore_errors=True)
        print(f"building the package of {commit[:10]}, one to four minutes", flush=True)
        build(commit, folder)
    return folder


def tools() -> str:
    """A fingerprint of what builds: this Python, and the pinned compiler."""
    return hashlib.sha256(sys.version.encode() + (ROOT / "requirements" / "check.txt").read_bytes()).hexdigest()[:12]


def build(commit: str, folder: Path) -> None:
    """Build the package of a commit and install it into a folder, in one step. Raises NoBase."""
    work = folder.with_name("building")
    source, wheels, package = work / "source", work / "wheels", work / "package"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    isolated = ["--no-deps", "--no-index"]
    try:
        execute(commit, ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(source)])
        execute(commit, ["git", "-C", str(source), "checkout", "--quiet", "--detach", commit])
        wheel = ["wheel", *isolated, "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
        execute(commit, [sys.executable, *PIP, *wheel])
        (built,) = wheels.glob("*.whl")
        execute(commit, [sys.executable, *PIP, "install", *isolated, "--target", str(package), str(built)])
        package.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def execute(commit: str, call: list[str]) -> str:
    """What one step of a build printed. Raises NoBase with the end of what it said."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            call, cwd=FOLDER, env=given, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBase(f"{commit[:10]} can't be built: {error}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NoBase(f"{commit[:10]} can't be built, exit code {done.returncode}: {' / '.join(lines[-SAID_LINES:])}")
    return done.stdout


def environment(package: Path) -> dict[str, str]:
    """The variables of a process that imports keylanes from this folder."""
    return {**os.environ, "PYTHONPATH": str(package)}


def is_compiled(package: Path) -> bool:
    """Whether the package in a folder is compiled. Raises NoBase unless it is the one that is imported."""
    call = [sys.executable, "-P", "-c", LOOK]
    done = subprocess.run(call, env=environment(package), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoBase(f"the package in {package} can't be imported: {done.stderr.strip().splitlines()[-1]}")
    place, compiled = json.loads(done.stdout)
    if not Path(place).is_relative_to(package):
        raise NoBase(f"keylanes is imported from {place}, not from {package}")
    return bool(compiled)
