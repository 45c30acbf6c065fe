"""Split, merge, release, grant: single cases to be checked by eye. Their model is in dispatch_model.py."""

from collections.abc import Sequence

import pytest

from keylanes.brokers.protocol import Batch, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.hashing import SPACE_END, point_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.event_values import NO_MOVE, Edge
from keylanes.offsets.events import RangesReleased, WorkersMerged
from keylanes.runtime.handlers.record_result import RecordResult
from keylanes.runtime.partition.cut import (
    are_releasable,
    begin_hold,
    groups_to_merge,
    have_one_edge,
    hold_at_ends,
    hot_bounds,
    merge,
    release,
    split,
)
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.generation import take_generation
from keylanes.runtime.partition.load import Points
from keylanes.runtime.partition.worker import Worker, WorkerNumbers

from ...tiers.marks import tier

pytestmark = tier("check")

HALF = SPACE_END // 2
KEYS = [b"k%d" % i for i in range(40)]
LEFT = [key for key in KEYS if point_of(key, 0, 0) < HALF]
RIGHT = [key for key in KEYS if point_of(key, 0, 0) >= HALF]


def dispatch_of(workers: int, keys: Sequence[bytes], *, front: int | None = None) -> PartitionDispatch:
    """Workers of equal ranges, with one record a key handed out from offset 0 on."""
    dispatch = PartitionDispatch("t", 0, 0, 1 << 20, WorkerNumbers())
    dispatch.epoch, dispatch.incarnation = 3, 9
    dispatch.add_workers(even_bounds(workers), lambda first: 0)
    records = [SimulatedRecord(offset, 0, key, b"", ()) for offset, key in enumerate(keys)]
    dispatch.hand_out(Batch(TopicPartition("t", 0), records, len(keys) if front is None else front), 0, [])
    return dispatch


def run(dispatch: PartitionDispatch, worker: Worker, times: int = 1, *, produces: bool = False) -> None:
    """The worker's next records, from beginning to end."""
    for _ in range(times):
        record = dispatch.next_record(worker)
        assert record is not None
        dispatch.finish(worker, RecordResult(record, [], False, 0, 1) if produces else None)


def take_all(dispatch: PartitionDispatch) -> None:
    """A generation of everything that is done."""
    take_generation([(dispatch, dispatch.front)], records_max=1_000, bytes_max=1 << 20)


def offsets(worker: Worker) -> list[int]:
    """What a worker holds."""
    return [record.offset for record in worker.queue]


@pytest.mark.parametrize("runs_left", [True, False])
def test_the_running_record_goes_to_the_child_that_owns_it(runs_left: bool) -> None:
    """That child stays the same object: it is being run under that name. The other one is idle."""
    keys = [LEFT[0] if runs_left else RIGHT[0], LEFT[1], RIGHT[1]]
    dispatch = dispatch_of(1, keys)
    parent = dispatch.workers[0]
    dispatch.next_record(parent)
    split(dispatch, parent, HALF)
    left, right = dispatch.workers
    owner, other = (left, right) if runs_left else (right, left)
    assert owner is parent
    assert owner.running is not None
    assert other.running is None
    assert dispatch.runnable() == [other]


@pytest.mark.parametrize("runs_left", [True, False])
def test_each_child_inherits_its_part_of_the_histogram(runs_left: bool) -> None:
    """Whichever of them is the new object."""
    dispatch = dispatch_of(1, [LEFT[0] if runs_left else RIGHT[0]])
    parent = dispatch.workers[0]
    dispatch.next_record(parent)
    parent.load.points = Points([(1, 5), (HALF, 7)])
    split(dispatch, parent, HALF)
    assert [w.load.points and w.load.points.costs for w in dispatch.workers] == [{1: 5}, {HALF: 7}]


@pytest.mark.parametrize("at", [0, HALF])
def test_a_worker_is_split_strictly_inside(at: int) -> None:
    """A child without points is refused."""
    dispatch = dispatch_of(2, [])
    with pytest.raises(ValueError, match="strictly inside"):
        split(dispatch, dispatch.workers[0], at)


def test_neighbours_are_held_where_the_furthest_stands_and_then_merge() -> None:
    """The one ahead begins no record beyond the hold; when all are level they become one with the queues in order."""
    keys = [LEFT[0], RIGHT[0], RIGHT[1], LEFT[1], RIGHT[2], LEFT[2]]
    dispatch = dispatch_of(2, keys)
    left, right = dispatch.workers
    run(dispatch, right, 2)
    assert begin_hold([left, right])
    assert left.hold_at == right.hold_at == 3
    assert dispatch.next_record(right) is None
    run(dispatch, left)
    assert not have_one_edge([left, right])
    take_all(dispatch)
    assert left.taken_to == right.taken_to == 3
    assert have_one_edge([left, right])
    heir, changes = merge(dispatch, [left, right])
    assert [change.event(6) for change in changes] == [WorkersMerged(9, 6, 3, "t", 0, 0, 1, 2)]
    assert offsets(heir) == [3, 4, 5]
    assert (heir.first, heir.end, heir.taken_to, heir.epoch) == (0, SPACE_END, 3, 3)
    assert left.retired
    assert dispatch.next_record(left) is None
    assert dispatch.runnable() == [heir]


def test_a_worker_that_lacks_records_is_not_held() -> None:
    """It has to catch up first; nobody waits for it."""
    dispatch = dispatch_of(2, [])
    dispatch.workers[0].dropped_from = 0
    assert not begin_hold(dispatch.workers)
    assert all(w.hold_at is None for w in dispatch.workers)


@pytest.mark.parametrize("why", ["running", "taken_to", "done", "dropped", "epoch", "apart"])
def test_only_level_neighbours_of_one_grant_merge(why: str) -> None:
    """Anything that makes them differ refuses the merge."""
    dispatch = dispatch_of(3, [])
    left, right = dispatch.workers[:2]
    record = SimulatedRecord(0, 0, b"", b"", ())
    if why == "running":
        left.running = record
    elif why == "taken_to":
        left.taken_to = 1
    elif why == "done":
        left.done_to = 1
    elif why == "dropped":
        right.dropped_from = 0
    elif why == "epoch":
        right.epoch = 4
    else:
        right = dispatch.workers[2]
    with pytest.raises(ValueError, match="only level neighbours"):
        merge(dispatch, [left, right])


def test_a_release_ends_behind_what_is_done_and_names_ranges_by_grant() -> None:
    """No record is begun any more; what runs is finished, what is done is taken; then the range is gone."""
    dispatch = dispatch_of(3, [LEFT[0], LEFT[1], RIGHT[0]])
    dispatch.workers[2].epoch = 4
    busy = next(w for w in dispatch.workers if w.queue)
    dispatch.next_record(busy)
    leaving = list(dispatch.workers)
    hold_at_ends(dispatch, leaving)
    assert all(dispatch.next_record(w) is None for w in leaving if w is not busy)
    assert not are_releasable(leaving)
    with pytest.raises(ValueError, match="none of its records runs"):
        release(dispatch, leaving)
    dispatch.finish(busy, None)
    assert not are_releasable(leaving)
    take_all(dispatch)
    assert are_releasable(leaving)
    bounds = even_bounds(3)
    idle, ran = (Edge(bounds[1], bounds[2], 0), Edge(0, bounds[1], 2))
    assert [change.event(6) for change in release(dispatch, leaving, hot_bounds(leaving, ()))] == [
        RangesReleased(9, 6, 3, "t", 0, NO_MOVE, (ran, idle), (bounds[1], bounds[2])),
        RangesReleased(9, 6, 4, "t", 0, NO_MOVE, (Edge(bounds[2], SPACE_END, 2),), (bounds[2],)),
    ]
    assert dispatch.workers == []


def test_the_bounds_of_hot_ranges_are_told_with_both_sides() -> None:
    """Given up one after the other, both halves come to their next owner cut where they were; declared bounds are not
    told, and the move is.
    """
    dispatch = dispatch_of(4, [])
    leaving = list(dispatch.workers)
    hot = hot_bounds(leaving, even_bounds(2))
    assert hot == {HALF // 2, HALF + HALF // 2}
    hold_at_ends(dispatch, leaving)
    told = [release(dispatch, [worker], hot, move=7)[0] for worker in leaving]
    assert [one.bounds for one in told] == [(HALF // 2,), (HALF // 2,), (HALF + HALF // 2,), (HALF + HALF // 2,)]
    assert {one.move for one in told} == {7}


def test_groups_to_merge_lie_in_one_wanted_range_and_one_grant() -> None:
    """Neighbours of different grants, or held ones, stay apart; single workers are no group."""
    dispatch = dispatch_of(8, [])
    quarters = even_bounds(4)
    groups = groups_to_merge(dispatch, quarters)
    assert [[w.number for w in group] for group in groups] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    dispatch.workers[1].epoch = 4
    dispatch.workers[2].hold_at = 0
    groups = groups_to_merge(dispatch, quarters)
    assert [[w.number for w in group] for group in groups] == [[4, 5], [6, 7]]


def test_workers_never_overlap() -> None:
    """Adding one over another is refused, and nothing has changed."""
    dispatch = dispatch_of(2, [])
    before = list(dispatch.workers)
    with pytest.raises(ValueError, match="overlaps"):
        dispatch.add_workers((HALF - 1, HALF + 1), lambda first: 0)
    assert dispatch.workers == before
