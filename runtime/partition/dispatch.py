"""PURE. One source partition on its way through the workers: queues, edges, what was dropped, what is done.

The rules of the edge, exact because each obvious alternative loses or doubles records:

- The front passes an offset only after its record was queued, skipped or dropped. Records in offset order: a worker's
  queue, its running record and its done ones never overtake each other.
- ``dropped_from`` of a worker: every record of its range below that offset was handed to it, none at or above it is.
  None: all below the front were handed to it.
- The edge of a worker is ``min(first record not done, dropped_from, front)``: everything below it is done.
- Offsets have holes: batches carry the reader's position behind them (``offset_next``), and ranges of offsets are
  taken from positions, never from "last record + 1".
- The catch-up pass stops at the front. What it holds at or beyond the front is thrown away and ``dropped_from`` is
  cleared in the same step, without an await between: otherwise the main reader could pass a record in that gap that
  neither of the two hands over. The comparison is >=: the front may stand in a hole.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xxhash import xxh64_intdigest

from ...brokers.protocol import Batch, ConsumerRecord, TopicPartition
from ...keyrange.hashing import SEED, SPACE_END, point_of, point_of_place
from ...keyrange.lookup import IntervalTable
from ...keyrange.policy import WorkerLoad
from ...state.overlay import OverlayEntry
from ..handlers.produced import Produced
from ..handlers.sizes import RECORD_OVERHEAD_BYTES, bytes_of
from ..watch.statistics import PartitionStatistics
from .worker import Stretch, Worker


class Route:
    """A batch of the main reader on its way to the workers: the records up to ``at`` were looked at, and the last of
    those that are for somebody, with what was found about it.

    ``cells``: where the state of each record is that has some, if that was looked up.
    """

    __slots__ = ("at", "cell", "cells", "offset", "record", "records", "worker")

    cell: OverlayEntry | None
    offset: int
    record: ConsumerRecord
    worker: Worker

    def __init__(self, batch: Batch, at: int, cells: Sequence[OverlayEntry | None] = ()) -> None:
        self.records, self.at = [*batch.records], at
        self.cells: list[OverlayEntry | None] = [*cells] or [None] * len(self.records)


@dataclass(slots=True)
class Blocked:
    """A reader stands at a record of ``size`` bytes whose worker is full. ``index`` is its place in the batch."""

    worker: Worker
    index: int
    size: int


class WorkerNumbers:
    """Worker numbers of one incarnation, over all its partitions: a number never comes back."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` fresh consecutive numbers."""
        first = self.next
        self.next += count
        return first


class PartitionDispatch:
    """Hands the records of one partition to its workers. ``quota_bytes`` bounds each worker's queue."""

    def __init__(self, topic: str, partition: int, front: int, quota_bytes: int, numbers: WorkerNumbers) -> None:
        self.topic, self.partition = topic, partition
        self.place = TopicPartition(topic, partition)
        self.partitions = 1
        """How many its topic has now."""
        self.front = front
        self.quota_bytes = quota_bytes
        self.epoch = 0
        self.incarnation = 0
        self.app_id = b""
        """Of the application, for the headers of its outputs."""
        self.workers: list[Worker] = []
        self.numbers = numbers
        self.pass_position: int | None = None
        self.records_dropped = 0
        self.records_caught_up = 0
        self.stretches: deque[Stretch] = deque()
        self._stretch: Stretch | None = None
        self._owners: IntervalTable[Worker | None] = IntervalTable([0], [None])

    @property
    def label(self) -> str:
        """The source partition, for people."""
        return f"{self.topic}[{self.partition}]"

    # --- who owns what ---------------------------------------------------------------------------------------------

    def add_workers(self, bounds: Sequence[int], edges: Callable[[int], int]) -> list[Worker]:
        """New workers for ``bounds``, in order of points; ``edges(first)`` gives where each one goes on.

        One whose edge lies below the front starts as dropped: the catch-up pass brings it its records.
        """
        added = []
        for number, (first, end) in enumerate(pairwise(bounds), self.numbers.take(len(bounds) - 1)):
            edge = edges(first)
            worker = Worker(number, first, end, edge, edge, self.epoch)
            if edge < self.front:
                worker.dropped_from = edge
            added.append(worker)
        self.replace_workers([], added)
        return added

    def replace_workers(self, old: Iterable[Worker], new: Iterable[Worker]) -> None:
        """Take workers out and others in; what they own together must not overlap."""
        gone = set(map(id, old))
        workers = sorted([*(w for w in self.workers if id(w) not in gone), *new], key=lambda w: w.first)
        bounds: list[int] = [0]
        owners: list[Worker | None] = [None]
        for worker in workers:
            if bounds[-1] > worker.first:
                raise ValueError(f"worker {worker.number} overlaps its left neighbour at point {worker.first:08x}")
            if bounds[-1] == worker.first:
                owners[-1] = worker
            else:
                bounds.append(worker.first)
                owners.append(worker)
            bounds.append(worker.end)
            owners.append(None)
        if bounds[-1] == SPACE_END:  # nothing lies behind it
            del bounds[-1], owners[-1]
        self.workers, self._owners = workers, IntervalTable(bounds, owners)

    def worker_of(self, record: ConsumerRecord) -> Worker | None:
        """The owner of the record's point; None when the range belongs to somebody else."""
        return self._owners.find(point_of(record.key, self.partition, record.offset))

    # --- handing over ----------------------------------------------------------------------------------------------

    def step(self, route: Route) -> bool:
        """On to the next record of the main reader's batch that is for a worker here and now; False: there is none.
        What is not among them is passed by.

        The front does not move; nothing but queues and what runs may change before it does.
        """
        records, cells, at, owners = route.records, route.cells, route.at, self._owners
        while at < len(records):
            record, cell = records[at], cells[at]
            offset = record.offset
            if cell is not None:
                point = cell.point
            else:  # as in point_of, without a call
                key = record.key
                point = point_of_place(self.partition, offset) if key is None else xxh64_intdigest(key, SEED) >> 32
            worker = owners.find(point)
            at += 1
            # A range that arrives may be further than the front: what lies below its edge was done elsewhere.
            if worker is None or worker.dropped_from is not None or offset < worker.edge:
                continue
            route.at, route.worker, route.record = at, worker, record
            route.cell, route.offset = cell, offset
            return True
        return False

    def hand_out(self, batch: Batch, index: int, ready: list[Worker]) -> Blocked | None:
        """Hand over the main reader's batch from ``index`` on; workers that were idle are added to ``ready``.

        Returns where it stopped because a worker is full; None when the batch is through and the front behind it.
        """
        route = Route(batch, index)
        while self.step(route):
            size = self.try_queue(route.worker, route.record, ready)
            if size:
                self.pause(route.record)
                return Blocked(route.worker, route.at - 1, size)
        self.pass_by(batch)
        return None

    def pause(self, record: ConsumerRecord) -> None:
        """All of a batch in front of this record was handed over."""
        self.front = max(self.front, record.offset)

    def pass_by(self, batch: Batch) -> None:
        """All of a batch was handed over."""
        self.front = max(self.front, batch.offset_next)

    def try_queue(self, worker: Worker, record: ConsumerRecord, ready: list[Worker]) -> int:
        """Hand a record to its worker; its bytes when that is full, else 0."""
        size = bytes_of(record)
        held = worker.queue_bytes
        if held and held + size > self.quota_bytes:
            return size
        worker.queue.append(record)
        worker.queue_bytes = held + size
        if not worker.active and (worker.hold_at is None or record.offset < worker.hold_at):
            worker.active = True
            ready.append(worker)
        return 0

    # --- running at once -------------------------------------------------------------------------------------------
    #
    # A record whose worker has nothing to do need not go through its queue: it may run when the batch comes to it. As
    # long as no handler suspends, nobody sees a front that stands behind what is done.

    def begin(self, worker: Worker, record: ConsumerRecord) -> None:
        """The next record of a batch is its worker's running one, and the front behind it: others go on meanwhile."""
        self.front = max(self.front, record.offset + 1)
        worker.active = True
        worker.running = record

    def drop(self, blocked: Blocked, batch: Batch) -> None:
        """Go on without a full worker: from this record on it is served by the catch-up pass.

        Looks up who owns the record: the worker that the reader stands at may have been split or released meanwhile,
        and to drop the child that does not own it would let the other one's record be passed.
        """
        record = batch.records[blocked.index]
        worker = self.worker_of(record)
        if worker is not None and worker.dropped_from is None and record.offset >= worker.edge:
            worker.dropped_from = record.offset
            self.records_dropped += 1

    def stretch(self, worker: Worker) -> Stretch | None:
        """Where something goes that a worker's record produced, and that needs no ``Produced``; it ends where a line is
        drawn next. None: the worker has done records, and what it does behind them is kept like them.
        """
        if worker.kept:
            return None
        if self._stretch is None:
            self._stretch = Stretch(self.front, self.front)
            self.stretches.append(self._stretch)
        return self._stretch

    def line(self) -> int:
        """The front, as a place up to which a generation can be taken."""
        if self._stretch is not None:
            self._stretch.offset_to = self.front
            self._stretch = None
        return self.front

    def count_behind(self, most: int) -> int:
        """How many workers are not through with all that lies below the front; beyond ``most`` nobody counts on."""
        front, count = self.front, 0
        for worker in self.workers:
            if worker.edge_now(front) < front:
                count += 1
                if count >= most:
                    break
        return count

    def bound_stretch(self, bytes_max: int, records_max: int) -> None:
        """Have a stretch end that has become large: a generation takes stretches as a whole."""
        open_now = self._stretch
        if open_now is not None and (open_now.size >= bytes_max or len(open_now.outputs) >= records_max):
            self.line()

    def take_stretches(self, line: int, bytes_max: int, records_max: int) -> tuple[list[Stretch], int]:
        """Stretches below a line, at least one and about as much as is allowed; and how far all of the partition may be
        taken with them.
        """
        taken: list[Stretch] = []
        while self.stretches:
            first = self.stretches[0]
            if first is self._stretch or first.offset_to > line or bytes_max <= 0 or records_max <= 0:
                return taken, min(line, first.offset_from)
            bytes_max -= first.size
            records_max -= len(first.outputs)
            self.stretches.popleft()
            if first.outputs or first.changes:
                taken.append(first)
        return taken, line

    # --- the catch-up pass -----------------------------------------------------------------------------------------

    def catch_up_start(self) -> int | None:
        """Where a pass should begin: the least ``dropped_from`` among workers with room; None when none waits."""
        quota = self.quota_bytes
        return min(
            (w.dropped_from for w in self.workers if w.dropped_from is not None and w.queue_bytes * 2 <= quota),
            default=None,
        )

    def begin_pass(self, position: int) -> None:
        """A pass starts to read at ``position``."""
        self.pass_position = position

    def end_pass(self) -> None:
        """The pass is over; who is still dropped waits for the next one."""
        self.pass_position = None

    def should_begin_anew(self) -> bool:
        """Whether a pass that stands at a full worker is over: one that it left behind has room, and would be idle."""
        start = self.catch_up_start()
        return self.pass_position is not None and start is not None and start < self.pass_position

    def followers(self) -> list[Worker]:
        """Workers that the pass serves now or on its way to the front: it has not yet passed what they lack."""
        position = self.pass_position
        if position is None:
            return []
        return [w for w in self.workers if w.dropped_from is not None and w.dropped_from >= position]

    def catch_up(self, batch: Batch, index: int, ready: list[Worker]) -> Blocked | None:
        """Hand over the pass's batch from ``index`` on, to those that lack it. Same result as ``hand_out``.

        ``pass_position`` moves behind the batch when it is through; the pass is over when it reached the front.
        """
        position = self.pass_position
        assert position is not None, "a pass was begun"
        records, front = batch.records, self.front
        for i in range(index, len(records)):
            record = records[i]
            offset = record.offset
            if offset >= front:
                break
            worker = self.worker_of(record)
            # A worker that was dropped again in this pass has dropped_from < position and waits for the next pass:
            # handing it a later record now would overtake the dropped one.
            if worker is None or worker.dropped_from is None or not position <= worker.dropped_from <= offset:
                continue
            size = self.try_queue(worker, record, ready)
            if size:
                self._advance(position, offset)
                return Blocked(worker, i, size)
            self.records_caught_up += 1
        if batch.offset_next >= front:
            for worker in self.workers:
                if worker.dropped_from is not None and worker.dropped_from >= position:
                    worker.dropped_from = None
            self.end_pass()
            return None
        self._advance(position, batch.offset_next)
        return None

    def drop_again(self, blocked: Blocked, batch: Batch) -> None:
        """Go on with the pass without a full worker: it keeps its place for the next pass.

        Its ``dropped_from`` stands at the pass's position; the pass moves on by one so that it counts as left behind.
        As in ``drop``, the owner of the record is looked up.
        """
        position = self.pass_position
        record = batch.records[blocked.index]
        assert position == record.offset, "the pass stands where the worker was blocked"
        owner = self.worker_of(record)
        for worker in self.followers():
            if worker is not owner and worker.dropped_from == position:
                worker.dropped_from = position + 1
        self.pass_position = position + 1
        self.records_dropped += 1

    def _advance(self, position: int, to: int) -> None:
        """Followers have everything below ``to``."""
        for worker in self.workers:
            if worker.dropped_from is not None and position <= worker.dropped_from < to:
                worker.dropped_from = to
        self.pass_position = to

    # --- who holds back whom ---------------------------------------------------------------------------------------

    def has_room_again(self, worker: Worker, size: int) -> bool:
        """Whether a full worker worked off enough: a quarter, so that readers move in strides, and what the record at
        which a reader stands needs. Without the second a reader that holds a large record would be told to go on and
        stopped again for ever, without an await between.
        """
        held, quota = worker.queue_bytes, self.quota_bytes
        return not held or (held * 4 <= quota * 3 and held + size <= quota)

    def may_drop(
        self, stands_at: Worker, fed: Iterable[Worker], *, waited_long: bool, is_stuck: bool, stands_still: bool
    ) -> bool:
        """Whether a reader that feeds these workers should go on without the full one it stands at.

        It waits while the others still have work, and while most of the loaded ones are full: then the workers, not
        the reader, are what is slow. ``waited_long`` ends both waits where most workers are idle, and the second one
        anyway: idle workers' records may lie behind, and some slow ones may have work for hours. ``stands_still``, no
        queue has become shorter for so long, ends every wait: what is queued may be queued behind records that hang.
        Where most workers are idle and the full one is stuck at one record, nothing is to be waited for.
        """
        if stands_still:
            return True
        idle = loaded = full = backlog = 0
        for worker in fed:
            if worker is stands_at or worker.queue_bytes * 10 >= self.quota_bytes * 9:
                loaded += 1
                full += 1
            elif worker.running is not None or worker.queue:
                loaded += 1
                backlog += len(worker.queue)
            else:
                idle += 1
        if is_stuck and idle > loaded:
            return True
        if full * 2 > loaded or (waited_long and idle > loaded):
            return waited_long
        return backlog <= loaded - full

    def fed_by_front(self) -> list[Worker]:
        """The workers that the main reader feeds."""
        return [w for w in self.workers if w.dropped_from is None]

    # --- running ---------------------------------------------------------------------------------------------------

    def next_record(self, worker: Worker) -> ConsumerRecord | None:
        """The worker's next record, now running; None when it has none to run: it becomes idle."""
        if not worker.has_next():
            worker.active = False
            return None
        worker.running = record = worker.queue.popleft()
        worker.queue_bytes -= RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        return record

    def finish(self, worker: Worker, done: Produced | None) -> None:
        """The running record is through; ``done`` holds what it produced, None nothing."""
        if worker.running is not None:
            worker.done_to = worker.running.offset + 1
        worker.running = None
        if done is not None:
            worker.keep(done)

    def cut_off(self) -> None:
        """What runs comes to no end any more: it waits again, for whoever has its range next."""
        for worker in self.workers:
            record = worker.running
            if record is None:
                continue
            worker.running = None
            worker.queue.appendleft(record)
            worker.queue_bytes += RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
            if worker.hold_at is not None:
                worker.hold_at = min(worker.hold_at, max(worker.taken_to, record.offset))

    def runnable(self) -> list[Worker]:
        """Idle workers that have something they may run; marked active."""
        ready = []
        for worker in self.workers:
            if worker.active or not worker.queue:
                continue
            if worker.hold_at is None or worker.queue[0].offset < worker.hold_at:
                worker.active = True
                ready.append(worker)
        return ready

    def statistics(self, edge: int, end: int) -> PartitionStatistics:
        """Where it stands, for people and machines. ``edge``: the least of what is held; ``end``: of the partition, as
        far as it is known.
        """
        workers = self.workers
        return PartitionStatistics(
            topic=self.topic,
            partition=self.partition,
            front=self.front,
            offset_least=edge,
            workers=len(workers),
            queued_records=sum(len(w.queue) for w in workers),
            queued_bytes=sum(w.queue_bytes for w in workers),
            lagging_workers=sum(1 for w in workers if w.dropped_from is not None),
            dropped=self.records_dropped,
            caught_up=self.records_caught_up,
            end=end,
            lag=end - edge,
        )

    def close_windows(self, workers: Sequence[Worker], now: float, seconds: float) -> list[WorkerLoad]:
        """What these cost in a window of this length that ends now, as the policy sees it; the next one begins."""
        return [self._close_window(worker, now, seconds) for worker in workers]

    def _close_window(self, worker: Worker, now: float, seconds: float) -> WorkerLoad:
        load = worker.load
        if worker.running is not None:
            load.spend(worker.started_s, now, self.partition, worker.running)
        window = load.end_window(seconds, worker.records)
        worker.records = 0
        return WorkerLoad(
            worker.number,
            worker.first,
            worker.end,
            worker.epoch,
            window.busy,
            window.average,
            window.records,
            len(worker.queue),
            worker.queue_bytes,
            worker.dropped_from is not None or 2 * worker.queue_bytes >= self.quota_bytes,
            worker.hold_at is not None,
            window.points,
        )
