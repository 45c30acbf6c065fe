"""The arms: what each is called, which program runs it, and the environment that this program needs.

Environments are made once, in ``.keylanes/bench``: one of its own for each foreign Python library, from hash-pinned
files, and the Java drivers, built by Maven. What cannot be made here is told as a reason: its arms are skipped.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keylanes.devkafka.java import java_home
from keylanes.errors import KeylanesError
from rig.drivers import Driver
from rig.errors import Skipped
from rig.places import FOLDER, PEERS, ROOT

ENVIRONMENTS = FOLDER / "env"
JAVA_BUILD = FOLDER / "java"
JAVA_OPTIONS = ("-Xmx2g", "-XX:+UseParallelGC")
"""The collector that every Java arm is fastest with on two cores."""
SET_UP_SECONDS_MAX = 900
STAMP = "keylanes-stamp"


@dataclass(frozen=True)
class Arm:
    """``program`` is a file in ``bench/peers``, or ``java``; ``environment`` a pinned file there, empty for our own.
    ``parallel``: so many processes of ours, or threads of Kafka Streams.
    """

    name: str
    title: str
    program: str
    environment: str = ""
    python_min: tuple[int, int] = (3, 11)
    is_exactly_once: bool = False
    parallel: int = 1


ARMS = {
    arm.name: arm
    for arm in (
        Arm("keylanes", "keylanes, exactly once", "keylanes_app.py", is_exactly_once=True),
        Arm(
            "keylanes-2",
            "keylanes in 2 processes, exactly once",
            "keylanes_processes_app.py",
            is_exactly_once=True,
            parallel=2,
        ),
        Arm("getmany", "aiokafka getmany, nothing committed", "aiokafka_loops.py"),
        Arm("bare-lanes", "bare asyncio lanes, nothing committed", "aiokafka_loops.py"),
        Arm("aiokafka-serial", "aiokafka, one at a time", "aiokafka_loops.py"),
        Arm("parallel-consumer-core", "Parallel Consumer, core", "java"),
        Arm("parallel-consumer-reactor", "Parallel Consumer, reactor", "java"),
        Arm("streams-eos", "Kafka Streams, exactly once", "java", is_exactly_once=True),
        Arm("streams-eos-2", "Kafka Streams with 2 threads, exactly once", "java", is_exactly_once=True, parallel=2),
        Arm("streams-alo", "Kafka Streams, at least once", "java"),
        Arm("quix-eos", "Quix Streams, exactly once", "quix_app.py", "quix", is_exactly_once=True),
        Arm("quix-alo", "Quix Streams, at least once", "quix_app.py", "quix"),
        Arm("flechtwerk", "Flechtwerk, exactly once", "flechtwerk_app.py", "flechtwerk", (3, 12), is_exactly_once=True),
        Arm("pyrallel", "Pyrallel-Consumer", "pyrallel_app.py", "pyrallel", (3, 12)),
    )
}


def command(arm: Arm) -> list[str]:
    """What runs an arm, before its order; makes its environment. Raises Skipped."""
    if arm.program == "java":
        return java_command()
    python = python_of(arm.environment, arm.python_min) if arm.environment else sys.executable
    return [python, str(PEERS / arm.program)]


def driver(arm: str, order: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Driver:
    """Start an arm, with these variables or else those of this process. The folder that its order names is its own;
    what the harness keeps is beside it.
    """
    own_folder = Path(order["folder"])
    own_folder.mkdir(parents=True, exist_ok=True)
    return Driver(command(ARMS[arm]), {**order, "arm": arm, "parallel": ARMS[arm].parallel}, own_folder.parent, env=env)


def ready(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(arm, why it is skipped or nothing) for each arm, after its environment is made."""
    for name in names:
        try:
            command(ARMS[name])
        except Skipped as reason:
            yield name, str(reason)
        else:
            yield name, ""


# --- Python -------------------------------------------------------------------------------------------------------


@functools.cache
def python_of(name: str, least: tuple[int, int]) -> str:
    """The Python of the environment that ``requirements/NAME.txt`` pins; made when it is missing or out of date."""
    pinned = PEERS / "requirements" / f"{name}.txt"
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / STAMP
    digest = hashlib.sha256(pinned.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return str(python)
    base = find_python(least)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"making the environment {name} …", flush=True)
    uv = find_uv()
    if uv:
        run_step(name, [uv, "venv", "--quiet", "--python", base, str(folder)])
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        run_step(name, [base, "-m", "venv", str(folder)])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    run_step(name, [*install, "--require-hashes", "-r", str(pinned)])
    stamp.write_text(digest)
    return str(python)


def find_uv() -> str | None:
    """The uv on the path or beside this Python."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def find_python(least: tuple[int, int]) -> str:
    """A Python that is new enough and works: this one, one on the path, one of pyenv, one that uv knows or brings."""
    if sys.version_info[:2] >= least:
        return sys.executable
    names = [f"python3.{minor}" for minor in (13, 12) if (3, minor) >= least]
    found = [path for name in names if (path := shutil.which(name))]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(path) for name in names for path in sorted(root.glob(f"*/bin/{name}"), reverse=True)]
    uv, wanted = find_uv(), ".".join(map(str, least))
    if uv:
        found.append(_answer([uv, "python", "find", f">={wanted}"]))
    for path in found:
        if path and _answer([path, "-c", "import sys; print(sys.version_info[:2] >= " + str(least) + ")"]) == "True":
            return path
    if uv:
        _answer([uv, "python", "install", wanted])
        path = _answer([uv, "python", "find", f">={wanted}"])
        if path:
            return path
    raise Skipped(f"needs Python {wanted} or newer, and there is none")


def _answer(call: list[str]) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=SET_UP_SECONDS_MAX)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def run_step(what: str, call: list[str]) -> None:
    """One step of a set-up; raises Skipped with the end of what it said."""
    try:
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SET_UP_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        raise Skipped(f"setting up {what} failed: {error}") from error
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Skipped(f"setting up {what} failed: {' / '.join(said[-3:])[:300]}")


# --- Java ---------------------------------------------------------------------------------------------------------


@functools.cache
def java_command() -> list[str]:
    """Builds the Java drivers where their sources changed; the command that takes an order. Raises Skipped."""
    source = PEERS / "java"
    if not (source / "pom.xml").exists():
        raise Skipped("the Java drivers are missing")
    try:
        java = java_home()
    except KeylanesError as error:
        raise Skipped(f"no Java: {error}") from error
    digest = _digest_of(source)
    stamp = JAVA_BUILD / STAMP
    if not (stamp.exists() and stamp.read_text() == digest):
        maven = shutil.which("mvn")
        if maven is None:
            raise Skipped("Maven (mvn) is not on the path")
        print("building the Java drivers …", flush=True)
        shutil.rmtree(JAVA_BUILD, ignore_errors=True)
        JAVA_BUILD.mkdir(parents=True)
        pom = ["-f", str(source / "pom.xml"), f"-Dkeylanes.build={JAVA_BUILD}"]
        run_step("the Java drivers", [maven, "-q", "-B", *pom, "package"])
        stamp.write_text(digest)
    path = os.pathsep.join([str(JAVA_BUILD / "classes"), str(JAVA_BUILD / "lib" / "*")])
    return [str(java.java), *JAVA_OPTIONS, "-cp", path, "keylanes.bench.Main"]


def _digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
