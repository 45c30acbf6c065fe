"""The facts in our logs: frozen, tagged, versioned, in the past tense.

Rule 1: the tag carries the schema version (``committed/1``). A changed meaning is a new tag; the golden files in
``tests/offsets/golden`` pin the bytes of every tag. Rule 2: offsets are half-open, ``[offset_from,
offset_to)``; points are half-open, ``[first, end)``. Rule 3: times in events are durations in ms from the append of
the event, for clocks differ. Rule 4: nothing here decides anything; see control.py and ledger.py.

This module has the events of the offset log ``<app>.offsets`` (partitioned by source partition, written by members
inside their transactions). control_events.py has the events of the control log, signals.py messages that are no facts.
"""

from typing import TypeAlias

from .control_events import ControlEvent
from .event_values import Edge, EpochFold, LogEvent, OfPartition, Tile, Writer


class LogOpened(LogEvent, frozen=True, tag="log_opened/1"):
    """The first event of each partition of the offset log, written before the first grant.

    So a log without this event, in an application with grants, has lost its history.
    """

    app: str
    hash_name: str
    log_partition: int
    log_partitions: int
    incarnation: int
    transaction: int


class WorkersCut(OfPartition, LogEvent, frozen=True, tag="workers_cut/1"):
    """The owner cut ``[bounds[0], bounds[-1])`` into workers ``worker``, ``worker + 1``, … in order of points."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    worker: int
    bounds: tuple[int, ...]


class WorkerSplit(OfPartition, LogEvent, frozen=True, tag="worker_split/1"):
    """``worker`` became two workers at point ``at``: ``left`` and ``left + 1``. Both go on from its edge."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    worker: int
    at: int
    left: int


class WorkersMerged(OfPartition, LogEvent, frozen=True, tag="workers_merged/1"):
    """The neighbours ``left`` and ``right`` became ``worker``. All three have the same edge."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    left: int
    right: int
    worker: int


class RangesReleased(OfPartition, LogEvent, frozen=True, tag="range_released/2"):
    """The owner gave up these bands, at their edges. The owner commits nothing more in the bands at this epoch.

    ``bounds``: the cuts of hot bands, in rising order, for the next owner.
    """

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    move: int
    bands: tuple[Edge, ...]
    bounds: tuple[int, ...]


class Committed(OfPartition, LogEvent, frozen=True, tag="committed/1"):
    """Tiles of one source partition, with the records that became visible in the same transaction because of them.

    ``part`` of ``parts`` numbers the commit events of the transaction from 0. ``outputs`` and ``dead_letters`` count
    the production of the records inside these tiles; ``digest`` is the sum mod 2**64 of the hashes of (topic,
    partition, offset, i, destination) of all outputs and dead letters (see provenance.py). Tiles are in order of
    points.
    """

    incarnation: int
    transaction: int
    part: int
    parts: int
    epoch: int
    topic: str
    partition: int
    tiles: tuple[Tile, ...]
    outputs: int
    dead_letters: int
    digest: int


class StateChanged(OfPartition, LogEvent, frozen=True, tag="state_changed/2"):
    """The transaction changed the state of a source partition, in ``changes`` records of its changelog.

    The writer's beacon in the changelog names the same transaction. The beacon and the last transaction of the writer
    in the offset log must agree: else the changelog is not whole, or not ours.

    ``succeeded``: incarnations that were fenced before the writer's grant, with changes that the writer has seen in the
    changelog. The writer's own beacon stands behind their beacons. The transaction deletes their beacons, and no
    reader requires the deleted beacons any more.
    """

    incarnation: int
    transaction: int
    topic: str
    partition: int
    changes: int
    succeeded: tuple[int, ...]


class TopicsWritten(OfPartition, LogEvent, frozen=True, tag="topics_written/1"):
    """Records of a source partition led, for the first time, to outputs in ``destinations`` without a declaration."""

    incarnation: int
    transaction: int
    topic: str
    partition: int
    destinations: tuple[str, ...]


class SnapshotTaken(OfPartition, LogEvent, frozen=True, tag="snapshot_taken/3"):
    """The ledger of a source partition at the moment when the offset log was read up to ``position``.

    ``part`` of ``parts`` numbers the snapshots of the transaction from 0, one for each source partition with this log
    partition (without any source partition there, one with ``topic == ""``). A reader that has all parts goes on
    reading at ``position``. ``epochs``: the epochs that are not complete, and the newest. ``changed``: for each
    incarnation that changed the partition's state, the last transaction with changes, in order of incarnations.
    ``destinations``: as in ``topics_written``, all of them. ``transactions``, in part 0 alone: for each incarnation
    without a fence, the last transaction that was read. From this the incarnation learns the outcome of its last
    transaction when all else was trimmed.
    """

    incarnation: int
    transaction: int
    part: int
    parts: int
    app: str
    position: int
    topic: str
    partition: int
    epochs: tuple[EpochFold, ...]
    violations: tuple[int, ...]
    changed: tuple[Writer, ...]
    destinations: tuple[str, ...]
    transactions: tuple[Writer, ...]


OffsetEvent: TypeAlias = (
    LogOpened
    | WorkersCut
    | WorkerSplit
    | WorkersMerged
    | RangesReleased
    | Committed
    | StateChanged
    | TopicsWritten
    | SnapshotTaken
)
Event: TypeAlias = ControlEvent | OffsetEvent
