"""PURE. Changes of who owns what inside a partition: split, merge of level neighbours, release, grant.

All of them happen between two transactions, on what a generation was just taken from, and are written in the
transaction that carries the old workers' last tiles; children start where these end.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from ...brokers.protocol import Record
from ...keyrange.hashing import point_of
from ...keyrange.ranges import KeyRange
from ...offsets.events import RangeReleased, WorkersCut, WorkersMerged, WorkerSplit
from ..handlers.sizes import bytes_of
from .dispatch import PartitionDispatch
from .worker import Worker

_offset = attrgetter("offset")


def split(dispatch: PartitionDispatch, worker: Worker, at: int) -> WorkerSplit:
    """One worker becomes two at a point: queue, running and done records go to the child that owns their point.

    The child that owns the running record stays the same object, for it is being run under that name. Both inherit
    ``dropped_from``, and their parts of the histogram. Raises ValueError for a point that is not strictly inside.
    """
    if not worker.first < at < worker.end:
        raise ValueError(f"worker {worker.number} can be split strictly inside its range; seen {at:08x}")
    parent_number = worker.number
    left_number = dispatch.numbers.take(2)
    other = Worker(0, 0, 0, worker.edge, worker.taken_to, worker.epoch)
    other.dropped_from, other.done_to = worker.dropped_from, worker.done_to
    stays_left = worker.running is None or _point(dispatch, worker.running) < at

    def stays(record: Record) -> bool:
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
        part.queue_bytes, part.kept, part.records = sum(map(bytes_of, part.queue)), len(part.done), 0
    dispatch.replace_workers([worker], [worker, other])
    return WorkerSplit(
        dispatch.incarnation, 0, worker.epoch, dispatch.topic, dispatch.partition, parent_number, at, left_number
    )


def are_level(workers: Sequence[Worker]) -> bool:
    """Whether neighbours may become one: of one grant, taken to one offset, nothing running, dropped or done beyond."""
    to, epoch = workers[0].taken_to, workers[0].epoch
    return all(
        w.taken_to == to and w.done_to <= to and w.epoch == epoch and w.running is None and w.dropped_from is None
        for w in workers
    )


def hold(workers: Sequence[Worker]) -> bool:
    """Stop neighbours at the offset that the furthest of them reaches, so that they become level.

    False when one of them lacks records that were dropped: it has to catch up first.
    """
    if any(w.dropped_from is not None for w in workers):
        return False
    reach = max(map(_reach, workers))
    for worker in workers:
        worker.hold_at = reach
    return True


def _reach(worker: Worker) -> int:
    """Where a worker stands when what runs is through."""
    return max(worker.taken_to, worker.done_to if worker.running is None else worker.running.offset + 1)


def let_go(workers: Sequence[Worker]) -> None:
    """End a hold."""
    for worker in workers:
        worker.hold_at = None


def merge(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> tuple[Worker, list[WorkersMerged]]:
    """Level neighbours become one, from left to right, with one event a step. Raises ValueError when not level."""
    if not are_level(workers) or any(a.end != b.first for a, b in pairwise(workers)):
        raise ValueError(f"only level neighbours merge; seen {[w.number for w in workers]}")
    events = []
    number = workers[0].number
    for right in workers[1:]:
        merged = dispatch.numbers.take()
        events.append(
            WorkersMerged(
                dispatch.incarnation,
                0,
                right.epoch,
                dispatch.topic,
                dispatch.partition,
                number,
                right.number,
                merged,
            )
        )
        number = merged
    level = workers[0].taken_to
    edge = min(w.edge for w in workers)
    one = Worker(number, workers[0].first, workers[-1].end, edge, level, workers[0].epoch)
    one.queue.extend(heapq.merge(*(w.queue for w in workers), key=_offset))
    one.queue_bytes = sum(w.queue_bytes for w in workers)
    for worker in workers:
        worker.retired = True
        worker.queue.clear()
        worker.queue_bytes = 0
    dispatch.replace_workers(workers, [one])
    return one, events


def release(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> list[RangeReleased]:
    """Workers whose running records are through leave the dispatch; what they did not commit is forgotten.

    Raises ValueError while one of them runs a record.
    """
    if any(w.running is not None for w in workers):
        raise ValueError("a range is released when none of its records runs")
    for worker in workers:
        worker.retired = True
        worker.queue.clear()
        worker.queue_bytes = worker.kept = 0
        worker.done.clear()
    dispatch.replace_workers(workers, [])
    released: list[tuple[int, int, int]] = []
    for worker in sorted(workers, key=attrgetter("first")):
        if released and released[-1][1:] == (worker.first, worker.epoch):
            released[-1] = (released[-1][0], worker.end, worker.epoch)
        else:
            released.append((worker.first, worker.end, worker.epoch))
    return [
        RangeReleased(dispatch.incarnation, 0, epoch, dispatch.topic, dispatch.partition, first, end)
        for first, end, epoch in released
    ]


def carve(dispatch: PartitionDispatch, within: KeyRange) -> list[WorkerSplit]:
    """Split workers that lie across the borders of a range, so that whole workers make it up."""
    events = []
    for at in (within.first, within.end):
        events += [split(dispatch, worker, at) for worker in list(dispatch.workers) if worker.first < at < worker.end]
    return events


def workers_within(dispatch: PartitionDispatch, within: KeyRange) -> list[Worker]:
    """The workers whose ranges lie in a range."""
    return [w for w in dispatch.workers if within.covers(KeyRange(w.first, w.end))]


def wind_up(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> None:
    """Have workers start no further record: each ends behind what it has done, or runs now.

    Records that produced nothing count, too: the next owner would run them again.
    """
    for worker in workers:
        stands = worker.edge_now(dispatch.front) if worker.running is None else worker.running.offset + 1
        worker.hold_at = max(worker.taken_to, stands)


def are_through(workers: Sequence[Worker]) -> bool:
    """Whether wound-up workers may be released: nothing runs, and all that they have done is taken."""
    return all(w.running is None and w.taken_to == w.hold_at for w in workers)


def cut_event(dispatch: PartitionDispatch, workers: Sequence[Worker]) -> WorkersCut:
    """The event that tells of freshly added neighbours with consecutive numbers."""
    bounds = (*(w.first for w in workers), workers[-1].end)
    first = workers[0]
    return WorkersCut(dispatch.incarnation, 0, first.epoch, dispatch.topic, dispatch.partition, first.number, bounds)


def groups_to_merge(dispatch: PartitionDispatch, wanted: Sequence[int]) -> list[list[Worker]]:
    """Runs of neighbours that lie inside one range of the wanted cut (rising bounds), where that holds several.

    Those of different grants, and those that are held, stay apart.
    """
    groups: dict[tuple[int, int], list[Worker]] = {}
    for worker in dispatch.workers:
        i = bisect_right(wanted, worker.first) - 1
        if worker.hold_at is None and 0 <= i < len(wanted) - 1 and worker.end <= wanted[i + 1]:
            groups.setdefault((i, worker.epoch), []).append(worker)
    return [group for group in groups.values() if len(group) > 1 and all(a.end == b.first for a, b in pairwise(group))]


def _point(dispatch: PartitionDispatch, record: Record) -> int:
    return point_of(record.key, dispatch.partition, record.offset)
