"""PURE. Changes of the workers of a partition: split, merge of neighbours with the same edge, release, grant.

All changes happen between two transactions, on workers whose finished records a generation has just taken. The changes
are written in the transaction that carries the old workers' last tiles; the new workers start where the tiles end. So
each function changes the dispatch and returns the change. The event of the change is made when the transaction has a
number.
"""

import heapq
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

from ...brokers.protocol import ConsumerRecord
from ...keyrange.hashing import point_of
from ...keyrange.ranges import KeyRange, join_neighbours
from ...offsets.event_values import NO_MOVE, Edge
from ...offsets.events import RangesReleased, WorkersCut, WorkersMerged, WorkerSplit
from ..handlers.sizes import bytes_of
from .dispatch import PartitionDispatch
from .worker import Worker

_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Cut:
    """Workers that were added: ``worker``, ``worker + 1``, … own the ranges between the bounds, in order."""

    dispatch: PartitionDispatch
    epoch: int
    worker: int
    bounds: tuple[int, ...]

    def event(self, transaction: int) -> WorkersCut:
        """The event of the cut."""
        d = self.dispatch
        return WorkersCut(
            incarnation=d.incarnation,
            transaction=transaction,
            epoch=self.epoch,
            topic=d.topic,
            partition=d.partition,
            worker=self.worker,
            bounds=self.bounds,
        )


@dataclass(frozen=True, slots=True)
class SplitMade:
    """``worker`` became two at a point: ``left`` and ``left + 1``."""

    dispatch: PartitionDispatch
    epoch: int
    worker: int
    at: int
    left: int

    def event(self, transaction: int) -> WorkerSplit:
        """The event of the split."""
        d = self.dispatch
        return WorkerSplit(
            incarnation=d.incarnation,
            transaction=transaction,
            epoch=self.epoch,
            topic=d.topic,
            partition=d.partition,
            worker=self.worker,
            at=self.at,
            left=self.left,
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """The neighbours ``left`` and ``right``, with the same edge, became ``worker``."""

    dispatch: PartitionDispatch
    epoch: int
    left: int
    right: int
    worker: int

    def event(self, transaction: int) -> WorkersMerged:
        """The event of the merge."""
        d = self.dispatch
        return WorkersMerged(
            incarnation=d.incarnation,
            transaction=transaction,
            epoch=self.epoch,
            topic=d.topic,
            partition=d.partition,
            left=self.left,
            right=self.right,
            worker=self.worker,
        )


@dataclass(frozen=True, slots=True)
class Released:
    """``bands`` have no worker any more. ``bounds``: where hot ranges were cut; the next owner cuts there, too.
    ``move``: the number of the move that takes the bands to another member.
    """

    dispatch: PartitionDispatch
    epoch: int
    bands: tuple[Edge, ...]
    bounds: tuple[int, ...] = ()
    move: int = NO_MOVE

    def event(self, transaction: int) -> RangesReleased:
        """The event of the release."""
        d = self.dispatch
        return RangesReleased(
            incarnation=d.incarnation,
            transaction=transaction,
            epoch=self.epoch,
            topic=d.topic,
            partition=d.partition,
            move=self.move,
            bands=self.bands,
            bounds=self.bounds,
        )


Change: TypeAlias = Cut | SplitMade | Merged | Released
"""A change of the workers of a partition."""


def split(dispatch: PartitionDispatch, worker: Worker, at: int) -> SplitMade:
    """One worker becomes two at a point: queue, running and done records go to the child that owns their point.

    The child that owns the running record stays the object ``worker``: a task runs the record under this object. Both
    children inherit ``dropped_from``; the histogram is divided between them. Raises ValueError for a point that is not
    strictly inside the worker's range.
    """
    if not worker.first < at < worker.end:
        raise ValueError(f"worker {worker.number} can be split strictly inside its range; seen {at:08x}")
    parent_number = worker.number
    left_number = dispatch.numbers.take(2)
    other = Worker(number=0, first=0, end=0, edge=worker.edge, taken_to=worker.taken_to, epoch=worker.epoch)
    other.dropped_from, other.done_to = worker.dropped_from, worker.done_to
    stays_left = worker.running is None or _point(dispatch, worker.running) < at

    def stays(record: ConsumerRecord) -> bool:
        return (_point(dispatch, record) < at) is stays_left

    left_load, right_load = worker.load.part(at)
    worker.load, other.load = (left_load, right_load) if stays_left else (right_load, left_load)
    first, end = worker.first, worker.end
    for part, is_left in ((worker, stays_left), (other, not stays_left)):
        part.first, part.end = (first, at) if is_left else (at, end)
        part.number = left_number if is_left else left_number + 1
    other.queue.extend(r for r in worker.queue if not stays(r))
    other.done.extend(d for d in worker.done if not stays(d.record))
    kept, kept_done = [r for r in worker.queue if stays(r)], [d for d in worker.done if stays(d.record)]
    worker.queue.clear()
    worker.queue.extend(kept)
    worker.done.clear()
    worker.done.extend(kept_done)
    for stretch in dispatch.stretches:
        stretch.is_split = stretch.is_split or worker in stretch.tallies
    for part in (worker, other):
        part.queue_bytes, part.done_count, part.records = sum(map(bytes_of, part.queue)), len(part.done), 0
    dispatch.replace_workers([worker], [worker, other])
    return SplitMade(dispatch=dispatch, epoch=worker.epoch, worker=parent_number, at=at, left=left_number)


def have_one_edge(workers: Sequence[Worker]) -> bool:
    """Whether neighbours may merge: all are under one grant and taken to one offset, and none has a running or dropped
    record, or a done record beyond this offset.
    """
    to, epoch = workers[0].taken_to, workers[0].epoch
    return all(
        w.taken_to == to and w.done_to <= to and w.epoch == epoch and w.running is None and w.dropped_from is None
        for w in workers
    )


def begin_hold(workers: Sequence[Worker]) -> bool:
    """Hold neighbours at the offset that the furthest neighbour reaches. The others run on to the same edge. False, and
    no hold, when a neighbour lacks dropped records: the neighbour has to catch up first.
    """
    if any(w.dropped_from is not None for w in workers):
        return False
    reach = max(map(_reach, workers))
    for worker in workers:
        worker.hold_at = reach
    return True


def _reach(worker: Worker) -> int:
    """The offset that a worker has reached when its running record is finished."""
    return max(worker.taken_to, worker.done_to if worker.running is None else worker.running.offset + 1)


def end_hold(workers: Sequence[Worker]) -> None:
    """End a hold."""
    for worker in workers:
        worker.hold_at = None


def merge(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> tuple[Worker, list[Merged]]:
    """Merge neighbours with the same edge. Returns the merged worker, and a change for each pair, from left to right.
    Raises ValueError for other workers.
    """
    if not have_one_edge(workers) or any(a.end != b.first for a, b in pairwise(workers)):
        raise ValueError(f"only level neighbours merge; seen {[w.number for w in workers]}")
    changes = []
    number = workers[0].number
    for right in workers[1:]:
        merged = dispatch.numbers.take()
        changes.append(Merged(dispatch=dispatch, epoch=right.epoch, left=number, right=right.number, worker=merged))
        number = merged
    edge = min(w.edge for w in workers)
    heir = Worker(
        number=number,
        first=workers[0].first,
        end=workers[-1].end,
        edge=edge,
        taken_to=workers[0].taken_to,
        epoch=workers[0].epoch,
    )
    heir.queue.extend(heapq.merge(*(w.queue for w in workers), key=_offset))
    heir.queue_bytes = sum(w.queue_bytes for w in workers)
    for worker in workers:
        worker.retired = True
        worker.queue.clear()
        worker.queue_bytes = 0
    dispatch.replace_workers(workers, [heir])
    return heir, changes


def hot_bounds(workers: Sequence[Worker], wanted: Collection[int]) -> frozenset[int]:
    """The points where neighbours meet, without the bounds of the declared cut."""
    return frozenset({b.first for a, b in pairwise(workers) if a.end == b.first}.difference(wanted))


def release(
    dispatch: PartitionDispatch, workers: Sequence[Worker], hot: Collection[int] = (), move: int = NO_MOVE
) -> list[Released]:
    """Take workers that run no record out of the dispatch; forget their records that are in no generation yet. Returns
    a change for each grant of the workers.

    ``hot``: the changes name these bounds of the workers. Where neighbours are released one after the other, both
    changes name the bound between them: the next owner may get both together. Raises ValueError while a worker runs a
    record.
    """
    if any(w.running is not None for w in workers):
        raise ValueError("a range is released when none of its records runs")
    for worker in workers:
        worker.retired = True
        worker.queue.clear()
        worker.queue_bytes = worker.done_count = 0
        worker.done.clear()
    dispatch.replace_workers(workers, [])
    released: dict[int, list[Edge]] = {}
    bounds: dict[int, set[int]] = {}
    for worker in sorted(workers, key=attrgetter("first")):
        bands = released.setdefault(worker.epoch, [])
        bounds.setdefault(worker.epoch, set()).update(at for at in (worker.first, worker.end) if at in hot)
        bands.append(Edge(worker.first, worker.end, worker.taken_to))
    return [
        Released(
            dispatch=dispatch,
            epoch=epoch,
            bands=tuple(join_neighbours(bands, _join_edges)),
            bounds=tuple(sorted(bounds[epoch])),
            move=move,
        )
        for epoch, bands in released.items()
    ]


def _join_edges(left: Edge, right: Edge) -> Edge | None:
    return Edge(left.first, right.end, left.edge) if left.edge == right.edge else None


def split_at_borders(dispatch: PartitionDispatch, within: KeyRange, spared: Collection[Worker]) -> list[SplitMade]:
    """Split the workers that lie across a border of a range: whole workers then make up the range. ``spared``: workers
    that are not split.
    """
    changes = []
    for at in (within.first, within.end):
        across = [worker for worker in dispatch.workers if worker.first < at < worker.end and worker not in spared]
        changes += [split(dispatch, worker, at) for worker in across]
    return changes


def workers_within(dispatch: PartitionDispatch, within: KeyRange) -> list[Worker]:
    """The workers whose ranges lie in a range."""
    return [w for w in dispatch.workers if within.covers(KeyRange(w.first, w.end))]


def hold_at_ends(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> None:
    """Have workers begin no further record: each is held behind its running record; without a running record, at its
    edge. A done record without results counts, too: otherwise the next owner would run the record again.
    """
    for worker in workers:
        stands = worker.edge_now(dispatch.front) if worker.running is None else worker.running.offset + 1
        worker.hold_at = max(worker.taken_to, stands)


def are_releasable(workers: Sequence[Worker]) -> bool:
    """Whether workers after ``wind_up`` may be released: nothing runs, and a generation has taken all done records."""
    return all(w.running is None and w.taken_to == w.hold_at for w in workers)


def cut(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> Cut:
    """The change that added ``workers``, neighbours with consecutive numbers."""
    first = workers[0]
    return Cut(dispatch, first.epoch, first.number, (*(w.first for w in workers), workers[-1].end))


def groups_to_merge(dispatch: PartitionDispatch, wanted: Sequence[int]) -> list[list[Worker]]:
    """The neighbours that lie in the same range of the wanted cut, as groups of at least two workers. ``wanted``: the
    bounds of the cut, rising. Workers of different grants, and workers on hold, are in no common group.
    """
    groups: dict[tuple[int, int], list[Worker]] = {}
    for worker in dispatch.workers:
        i = bisect_right(wanted, worker.first) - 1
        if worker.hold_at is None and 0 <= i < len(wanted) - 1 and worker.end <= wanted[i + 1]:
            groups.setdefault((i, worker.epoch), []).append(worker)
    return [group for group in groups.values() if len(group) > 1 and all(a.end == b.first for a, b in pairwise(group))]


def _point(dispatch: PartitionDispatch, record: ConsumerRecord) -> int:
    return point_of(record.key, dispatch.partition, record.offset)
