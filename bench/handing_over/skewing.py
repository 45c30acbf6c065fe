"""Four members on four partitions, whose traffic is skewed from a moment on: when the load is even again.

Nothing is asked for here: the placement has to see it. Arm "partition": all records go to one source partition; "keys":
to the first quarter of the points of two of them. The load of a member is the time that its handlers took, as it noted
it itself, and so is that of each cell of the declared cut, which is the unit that can't be parted.
"""

import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from handing_over.balance import EVEN, Look, allowed, even_from_s, least_points
from handing_over.sizes import Size
from handing_over.stage import Stage, Work, begun, cut, names_of, said, staged
from keylanes.group.happened import Move
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import even_bounds
from rig.child import run_coroutine
from rig.ground import Ground
from rig.logs import Logs, ahead_s
from rig.notes import Notes, Points

MEMBERS, PARTITIONS, FACTOR = 4, 4, 64
WAIT_MS, RATE = 5.0, 4_000.0
PHASES: dict[str, tuple[tuple[int, ...], int]] = {"partition": ((0,), SPACE_END), "keys": ((0, 1), SPACE_END // 4)}
"""By arm: which partitions the records go to then, and up to which point."""
BEFORE_S, BEFORE_S_MAX = 6.0, 40.0
"""The load is skewed when for so long nothing has moved under an even one."""
LOOK_S, STEP_S = 4.0, 0.5
"""A look sees so much time, and they follow each other so closely."""
EVEN_S = 10.0
"""When a load was even for so long, the run is over."""


def run(ground: Ground, arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of an arm. Raises WrongRun."""
    seconds = BEFORE_S_MAX + size.skew_s + EVEN_S
    work = Work(partitions=PARTITIONS, factor=FACTOR, wait_ms=WAIT_MS, records_max=int(RATE * seconds * 1.5))
    with staged(ground, f"skew-{suffix}", work) as stage:
        return run_coroutine(_run(stage, arm, size))


async def _run(stage: Stage, arm: str, size: Size) -> dict[str, Any]:
    names, (partitions, end) = names_of(MEMBERS), PHASES[arm]
    async with begun(stage, *names) as logs:
        await stage.steady(logs, to_all=True)
        stage.begin_load(stage.phase(RATE), stage.phase(RATE, partitions, 0, end))
        await _settled(logs)
        owners = owners_of(logs)
        skewed_s = stage.next_phase()
        said(f"skewed to {arm}")
        until_s = await _watch(stage, logs, skewed_s, size.skew_s)
        records = stage.end_load()
        await stage.handled(logs, records)
        stage.stop(*names)
        ahead = ahead_s()
        moves = [move for move in logs.moves() if (move.granted_ms or 0) / 1e3 - ahead >= skewed_s]
    notes = stage.proven(logs)
    return figures_of(notes, stage.points(), owners, moves, (skewed_s, until_s))


async def _settled(logs: Logs) -> None:
    """Until nothing moves, for a bounded time."""
    until_s, since_s, before = time.monotonic() + BEFORE_S_MAX, time.monotonic(), -1
    while time.monotonic() < min(until_s, since_s + BEFORE_S):
        await logs.watch(STEP_S)
        if (move_max := logs.ledger.control.moves.move_max) != before or logs.ledger.control.moves.asked:
            before, since_s = move_max, time.monotonic()


async def _watch(stage: Stage, logs: Logs, skewed_s: float, seconds: float) -> float:
    """Until the load was even for long enough, or the time is over; when that was."""
    even_s: float | None = None
    while (now_s := time.monotonic()) < skewed_s + seconds:
        await logs.watch(STEP_S)
        stage.look()
        if now_s < skewed_s + LOOK_S:
            continue
        busy = {}
        for name in stage.running:
            samples = [one for one in stage.samples(name) if one["at_s"] >= now_s - LOOK_S]
            busy[name] = samples[-1]["busy_s"] - samples[0]["busy_s"] if samples else 0.0
        if Look(now_s, busy).unevenness > EVEN:
            even_s = None
        elif even_s is None:
            even_s = now_s
        elif now_s - even_s >= EVEN_S:
            break
    return time.monotonic()


def owners_of(logs: Logs) -> dict[Points, str]:
    """Of each unit."""
    units = [unit for partition in range(PARTITIONS) for unit in cut(Points(partition, 0, SPACE_END), FACTOR)]
    return {unit: logs.owner(unit) for unit in units}


def figures_of(
    notes: Sequence[Notes],
    points: "array[int]",
    owners: Mapping[Points, str],
    moves: Sequence[Move],
    window_s: tuple[float, float],
) -> dict[str, Any]:
    """Of a run that was skewed in this window of the monotonic clock. ``owners``: of the units, before it."""
    since_s, until_s = window_s
    loads = loads_of(notes, points, window_s)
    most = allowed(loads, len(notes))
    looks = looks_of(notes, since_s + LOOK_S, until_s)
    even_s = even_from_s(looks, most)
    going = [move for move in moves if move.origin is not None and move.target not in (None, move.origin)]
    moved = sum(move.end - move.first for move in going)
    least = least_points(loads, owners, len(notes), most)
    whole = sum(loads.values())
    return {
        "even_after_s": None if even_s is None else max(even_s - LOOK_S - since_s, 0.0),
        "unevenness_at_end": looks[-1].unevenness if looks else 0.0,
        "allowed": most,
        "heaviest_share": max(loads.values()) / whole,
        "moves": len(going),
        "moved": moved / SPACE_END,
        "least": least / SPACE_END,
        "looks": [[look.at_s - since_s, look.unevenness] for look in looks_of(notes, since_s, until_s)],
        "causes": dict(Counter(move.cause for move in going)),
    }


def loads_of(notes: Sequence[Notes], points: "array[int]", window_s: tuple[float, float]) -> dict[Points, float]:
    """What the handlers of each unit took in a window, in seconds."""
    bounds = even_bounds(FACTOR)
    loads: Counter[tuple[int, int]] = Counter()
    for of in notes:
        for at in of.within(int(window_s[0] * 1e9), int(window_s[1] * 1e9)):
            cell = bisect_right(bounds, points[of.key[at]]) - 1
            loads[of.partition[at], cell] += of.ended_ns[at] - of.began_ns[at]
    return {Points(partition, bounds[n], bounds[n + 1]): load / 1e9 for (partition, n), load in loads.items()}


def looks_of(notes: Sequence[Notes], since_s: float, until_s: float) -> list[Look]:
    """Every half second what was done in some seconds before."""
    looks, at_s = [], since_s
    while at_s <= until_s:
        found = {}
        for of in notes:
            within = of.within(int((at_s - LOOK_S) * 1e9), int(at_s * 1e9))
            found[of.who] = sum(of.ended_ns[at] - of.began_ns[at] for at in within) / 1e9
        looks.append(Look(at_s, found))
        at_s += STEP_S
    return looks
