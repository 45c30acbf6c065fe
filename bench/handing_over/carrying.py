"""A range with state goes to another member and back again, under load, and stands still meanwhile.

Two members have half of one source partition each. A thirty-second part of its points holds the state, so that the
members' loads stay even enough that nothing else is moved for them. It is filled beforehand. What its keys' records saw
is told for each move; and how late the records of all points were, and what the ranges that stay saw.
"""

import asyncio
import time
from typing import Any

from handing_over.load import keys_of
from handing_over.moving import figures_of, has_until_s, is_done, stays_of
from handing_over.sizes import CHANGE_EVERY, COPY_BYTES_PER_S, LARGE_MOVES, Size, arm_of, entries_of
from handing_over.stage import Stage, Work, begun, cut, said, staged
from handing_over.stops import ended_of, longest_gap_ms
from keylanes.group.plans import REQUEST
from keylanes.keyrange.hashing import SPACE_END
from rig.child import run_coroutine
from rig.errors import WrongRun
from rig.gaps import percentile
from rig.ground import Ground
from rig.logs import Logs, ahead_s
from rig.notes import Notes, Points

FACTOR, KEYS = 64, 40_000
NAMES = ("m1", "m2")
CELLS = cut(Points(0, 0, SPACE_END), FACTOR)
MOVER = Points(0, CELLS[0].first, CELLS[1].end)
HALVES = {Points(0, 0, SPACE_END // 2): "m1", Points(0, SPACE_END // 2, SPACE_END): "m2"}
STAYS = {Points(0, CELLS[2].first, SPACE_END // 2): "m1", Points(0, SPACE_END // 2, SPACE_END): "m2"}
SETTLE_S, SHARED_S_MAX, FILLED_S_MAX = 3.0, 60.0, 1_800.0
MOVE_S_MAX, MOVE_S_PER_GB = 60.0, 120.0
BEHIND_S = 1.0
"""So long behind a move its stop is still looked for."""


def run(ground: Ground, arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of one size of state. Raises WrongRun."""
    gb = next(gb for gb in (*size.state_gb, size.large_gb) if arm_of(gb) == arm)
    heavy = sum(MOVER.first <= key.point < MOVER.end for key in keys_of(KEYS, 1))
    moves = LARGE_MOVES if gb == size.large_gb else size.state_moves
    seconds = 2 * SETTLE_S + size.watch_s + moves * (size.rest_s + 10 + gb * MOVE_S_PER_GB)
    work = Work(
        partitions=1,
        factor=FACTOR,
        keys=KEYS,
        records_max=KEYS + int(size.per_second * seconds),
        entries=entries_of(gb, heavy),
        heavy=MOVER,
        change_every=CHANGE_EVERY,
        settings={"copy_bytes_per_s": COPY_BYTES_PER_S},
    )
    with staged(ground, f"state-{suffix}", work) as stage:
        return run_coroutine(_run(stage, gb, moves, size))


async def filled(stage: Stage, logs: Logs) -> None:
    """Have the load send each key once, and wait until that is handled."""
    sent = asyncio.create_task(asyncio.to_thread(stage.filled))
    while not sent.done():
        await logs.watch(SETTLE_S / 10)  # a reader that is not asked for long loses its broker
    began_s = time.monotonic()
    await stage.handled(logs, await sent, FILLED_S_MAX)
    said(f"filled; {time.monotonic() - began_s:.0f} s behind the last record")


async def _run(stage: Stage, gb: float, moves: int, size: Size) -> dict[str, Any]:
    asked: list[tuple[float, float]] = []
    failed = 0
    async with begun(stage, *NAMES) as logs:
        await stage.steady(logs)
        await logs.share(HALVES, SHARED_S_MAX)
        stage.begin_load(stage.once(), stage.phase(size.per_second))
        await filled(stage, logs)
        stage.next_phase()
        await logs.watch(SETTLE_S)
        calm = await logs.watch(size.watch_s)
        since_s = time.monotonic()
        for number in range(moves):
            asked_s = time.monotonic()
            failed += not await logs.moved(MOVER, NAMES[1 - number % 2], MOVE_S_MAX + gb * MOVE_S_PER_GB)
            asked.append((asked_s, time.monotonic()))
            said(f"{gb:g} GB, move {number + 1} of {moves}: {asked[-1][1] - asked_s:.1f} s from the request")
            await logs.watch(size.rest_s)
        busy = since_s, time.monotonic()
        records = stage.end_load()
        await stage.handled(logs, records)
        await logs.watch(0.5)
        members = logs.names()
        stage.stop(*NAMES)
        ahead = ahead_s()
        done = [move for move in logs.moves() if is_done(move, calm[0] + ahead)]
        stays = stays_of(logs.commits, members, STAYS, ahead, calm, busy)
    notes, points = stage.proven(logs), stage.points()
    own = [move for move in done if move.cause == REQUEST]
    told = [figures_of(move, notes, points, ahead, has_until_s(move, done, ahead)) for move in own]
    if not any(told):
        raise WrongRun(f"of {len(own)} moves none has records on both sides")
    return {
        "gb": gb,
        "records": records,
        "failed": failed,
        "moves": [one for one in told if one is not None],
        "asked": seen(notes, points, asked),
        "calm_late_p99_ms": late_p99_ms(notes, points, calm),
        "busy_late_p99_ms": late_p99_ms(notes, points, busy),
        **stays,
    }


def seen(notes: list[Notes], points: Any, asked: list[tuple[float, float]]) -> list[dict[str, float]]:
    """Of each request its time, and the longest gap between records of the range."""
    ended = ended_of(notes, MOVER, points)
    found = []
    for asked_s, done_s in asked:
        gap_ms = longest_gap_ms(ended, int(asked_s * 1e9), int((done_s + BEHIND_S) * 1e9))
        found.append({"took_s": done_s - asked_s, "gap_ms": gap_ms})
    return found


def late_p99_ms(notes: list[Notes], points: Any, window: tuple[float, float]) -> float:
    """How late the records of all points were that ended in a window."""
    since_ns, until_ns = (int(at_s * 1e9) for at_s in window)
    late = [one.late_us / 1e3 for one in ended_of(notes, None, points) if since_ns <= one.at_ns < until_ns]
    return percentile(late, 0.99)
