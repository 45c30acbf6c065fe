"""Rounds of chaos on a real Kafka, of one node or three, with one process or several: one after the other, each in
a process of its own.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .soak_book import BROKER, CLUSTER, GROUP, Book
from .soak_pool import DIED, ERRORS_BYTES_MAX, HUNG, ROOT, module_command
from .soak_worker import Failure

KILLS, RECORDS = 20, 200_000
STOPPED = "ms without progress, "
ROUND_S = 600.0
"""A round is begun when this much time is left, or what the longest round so far took."""
ROUND_LIMIT_S = 1_800.0
LINE_MAX = 1 << 24
MOVING: dict[str, Any] = {"is_moving": True, "busy_ms": 10.0}
GROUPS: list[dict[str, Any]] = [
    {},
    {"members": 8, "partitions": 1, **MOVING},
    {"members": 6, "partitions": 4, **MOVING},
]
"""Who shares what in a round in a group; every other one is on three nodes."""
PATIENCE_S = 60.0
"""So long a round that is told to end may take to end its broker and its processes."""


class Counted(msgspec.Struct, frozen=True):
    """What a round came to: its figures, flat, and the network's faults by kind. One that failed: why, and the
    violations that were found.
    """

    counts: dict[str, int] = {}
    faults: dict[str, int] = {}
    failure: Failure | None = None


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a round: something that happens, or how it ended. ``figures``: as the round made them; ``found``: what
    the audit of a round that failed has found, by kind.
    """

    line: str = ""
    figures: dict[str, Any] | None = None
    failure: Failure | None = None
    found: dict[str, int] = {}


def counted(figures: Mapping[str, Any]) -> Counted:
    """Figures as they add up. What has a name of two words has it with a space. On a cluster and in a group each
    fault is counted, and for how many ms it stopped progress.
    """
    flat = {name: value for name, value in figures.items() if type(value) is int and name != "seed"}
    stops: list[tuple[str, float]] = figures.get("stops", [])
    stopped: Counter[str] = Counter()
    for name, seconds in stops:
        stopped[f"{STOPPED}{name}"] += round(seconds * 1000)
    expelled = {f"expelled as {cause}": count for cause, count in figures.get("expelled", {}).items()}
    moved = {f"moved by {cause}": count for cause, count in figures.get("moves", {}).items()}
    counts = {**flat, **figures.get("changes", {}), **expelled, **moved, **figures["found"], **stopped}
    faults = {**figures.get("faults", {}), **Counter(name for name, _ in stops)}
    return Counted({name.replace("_", " "): count for name, count in counts.items()}, faults)


def wants_round(book: Book, part: str, wanted: Mapping[str, int]) -> bool:
    """Whether the rounds of a part so far do not yet make so many of each."""
    total = book.total(part)
    return any(total[name] < count for name, count in wanted.items())


def round_of(part: str, seed: int) -> dict[str, Any]:
    """What one round is; see ``GROUPS``."""
    more: dict[str, dict[str, Any]] = {
        BROKER: {"kills": KILLS, "records": RECORDS},
        CLUSTER: {"is_whole": True},
        GROUP: {"is_whole": True, "nodes": 3 if seed % 2 else 1, **GROUPS[seed // 2 % len(GROUPS)]},
    }
    return {"seed": seed, **more[part]}


async def run_round(
    seed: int,
    folder: Path,
    tell: Callable[[str], None],
    is_told: Callable[[], bool],
    command: Sequence[str] = (),
    part: str = BROKER,
) -> Counted | None:
    """One round; None when somebody asked to end meanwhile. ``command``: another program in the round's place."""
    shutil.rmtree(folder, ignore_errors=True)
    round_ = msgspec.json.encode(round_of(part, seed)).decode()
    with tempfile.TemporaryFile() as errors:
        child = await asyncio.create_subprocess_exec(
            *(command or module_command("tests.simulation.soak_round")),
            round_,
            str(folder),
            part,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            limit=LINE_MAX,
            start_new_session=True,  # the terminal's interrupt is for us
        )
        listening = asyncio.create_task(_listen(child, tell))
        try:
            is_hung = not await _is_done(listening, is_told)
            found = None if is_hung else listening.result()
        finally:
            is_ending = listening.done()
            listening.cancel()
            code = await _end(child, is_ending=is_ending)
        if is_told() and is_hung:
            shutil.rmtree(folder, ignore_errors=True)
            return None
        if found is not None:
            return found
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - ERRORS_BYTES_MAX))
        said = errors.read().decode(errors="replace")
        reason = f"{HUNG}: no end" if is_hung else f"{DIED}: exit code {code}"
        return Counted(failure=Failure(reason, f"seed {seed}\n{said}"))


async def _listen(child: asyncio.subprocess.Process, tell: Callable[[str], None]) -> Counted | None:
    assert child.stdout is not None, "it was asked for"
    async for line in child.stdout:
        told = msgspec.json.decode(line, type=Told)
        if told.figures is not None:
            return counted(told.figures)
        if told.failure is not None:
            return Counted(told.found, failure=told.failure)
        tell(told.line)
    return None


async def _is_done(listening: "asyncio.Task[Counted | None]", is_told: Callable[[], bool]) -> bool:
    """Wait for the round, for an end that somebody asks for, or for the limit; whether the round is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ROUND_LIMIT_S
    while loop.time() < until_s and not is_told():
        if (await asyncio.wait([listening], timeout=0.5))[0]:
            return True
    return listening.done()


async def _end(child: asyncio.subprocess.Process, *, is_ending: bool) -> int:
    """The child and all that it started are gone; its exit code. A round that is not over is told to end."""
    if is_ending:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                return await child.wait()
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        os.kill(child.pid, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            return await child.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return await child.wait()
