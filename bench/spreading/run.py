"""One run: a source that was filled before, a handler that computes, and so many processes of one parent."""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rig.child import run_coroutine
from rig.drivers import Driver, run_peer
from rig.errors import WrongRun
from rig.ground import Ground
from rig.logs import ahead_s, whole
from rig.memory import family, shared_out_bytes
from rig.notes import Notes, Unproven, notes_of, prove
from rig.records import counts_of, keys_of
from spreading.moving import ask_moves, handed_over_ms

KEYS = 10_000
LOOK_S, RUN_S_MAX = 0.1, 180.0
WEIGH_LOOKS = 10
"""Memory is looked at each so many looks."""
MOVES_FROM = 0.6
"""On one partition hand-overs are asked for when this part of the records was handled."""
STEADY_S_MIN = 1.0
NOTES_MORE = 1_000
THREADS = 16

Samples = list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Size:
    """``records`` of a run, by µs of processor time per record; ``processes`` of the arms, by part."""

    rounds: int
    records: Mapping[int, int]
    processes: Mapping[str, Sequence[int]]


PROCESSES = {"1000us": (1, 2), "100us": (1, 2, 4, 8)}
"""More than there are cores show what they cost: where the rest is cheap."""
SIZES = {
    "tiny": Size(rounds=1, records={1_000: 1_000, 100: 10_000}, processes={"1000us": (1, 2), "100us": (1, 2)}),
    "quick": Size(rounds=1, records={1_000: 8_000, 100: 100_000}, processes=PROCESSES),
    "full": Size(rounds=3, records={1_000: 20_000, 100: 200_000}, processes=PROCESSES),
}


class Arm(NamedTuple):
    """So many source partitions, in so many processes."""

    partitions: int
    processes: int

    @classmethod
    def of(cls, name: str) -> "Arm":
        """The arm of this name."""
        return cls(*map(int, name.split(", ")))

    @property
    def name(self) -> str:
        """As it is called in the book."""
        return f"{self.partitions}, {self.processes}"

    @property
    def has_moves(self) -> bool:
        """Whether hand-overs are asked for: where that makes nobody read more."""
        return self.partitions == 1 and self.processes > 1


class Seen(NamedTuple):
    """What the harness saw. ``moved_ns``: when hand-overs were asked for first; None: they were not."""

    memory_bytes: int
    moved_ns: int | None


def run(spin_us: int) -> Callable[[Ground, str, str, Size], dict[str, Any]]:
    """What runs an arm of the handler that uses so much processor time."""
    return lambda ground, arm, suffix, size: run_arm(ground, spin_us, Arm.of(arm), size.records[spin_us], suffix)


def run_arm(ground: Ground, spin_us: int, arm: Arm, records: int, suffix: str) -> dict[str, Any]:
    """The figures of an arm. Raises WrongRun."""
    source = {"distribution": "uniform", "records": records, "keys": KEYS, "partitions": arm.partitions}
    topic = f"cores-{records}-{arm.partitions}"
    ground.fill(topic, source)
    with ground.scratch(f"cores-{suffix}") as folder:
        order: dict[str, Any] = {
            "bootstrap": ground.bootstrap,
            "topic": topic,
            "group": f"cores-{suffix}",
            "processes": arm.processes,
            "threads": THREADS,
            "spin_us": spin_us,
            "notes": str(folder / "notes"),
            "notes_max": records + NOTES_MORE,
            "samples": str(folder / "samples"),
        }
        with run_peer("cores_app.py", order, folder / "app") as driver:
            seen = run_coroutine(_watched(driver, folder, arm, order, records))
            driver.process.send_signal(signal.SIGTERM)
            driver.end()
        notes = [notes_of((folder / f"notes-{n}").read_bytes(), f"{n}") for n in range(1, arm.processes + 1)]
        try:
            prove(notes, counts_of(keys_of("uniform", records, KEYS), KEYS))
        except Unproven as error:
            raise WrongRun(str(error)) from None
        samples = [_samples(folder, n) for n in range(1, arm.processes + 1)]
        moves = run_coroutine(whole(ground.bootstrap, order["group"], topic)).moves()
        return {
            **figures_of(notes, samples, records, seen.moved_ns),
            "handed_over_ms": handed_over_ms(moves, ends_of(notes)[1] + ahead_s()),
            "memory_bytes": seen.memory_bytes,
        }


def _samples(folder: Path, number: int) -> Samples:
    path = folder / f"samples-{number}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


async def _watched(driver: Driver, folder: Path, arm: Arm, order: dict[str, Any], records: int) -> Seen:
    """Until all is handled. Raises WrongRun when it takes too long, or the parent ends."""
    until_s, looks, memory_bytes, moved_ns = time.monotonic() + RUN_S_MAX, 0, 0, None
    mover: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            done = sum(int(of[-1]["records"]) for n in range(1, arm.processes + 1) if (of := _samples(folder, n)))
            looks += 1
            if looks % WEIGH_LOOKS == 0:
                memory_bytes = max(memory_bytes, shared_out_bytes(family(driver.process.pid)))
            if done >= records:
                return Seen(memory_bytes, moved_ns)
            if driver.process.poll() is not None or time.monotonic() > until_s:
                raise WrongRun(f"{done:,} of {records:,} records were handled: {driver.last_words()}")
            if mover is None and arm.has_moves and done >= MOVES_FROM * records:
                moved_ns = time.monotonic_ns()
                asked = ask_moves(order["bootstrap"], order["group"], order["topic"], arm.partitions)
                mover = asyncio.create_task(asked)
    finally:
        if mover is not None:
            mover.cancel()
            await asyncio.gather(mover, return_exceptions=True)


def ends_of(notes: Sequence[Notes]) -> tuple[float, float]:
    """From the first record of all that began to the last that ended."""
    began_ns = min(min(of.began_ns) for of in notes if of.began_ns)
    return began_ns / 1e9, max(of.ended_ns[-1] for of in notes if of.ended_ns) / 1e9


def figures_of(
    notes: Sequence[Notes], samples: Sequence[Samples], records: int, moved_ns: int | None = None
) -> dict[str, Any]:
    """Of the whole run, from the first record of all that began to the last that ended; and of its steady part: from
    when all had begun that had anything to do until the first of them had nothing left, or hand-overs were asked for.
    By then all is read, for readers are ahead of handlers; who takes something over reads from there on once more.
    """
    began_s, ended_s = ends_of(notes)
    cpu_s = 0.0
    for of in samples:
        before = [one["cpu_s"] for one in of if one["at_s"] <= began_s]
        then = [one["cpu_s"] for one in of if one["at_s"] <= ended_s + LOOK_S]
        cpu_s += (then[-1] if then else 0.0) - (before[-1] if before else 0.0)
    at_work = [of for of in notes if of.began_ns]
    spread_ns = max(min(of.began_ns) for of in at_work)
    until_ns = min([of.ended_ns[-1] for of in at_work] + ([] if moved_ns is None else [moved_ns]))
    told_s = ended_s + LOOK_S if moved_ns is None else moved_ns / 1e9
    read = [max((one["records_read"] for one in of if one["at_s"] <= told_s), default=0) for of in samples]
    steady_s = (until_ns - spread_ns) / 1e9
    steady = sum(len(of.within(spread_ns, until_ns)) for of in at_work) / steady_s if steady_s >= STEADY_S_MIN else None
    return {
        "records": records,
        "per_second": records / (ended_s - began_s),
        "steady_per_second": steady,
        "spread_s": spread_ns / 1e9 - began_s,
        "at_work": len(at_work),
        "read": sum(read) / records,
        "cpu_us_per_record": cpu_s / records * 1e6,
        "shares": [len(of.ended_ns) / records for of in notes],
    }
