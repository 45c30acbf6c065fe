"""PURE. The owner of one key range of one partition, and what its records produced while they ran straight."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ...brokers.protocol import ConsumerRecord, Outgoing
from ...state.overlay import Layer
from ..handlers.produced import Produced
from .load import LoadMeter

PERMIT_NONE: Final = 0
PERMIT_NEW: Final = 1
PERMIT_USED: Final = 2
"""What a worker has of the permits that its handler's limit gives out: none, a new one, or one that has served."""


@dataclass(slots=True, eq=False)
class Worker:
    """The owner of the key range ``[first, end)`` of one partition, held under the grant of ``epoch``.

    What is looked at for every record stands together: with many workers it is a walk through memory. In this order:

    - ``number``: its name in the logs, never used again.
    - ``edge``: all of its range below this offset is committed. ``taken_to``: the same, in a generation.
    - ``dropped_from``: the first record that a reader passed because the queue was full; None: it lacks none.
    - ``active``: a task runs its records, or is about to. Whoever sets it has to start that task.
    - ``retired``: it owns nothing any more; what still holds it begins no record of it.
    - ``timed_out``: its handler ran over its time and is being cancelled.
    - ``queue_bytes``: of what waits in ``queue``; 0 only where that is empty.
    - ``hold_at``: no record at or beyond this offset is begun; None: it is not held.
    - ``running``: the record that its handler works on. ``started_s``: when that was called, infinite
      before and after.
    - ``kept``: how many records are in ``done``, where what they produced waits for a commit.
    - ``done_to``: behind the last record that was finished.
    - ``records``: how many were run in the window that ``load`` measures.
    - ``permit``: what it has of the permits of a handler with a limit.
    - ``awaited_bytes``: a reader that stands at the full queue waits for room for so many; 0: none does.
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
    kept: int = 0
    done_to: int = 0
    records: int = 0
    queue: deque[ConsumerRecord] = field(default_factory=deque)
    started_s: float = 0.0
    done: deque[Produced] = field(default_factory=deque)
    awaited_bytes: int = 0
    permit: int = PERMIT_NONE
    load: LoadMeter = field(default_factory=LoadMeter)

    def keep(self, done: Produced) -> None:
        """What the last record produced waits for a commit."""
        self.done.append(done)
        self.kept += 1

    def first_not_done(self) -> int | None:
        """The offset of the first record that was handed over and is not done."""
        if self.running is not None:
            return self.running.offset
        return self.queue[0].offset if self.queue else None

    def has_next(self) -> bool:
        """Whether it has a record that it may begin."""
        if not self.queue or self.retired:
            return False
        return self.hold_at is None or self.queue[0].offset < self.hold_at

    def edge_now(self, front: int) -> int:
        """All of the range below this offset is done."""
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
        """Whether it has something to do."""
        return self.running is not None or bool(self.queue)


@dataclass(slots=True, eq=False)
class Tally:
    """How many outputs there are, and the sum of their digests."""

    outputs: int = 0
    digest: int = 0


@dataclass(slots=True, eq=False)
class Stretch:
    """What records with offsets in ``[offset_from, offset_to)`` produced that ran straight from their batch: what is
    sent, or what is changed of the state, of each key the last value. Handlers that do both have their records kept one
    by one, as ``Produced``.

    What a worker has in stretches lies below all of its done records, so that both can be taken up to any line.
    """

    offset_from: int
    offset_to: int
    changes: Layer = field(default_factory=Layer)
    records: list[ConsumerRecord] = field(default_factory=list)
    outputs: list[Outgoing] = field(default_factory=list)
    """Records that sent something, and what each of them sent: one output."""
    tallies: dict[Worker, Tally] = field(default_factory=dict)
    """Of each worker whose records sent something: what its commit says of that."""
    is_split: bool = False
    """A worker with a tally was split: what that counts is of both children, and which of them is told by points."""
    topic: str = ""
    """Where it is sent: what a handler returns goes to one place."""
    size: int = 0

    def send(self, worker: Worker, record: ConsumerRecord, output: Outgoing, digest: int) -> None:
        """What one more record sends, and the digest of that."""
        self.records.append(record)
        self.outputs.append(output)
        if not self.topic:
            self.topic = output.topic
        tally = self.tallies.get(worker)
        if tally is None:
            tally = self.tallies[worker] = Tally()
        tally.outputs += 1
        tally.digest += digest
