"""The facts in our logs: frozen, tagged, versioned, in the past tense.

Rule 1: the tag carries the schema version (``committed/1``). A changed meaning is a new tag; the golden files in
``tests/offsets/golden`` pin the bytes of every tag ever written. Rule 2: offsets are half-open, ``[offset_from,
offset_to)``; points are half-open, ``[first, end)``. Rule 3: nothing here decides anything; see ledger.py.

The control log ``<app>.control`` (one partition, written by the coordinator) holds the first group, the offset log
``<app>.offsets`` (partitioned by source partition, written by members inside their transactions) the second.
"""

from typing import Final, TypeAlias

import msgspec

EARLIEST: Final = "earliest"
"""What a partition was started from before there was a choice: the first record there was."""


class _Event(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Shared settings: an event is a msgpack array whose first item is its tag."""


class Band(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Points ``[first, end)`` that a grant covers from ``offset_from`` on."""

    first: int
    end: int
    offset_from: int


class Tile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rectangle ``[offset_from, offset_to) x [first, end)`` that neighbouring workers committed alike.

    ``worker`` is the number of the first of them in order of points, ``count`` how many there are; their numbers are
    consecutive.
    """

    worker: int
    count: int
    first: int
    end: int
    offset_from: int
    offset_to: int


# --- control log -----------------------------------------------------------------------------------------------------


class AppCreated(_Event, frozen=True, tag="app_created/1"):
    """The first event of an application: its name, the hash function and the partition count of its offset log."""

    app: str
    hash_name: str
    log_partitions: int


class CoordinatorElected(_Event, frozen=True, tag="coordinator_elected/1"):
    """``instance`` coordinates from here on if ``term`` is higher than every term before it in the log.

    Every other control event carries the term of its writer and counts only while that term is the highest.
    """

    term: int
    instance: str


class MemberJoined(_Event, frozen=True, tag="member_joined/1"):
    """A process takes part as ``incarnation``, with a transactional id of its own that nobody else ever gets."""

    term: int
    incarnation: int
    instance: str
    transactional_id: str


class MemberExpelled(_Event, frozen=True, tag="member_expelled/1"):
    """The incarnation is to commit no more. Ends nothing by itself: the next grant does."""

    term: int
    incarnation: int


class MemberFenced(_Event, frozen=True, tag="member_fenced/1"):
    """The incarnation's transactional id was fenced after it was expelled; its last transaction is decided."""

    term: int
    incarnation: int


class PartitionStarted(_Event, frozen=True, tag="partition_started/2"):
    """The application reads a source partition from ``offset`` on: the audit's left edge.

    ``start``: what it was told to start from, in its own words, or "added" for a partition that came to its topic
    later (see starts.py). ``partitions``: how many the topic had then; 0: it was not written down.
    """

    term: int
    topic: str
    partition: int
    offset: int
    start: str
    partitions: int


class PartitionStarted1(_Event, frozen=True, tag="partition_started/1"):
    """A start from before there was a choice: from the first record there was. It is read, never written."""

    term: int
    topic: str
    partition: int
    offset: int


class RangesGranted(_Event, frozen=True, tag="ranges_granted/1"):
    """Bands of one source partition belong to ``incarnation`` at ``epoch``, each from its own offset.

    The offset is the edge that was found by reading the offset log to its end. An epoch is never used again over
    overlapping points; over 256 KB a grant is written as several events of one epoch.
    """

    term: int
    incarnation: int
    epoch: int
    topic: str
    partition: int
    bands: tuple[Band, ...]


class StoreDeclared(_Event, frozen=True, tag="store_declared/1"):
    """The application keeps state in store ``number`` (dense, from 0), called ``name``, for the keys of a source topic.

    ``kind``: value or map; ``key_type``: of a map's keys, else empty; ``value_type``: the shape of its values;
    ``codec``: its name. All of it stays for ever: the number is part of every state key, the rest says what the bytes
    behind it are.
    """

    term: int
    number: int
    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class SourceIdentified(_Event, frozen=True, tag="source_identified/1"):
    """The broker calls the source topic ``identity``. Offsets of another topic of that name mean nothing here."""

    term: int
    topic: str
    identity: str


ControlEvent: TypeAlias = (
    AppCreated
    | CoordinatorElected
    | MemberJoined
    | MemberExpelled
    | MemberFenced
    | PartitionStarted
    | RangesGranted
    | StoreDeclared
    | SourceIdentified
)

# --- offset log ------------------------------------------------------------------------------------------------------


class LogOpened(_Event, frozen=True, tag="log_opened/1"):
    """The first event of each partition of the offset log, written before the first grant is.

    So a log without it although something was granted has lost its history.
    """

    app: str
    hash_name: str
    log_partition: int
    log_partitions: int
    incarnation: int
    transaction: int


class WorkersCut(_Event, frozen=True, tag="workers_cut/1"):
    """The owner cut ``[bounds[0], bounds[-1])`` into workers ``worker``, ``worker + 1``, … in order of points."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    worker: int
    bounds: tuple[int, ...]


class WorkerSplit(_Event, frozen=True, tag="worker_split/1"):
    """``worker`` became two at point ``at``: ``left`` and ``left + 1``. Both go on from its edge."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    worker: int
    at: int
    left: int


class WorkersMerged(_Event, frozen=True, tag="workers_merged/1"):
    """The level neighbours ``left`` and ``right`` became ``worker``, which goes on from their edge."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    left: int
    right: int
    worker: int


class RangeReleased(_Event, frozen=True, tag="range_released/1"):
    """The owner gave up ``[first, end)``; it commits nothing there any more at this epoch."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    first: int
    end: int


class Committed(_Event, frozen=True, tag="committed/1"):
    """Tiles of one source partition, with what became visible in the same transaction because of them.

    ``part`` of ``parts`` numbers the commit events of the transaction from 0. ``outputs`` and ``dead_letters`` count
    what the records inside these tiles produced; ``digest`` is the sum mod 2**64 of the hashes of (topic, partition,
    offset, i, destination) of all of these (see provenance.py). Tiles are in order of points.
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


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of the ledger's fold in a snapshot: one run of points with equal values. None: not defined there."""

    first: int
    end: int
    offset_from: int
    offset_edge: int
    offset_until: int | None
    worker: int | None
    released: bool


class EpochFold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a snapshot keeps of one epoch of one source partition."""

    epoch: int
    incarnation: int
    pieces: tuple[Piece, ...]


class StateChanged(_Event, frozen=True, tag="state_changed/1"):
    """The transaction changed the state of a source partition, in ``changes`` records of its changelog.

    The changelog's beacon names the same transaction. The last one that the offset log names and the beacon that the
    changelog holds must be one: else the changelog is not whole, or not ours.
    """

    incarnation: int
    transaction: int
    topic: str
    partition: int
    changes: int


class SnapshotTaken(_Event, frozen=True, tag="snapshot_taken/2"):
    """The ledger of one source partition as it was when the offset log was read up to ``position``.

    ``part`` of ``parts`` numbers the snapshots of the transaction from 0, one for each source partition that shares
    this log partition (one without a source partition, ``topic == ""``, when there is none). A reader that holds all
    parts goes on reading at ``position``. ``changed_*`` name the last transaction that changed the partition's state;
    0, 0: none ever did.
    """

    incarnation: int
    transaction: int
    part: int
    parts: int
    app: str
    position: int
    topic: str
    partition: int
    epochs_closed: int
    epochs: tuple[EpochFold, ...]
    violations: tuple[int, ...]
    changed_incarnation: int
    changed_transaction: int


class SnapshotTaken1(_Event, frozen=True, tag="snapshot_taken/1"):
    """A snapshot from before there was state. It is read, never written."""

    incarnation: int
    transaction: int
    part: int
    parts: int
    app: str
    position: int
    topic: str
    partition: int
    epochs_closed: int
    epochs: tuple[EpochFold, ...]
    violations: tuple[int, ...]


OffsetEvent: TypeAlias = (
    LogOpened | WorkersCut | WorkerSplit | WorkersMerged | RangeReleased | Committed | StateChanged | SnapshotTaken
)
Event: TypeAlias = ControlEvent | OffsetEvent
OlderEvent: TypeAlias = SnapshotTaken1 | PartitionStarted1
"""What earlier versions wrote; decoded as what it means today."""


def as_of_today(event: Event | OlderEvent) -> Event:
    """The event that says today what an older one said."""
    if isinstance(event, PartitionStarted1):
        return PartitionStarted(event.term, event.topic, event.partition, event.offset, EARLIEST, 0)
    if not isinstance(event, SnapshotTaken1):
        return event
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return SnapshotTaken(**fields, changed_incarnation=0, changed_transaction=0)
