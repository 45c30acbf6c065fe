"""Processes that the tiers start: each in a session of its own, of which nothing is left behind."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
MEMORY_MIN: Final = 6 * 2**30
END_S_MAX: Final = 20
"""So long a process may take to end when it is told to."""


def machine() -> tuple[int, int]:
    """Cores and bytes of memory that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):  # it is not in a container, or "max"
        memory.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return cores, min(memory)


def too_small(cores: int, memory_bytes: int) -> str:
    """Why a machine can't run several test processes with brokers and Spark beside each other; "" where it can."""
    if memory_bytes < MEMORY_MIN:
        return f"{memory_bytes / 2**30:.1f} GiB of memory are less than {MEMORY_MIN // 2**30}"
    return "there is one core" if cores < 2 else ""


@contextlib.contextmanager
def started(command: Sequence[str], env: Mapping[str, str], **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """A process; behind the block it has ended, with all that it started in its session."""
    child = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, text=True, **options)
    try:
        yield child
    finally:
        _end(child)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Told to stop, the block ends by SystemExit, so that what it has started is ended."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(*, on_sources: bool) -> dict[str, str]:
    """Of a child that runs the compiled package, which dev.py puts in front of the path, or the sources."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)[on_sources:]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*path, str(ROOT)]))}


def git(*words: str) -> str:
    """What git says; "" where that fails."""
    try:
        answer = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _end(child: "subprocess.Popen[str]") -> None:
    for number, limit_s in ((signal.SIGTERM, END_S_MAX), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, number)
            child.wait(limit_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
