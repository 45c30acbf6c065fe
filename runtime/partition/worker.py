"""PURE. A worker, the owner of a key range of a partition; and a stretch, the results of records that ran straight."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ...brokers.protocol import ConsumerRecord, Outgoing
from ...state.overlay import Layer
from ..handlers.record_result import RecordResult
from .load import LoadMeter

PERMIT_NONE: Final = 0
PERMIT_NEW: Final = 1
PERMIT_USED: Final = 2
"""The permit of a worker whose handler has a limit: none, a new permit, or a permit used for an attempt."""


@dataclass(slots=True, eq=False)
class Worker:
    """The owner of the key range ``[first, end)`` of one partition, under the grant of ``epoch``.

    Fields that the code reads for every record stand together: with many workers each read is a walk through memory.

    - ``number``: the worker's name in the logs, never used again.
    - ``edge``: the whole range below this offset is committed. ``taken_to``: the whole range below this offset is
      committed or in a generation; so ``edge <= taken_to``.
    - ``dropped_from``: the first record that a reader dropped because the queue was full; None: the worker lacks none.
    - ``active``: a task runs the worker's records, or is about to. A caller that sets the flag has to start the task.
    - ``retired``: the worker owns nothing any more; a task that still has the worker begins no record.
    - ``timed_out``: the handler ran over its time and is being cancelled.
    - ``queue``: records that were handed to the worker and did not begin. ``queue_bytes``: the bytes of these records;
      0 only for an empty queue.
    - ``hold_at``: no record at or beyond this offset is begun; None: no hold.
    - ``running``: the record that the handler works on. ``started_s``: when the handler was called, infinite
      before and after.
    - ``done``: the results of finished records that no generation has taken, in order of offsets. ``done_count``: the
      length of ``done``.
    - ``done_to``: the offset behind the last finished record.
    - ``load``: the cost of the worker. ``records``: how many records ran in the window that ``load`` measures.
    - ``permit``: the worker's permit, where the handler has a limit.
    - ``awaited_bytes``: a reader that stands at the full queue waits for room for this number of bytes; 0: no reader
      waits.
    """

    number: int
    first: int
    end: int
    edge: int
    taken_to: int
    epoch: int = 0
    dropped_from: int | None = None
    active: bool = False
    retired: bool = False
    timed_out: bool = False
    queue_bytes: int = 0
    hold_at: int | None = None
    running: ConsumerRecord | None = None
    done_count: int = 0
    done_to: int = 0
    records: int = 0
    queue: deque[ConsumerRecord] = field(default_factory=deque)
    started_s: float = 0.0
    done: deque[RecordResult] = field(default_factory=deque)
    awaited_bytes: int = 0
    permit: int = PERMIT_NONE
    load: LoadMeter = field(default_factory=LoadMeter)

    def keep(self, done: RecordResult) -> None:
        """Keep the results of the last record for a commit."""
        self.done.append(done)
        self.done_count += 1

    def first_not_done(self) -> int | None:
        """The offset of the first unfinished record among the records handed to the worker; None: all are finished."""
        if self.running is not None:
            return self.running.offset
        return self.queue[0].offset if self.queue else None

    def has_next(self) -> bool:
        """Whether the worker may begin the first record of its queue."""
        if not self.queue or self.retired:
            return False
        return self.hold_at is None or self.queue[0].offset < self.hold_at

    def edge_now(self, front: int) -> int:
        """The worker's edge as of now: the whole range below this offset is done.

        A hold bounds the edge, too. Neighbours on hold come to the same edge, also where none of their records lies
        between their last records and ``hold_at``.
        """
        edge = front
        if self.dropped_from is not None and self.dropped_from < edge:
            edge = self.dropped_from
        waiting = self.first_not_done()
        if waiting is not None and waiting < edge:
            edge = waiting
        if self.hold_at is not None and self.hold_at < edge:
            edge = self.hold_at
        return edge

    @property
    def is_loaded(self) -> bool:
        """Whether the worker runs a record or has records in its queue."""
        return self.running is not None or bool(self.queue)


@dataclass(slots=True, eq=False)
class Tally:
    """A number of outputs, and the sum of their digests."""

    outputs: int = 0
    digest: int = 0


@dataclass(slots=True, eq=False)
class Stretch:
    """Results of records that ran straight from their batch, with offsets in ``[offset_from, offset_to)``: outputs, or
    changes of state, with the last value of each key. A record that both sends and changes state has a ``RecordResult``
    of its own instead.

    An open stretch has ``offset_to`` equal to ``offset_from``; the line that ends the stretch sets ``offset_to``. A
    worker's records in stretches lie below all records in ``Worker.done``. So a generation can take both up to any
    line.
    """

    offset_from: int
    offset_to: int
    changes: Layer = field(default_factory=Layer)
    records: list[ConsumerRecord] = field(default_factory=list)
    outputs: list[Outgoing] = field(default_factory=list)
    """The output of each record in ``records``, by index."""
    tallies: dict[Worker, Tally] = field(default_factory=dict)
    """By worker whose records sent something: the count and digest for the worker's commit."""
    is_split: bool = False
    """A worker with a tally was split: the tally counts outputs of both children, and the points tell them apart."""
    topic: str = ""
    """The topic of all outputs: a handler's results go to one topic."""
    size: int = 0
    """About the bytes of outputs, of their source records, and of changes of state."""

    def send(self, worker: Worker, record: ConsumerRecord, output: Outgoing, digest: int) -> None:
        """Add the output of another record, with the output's digest."""
        self.records.append(record)
        self.outputs.append(output)
        if not self.topic:
            self.topic = output.topic
        tally = self.tallies.get(worker)
        if tally is None:
            tally = self.tallies[worker] = Tally()
        tally.outputs += 1
        tally.digest += digest


class WorkerNumbers:
    """Worker numbers of one incarnation, over all its partitions: a number never comes back."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` fresh consecutive numbers."""
        first = self.next
        self.next += count
        return first
