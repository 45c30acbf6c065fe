"""What one transaction carries: cut by offset, limited, taken apart when it is refused."""

from collections.abc import Sequence

from keylanes.brokers.protocol import Batch, Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.hashing import point_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.event_values import Edge
from keylanes.offsets.events import Committed, OffsetEvent
from keylanes.runtime.handlers.record_result import RecordResult
from keylanes.runtime.partition.cut import Cut, Released
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.generation import Generation, move_edges, take_generation
from keylanes.runtime.partition.worker import Worker, WorkerNumbers

from ...stage.log_events import range_released
from ...tiers.marks import tier

pytestmark = tier("check")

WORKERS = 4
KEYS = [next(b"k%d" % i for i in range(1_000) if point_of(b"k%d" % i, 0, 0) >> 30 == w) for w in range(WORKERS)]
"""A key for each of four workers."""


def filled(plan: Sequence[int], *, quota: int = 1 << 20, numbers: WorkerNumbers | None = None) -> PartitionDispatch:
    """Four workers; record i goes to worker ``plan[i]``."""
    dispatch = PartitionDispatch("t", 0, 0, quota, numbers or WorkerNumbers())
    dispatch.incarnation, dispatch.epoch = 5, 2
    dispatch.add_workers(even_bounds(WORKERS), lambda first: 0)
    records = [SimulatedRecord(offset, 0, KEYS[w], b"", ()) for offset, w in enumerate(plan)]
    dispatch.hand_out(Batch(TopicPartition("t", 0), records, len(plan)), 0, [])
    return dispatch


def finish(
    dispatch: PartitionDispatch, worker: Worker, outputs: int = 1, *, dead: bool = False, size: int = 10
) -> None:
    """The worker's next record is through, with so many outputs."""
    record = dispatch.next_record(worker)
    assert record is not None
    built = [Outgoing("out", 0, None, b"%d.%d" % (record.offset, i)) for i in range(outputs)]
    dispatch.finish(worker, RecordResult(record, built, dead, 1 << record.offset, size) if outputs else None)


def shares(generation: Generation) -> list[tuple[int, int, int, list[int]]]:
    """(worker, from, to, offsets of producing records) of each share."""
    return [(s.number, s.offset_from, s.offset_to, [d.record.offset for d in s.done]) for s in generation.shares]


def everything(dispatch: PartitionDispatch, line: int | None = None) -> Generation:
    """Without limits."""
    return take_generation([(dispatch, dispatch.front if line is None else line)], records_max=1_000, bytes_max=1 << 30)


def test_most_edges_fall_on_the_line() -> None:
    """Idle workers and those that are through move to it alike; one that is not gives what it has."""
    dispatch = filled([0, 1, 2, 0, 1, 2])
    first, second, third, idle = dispatch.workers
    for worker in (first, first, second, third, third):
        finish(dispatch, worker)
    generation = everything(dispatch, line=5)
    assert shares(generation) == [(0, 0, 5, [0, 3]), (1, 0, 4, [1]), (2, 0, 5, [2]), (3, 0, 5, [])]
    commits = [e for e in generation.events(7) if isinstance(e, Committed)]
    assert [(t.worker, t.count, t.offset_to) for e in commits for t in e.tiles] == [(0, 1, 5), (1, 1, 4), (2, 2, 5)]
    assert [d.record.offset for d in third.done] == [5]
    assert idle.taken_to == 5


def test_nothing_done_is_no_generation() -> None:
    """An idle application appends nothing."""
    dispatch = filled([0])
    dispatch.next_record(dispatch.workers[0])
    move_edges(everything(dispatch))
    assert not everything(dispatch)


def test_a_limit_in_records_ends_a_share_at_the_record_left_out() -> None:
    """The rest waits for the next generation; workers that produced nothing move all the same."""
    dispatch = filled([0, 0, 0, 1])
    for _ in range(3):
        finish(dispatch, dispatch.workers[0])
    finish(dispatch, dispatch.workers[1], outputs=0)
    generation = take_generation([(dispatch, 4)], records_max=2, bytes_max=1 << 20)
    assert shares(generation) == [(0, 0, 2, [0, 1]), (1, 0, 4, []), (2, 0, 4, []), (3, 0, 4, [])]
    assert shares(everything(dispatch)) == [(0, 2, 4, [2])]


def test_a_limit_in_bytes_is_passed_by_one_record_at_most() -> None:
    """So a record larger than the limit goes through alone."""
    dispatch = filled([0, 0, 0])
    for _ in range(3):
        finish(dispatch, dispatch.workers[0], size=100)
    assert [len(take_generation([(dispatch, 3)], records_max=9, bytes_max=50).shares[0].done) for _ in range(3)] == [
        1,
        1,
        1,
    ]


def test_events_count_what_their_tiles_hold() -> None:
    """Outputs, dead letters and the digest of the records inside; the opening comes first, structure last."""
    dispatch = filled([0, 1, 1])
    finish(dispatch, dispatch.workers[0], outputs=3)
    finish(dispatch, dispatch.workers[1], dead=True)
    finish(dispatch, dispatch.workers[1], outputs=2)
    generation = everything(dispatch)
    generation.add([Released(dispatch, 2, (Edge(0, 1, 0),))])
    generation.opening.append(Cut(dispatch, 2, 9, (0, 1)))
    events = generation.events(8)
    assert [type(e).__name__ for e in events] == ["WorkersCut", "Committed", "RangesReleased"]
    assert all(e.transaction == 8 for e in events)
    commit = events[1]
    assert isinstance(commit, Committed)
    assert (commit.outputs, commit.dead_letters, commit.digest) == (5, 1, 0b111)
    assert (commit.part, commit.parts, commit.epoch) == (0, 1, 2)


def test_tiles_of_two_grants_are_two_events() -> None:
    """Neighbours that moved alike under different epochs are never one tile."""
    dispatch = filled([])
    dispatch.front = 4
    dispatch.workers[2].epoch = dispatch.workers[3].epoch = 6
    commits = [e for e in everything(dispatch).events(1) if isinstance(e, Committed)]
    assert [(e.epoch, e.part, e.parts, [(t.worker, t.count) for t in e.tiles]) for e in commits] == [
        (2, 0, 2, [(0, 2)]),
        (6, 1, 2, [(2, 2)]),
    ]


def test_structure_alone_is_a_generation() -> None:
    """A release of a range in which nothing moved is written, too."""
    events: list[OffsetEvent] = Generation([], [Released(filled([]), 2, (Edge(0, 1, 0),))]).events(3)
    assert events == [range_released(5, 3, 2, "t", 0, 0, 1, 0)]


def test_what_changes_ranges_rides_with_the_last_half() -> None:
    """A merge or a release is read behind the tiles that it ends; an opening rides with the first. The halves share the
    work, and one share stays whole.
    """
    dispatch = filled([0, 1, 2, 3])
    for worker in dispatch.workers:
        finish(dispatch, worker)
    generation = everything(dispatch)
    change, opening = Released(dispatch, 2, (Edge(0, 1, 0),)), Cut(dispatch, 2, 9, (0, 1))
    generation.add([change], [(dispatch.workers[0], 1)])
    generation.opening.append(opening)
    halves = first, last = generation.halves()
    assert shares(first) + shares(last) == shares(generation)
    assert [len(half.shares) for half in halves] == [2, 2]
    assert [half.structure for half in halves] == [[], [change]]
    assert [half.opening for half in halves] == [[opening], []]
    single = Generation(generation.shares[:1])
    assert single.halves() == [single]
