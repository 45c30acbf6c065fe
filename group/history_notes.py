"""PURE. What the history of a group has noted of the logs: requests, grants, expulsions, withdrawals, with times."""

from typing import NamedTuple, TypeAlias

from ..keyrange.steps import Steps
from ..offsets.control import Owner
from ..offsets.control_events import ReleaseAsked
from ..offsets.events import RangesReleased, WorkersCut
from ..offsets.ledger import SourcePartition, is_span
from .history_entries import EventTime

OwnerKey: TypeAlias = tuple[SourcePartition, int, int]
"""An incarnation's ownership of a place at an epoch: (place, epoch, incarnation)."""


class RequestNote(NamedTuple):
    """A request to release."""

    ms: int
    position: int
    term: int
    event: ReleaseAsked


class GrantNote(NamedTuple):
    """A grant of points. All of the points had one owner before. ``before``: this owner, None for nobody; ``asked``:
    the last request to this owner for the points.
    """

    ms: int
    position: int
    term: int
    move: int
    place: SourcePartition
    epoch: int
    incarnation: int
    first: int
    end: int
    before: Owner | None
    asked: RequestNote | None


class ExpulsionNote(NamedTuple):
    """An expelled incarnation."""

    expelled: EventTime
    position: int
    cause: str
    fenced_ms: int | None = None


class WithdrawalNote(NamedTuple):
    """The withdrawal of a request to release."""

    ms: int
    position: int
    reason: str


def note_time(
    into: dict[OwnerKey, Steps[int]], event: RangesReleased | WorkersCut, first: int, end: int, ms: int
) -> None:
    """Note a time for each point. The first time stays: a cut range may be cut anew."""
    if not is_span(first, end):
        return
    steps = into.setdefault((event.topic_partition, event.epoch, event.incarnation), Steps())
    for a, b, known in steps.all_pieces(first, end):
        if known is None:
            steps.put(a, b, ms)


def times_of(
    noted: dict[OwnerKey, Steps[int]], key: OwnerKey | None, first: int, end: int
) -> list[tuple[int, int, int | None]]:
    """The times noted for these points; None where no time was noted."""
    steps = None if key is None else noted.get(key)
    return [(first, end, None)] if steps is None else steps.all_pieces(first, end)


def join_grants(left: GrantNote, right: GrantNote) -> GrantNote | None:
    """The two grants as one grant, if all points had one owner before. A later event of a grant joins the first."""
    same = (left.place, left.epoch, left.incarnation, left.before, left.asked)
    if same != (right.place, right.epoch, right.incarnation, right.before, right.asked):
        return None
    return left._replace(end=right.end, ms=max(left.ms, right.ms))
