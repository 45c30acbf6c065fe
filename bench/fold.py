"""What the fold of the logs costs: time for a commit, and time and memory for a log of many restarts.

No broker: events go into the fold as they come out of the logs, decoded. *A commit* is one event with one tile over the
range of one worker, by each member in turn, in a group of so many members and source partitions; its figure is the
best of the rounds, in microseconds of processor time. *Restarts*: in each a coordinator is elected, a member joins, the
one before is expelled and fenced, and all partitions are granted on.

It runs on the interpreted package and on the compiled one; ends with 1 if a bar does not hold.
"""

import argparse
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

from keylanes import IS_COMPILED
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import NO_MOVE, Band, Tile
from keylanes.offsets.events import Committed, Event, WorkersCut
from keylanes.offsets.ledger import Ledger, evolve, evolve_all
from rig.machine import surroundings
from rig.results import print_table, spread, write_result

TOPIC = "flights"
COMMITS = 20_000
SIZES = ((1, 1), (16, 16), (100, 100), (1_000, 1_000))
"""Members, partitions; the first is a multiple of the second."""
SIZES_FULL = (*SIZES, (16, 1), (1_000, 50))
RESTARTS, RESTARTED = 10_000, 8
COMMIT_US_MAX, RESTARTS_S_MAX, RESTARTS_MIB_MAX = 10.0, 2.0, 10.0
MIB = 1024 * 1024


def joined(turn: Turn, incarnation: int) -> MemberJoined:
    """A process that can handle everything."""
    birth = f"birth {incarnation}"
    ids = (f"app.{incarnation}.{birth}",)
    return MemberJoined(*turn.next(), incarnation, "", birth, ids, "host", "", 1.0, 1, (), (), until_level=False)


def granted(turn: Turn, incarnation: int, epoch: int, partition: int, band: Band) -> RangesGranted:
    """A grant of one band."""
    return RangesGranted(*turn.next(), NO_MOVE, incarnation, epoch, TOPIC, partition, (band,), (), ())


def bands_of(members: int, partitions: int) -> list[tuple[int, int, int, int]]:
    """(partition, epoch, first, end) of the band of each member: whole partitions, or equal parts of one."""
    shared = members // partitions
    cut = [SPACE_END * i // shared for i in range(shared + 1)]
    bands = list(pairwise(cut))
    return [(i % partitions, i // partitions + 1, *bands[i // partitions]) for i in range(members)]


def begun(members: int, partitions: int, workers: int) -> Iterator[Event]:
    """The logs of a group that begins to work: each member has one band, cut into so many workers."""
    turn = Turn(1)
    yield AppCreated("app", HASH_NAME, 64)
    yield CoordinatorElected(1, "", "birth 1", "birth 1")
    for partition in range(partitions):
        yield PartitionStarted(*turn.next(), TOPIC, partition, 0, "earliest", partitions)
    for incarnation in range(1, members + 1):
        yield joined(turn, incarnation)
    for i, (partition, epoch, first, end) in enumerate(bands_of(members, partitions)):
        yield granted(turn, i + 1, epoch, partition, Band(first, end, 0))
        bounds = tuple(first + (end - first) * n // workers for n in range(workers + 1))
        yield WorkersCut(i + 1, 1, epoch, TOPIC, partition, 0, bounds)


def commits(members: int, partitions: int, workers: int, count: int) -> list[Committed]:
    """Each member's worker 0 by one record, then its worker 1, and so on."""
    bands = bands_of(members, partitions)
    events = []
    for n in range(count):
        i, turn = n % members, n // members
        partition, epoch, first, end = bands[i]
        worker, offset = turn % workers, turn // workers
        a, b = (first + (end - first) * at // workers for at in (worker, worker + 1))
        tile = Tile(worker, 1, a, b, offset, offset + 1)
        events.append(Committed(i + 1, turn + 2, 0, 1, epoch, TOPIC, partition, (tile,), 1, 0, 7))
    return events


def commit_us(members: int, partitions: int, workers: int, rounds: int) -> list[float]:
    """Microseconds of processor time that one commit takes, in each round."""
    start = evolve_all(Ledger(), begun(members, partitions, workers))
    events = commits(members, partitions, workers, COMMITS)
    found = []
    for _ in range(rounds):
        ledger = start.copy()
        began_s = time.process_time()
        for event in events:
            evolve(ledger, event)
        found.append((time.process_time() - began_s) / COMMITS * 1e6)
        if ledger.violations() or ledger.waiting() or sum(ledger.transactions.values()) < COMMITS:
            raise SystemExit("the fold did not take the commits")
    return found


def restarts(count: int, partitions: int) -> Iterator[Event]:
    """A log of so many starts of a process, none of which did anything, one after the other."""
    yield AppCreated("app", HASH_NAME, 64)
    for incarnation in range(1, count + 1):
        turn = Turn(incarnation)
        yield CoordinatorElected(incarnation, "", f"birth {incarnation}", "birth 1")
        yield joined(turn, incarnation)
        if incarnation > 1:
            yield MemberExpelled(*turn.next(), incarnation - 1, "superseded", 0)
            yield MemberFenced(*turn.next(), incarnation - 1)
        else:
            for partition in range(partitions):
                yield PartitionStarted(*turn.next(), TOPIC, partition, 0, "earliest", partitions)
        for partition in range(partitions):
            yield granted(turn, incarnation, incarnation, partition, Band(0, SPACE_END, 0))


def restarts_s(events: list[Event]) -> float:
    """Seconds of processor time to fold a log of restarts."""
    began_s = time.process_time()
    ledger = evolve_all(Ledger(), events)
    took_s = time.process_time() - began_s
    if len(ledger.control.members) != 1 or ledger.control.term != RESTARTS:
        raise SystemExit("the fold did not take the restarts")
    return took_s


def restarts_mib() -> float:
    """What stays in memory of a log of restarts, in MiB; an event that is folded is gone, unless the fold has it."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    ledger = evolve_all(Ledger(), restarts(RESTARTS, RESTARTED))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if len(ledger.control.members) != 1:
        raise SystemExit("the fold did not take the restarts")
    return (after - before) / MIB


def main() -> int:
    """Measure, show, and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="members that share partitions, too")
    parsed = parser.parse_args()
    how = "compiled" if IS_COMPILED else "interpreted"
    summary: dict[str, dict[str, float]] = {}
    for members, partitions in SIZES_FULL if parsed.full else SIZES:
        for workers in (1, 64):
            name = f"{members:,} members, {partitions:,} partitions, {workers} workers each"
            summary[name] = spread(commit_us(members, partitions, workers, parsed.rounds))
    rows = [[name, *(round(figure, 1) for figure in found.values())] for name, found in summary.items()]
    print_table(f"A commit, in µs of processor time, {how}", ["group", "median", "least", "greatest"], rows)
    events = list(restarts(RESTARTS, RESTARTED))
    took_s, left_mib = spread([restarts_s(events) for _ in range(parsed.rounds)]), restarts_mib()
    print(f"{RESTARTS:,} restarts on {RESTARTED} partitions: {took_s['least']:.2f} s, {left_mib:.1f} MiB stay")
    figures = {"commit_us": summary, "restarts_s": took_s, "restarts_mib": left_mib}
    options = {"rounds": parsed.rounds, "is_compiled": IS_COMPILED}
    write_result(f"fold-{how}", {**surroundings(), "settings": options, **figures})
    slowest = max(found["least"] for found in summary.values())
    holds = slowest <= COMMIT_US_MAX and took_s["least"] < RESTARTS_S_MAX and left_mib <= RESTARTS_MIB_MAX
    print("The bars hold." if holds else "A bar does not hold.")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
