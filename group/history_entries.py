"""PURE. The events of a group, as values for people: moves of ranges, changes of members. See history.py."""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from .overview import OwnedRange


class Party(NamedTuple):
    """A member. ``instance``: the name, ``host``: the machine; "" if not told."""

    incarnation: int
    instance: str
    host: str


class EventTime(NamedTuple):
    """A time in ms, and the kind of the event: "asked" or "expelled", "released" or "fenced"."""

    ms: int
    what: str


class MoveState(Enum):
    """The state of a move; the values are for people."""

    MOVED = "moved"
    NOT_TAKEN_UP = "not taken up"
    """The new owner was gone, or the points were granted anew, before the new owner took the points up."""
    WITHDRAWN = "withdrawn"
    PLANNED = "planned, not asked for"
    ASKED = "asked, not released"
    EXPELLED = "owner expelled, not fenced"
    FENCED = "owner fenced, not granted"
    RELEASED = "released, not granted"
    GRANTED = "granted, not taken up"


OPEN: Final = frozenset(MoveState) - {MoveState.MOVED, MoveState.NOT_TAKEN_UP, MoveState.WITHDRAWN}
"""The states of a move under way."""


class MoveEntry(NamedTuple):
    """A move of points ``[first, end)`` of a source partition from ``origin`` (None: no owner) to ``target`` (None:
    unknown).

    ``position``: of the event in the control log by which the move stands in the history: the grant or the withdrawal,
    else the plan, the request or the expulsion. A time is None if not reached or not known.
    ``epoch``: the granted epoch; 0: no grant. ``plan``, ``move``: 0 for none. ``reason``: why the request was
    withdrawn, or what the move waits for before the request.
    """

    position: int
    state: MoveState
    topic: str
    partition: int
    first: int
    end: int
    origin: Party | None
    target: Party | None
    cause: str
    plan: int
    move: int
    term: int
    epoch: int = 0
    asked: EventTime | None = None
    released: EventTime | None = None
    granted_ms: int | None = None
    taken_up_ms: int | None = None
    withdrawn_ms: int | None = None
    reason: str = ""
    copy_asked_ms: int | None = None
    """The time of the request to the target for a copy. None, too, if the target had a copy before."""
    planned_ms: int | None = None
    """The time of the plan, for a move that was not asked for yet."""

    @property
    def label(self) -> str:
        """The points, for people; a whole partition has no points in the label."""
        return OwnedRange(
            topic=self.topic, partition=self.partition, first=self.first, end=self.end, epoch=self.epoch
        ).label

    @property
    def is_open(self) -> bool:
        """Whether the move is under way."""
        return self.state in OPEN

    @property
    def stood_still_ms(self) -> int | None:
        """How long the points had no worker, in ms. None: still without a worker, or not known, or no owner before."""
        if self.released is None or self.taken_up_ms is None:
            return None
        return self.taken_up_ms - self.released.ms

    def times_ms(self) -> list[int]:
        """The known times, in the order in which the steps of a move happen."""
        asked, released = (None if one is None else one.ms for one in (self.asked, self.released))
        before, after = (self.planned_ms, self.copy_asked_ms), (self.granted_ms, self.taken_up_ms, self.withdrawn_ms)
        times = (*before, asked, released, *after)
        return [ms for ms in times if ms is not None]


class Change(NamedTuple):
    """A change of the members. ``what``: elected, joined, left, expelled, fenced, refused. ``party``: None for a
    process that is no member. ``cause``: of an expulsion or a refusal, else "".
    """

    position: int
    at_ms: int
    what: str
    party: Party | None
    birth: str
    cause: str
    term: int

    def times_ms(self) -> list[int]:
        """The time of the change."""
        return [self.at_ms]

    @property
    def is_open(self) -> bool:
        """A change is never under way."""
        return False


Entry: TypeAlias = MoveEntry | Change


def select_entries(
    entries: Sequence[Entry],
    since_ms: int | None = None,
    until_ms: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> list[Entry]:
    """Entries that overlap ``[since_ms, until_ms]``: an entry lasts from its first time to its last time, and an entry
    under way has no end. With a topic or a partition only moves there are returned.
    """
    found: list[Entry] = []
    for entry in entries:
        times = entry.times_ms()
        if since_ms is not None and not entry.is_open and max(times) < since_ms:
            continue
        if until_ms is not None and min(times) > until_ms:
            continue
        if topic is not None or partition is not None:
            if not isinstance(entry, MoveEntry):
                continue
            if entry.topic != (topic or entry.topic) or (partition is not None and entry.partition != partition):
                continue
        found.append(entry)
    return found
