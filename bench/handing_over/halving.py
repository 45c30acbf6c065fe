"""Half of the state goes to another member, under load, and records are late around that moment.

Two members, two source partitions. All state is in the first partition, which one member owns; half of its points go to
the other one, which owns the second partition: in one range, in four one after the other, or in sixteen. Cold is what
it was before copies: each member owns half of both partitions, and one of them stops and waits for nobody, so the other
one has no copy of half of the state. The curves of Megaphone (Hoffmann et al., VLDB 2019) are drawn like that.
"""

import time
from dataclasses import replace
from typing import Any

from handing_over.carrying import FILLED_S_MAX, MOVE_S_MAX, MOVE_S_PER_GB, SETTLE_S, filled, once
from handing_over.load import keys_of
from handing_over.stage import Stage, Work, begun, cut, said, staged
from handing_over.state_sizes import CHANGE_EVERY, COPY_BYTES_PER_S, FEW_LOOKS, PIECES, StateSize, entries_of
from handing_over.stops import curve, ended_of, longest_gap_ms, stood
from keylanes.keyrange.hashing import SPACE_END
from rig.child import run_coroutine
from rig.ground import Ground
from rig.logs import Logs
from rig.notes import Points
from rig.witness import WrongRun

FACTOR, KEYS, PARTITIONS = 64, 20_000, 2
NAMES = ("m1", "m2")
SHARED_S_MAX = 60.0
WHOLE = {Points(0, 0, SPACE_END): "m1", Points(1, 0, SPACE_END): "m2"}
HALVES = {
    Points(partition, first, end): name
    for partition in range(PARTITIONS)
    for name, first, end in (("m1", 0, SPACE_END // 2), ("m2", SPACE_END // 2, SPACE_END))
}
BEFORE_S = 5.0


def run(ground: Ground, arm: str, suffix: str, size: StateSize) -> dict[str, Any]:
    """The figures of a way. Raises WrongRun."""
    is_cold = arm == "cold"
    heavy = sum(key.partition == 0 for key in keys_of(KEYS, PARTITIONS))
    seconds = 2 * SETTLE_S + 2 * size.watch_s + MOVE_S_MAX + size.other_gb * MOVE_S_PER_GB
    work = Work(
        partitions=PARTITIONS,
        factor=FACTOR,
        keys=KEYS,
        records_max=KEYS + int(size.per_second * seconds),
        entries=entries_of(size.other_gb, heavy),
        heavy=(0, 0, SPACE_END),
        change_every=CHANGE_EVERY,
        settings={"copy_bytes_per_s": COPY_BYTES_PER_S, **FEW_LOOKS},
    )
    if is_cold:
        work = replace(work, settings={**work.settings, "leave_ms": 0, "return_ms": 0})
    with staged(ground, f"curves-{suffix}", work) as stage:
        return run_coroutine(_run(stage, arm, size))


async def _run(stage: Stage, arm: str, size: StateSize) -> dict[str, Any]:
    is_cold = arm == "cold"
    async with begun(stage, *NAMES) as logs:
        await stage.steady(logs)
        await logs.share(HALVES if is_cold else WHOLE, SHARED_S_MAX)
        await stage.rested(logs, BEFORE_S)  # who had a part before keeps its copy for some time
        stage.begin_load(once(stage), stage.phase(size.per_second))
        await filled(stage, logs)
        stage.next_phase()
        await logs.watch(SETTLE_S + BEFORE_S)
        asked_s = time.monotonic()
        await (_stop(stage, logs) if is_cold else _move(logs, PIECES[arm], size))
        took_s = time.monotonic() - asked_s
        said(f"{arm}: {took_s:.1f} s")
        await logs.watch(max(size.watch_s - took_s, BEFORE_S))
        until_s = time.monotonic()
        records = stage.end_load()
        await stage.handled(logs, records, FILLED_S_MAX)
        stage.stop(*stage.running)
    notes, points = stage.proven(logs), stage.points()
    ended = ended_of(notes, None, points)
    asked_ns, until_ns = int(asked_s * 1e9), int(until_s * 1e9)
    moved = Points(0, 0, SPACE_END // 2)
    return {
        "took_s": took_s,
        "gap_ms": longest_gap_ms(ended_of(notes, moved, points), asked_ns, until_ns),
        "late_ms_max": max((one.late_us / 1e3 for one in ended if one.at_ns >= asked_ns), default=0.0),
        "stood": stood(ended, asked_ns, until_ns),
        "records": records,
        "read_bytes": stage.total("changelog_bytes"),
        "copied_bytes": stage.total("copied_bytes"),
        "curve": [list(late) for late in curve(ended, asked_ns, -BEFORE_S, until_s - asked_s)],
    }


async def _move(logs: Logs, pieces: int, size: StateSize) -> None:
    """One piece after the other. Raises WrongRun."""
    seconds_max = MOVE_S_MAX + size.other_gb * MOVE_S_PER_GB
    cells = cut(Points(0, 0, SPACE_END), 2 * pieces)[:pieces]
    for piece in cells:
        if not await logs.moved(piece, "m2", seconds_max):
            raise WrongRun(f"{piece} did not move within {seconds_max:g} s")


async def _stop(stage: Stage, logs: Logs) -> None:
    """The first member stops; until the other one works on all."""
    stage.stop("m1")
    await stage.steady(logs)
