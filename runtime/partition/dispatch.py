"""PURE. The records of a source partition on their way through the workers: queues, edges, dropped and done records.

The rules of the edge, exact because each obvious alternative loses or doubles records:

- The front moves beyond an offset only after its record was queued, skipped or dropped. A record is skipped when no
  worker here needs the record. Records stay in offset order: a worker's queue, its running record and its done records
  never overtake each other.
- ``dropped_from`` of a worker: the worker got every record of its range below this offset, and none at or above it.
  None: the worker got all records below the front.
- The edge of a worker is ``min(first record not done, dropped_from, front)``: everything below the edge is done. A
  hold bounds the edge, too (``Worker.edge_now``).
- Offsets have holes: batches carry the reader's position behind them (``offset_next``), and ranges of offsets are
  taken from positions, never from "last record + 1".
- The catch-up pass stops at the front. In one step, without an await, the pass throws away its records at or beyond
  the front and clears ``dropped_from``: otherwise the main reader could skip a record between the two, and neither
  reader would hand the record over. The comparison is >=: the front may stand in a hole.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xxhash import xxh64_intdigest

from ...brokers.protocol import Batch, ConsumerRecord, TopicPartition
from ...keyrange.hashing import SEED, SPACE_END, point_of, point_without_key
from ...keyrange.lookup import IntervalTable
from ...keyrange.policy import WorkerLoad
from ...state.overlay import OverlayEntry
from ..handlers.record_result import RecordResult
from ..handlers.sizes import RECORD_OVERHEAD_BYTES, bytes_of
from ..watch.statistics import PartitionStatistics
from .worker import Stretch, Worker, WorkerNumbers


class Route:
    """A batch of the main reader on its way to the workers. ``at``: the index behind the last examined record.

    ``record``, ``worker``, ``entry`` and ``offset``: the last examined record that a worker here needs, and its facts.
    ``entries``: the overlay entry of each record's state, where looked up; else None.
    """

    __slots__ = ("at", "entries", "entry", "offset", "record", "records", "worker")

    entry: OverlayEntry | None
    offset: int
    record: ConsumerRecord
    worker: Worker

    def __init__(self, batch: Batch, at: int, cells: Sequence[OverlayEntry | None] = ()) -> None:
        self.records = [*batch.records]
        self.at = at
        self.entries: list[OverlayEntry | None] = [*cells] or [None] * len(self.records)


@dataclass(slots=True)
class Blocked:
    """A reader stands at a record of ``size`` bytes whose worker is full. ``index``: the record in its batch."""

    worker: Worker
    index: int
    size: int


class PartitionDispatch:
    """Hands the records of one partition to its workers. ``quota_bytes`` bounds each worker's queue."""

    def __init__(self, topic: str, partition: int, front: int, quota_bytes: int, numbers: WorkerNumbers) -> None:
        self.topic = topic
        self.partition = partition
        self.place = TopicPartition(topic, partition)
        self.partitions = 1
        """How many partitions the topic has now."""
        self.front = front
        self.quota_bytes = quota_bytes
        self.epoch = 0
        """The epoch of the last grant: new workers get this epoch."""
        self.incarnation = 0
        self.app_id = b""
        """The application's id, for the headers of outputs."""
        self.workers: list[Worker] = []
        self.numbers = numbers
        self.pass_position: int | None = None
        """The catch-up pass hands over records from this offset on; None: no pass is under way."""
        self.records_dropped = 0
        self.records_caught_up = 0
        self.stretches: deque[Stretch] = deque()
        """Stretches that no generation has taken, in order of offsets; the open stretch is the last one."""
        self._stretch: Stretch | None = None
        self._owners: IntervalTable[Worker | None] = IntervalTable([0], [None])
        """The worker of each point; None: another process owns the point."""

    @property
    def label(self) -> str:
        """The source partition, for people."""
        return f"{self.topic}[{self.partition}]"

    # --- owners ----------------------------------------------------------------------------------------------------

    def add_workers(self, bounds: Sequence[int], edges: Callable[[int], int]) -> list[Worker]:
        """New workers for ``bounds``, in order of points; ``edges(first)`` gives the edge of each worker.

        A worker with an edge below the front starts as dropped: the catch-up pass brings the worker its records.
        """
        added = []
        for number, (first, end) in enumerate(pairwise(bounds), self.numbers.take(len(bounds) - 1)):
            edge = edges(first)
            worker = Worker(number=number, first=first, end=end, edge=edge, taken_to=edge, epoch=self.epoch)
            if edge < self.front:
                worker.dropped_from = edge
            added.append(worker)
        self.replace_workers([], added)
        return added

    def replace_workers(self, old: Iterable[Worker], new: Iterable[Worker]) -> None:
        """Take workers out and others in; the ranges of all workers together must not overlap."""
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
        if bounds[-1] == SPACE_END:  # no point lies behind the end
            del bounds[-1], owners[-1]
        self.workers, self._owners = workers, IntervalTable(bounds, owners)

    def worker_of(self, record: ConsumerRecord) -> Worker | None:
        """The owner of the record's point; None when another process owns the range."""
        return self._owners.find(point_of(record.key, self.partition, record.offset))

    # --- handing over ----------------------------------------------------------------------------------------------

    def step(self, route: Route) -> bool:
        """Advance to the next record of the main reader's batch that a worker here needs now; False: no more records.
        Other records are skipped.

        The front does not move. Until the front moves, only queues and running records may change.
        """
        records, cells, at, owners = route.records, route.entries, route.at, self._owners
        while at < len(records):
            record, cell = records[at], cells[at]
            offset = record.offset
            if cell is not None:
                point = cell.point
            else:  # as in point_of, without a call
                key = record.key
                point = point_without_key(self.partition, offset) if key is None else xxh64_intdigest(key, SEED) >> 32
            worker = owners.find(point)
            at += 1
            # An arriving range may be further than the front: records below its edge were done elsewhere.
            if worker is None or worker.dropped_from is not None or offset < worker.edge:
                continue
            route.at, route.worker, route.record = at, worker, record
            route.entry, route.offset = cell, offset
            return True
        return False

    def hand_out(self, batch: Batch, index: int, ready: list[Worker]) -> Blocked | None:
        """Hand over the main reader's batch from ``index`` on; idle workers that get a record are added to ``ready``.

        Returns the record at which a full worker stopped the reader; None when the whole batch was handed over and the
        front stands behind the batch.
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
        """Move the front to a record: all of the batch in front of the record was handed over."""
        self.front = max(self.front, record.offset)

    def pass_by(self, batch: Batch) -> None:
        """Move the front behind a batch: the whole batch was handed over."""
        self.front = max(self.front, batch.offset_next)

    def try_queue(self, worker: Worker, record: ConsumerRecord, ready: list[Worker]) -> int:
        """Hand a record to its worker. Returns 0, or the record's bytes when the worker is full."""
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

    def drop(self, blocked: Blocked, batch: Batch) -> None:
        """Go on without a full worker: the catch-up pass serves the worker from the blocked record on.

        The owner of the record is looked up anew: the full worker may have been split or released meanwhile. If the
        child that does not own the record were dropped, the other child would never get the record.
        """
        record = batch.records[blocked.index]
        worker = self.worker_of(record)
        if worker is not None and worker.dropped_from is None and record.offset >= worker.edge:
            worker.dropped_from = record.offset
            self.records_dropped += 1

    # --- running at once -------------------------------------------------------------------------------------------
    #
    # A record whose worker has nothing to do may bypass the queue and run straight from the batch. The front does not
    # move with each of these records, and stands below done records meanwhile. No other code sees that: none runs as
    # long as no handler suspends.

    def begin(self, worker: Worker, record: ConsumerRecord) -> None:
        """Make a record that runs straight its worker's running record, and move the front behind the record. From here
        on other code may look at the dispatch.
        """
        self.front = max(self.front, record.offset + 1)
        worker.active = True
        worker.running = record

    def open_stretch(self, worker: Worker) -> Stretch | None:
        """The open stretch, for results of a worker's record without a ``RecordResult``. The next line ends the
        stretch.
        None: the worker has records in ``done``, and results behind these have to be a ``RecordResult``, too.
        """
        if worker.done_count:
            return None
        if self._stretch is None:
            self._stretch = Stretch(self.front, self.front)
            self.stretches.append(self._stretch)
        return self._stretch

    def draw_line(self) -> int:
        """Draw a line at the front, an offset up to which a generation can be taken; ends the open stretch."""
        if self._stretch is not None:
            self._stretch.offset_to = self.front
            self._stretch = None
        return self.front

    def bound_stretch(self, bytes_max: int, records_max: int) -> None:
        """End the open stretch when it has become large: a generation takes a stretch as a whole."""
        open_now = self._stretch
        if open_now is not None and (open_now.size >= bytes_max or len(open_now.outputs) >= records_max):
            self.draw_line()

    def take_stretches(self, line: int, bytes_max: int, records_max: int) -> tuple[list[Stretch], int]:
        """Take stretches below a line until the limits are reached: the last one may go beyond a limit. Returns the
        stretches, and the offset up to which the generation may take all workers of the partition. A generation takes
        a stretch as a whole, or stops in front of the stretch.
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
        """The start of the next pass: the least ``dropped_from`` of workers with a queue at most half full, or None."""
        quota = self.quota_bytes
        return min(
            (w.dropped_from for w in self.workers if w.dropped_from is not None and w.queue_bytes * 2 <= quota),
            default=None,
        )

    def begin_pass(self, position: int) -> None:
        """A pass starts to read at ``position``."""
        self.pass_position = position

    def end_pass(self) -> None:
        """End the pass; workers that are still dropped wait for the next pass."""
        self.pass_position = None

    def should_begin_anew(self) -> bool:
        """Whether a pass at a full worker should end: a worker that the pass left behind has room, and may be idle."""
        start = self.catch_up_start()
        return self.pass_position is not None and start is not None and start < self.pass_position

    def followers(self) -> list[Worker]:
        """Workers that the pass serves on its way to the front: their first dropped record lies ahead of the pass."""
        position = self.pass_position
        if position is None:
            return []
        return [w for w in self.workers if w.dropped_from is not None and w.dropped_from >= position]

    def catch_up(self, batch: Batch, index: int, ready: list[Worker]) -> Blocked | None:
        """Hand over the pass's batch from ``index`` on, to workers that lack the records. Same result as ``hand_out``.

        After the whole batch ``pass_position`` moves behind the batch. At the front the pass ends.
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
            # a later record handed to the worker now would overtake the dropped record.
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
        """Go on with the pass without a full worker; the worker waits for the next pass with the same ``dropped_from``.

        The worker's ``dropped_from`` is the pass's position. The pass moves on by one offset: a ``dropped_from`` below
        the position means that the pass has left the worker behind. The other workers lack nothing at this offset, and
        move along. As in ``drop``, the owner of the record is looked up anew.
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
        """Move the pass to ``to``: the workers that the pass serves have everything below."""
        for worker in self.workers:
            if worker.dropped_from is not None and position <= worker.dropped_from < to:
                worker.dropped_from = to
        self.pass_position = to

    # --- readers and full workers ----------------------------------------------------------------------------------

    def has_room_again(self, worker: Worker, size: int) -> bool:
        """Whether a full worker has room for a reader again. A quarter of the quota has to be free: readers then hand
        over many records before they stop again. The reader's record of ``size`` bytes has to fit, too: otherwise the
        reader would go on and be stopped again for ever, without an await between. An empty queue takes any record.
        """
        held, quota = worker.queue_bytes, self.quota_bytes
        return not held or (held * 4 <= quota * 3 and held + size <= quota)

    def may_drop(
        self, stands_at: Worker, fed: Iterable[Worker], *, waited_long: bool, is_stuck: bool, stands_still: bool
    ) -> bool:
        """Whether a reader that feeds the workers ``fed`` should go on without the full worker ``stands_at``.

        The reader waits while the other workers have work: on average more than one queued record each. The reader also
        waits while most of the loaded workers are full: the workers are slow, not the reader. The ends of the waits:

        - ``stands_still`` (the queues have not become shorter for long) ends both: a record may hang.
        - ``waited_long`` ends the second wait: some slow workers may have work for hours.
        - Where most workers are idle, ``waited_long`` and ``is_stuck`` (the full worker is stuck) end both: records of
          idle workers may lie behind.
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
        """The worker's next record, now running; None without a record to run: the worker becomes idle."""
        if not worker.has_next():
            worker.active = False
            return None
        worker.running = record = worker.queue.popleft()
        # As bytes_of(record), without a call.
        worker.queue_bytes -= RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        return record

    def finish(self, worker: Worker, done: RecordResult | None) -> None:
        """Finish the running record. ``done``: the record's results; None: no results."""
        if worker.running is not None:
            worker.done_to = worker.running.offset + 1
        worker.running = None
        if done is not None:
            worker.keep(done)

    def cut_off(self) -> None:
        """Put running records back into their queues: they come to no end here, and wait for the range's next owner."""
        for worker in self.workers:
            record = worker.running
            if record is None:
                continue
            worker.running = None
            worker.queue.appendleft(record)
            worker.queue_bytes += bytes_of(record)
            if worker.hold_at is not None:
                worker.hold_at = min(worker.hold_at, max(worker.taken_to, record.offset))

    def runnable(self) -> list[Worker]:
        """Idle workers that may run their next record; the call marks them active."""
        ready = []
        for worker in self.workers:
            if worker.active or not worker.queue:
                continue
            if worker.hold_at is None or worker.queue[0].offset < worker.hold_at:
                worker.active = True
                ready.append(worker)
        return ready

    def count_behind(self, most: int) -> int:
        """How many workers have an edge below the front; the count stops at ``most``."""
        front, count = self.front, 0
        for worker in self.workers:
            if worker.edge_now(front) < front:
                count += 1
                if count >= most:
                    break
        return count

    def statistics(self, edge: int, end: int) -> PartitionStatistics:
        """The partition's progress, for people and machines. ``edge``: the least edge of the process's ranges; ``end``:
        the last known end of the partition.
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
        """The costs of ``workers`` in a window of ``seconds`` that ends now, for the policy; the next window begins."""
        return [self._close_window(worker, now, seconds) for worker in workers]

    def _close_window(self, worker: Worker, now: float, seconds: float) -> WorkerLoad:
        load = worker.load
        if worker.running is not None:
            load.spend(worker.started_s, now, self.partition, worker.running)
        window = load.end_window(seconds, worker.records)
        worker.records = 0
        return WorkerLoad(
            number=worker.number,
            first=worker.first,
            end=worker.end,
            epoch=worker.epoch,
            busy=window.busy,
            average=window.average,
            records=window.records,
            backlog_records=len(worker.queue),
            backlog_bytes=worker.queue_bytes,
            is_behind=worker.dropped_from is not None or 2 * worker.queue_bytes >= self.quota_bytes,
            is_changing=worker.hold_at is not None,
            points=window.points,
        )
