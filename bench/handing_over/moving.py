"""Hand-overs one after the other, under a load of 20,000 records/s by a handler that does nothing.

Each source partition is cut into chunks, which the members have in turn. Some stay where they are; of the others one
after the other is asked to go to another member, and back again. A range stands still from the last record of it that
its old owner has ended to the first one that its new owner begins. What else the logs know of a move comes from the
history of the group. What the placement moves by itself is counted only. The ranges that stay are looked at in a window
of moves and in one as long without.
"""

import math
import random
import time
from collections.abc import Sequence
from typing import Any

from handing_over.sizes import GROUPS, MOVES_PER_SECOND, TIMES, Group, Size
from handing_over.stage import Stage, Work, begun, cut, names_of, said, staged
from keylanes.group.history_entries import MoveEntry, MoveState
from keylanes.group.plans import REQUEST
from keylanes.keyrange.hashing import SPACE_END
from rig.child import run_coroutine
from rig.errors import WrongRun
from rig.gaps import gaps
from rig.ground import Ground
from rig.logs import Commit, Logs, ahead_s
from rig.notes import Notes, Points, stood_still_ns
from rig.records import SEED

FACTOR = 64
CHUNKS_OF_MEMBER = 3
"""In each partition. The first one of them stays."""
MOVE_S_MAX, SHARED_S_MAX = 20.0, 60.0
SETTLE_S, START_S = 2.0, 12.0
EARLY_S = 0.005
"""The clock of the logs counts milliseconds."""


def run(ground: Ground, arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of a group. Raises WrongRun."""
    group = next(group for group in GROUPS if group.arm == arm)
    seconds = START_S + SETTLE_S + 2 * size.window_s + size.moves * 0.5
    work = Work(partitions=group.partitions, factor=FACTOR, records_max=int(MOVES_PER_SECOND * seconds * 1.5))
    with staged(ground, f"moves-{suffix}", work) as stage:
        return run_coroutine(_run(stage, group, size))


async def _run(stage: Stage, group: Group, size: Size) -> dict[str, Any]:
    names = names_of(group.members)
    homes = homes_of(group, names)
    async with begun(stage, *names) as logs:
        await stage.steady(logs)
        await logs.share(bands_of(homes), SHARED_S_MAX)
        began_s = stage.begin_load(stage.phase(MOVES_PER_SECOND))
        await logs.watch(SETTLE_S)
        calm = await logs.watch(size.window_s)
        said(f"{group.arm}: {size.moves} hand-overs, one after the other")
        since_s = time.monotonic()
        failed = await _move(logs, homes, names, size)
        busy = (since_s, time.monotonic())
        records = stage.end_load()
        ended_s = time.monotonic()
        late_s = await stage.handled(logs, records) - ended_s
        await logs.watch(0.5)
        members = logs.names()
        stage.stop(*names)
        ahead = ahead_s()
        done = [move for move in logs.moves() if is_done(move, calm[0] + ahead)]
        moves = [move for move in done if move.cause == REQUEST]
        stays = {chunk: home.name for chunk, home in homes.items() if home.stays and not _moved(chunk, done)}
        found = stays_of(logs.commits, members, stays, ahead, calm, busy)
    notes = stage.proven(logs)
    points = stage.points()
    found_of = [figures_of(move, notes, points, ahead, has_until_s(move, done, ahead)) for move in moves]
    stood = [one for one in found_of if one is not None]
    if not (stays and found["gaps_busy_s"]):
        raise WrongRun("no range stayed where it was and had commits")
    if not stood:
        raise WrongRun(f"of {len(moves)} moves none has records on both sides")
    rate = {"per_second": records / (ended_s - began_s), "late_s": late_s}
    others = len(done) - len(moves)
    return {
        "records": records,
        "moves": stood,
        "others": others,
        "unseen": len(moves) - len(stood),
        "failed": failed,
        **rate,
        **found,
    }


# --- the moves -------------------------------------------------------------------------------------------------------


class Home:
    """Where a chunk belongs, and whether it stays there."""

    def __init__(self, name: str, *, stays: bool) -> None:
        self.name, self.stays = name, stays


def homes_of(group: Group, names: Sequence[str]) -> dict[Points, Home]:
    """The chunks of all partitions: each member has touching ones in each."""
    homes = {}
    for partition in range(group.partitions):
        cells = cut(Points(partition, 0, SPACE_END), FACTOR)
        count = group.members * CHUNKS_OF_MEMBER
        for number in range(count):
            own = cells[number * FACTOR // count : (number + 1) * FACTOR // count]
            member, place = divmod(number, CHUNKS_OF_MEMBER)
            homes[Points(partition, own[0].first, own[-1].end)] = Home(names[member], stays=place == 0)
    return homes


def bands_of(homes: dict[Points, Home]) -> dict[Points, str]:
    """Touching chunks of one member as one."""
    bands: list[tuple[Points, str]] = []
    for chunk, home in sorted(homes.items()):
        last = bands[-1] if bands else None
        if last and last[1] == home.name and (last[0].partition, last[0].end) == (chunk.partition, chunk.first):
            bands[-1] = last[0]._replace(end=chunk.end), home.name
        else:
            bands.append((chunk, home.name))
    return dict(bands)


async def _move(logs: Logs, homes: dict[Points, Home], names: Sequence[str], size: Size) -> int:
    """Each move begins at its time of the window, or when the one before is through; how many came to nothing."""
    draw, failed = random.Random(SEED), 0
    chunks = sorted(chunk for chunk, home in homes.items() if not home.stays)
    began_s, away = time.monotonic(), chunks[0]
    for number in range(size.moves):
        due_s = began_s + size.window_s * number / size.moves
        await logs.watch(max(due_s - time.monotonic(), 0.05))
        is_away = number % 2 == 1
        away = away if is_away else draw.choice(chunks)
        home = homes[away].name
        target = home if is_away else draw.choice([name for name in names if name != home])
        failed += not await logs.moved(away, target, MOVE_S_MAX)
    await logs.watch(max(began_s + size.window_s - time.monotonic(), 0.0))
    return failed


def is_done(move: MoveEntry, since_s: float) -> bool:
    """Whether it was asked for since then, and is another member's now."""
    is_moved = move.state is MoveState.MOVED and move.taken_up_ms is not None
    is_between = move.origin is not None and move.target is not None and move.origin != move.target
    return is_moved and is_between and move.asked is not None and move.asked.ms / 1e3 >= since_s


def _moved(chunk: Points, done: Sequence[MoveEntry]) -> bool:
    """Whether some of its points went to another member."""
    return any(move.partition == chunk.partition and move.first < chunk.end and chunk.first < move.end for move in done)


def has_until_s(move: MoveEntry, done: Sequence[MoveEntry], ahead: float) -> float:
    """Until when the new owner of what was moved has all of it, by the monotonic clock."""
    place = move.topic, move.partition
    later = (
        other.granted_ms / 1e3 - ahead
        for other in done
        if (other.topic, other.partition) == place
        and other.epoch > move.epoch
        and other.first < move.end
        and move.first < other.end
        and other.granted_ms is not None
    )
    return min(later, default=math.inf)


def figures_of(
    move: MoveEntry, notes: Sequence[Notes], points: Any, ahead: float, until_s: float
) -> dict[str, Any] | None:
    """The times of a move, in ms behind the last record of its old owner. None where a side had no record."""
    assert move.asked is not None, "see is_done"
    assert move.origin is not None, "the same"
    assert move.target is not None, "the same"
    sides = {of.who: of for of in notes}
    moved = Points(move.partition, move.first, move.end)
    asked_ns = int((move.asked.ms / 1e3 - ahead - EARLY_S) * 1e9)
    old, new = sides[move.origin.instance], sides[move.target.instance]
    if (stood := stood_still_ns(old, new, moved, points, asked_ns, until_s * 1e9)) is None:
        return None
    ended_s, began_s = stood[0] / 1e9, stood[1] / 1e9
    times = (move.asked.ms, move.released.ms if move.released else None, move.granted_ms, move.taken_up_ms)
    behind = [None if ms is None else (ms / 1e3 - ahead - ended_s) * 1e3 for ms in times]
    return {"stood_ms": (began_s - ended_s) * 1e3, **dict(zip(TIMES, behind, strict=True))}


# --- what stays ------------------------------------------------------------------------------------------------------


def stays_of(
    commits: Sequence[Commit],
    members: dict[int, str],
    stays: dict[Points, str],
    ahead: float,
    calm: tuple[float, float],
    busy: tuple[float, float],
) -> dict[str, Any]:
    """The gaps between commits of ranges that stay with their member, in s, in the calm and in the busy window."""
    times: dict[Points, list[float]] = {chunk: [] for chunk in stays}
    for one in commits:
        for chunk, name in stays.items():
            if one.partition == chunk.partition and members.get(one.incarnation) == name and _overlap(one, chunk):
                times[chunk].append(one.at_ms / 1e3 - ahead)
    windows = {"calm": calm, "busy": busy}
    return {
        f"gaps_{name}_s": sorted(gap for found in times.values() for gap in gaps(found, *window))
        for name, window in windows.items()
    }


def _overlap(one: Commit, chunk: Points) -> bool:
    return any(first < chunk.end and chunk.first < end for first, end in one.spans)
