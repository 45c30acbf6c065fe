"""The process between a program and its broker, and the pinned jars: without Java, on a child that only sleeps."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keylanes.devkafka import guard as kafka_guard
from keylanes.devkafka.guard import process_start
from keylanes.devkafka.jars import Jar, damaged_jars, pinned_jars

from ..tiers.marks import tier

pytestmark = [pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"), tier("check")]

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
DEAF = [
    *SLEEP[:-1],
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(120)",
]
PROGRAM = """
import subprocess, sys, time
guard = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[0])
print(guard.pid, guard.stdout.readline().decode().strip(), flush=True)
time.sleep(120)
"""


def order(folder: Path, command: list[str], stop_seconds: float = 20.0, alone: str = "stop") -> list[str]:
    """The guard's command line."""
    argument = {
        "command": command,
        "out": str(folder / "out"),
        "state": str(folder / "state.json"),
        "stop_seconds": stop_seconds,
        "lock_fd": 0,
        "alone": alone,
        "facts": {"port": 1},
    }
    return [sys.executable, "-I", "-S", str(Path(kafka_guard.__file__)), json.dumps(argument)]


Start = Callable[..., tuple["subprocess.Popen[bytes]", int]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a guard; gives it and its child's pid."""
    guards: list[subprocess.Popen[bytes]] = []

    def run(
        command: list[str], stop_seconds: float = 20.0, alone: str = "stop"
    ) -> tuple["subprocess.Popen[bytes]", int]:
        guard = subprocess.Popen(
            order(tmp_path, command, stop_seconds, alone), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        guards.append(guard)
        assert guard.stdout is not None
        return guard, int(guard.stdout.readline())

    yield run
    for guard in guards:
        guard.kill()
        guard.wait()
        for pipe in (guard.stdin, guard.stdout):
            assert pipe is not None
            pipe.close()


def wait_gone(pid: int) -> None:
    """Return when a process has ended (what nobody has reaped yet has ended, too)."""
    until = time.monotonic() + 20
    while process_start(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.01)


def test_the_child_ends_with_its_program(tmp_path: Path) -> None:
    """A program that is killed with SIGKILL takes guard and child with it."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *order(tmp_path, SLEEP)], stdout=subprocess.PIPE)
    assert program.stdout is not None
    guard, child = map(int, program.stdout.readline().split())
    assert process_start(child)
    program.kill()
    program.communicate()
    wait_gone(child)
    wait_gone(guard)


def test_the_child_ends_with_its_guard(start: Start) -> None:
    """A guard that is killed with SIGKILL takes its child with it."""
    guard, child = start(SLEEP)
    guard.kill()
    wait_gone(child)


@pytest.mark.parametrize(
    ("how", "alone", "number"),
    [
        (b"stop\n", "stop", signal.SIGTERM),
        (b"", "stop", signal.SIGTERM),
        (signal.SIGTERM, "stop", signal.SIGTERM),
        (b"kill\n", "stop", signal.SIGKILL),
        (b"", "kill", signal.SIGKILL),
    ],
)
def test_the_child_is_ended_as_it_is_asked_for(
    start: Start, how: bytes | signal.Signals, alone: str, number: signal.Signals
) -> None:
    """``stop``, the end of input and SIGTERM each end the child by SIGTERM, ``kill`` by SIGKILL at once, and the guard
    with its code. Nodes of a cluster that is left alone end at once, and do not try to hand their leadership to each
    other: ``alone``.
    """
    guard, child = start(SLEEP if number == signal.SIGTERM else DEAF, alone=alone)
    assert guard.stdin is not None
    if isinstance(how, signal.Signals):
        guard.send_signal(how)
    elif how:
        guard.stdin.write(how)
    else:
        guard.stdin.close()
    assert guard.wait(20) == -number & 0xFF
    wait_gone(child)


def test_a_deaf_child_is_killed_after_the_time_limit(start: Start, tmp_path: Path) -> None:
    """A child that ignores SIGTERM gets SIGKILL when ``stop_seconds`` are over."""
    guard, child = start(DEAF, 0.2)
    until = time.monotonic() + 20
    while not (tmp_path / "out").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert guard.stdin is not None
    guard.stdin.write(b"stop\n")
    assert guard.wait(20) == -signal.SIGKILL & 0xFF
    wait_gone(child)


def test_a_child_that_ends_by_itself_ends_the_guard(start: Start) -> None:
    """The guard ends with its child's exit code, and keeps what it printed."""
    guard, _child = start([*SLEEP[:-1], "print('why'); raise SystemExit(7)"])
    assert guard.wait(20) == 7


def test_the_state_names_the_child(start: Start, tmp_path: Path) -> None:
    """The state file holds the facts given, and the pids with a start time that tells a re-used pid apart."""
    guard, child = start(SLEEP)
    state = json.loads((tmp_path / "state.json").read_text())
    assert state == {"port": 1, "pid": child, "pid_start": process_start(child), "guard": guard.pid}
    assert process_start(os.getpid()) not in ("", state["pid_start"])


def test_every_jar_is_pinned() -> None:
    """The list names each jar once, with a whole SHA-256 and a size, Kafka itself and a logger among them."""
    jars = pinned_jars()
    assert len({jar.file_name for jar in jars}) == len(jars) > 40
    assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.size > 1_000 for jar in jars)
    assert {"kafka_2.13-4.3.0.jar", "log4j-slf4j-impl-2.25.4.jar"} <= {jar.file_name for jar in jars}


def test_a_jar_is_damaged_when_a_byte_is_wrong(tmp_path: Path) -> None:
    """Missing files, other sizes and other contents are found; the intact one is not."""
    good = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of b"hello"
    jars = [Jar("org", name, "1", 5, good) for name in ("intact", "missing", "longer", "other")]
    for name, data in (("intact", b"hello"), ("longer", b"hello!"), ("other", b"hallo")):
        (tmp_path / f"{name}-1.jar").write_bytes(data)
    assert [jar.name for jar in damaged_jars(tmp_path, jars)] == ["missing", "longer", "other"]
