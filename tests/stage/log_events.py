"""Events of our logs in few words, for tests; decisions have no number until ``in_turn`` numbers them."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    Decision,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
    SourceIdentified,
    StoreDeclared,
)
from keylanes.offsets.event_values import NO_MOVE, Band, Edge, Writer
from keylanes.offsets.events import Event, RangesReleased
from keylanes.offsets.ledger import Ledger, evolve

APP_BIRTH = "the first birth"
NO_NUMBER: Final = 0
"""Of a decision that ``in_turn`` numbers."""


def in_turn(
    events: Iterable[ControlEvent], app_birth: str = APP_BIRTH, *, behind: Iterable[ControlEvent] = ()
) -> list[ControlEvent]:
    """The same, where each decision without a number has the next one of its term, and each election the birth of the
    application. ``behind``: what the log holds before them.
    """
    numbers: dict[int, int] = {}
    numbered: list[ControlEvent] = []
    given = [*behind]
    for event in (*given, *events):
        match event:
            case AppCreated():
                numbered.append(event)
            case CoordinatorElected():
                numbered.append(replace(event, app_birth=event.app_birth or app_birth))
            case _:
                number = event.number or numbers.get(event.term, 0) + 1
                numbers[event.term] = max(number, numbers.get(event.term, 0))
                numbered.append(replace(event, number=number))
    return numbered[len(given) :]


def fold_in_turn(ledger: Ledger, *events: Event) -> Ledger:
    """The ledger, changed by these events; each decision has the number that is next in the ledger's term."""
    for event in events:
        number = ledger.control.number + 1
        evolve(ledger, replace(event, number=number) if isinstance(event, Decision) else event)
    return ledger


def coordinator_elected(term: int, birth: str, app_birth: str = "") -> CoordinatorElected:
    """An election; ``in_turn`` says the birth of the application where this does not."""
    return CoordinatorElected(term, birth, birth, app_birth)


def member_joined(
    term: int, incarnation: int, birth: str, transactional_id: str, *, until_level: bool = False
) -> MemberJoined:
    """A member with one transactional id that can handle nothing."""
    ids = (transactional_id,)
    return MemberJoined(
        term, NO_NUMBER, incarnation, birth, birth, ids, "host", "", 1.0, 1, (), (), until_level=until_level
    )


def member_expelled(term: int, incarnation: int) -> MemberExpelled:
    """A member that another one took over from."""
    return MemberExpelled(term, NO_NUMBER, incarnation, "superseded", 0)


def member_fenced(term: int, incarnation: int) -> MemberFenced:
    """A member that can commit no more."""
    return MemberFenced(term, NO_NUMBER, incarnation)


def partition_started(
    term: int, topic: str, partition: int, offset: int, start: str, partitions: int
) -> PartitionStarted:
    """Where a partition is begun."""
    return PartitionStarted(term, NO_NUMBER, topic, partition, offset, start, partitions)


def ranges_granted(
    term: int,
    incarnation: int,
    epoch: int,
    topic: str,
    partition: int,
    bands: tuple[Band, ...],
    writers: tuple[Writer, ...] = (),
) -> RangesGranted:
    """A grant that belongs to no move."""
    return RangesGranted(term, NO_NUMBER, NO_MOVE, incarnation, epoch, topic, partition, bands, (), writers)


def source_identified(term: int, topic: str, identity: str) -> SourceIdentified:
    """What the broker calls a topic."""
    return SourceIdentified(term, NO_NUMBER, topic, identity)


def store_declared(
    term: int, store: int, name: str, topic: str, kind: str, key_type: str, value_type: str, codec: str
) -> StoreDeclared:
    """A store."""
    return StoreDeclared(term, NO_NUMBER, store, name, topic, kind, key_type, value_type, codec)


def range_released(
    incarnation: int,
    transaction: int,
    epoch: int,
    topic: str,
    partition: int,
    first: int,
    end: int,
    edge: int | None = None,
) -> RangesReleased:
    """One band that was given up; None: its edge was not written down."""
    bands = (Edge(first, end, edge),)
    return RangesReleased(incarnation, transaction, epoch, topic, partition, NO_MOVE, bands, ())
