"""When a partition's workers are split and merged: only the workers' costs in the last window decide.

A worker runs one record at a time. A worker that is busy most of the time while records wait is the bottleneck of its
keys: the worker is *hot*, and ``workers_to_watch`` names the hot workers that need a histogram. When the loop's thread
has no time left all handlers take long, and more workers would make matters worse. Then the caller sets
``PolicyLimits.demand_factor``: only a worker with far more demand than the others is hot, because this worker would
finish its waiting records last. The rules, in the order in which decisions come out:

- *Split*, the worker with the most demand first: a hot worker with a histogram. A point with half of the load or more
  gets a band of its own, by a cut on each side, the side with more load first. The rule also cuts on a side where no
  load was seen: a rare key there would wait behind the heavy point each time. Otherwise the cut halves the load.
- *Merge*, in order of points: neighbours that together cost next to nothing and have an empty queue, inside one range
  of the declared cut and under one grant. So splits are undone, and the workers are never fewer than declared.
- *Unsplittable*, in order of points: a hot worker with all of its load at one point, busy nearly all of the time, and
  with far more demand than the others with load. Where a few keys have equal demand, the partition does not wait for a
  single key.

Nothing flaps: loads that stay as they are lead to a state without decisions. A split needs ``SPLIT_SHARE`` at once, a
merge at most ``MERGE_SHARE`` for the sum of a group, also as a decaying average. The average of a new worker begins at
the top: a band lives for some windows before a merge. All numbers are integers and sorted: the order of the input does
not matter.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec

FULL = 1_000_000
"""The load of a worker that is always busy: microseconds of handler time a second."""
SPLIT_SHARE = 0.5
"""A hot worker is busy for this part of its time, or more."""
MERGE_SHARE = 0.05
"""Workers are merged when their busy times add up to this part of one worker's time, or less. The part is so far below
``SPLIT_SHARE`` that ranges do not flap."""
BUSY_SHARE = 0.9
"""An unsplittable worker is busy for this part of its time, or more."""
BOTTLENECK_SHARE = 2.0
"""An unsplittable worker has at least this many times the average demand of the other workers with demand."""

Points: TypeAlias = Sequence[tuple[int, int]]
"""A histogram: (point, cost) with costs above 0, in order of points."""


class WorkerLoad(msgspec.Struct, frozen=True, gc=False):
    """The cost of one worker. ``busy`` in the last window and its decaying ``average`` are microseconds of handler time
    a second.

    ``records``: processed in the last window; ``backlog_records`` and ``backlog_bytes`` wait in the worker's queue.
    ``is_behind``: a reader waits for the worker or went past its queue; ``is_changing``: the worker is being merged or
    released. ``points``: the histogram of its load; None: not known.
    """

    number: int
    first: int
    end: int
    epoch: int
    busy: int
    average: int
    records: int = 0
    backlog_records: int = 0
    backlog_bytes: int = 0
    is_behind: bool = False
    is_changing: bool = False
    points: Points | None = None


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """The limits for one partition: the most workers, the most splits of one ``decide``, and the most workers to watch.

    ``demand_factor``: a hot worker has at least this many times the demand of an average worker; 0.0: any demand.
    """

    workers_max: int
    splits_max: int = 48
    watched_max: int = 48
    demand_factor: float = 0.0

    def __post_init__(self) -> None:
        if min(self.workers_max, self.splits_max, self.watched_max) < 0:
            raise ValueError(f"counts are 0 or more; seen {self}")


@dataclass(frozen=True, slots=True)
class Split:
    """Cut the range of ``worker`` at a point strictly inside. Two cuts of one range name the same worker: apply each
    cut where its point lies.
    """

    worker: int
    at: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Make one worker of these neighbours, two or more, in order of points."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unsplittable:
    """One point has all of a hot worker's load, and the partition waits for it. The worker is busy for ``share`` of the
    time.
    """

    worker: int
    point: int
    share: float


Decision: TypeAlias = Split | Merge | Unsplittable


def workers_to_watch(workers: Iterable[WorkerLoad], limits: PolicyLimits) -> list[WorkerLoad]:
    """The only workers that need a histogram, the worker with the most demand first."""
    return [w for w in hot_workers(list(workers), limits) if w.end - w.first > 1][: limits.watched_max]


def decide(workers: Iterable[WorkerLoad], declared: Sequence[int], limits: PolicyLimits) -> list[Decision]:
    """Decisions about the workers of one partition; ``declared`` are the rising bounds of its declared cut."""
    ordered = sorted(workers, key=lambda w: w.first)
    room = min(limits.splits_max, limits.workers_max - len(ordered))
    splits: list[Split] = []
    stuck: list[Unsplittable] = []
    for worker in hot_workers(ordered, limits):
        cuts = cuts_of(worker)
        cuts = cuts[: max(0, room - len(splits))]
        splits += [Split(worker.number, at) for at in cuts]
        if not cuts and (point := only_point(worker)) is not None and is_bottleneck(worker, ordered):
            stuck.append(Unsplittable(worker.number, point, worker.busy / FULL))
    merges = [Merge(group) for group in _cold_groups(ordered, declared)]
    return [*splits, *merges, *sorted(stuck, key=lambda u: u.point)]


def hot_workers(workers: Sequence[WorkerLoad], limits: PolicyLimits) -> list[WorkerLoad]:
    """The workers that need a split, the worker with the most demand first."""
    found = [w for w in workers if is_hot(w)]
    if found and limits.demand_factor:
        least = limits.demand_factor * sum(map(demand, workers)) / len(workers)
        found = [w for w in found if demand(w) >= least]
    return sorted(found, key=lambda w: (-demand(w), w.first))


def is_hot(worker: WorkerLoad) -> bool:
    """Whether a worker is busy and records wait: a reader waits for the worker, or more records wait than half of its
    records in the last window. A worker that is being merged or released is not hot.
    """
    waits = worker.is_behind or 2 * worker.backlog_records > worker.records
    return worker.busy >= SPLIT_SHARE * FULL and waits and not worker.is_changing


def is_bottleneck(worker: WorkerLoad, workers: Iterable[WorkerLoad]) -> bool:
    """Whether a worker is busy nearly all of the time, with far more demand than the others with load: the others
    finish sooner.
    """
    if worker.busy < BUSY_SHARE * FULL:
        return False
    others = [found for other in workers if other is not worker and (found := demand(other))]
    return demand(worker) * len(others) >= BOTTLENECK_SHARE * sum(others)


def demand(worker: WorkerLoad) -> int:
    """The load that a worker would have had if all of its waiting records had been processed in the last window, too.

    Among workers that are busy all of the time, the worker with the most demand finishes last. Splits are few: the
    bottleneck gets both of its cuts before others get theirs.
    """
    records = max(worker.records, 1)
    return worker.busy * (records + worker.backlog_records) // records


def cuts_of(worker: WorkerLoad) -> tuple[int, ...]:
    """The points at which to cut a worker's range: none, one or two, the point that parts more load first."""
    points = _inside(worker)
    if not points:
        return ()
    total = sum(cost for _, cost in points)
    heaviest, cost = max(points, key=lambda p: (p[1], -p[0]))
    if 2 * cost >= total:
        left = sum(c for p, c in points if p < heaviest)
        sides = ((left, heaviest), (total - cost - left, heaviest + 1))
        return tuple(at for _, at in sorted(sides, key=lambda s: (-s[0], s[1])) if worker.first < at < worker.end)
    best, best_gap, below = 0, total, 0
    for (point, cost), (after, _) in pairwise(points):
        below += cost
        gap = abs(2 * below - total)
        if gap < best_gap:
            # In the middle between both points: a large histogram was melted, so a point may stand for its neighbours.
            best, best_gap = after - (after - point - 1) // 2, gap
    return (best,)


def only_point(worker: WorkerLoad) -> int | None:
    """The point with all of the load, as far as is known; None when several points have load, or nothing is known."""
    if worker.end - worker.first == 1:
        return worker.first
    points = _inside(worker)
    return points[0][0] if len(points) == 1 else None


def _inside(worker: WorkerLoad) -> list[tuple[int, int]]:
    return [(p, cost) for p, cost in worker.points or () if worker.first <= p < worker.end and cost > 0]


def _cold_groups(ordered: Sequence[WorkerLoad], declared: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of two or more cold neighbours, as long as the sum of a group stays cold, from left to right."""
    most = MERGE_SHARE * FULL
    groups: list[list[int]] = []
    end = epoch = -1
    index: int | None = None
    busy = average = 0
    for worker in ordered:
        if (
            worker.busy > most
            or worker.average > most
            or worker.backlog_records
            or worker.is_changing
            or worker.is_behind
        ):
            continue
        index_before, index = index, _declared_index(worker, declared)
        if index is None:
            continue
        is_neighbour = worker.first == end and worker.epoch == epoch and index == index_before
        busy, average = busy + worker.busy, average + worker.average
        if is_neighbour and busy <= most and average <= most:
            groups[-1].append(worker.number)
        else:
            groups.append([worker.number])
            busy, average = worker.busy, worker.average
        end, epoch = worker.end, worker.epoch
    return [tuple(group) for group in groups if len(group) > 1]


def _declared_index(worker: WorkerLoad, declared: Sequence[int]) -> int | None:
    """The index of the range of the declared cut around a worker; None when the worker lies across two ranges."""
    i = bisect_right(declared, worker.first) - 1
    return i if 0 <= i < len(declared) - 1 and worker.end <= declared[i + 1] else None
