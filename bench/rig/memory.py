"""The memory of a process and of all that it started, as Linux counts it."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

PROCESSES = Path("/proc")


def family(process: int, processes: Path = PROCESSES) -> list[int]:
    """A process and all that it started, and these; who has ended meanwhile is left out."""
    found = [process]
    for one in found:
        for path in (processes / f"{one}" / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
    return found


def shared_out_bytes(members: Iterable[int], processes: Path = PROCESSES) -> int:
    """The memory of all of them: what several share counts once (*proportional set size*)."""
    return sum(_pss_bytes(processes / f"{one}" / "smaps_rollup") for one in members)


def _pss_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
