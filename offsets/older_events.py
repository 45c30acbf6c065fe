"""Events that earlier versions wrote: they are read as what they mean today, and never written.

Those of the control log are of level 0. They have no number, and count only in terms of an election of level 0.
"""

from typing import Final, TypeAlias, cast, get_args

import msgspec

from .control_events import (
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
    SourceIdentified,
    StoreDeclared,
)
from .event_values import EVERYBODY, NO_MOVE, NUMBERLESS, Band, Edge, EpochFold, LogEvent, Piece, Writer
from .events import Event, RangesReleased, SnapshotTaken, StateChanged
from .starts import EARLIEST

_NOBODY: Final = (0, 0)


class CoordinatorElected1(LogEvent, frozen=True, tag="coordinator_elected/1"):
    """An election from before there were names that stay. ``instance`` is text that no other process ever had."""

    term: int
    instance: str


class MemberJoined1(LogEvent, frozen=True, tag="member_joined/1"):
    """A process that is alone in its application."""

    term: int
    incarnation: int
    instance: str
    transactional_id: str


class MemberExpelled1(LogEvent, frozen=True, tag="member_expelled/1"):
    """An expulsion whose cause is that another process took over."""

    term: int
    incarnation: int


class MemberFenced1(LogEvent, frozen=True, tag="member_fenced/1"):
    """A member had one transactional id."""

    term: int
    incarnation: int


class PartitionStarted1(LogEvent, frozen=True, tag="partition_started/1"):
    """A start from before there was a choice: from the first record there was."""

    term: int
    topic: str
    partition: int
    offset: int


class PartitionStarted2(LogEvent, frozen=True, tag="partition_started/2"):
    """A start that knows where it starts from."""

    term: int
    topic: str
    partition: int
    offset: int
    start: str
    partitions: int


class RangesGranted1(LogEvent, frozen=True, tag="ranges_granted/1"):
    """A grant to the process that wrote it."""

    term: int
    incarnation: int
    epoch: int
    topic: str
    partition: int
    bands: tuple[Band, ...]


class StoreDeclared1(LogEvent, frozen=True, tag="store_declared/1"):
    """``number`` is that of the store."""

    term: int
    number: int
    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class SourceIdentified1(LogEvent, frozen=True, tag="source_identified/1"):
    """The same, without a number."""

    term: int
    topic: str
    identity: str


class RangeReleased1(LogEvent, frozen=True, tag="range_released/1"):
    """A release that does not say its edges: who grants the points reads them."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int
    first: int
    end: int


class StateChanged1(LogEvent, frozen=True, tag="state_changed/1"):
    """A change from when one process wrote at a time, and one beacon stood for all of them."""

    incarnation: int
    transaction: int
    topic: str
    partition: int
    changes: int


class EpochFold1(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a snapshot kept of one epoch before bounds were released with it."""

    epoch: int
    incarnation: int
    pieces: tuple[Piece, ...]


class SnapshotTaken1(LogEvent, frozen=True, tag="snapshot_taken/1"):
    """A snapshot from before there was state."""

    incarnation: int
    transaction: int
    part: int
    parts: int
    app: str
    position: int
    topic: str
    partition: int
    epochs_closed: int
    epochs: tuple[EpochFold1, ...]
    violations: tuple[int, ...]


class SnapshotTaken2(LogEvent, frozen=True, tag="snapshot_taken/2"):
    """A snapshot from when one process wrote at a time: ``changed_*`` name the last transaction that changed the state;
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
    epochs: tuple[EpochFold1, ...]
    violations: tuple[int, ...]
    changed_incarnation: int
    changed_transaction: int


OlderEvent: TypeAlias = (
    CoordinatorElected1
    | MemberJoined1
    | MemberExpelled1
    | MemberFenced1
    | PartitionStarted1
    | PartitionStarted2
    | RangesGranted1
    | StoreDeclared1
    | SourceIdentified1
    | RangeReleased1
    | StateChanged1
    | SnapshotTaken1
    | SnapshotTaken2
)


_OLDER: Final = frozenset(get_args(OlderEvent))


def as_of_today(event: Event | OlderEvent) -> Event:
    """The event that says today what an older one said."""
    if type(event) not in _OLDER:  # asked of every event that is read, so it has to be quick
        return cast("Event", event)
    return _said_today(cast("OlderEvent", event))


def _said_today(event: OlderEvent) -> Event:
    match event:
        case CoordinatorElected1(term, instance):
            return CoordinatorElected(term, instance, instance, "")
        case MemberJoined1(term, incarnation, instance, transactional_id):
            ids = (transactional_id,)
            return MemberJoined(
                term, NUMBERLESS, incarnation, instance, instance, ids, "", "", 1.0, 0, (), (), until_level=False
            )
        case MemberExpelled1(term, incarnation):
            return MemberExpelled(term, NUMBERLESS, incarnation, "", 0)
        case MemberFenced1(term, incarnation):
            return MemberFenced(term, NUMBERLESS, incarnation)
        case PartitionStarted1(term, topic, partition, offset):
            return PartitionStarted(term, NUMBERLESS, topic, partition, offset, EARLIEST, 0)
        case PartitionStarted2(term, topic, partition, offset, start, partitions):
            return PartitionStarted(term, NUMBERLESS, topic, partition, offset, start, partitions)
        case RangesGranted1(term, incarnation, epoch, topic, partition, bands):
            return RangesGranted(term, NUMBERLESS, NO_MOVE, incarnation, epoch, topic, partition, bands, (), ())
        case StoreDeclared1():
            return StoreDeclared(
                event.term,
                NUMBERLESS,
                event.number,
                event.name,
                event.topic,
                event.kind,
                event.key_type,
                event.value_type,
                event.codec,
            )
        case SourceIdentified1(term, topic, identity):
            return SourceIdentified(term, NUMBERLESS, topic, identity)
        case RangeReleased1(incarnation, transaction, epoch, topic, partition, first, end):
            bands_given_up = (Edge(first, end, None),)
            return RangesReleased(incarnation, transaction, epoch, topic, partition, NO_MOVE, bands_given_up, ())
        case StateChanged1(incarnation, transaction, topic, partition, changes):
            return StateChanged(incarnation, transaction, topic, partition, changes, (EVERYBODY,))
        case SnapshotTaken1():
            return _snapshot(event, _NOBODY)
        case SnapshotTaken2():
            return _snapshot(event, (event.changed_incarnation, event.changed_transaction))


def _snapshot(older: SnapshotTaken1 | SnapshotTaken2, changed: tuple[int, int]) -> SnapshotTaken:
    return SnapshotTaken(
        older.incarnation,
        older.transaction,
        older.part,
        older.parts,
        older.app,
        older.position,
        older.topic,
        older.partition,
        tuple(EpochFold(fold.epoch, fold.incarnation, fold.pieces, ()) for fold in older.epochs),
        older.violations,
        () if changed == _NOBODY else (Writer(*changed),),
        (),
        (),
    )
