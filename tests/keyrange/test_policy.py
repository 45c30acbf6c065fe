"""When workers are split and merged: rules, invariants, and a dumb simulation of keys that queue at workers."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.policy import (
    FULL,
    MERGE_SHARE,
    Merge,
    PolicyLimits,
    Split,
    Unsplittable,
    WorkerLoad,
    cuts_of,
    decide,
    workers_to_watch,
)
from keylanes.keyrange.ranges import even_bounds

from ..tiers.marks import tier

pytestmark = tier("check")

LIMITS = PolicyLimits(workers_max=64)


def hot(number: int, first: int, end: int, *points: tuple[int, int], epoch: int = 1) -> WorkerLoad:
    """A worker that is always busy while records wait."""
    return WorkerLoad(number, first, end, epoch, FULL, FULL, 10, 10, 10, points=points or None)


def cold(number: int, first: int, end: int, epoch: int = 1) -> WorkerLoad:
    """A worker that has done nothing for long."""
    return WorkerLoad(number, first, end, epoch, 0, 0)


def numbers(loads: Iterable[WorkerLoad]) -> list[int]:
    """Of the workers."""
    return [load.number for load in loads]


# --- the rules -------------------------------------------------------------------------------------------------------


def test_a_hot_worker_is_watched_first() -> None:
    """Without a histogram nobody knows where to cut; who is not hot is not watched."""
    workers = [hot(4, 0, 50), cold(5, 50, 100)]
    assert numbers(workers_to_watch(workers, LIMITS)) == [4]
    assert decide(workers, (0, 50, 100), LIMITS) == []


@pytest.mark.parametrize(
    ("points", "cuts"),
    [
        (((10, 1), (20, 1), (30, 1), (40, 1)), (26,)),
        (((10, 3), (20, 1), (30, 1), (40, 3)), (26,)),
        (((10, 2), (11, 2), (90, 2)), (11,)),
        (((10, 1), (20, 8), (30, 2)), (21, 20)),
        (((10, 2), (20, 8), (30, 2)), (20, 21)),
        (((0, 8), (30, 2)), (1,)),
        (((30, 2), (99, 8)), (99,)),
        (((10, 5), (20, 5)), (11, 10)),
        (((20, 8),), (20, 21)),
        (((20, 8), (100, 5), (200, 9)), (20, 21)),
        ((), ()),
    ],
)
def test_where_a_range_is_cut(points: tuple[tuple[int, int], ...], cuts: tuple[int, ...]) -> None:
    """At the point that halves the load; on both sides of a point that has half of it, the side with more load first,
    also where there is none yet.
    """
    assert cuts_of(hot(1, 0, 100, *points)) == cuts


def test_one_point_with_all_of_the_load_is_told() -> None:
    """With the part of the time that its worker is busy. In a band of its own it needs no histogram, and is not
    watched. One that has none yet gets it if there is room for more workers. A worker with some time left is no
    bottleneck.
    """
    busy = changed(hot(2, 50, 100), busy=FULL // 2, points=((70, 9),))
    workers, cut = [hot(1, 7, 8), busy], (7, 8, 50, 100)
    told = Unsplittable(1, 7, 1.0)
    assert decide([changed(workers[0], busy=9 * FULL // 10 - 1)], cut, LIMITS) == []
    assert decide(workers, cut, replace(LIMITS, workers_max=2)) == [told]
    assert decide(workers, cut, LIMITS) == [Split(2, 70), Split(2, 71), told]
    assert numbers(workers_to_watch(workers, LIMITS)) == [2]


@pytest.mark.parametrize(
    ("backlogs", "told"),
    [
        ([90], [0]),
        ([90, 90], []),
        ([90, 90, 90, 90, 90], []),
        ([90, 150, 110, 80, 100], []),
        ([90, 300, 110, 80, 100], [1]),
        ([300, 300, 30, 30, 30, 30, 30, 30], [0, 1]),
    ],
)
@pytest.mark.parametrize("idle", [0, 20])
def test_a_key_is_a_bottleneck_only_beside_others_that_are_through_sooner(
    backlogs: list[int], told: list[int], idle: int
) -> None:
    """Where some keys have the same to do each, nobody waits for one of them; workers without load do not count."""
    workers = [changed(hot(i, 10 * i, 10 * i + 1), backlog_records=n) for i, n in enumerate(backlogs)]
    workers += [changed(hot(100 + i, 1000 + i, 1001 + i), busy=0, backlog_records=0) for i in range(idle)]
    found = decide(workers, (0, 2_000), LIMITS)
    assert [decision.worker for decision in found if isinstance(decision, Unsplittable)] == told


@pytest.mark.parametrize(
    "change",
    [{"busy": FULL // 2 - 1}, {"backlog_records": 5}, {"is_changing": True}],
)
def test_who_is_not_split(change: dict[str, Any]) -> None:
    """One that is idle half the time, for which little waits, or that is held already."""
    worker = changed(hot(1, 0, 100, (10, 5), (20, 5)), **change)
    assert decide([worker], (0, 100), LIMITS) == []
    assert workers_to_watch([worker], LIMITS) == []


def test_a_worker_that_readers_wait_for_has_a_backlog() -> None:
    """However few records its queue may hold."""
    worker = changed(hot(1, 0, 100, (10, 5), (20, 5)), backlog_records=0, is_behind=True)
    assert decide([worker], (0, 100), LIMITS) == [Split(1, 11), Split(1, 10)]


def test_splits_are_bounded() -> None:
    """By their number in one look, and by how many workers there may be; who has the most to do comes first."""
    workers = [changed(hot(i, 10 * i, 10 * i + 10, (10 * i, 5), (10 * i + 9, 5)), busy=FULL - i) for i in range(6)]
    cut = tuple(range(0, 70, 10))
    few = replace(LIMITS, splits_max=2)
    assert decide(workers, cut, few) == [Split(0, 1), Split(1, 11)]
    assert decide(workers, cut, replace(LIMITS, workers_max=7)) == [Split(0, 1)]
    assert decide(workers, cut, replace(LIMITS, workers_max=3)) == []
    assert numbers(workers_to_watch(workers, replace(LIMITS, workers_max=3, watched_max=1))) == [0]


def test_who_has_the_most_to_do_is_split_first() -> None:
    """Where all are busy, the one with the longest backlog gets both cuts of its band before others get one."""
    few, many = hot(1, 0, 50, (10, 1), (20, 1)), hot(2, 50, 100, (60, 1), (70, 8), (80, 1))
    many = changed(many, backlog_records=11)
    assert decide([few, many], (0, 50, 100), replace(LIMITS, splits_max=2)) == [Split(2, 70), Split(2, 71)]
    assert numbers(workers_to_watch([few, many], LIMITS)) == [2, 1]


def test_who_has_not_far_more_to_do_than_others_is_left_alone_when_that_is_asked_for() -> None:
    """Where all are busy because there is no time, more of them would not help; the one that will be last is split."""
    workers = [hot(i, 10 * i, 10 * i + 10, (10 * i, 5), (10 * i + 9, 5)) for i in range(4)]
    cut, limits = (0, 10, 20, 30, 40), replace(LIMITS, demand_factor=1.5)
    assert decide(workers, cut, limits) == []
    assert workers_to_watch(workers, limits) == []
    workers[2] = changed(workers[2], backlog_records=40)
    assert decide(workers, cut, limits) == [Split(2, 21)]
    assert numbers(workers_to_watch(workers, limits)) == [2]
    assert numbers(workers_to_watch(workers, LIMITS)) == [2, 0, 1, 3]


def test_cold_neighbours_merge_back_to_the_declared_cut() -> None:
    """As many as stay cold together, inside one declared range; so never below the cut that was declared."""
    workers = [cold(i, 10 * i, 10 * i + 10) for i in range(6)]
    assert decide(workers, (0, 30, 60), LIMITS) == [Merge((0, 1, 2)), Merge((3, 4, 5))]
    assert decide(workers, tuple(range(0, 70, 10)), LIMITS) == []
    assert decide(workers, (0, 25, 60), LIMITS) == [Merge((0, 1)), Merge((3, 4, 5))]


@pytest.mark.parametrize(
    "change",
    [
        {"busy": FULL // 10},
        {"average": FULL // 10},
        {"backlog_records": 1},
        {"is_behind": True},
        {"is_changing": True},
        {"epoch": 2},
    ],
)
def test_who_is_not_merged(change: dict[str, Any]) -> None:
    """One that costs something or did so of late, for which something waits, that is held, or of another grant."""
    workers = [cold(0, 0, 10), changed(cold(1, 10, 20), **change), cold(2, 20, 30)]
    assert decide(workers, (0, 30), LIMITS) == []


def test_counts_are_not_negative() -> None:
    """In words."""
    with pytest.raises(ValueError, match="0 or more"):
        PolicyLimits(workers_max=-1)


# --- what always holds -----------------------------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[WorkerLoad], tuple[int, ...], PolicyLimits]:
    """Workers of a small space, perhaps with gaps between them, a declared cut, and limits."""
    bounds = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=12)))
    share = st.sampled_from((0, 1, 20_000, 50_000, 499_999, 500_000, FULL))
    points = st.none() | st.dictionaries(st.integers(0, 60), st.integers(0, 20), max_size=8).map(
        lambda known: tuple(sorted(known.items()))
    )
    workers = [
        WorkerLoad(
            number,
            first,
            end,
            draw(st.sampled_from((1, 1, 1, 2))),
            draw(share),
            draw(share),
            draw(st.integers(0, 4)),
            draw(st.sampled_from((0, 0, 3))),
            0,
            draw(st.sampled_from((False, False, True))),
            draw(st.sampled_from((False, False, False, True))),
            draw(points),
        )
        for number, (first, end) in enumerate(pairwise(bounds))
        if draw(st.sampled_from((True, True, True, False)))
    ]
    declared = tuple(sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=6))))
    limits = PolicyLimits(
        draw(st.integers(0, 20)), splits_max=draw(st.integers(0, 5)), watched_max=draw(st.integers(0, 5))
    )
    return workers, declared, limits


@given(partitions(), st.integers())
def test_the_order_of_the_input_does_not_matter(
    drawn: tuple[list[WorkerLoad], tuple[int, ...], PolicyLimits], seed: int
) -> None:
    """Any order gives the same decisions."""
    workers, declared, limits = drawn
    shuffled = list(workers)
    Random(seed).shuffle(shuffled)
    assert decide(shuffled, declared, limits) == decide(workers, declared, limits)
    assert workers_to_watch(shuffled, limits) == workers_to_watch(workers, limits)


@given(partitions())
def test_decisions_can_be_carried_out(drawn: tuple[list[WorkerLoad], tuple[int, ...], PolicyLimits]) -> None:
    """Splits lie strictly inside, each at a point of its own, between loads or beside half of it; merges are of cold
    neighbours of one grant in one declared range, each in one group; all within the limits.
    """
    workers, declared, limits = drawn
    by_number = {w.number: w for w in workers}
    decisions = decide(workers, declared, limits)
    splits = [d for d in decisions if isinstance(d, Split)]
    assert len(splits) <= limits.splits_max
    assert not splits or len(workers) + len(splits) <= limits.workers_max
    assert len({split.at for split in splits}) == len(splits)
    for split in splits:
        worker = by_number[split.worker]
        assert worker.first < split.at < worker.end
        assert not worker.is_changing
        costs = [(p, cost) for p, cost in worker.points or () if worker.first <= p < worker.end]
        left, right = (sum(cost for p, cost in costs if (p < split.at) is below) for below in (True, False))
        beside = max(cost for p, cost in [*costs, (split.at, 0)] if p in (split.at - 1, split.at))
        assert (left and right) or 2 * beside >= left + right > 0
    merged = [number for d in decisions if isinstance(d, Merge) for number in d.workers]
    assert len(set(merged)) == len(merged)
    assert not set(merged) & {split.worker for split in splits}
    for decision in decisions:
        if isinstance(decision, Merge):
            group = [by_number[number] for number in decision.workers]
            assert len(group) > 1
            assert all(a.end == b.first and a.epoch == b.epoch for a, b in pairwise(group))
            assert not any(group[0].first < bound < group[-1].end for bound in declared)
            assert sum(w.busy for w in group) <= MERGE_SHARE * FULL
    assert len(workers_to_watch(workers, limits)) <= limits.watched_max


CALM_LOOKS = 25
"""Averages have come down to the loads by then."""


def settled(costs: dict[int, int], declared: tuple[int, ...], limits: PolicyLimits) -> list[tuple[int, int]]:
    """The bands after looking often at points that cost the same in every window; fails when they don't settle."""
    bands = list(pairwise(declared))
    averages = dict.fromkeys(bands, FULL)
    calm = looks = 0
    while calm < CALM_LOOKS:
        loads = []
        for number, (first, end) in enumerate(bands):
            inside = tuple(sorted((p, cost) for p, cost in costs.items() if first <= p < end))
            busy = min(FULL, sum(cost for _, cost in inside))
            averages[first, end] = (averages[first, end] + busy) // 2
            waits = 10 if busy >= FULL // 2 else 0
            loads.append(WorkerLoad(number, first, end, 1, busy, averages[first, end], 10, waits, points=inside))
        found = decide(loads, declared, limits)
        bounds = {bound for band in bands for bound in band}
        for decision in found:
            if isinstance(decision, Split):
                bounds.add(decision.at)
            elif isinstance(decision, Merge):
                bounds -= {bands[number][0] for number in decision.workers[1:]}
        after = list(pairwise(sorted(bounds)))
        calm = calm + 1 if after == bands else 0
        looks += 1
        assert looks < 40 * CALM_LOOKS, "the bands don't settle"
        averages = {band: averages.get(band, FULL) for band in after}
        bands = after
    return bands


@given(
    st.dictionaries(st.integers(0, 200), st.sampled_from((1_000, 30_000, 200_000, 400_000, FULL)), max_size=12),
    st.integers(1, 4),
    st.integers(0, 1),
)
def test_constant_loads_settle(costs: dict[int, int], factor: int, spare: int) -> None:
    """They reach a state without decisions, within the limits, never below the declared cut, in which each point that
    is hot shares its band with no other load, as long as there may be so many workers.
    """
    declared = even_bounds(factor) if factor > 1 else (0, SPACE_END)
    limits = PolicyLimits(workers_max=64 if spare else factor + 1, splits_max=3)
    bands = settled(costs, declared, limits)
    assert set(declared) <= {bound for band in bands for bound in band}
    assert len(bands) <= max(limits.workers_max, factor)
    for point, cost in costs.items():
        if cost >= FULL // 2 and spare:
            first, end = next(band for band in bands if band[0] <= point < band[1])
            assert [p for p in costs if first <= p < end] == [point]


# --- keys that queue -------------------------------------------------------------------------------------------------


QUEUE_MAX = 200


@dataclass
class Band:
    """A worker of the dumb simulation."""

    first: int
    end: int
    queue: deque[int] = field(default_factory=deque)
    busy: int = 0
    average: int = FULL
    costs: dict[int, int] | None = None


class Queues:
    """A source without end whose reader stops at a full worker; each worker takes one record a tick."""

    def __init__(self, rng: Random, keys: int, exponent: float, factor: int) -> None:
        weights = [1 / (rank + 1) ** exponent for rank in range(keys)]
        self.hottest = weights[0] / sum(weights)
        self.points = [point_of_key(b"key %d" % rng.getrandbits(60)) for _ in range(keys)]
        self.weights, self.rng, self.declared = weights, rng, even_bounds(factor)
        self.bands = [Band(first, end) for first, end in pairwise(self.declared)]
        self.read: deque[int] = deque()

    def window(self, ticks: int) -> int:
        """Run; how many records were done."""
        done = 0
        for band in self.bands:
            band.busy = 0
        firsts = [band.first for band in self.bands]
        for _ in range(ticks):
            while True:
                if not self.read:
                    self.read.extend(self.rng.choices(self.points, self.weights, k=2_000))
                band = self.bands[bisect_right(firsts, self.read[0]) - 1]
                if len(band.queue) >= QUEUE_MAX:
                    break
                band.queue.append(self.read.popleft())
            for band in self.bands:
                if band.queue:
                    point = band.queue.popleft()
                    band.busy += 1
                    done += 1
                    if band.costs is not None:
                        band.costs[point] = band.costs.get(point, 0) + 1
        return done

    def look(self, ticks: int, limits: PolicyLimits) -> None:
        """Measure, decide, and do it."""
        loads = []
        for number, band in enumerate(self.bands):
            busy = FULL * band.busy // ticks
            band.average = (band.average + busy) // 2
            points = None if band.costs is None else tuple(sorted(band.costs.items()))
            load = WorkerLoad(number, band.first, band.end, 1, busy, band.average, band.busy)
            loads.append(
                changed(
                    load, backlog_records=len(band.queue), is_behind=2 * len(band.queue) >= QUEUE_MAX, points=points
                )
            )
        decisions = decide(loads, self.declared, limits)
        found = numbers(workers_to_watch(loads, limits))
        for number, band in enumerate(self.bands):
            band.costs = (band.costs or {}) if number in found else None
        for decision in decisions:
            if isinstance(decision, Split):
                self.split(decision.at)
            elif isinstance(decision, Merge):
                raise AssertionError("nothing is cold here")

    def split(self, at: int) -> None:
        """As the runtime does: queue and histogram go with their points."""
        i = bisect_right([band.first for band in self.bands], at) - 1
        band = self.bands[i]
        parts = [Band(band.first, at), Band(at, band.end)]
        for part in parts:
            part.queue.extend(p for p in band.queue if part.first <= p < part.end)
            if band.costs is not None:
                part.costs = {p: cost for p, cost in band.costs.items() if part.first <= p < part.end}
        self.bands[i : i + 1] = parts


@pytest.mark.parametrize(("exponent", "factor", "seed"), [(1.0, 8, 1), (1.0, 32, 2), (1.3, 4, 3), (0.8, 48, 4)])
def test_zipf_keys_come_to_the_bound_of_the_hottest(exponent: float, factor: int, seed: int) -> None:
    """Within ten looks the throughput is 0.9 of what the hottest key alone allows, or better, and stays there."""
    queues = Queues(Random(seed), 500, exponent, factor)
    limits = PolicyLimits(workers_max=4 * factor)
    ticks = 400
    for _ in range(10):
        queues.window(ticks)
        queues.look(ticks, limits)
    queues.window(4 * ticks)  # what was queued in the wrong proportions is worked off
    done = sum(queues.window(ticks) for _ in range(10))
    assert done >= 0.9 * 10 * ticks / queues.hottest
    assert len(queues.bands) <= limits.workers_max
