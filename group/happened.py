"""PURE. What happens to a group, as values for people: moves of ranges, changes of who takes part. See history.py."""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from .shown import OwnedRange


class Party(NamedTuple):
    """A member. ``instance``: the name that it goes by, ``host``: where it ran; "" if it did not say."""

    incarnation: int
    instance: str
    host: str


class EventTime(NamedTuple):
    """A time in ms, and which event's it is: "asked" or "expelled", "released" or "fenced"."""

    ms: int
    what: str


class MoveState(Enum):
    """What has become of a move; the values are for people."""

    MOVED = "moved"
    NOT_TAKEN_UP = "not taken up"
    """Its new owner went before."""
    WITHDRAWN = "withdrawn"
    PLANNED = "planned, not asked for"
    ASKED = "asked, not released"
    EXPELLED = "owner expelled, not fenced"
    FENCED = "owner fenced, not granted"
    RELEASED = "released, not granted"
    GRANTED = "granted, not taken up"


OPEN: Final = frozenset(MoveState) - {MoveState.MOVED, MoveState.NOT_TAKEN_UP, MoveState.WITHDRAWN}
"""The states of a move that is under way."""


class MoveEntry(NamedTuple):
    """Points ``[first, end)`` of a source partition on their way from ``origin`` (None: nobody had them) to ``target``
    (None: it is not known). ``position``: of the event of the control log that it is listed by. A time is None when it
    has not come, or is not known. ``epoch``: that was granted; 0: none was. ``plan``, ``move``: 0 for none. ``reason``:
    why it was withdrawn, or what it waits for before it is asked for.
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
    """When its target was asked for a copy; None also where it had one before."""
    planned_ms: int | None = None
    """Of one that is not asked for yet."""

    @property
    def label(self) -> str:
        """For people; the whole partition without its points."""
        return OwnedRange(self.topic, self.partition, self.first, self.end, self.epoch).label

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return self.state in OPEN

    @property
    def stood_still_ms(self) -> int | None:
        """So long nobody worked on the points; None: it lasts, or is not known, or nobody had them before."""
        if self.released is None or self.taken_up_ms is None:
            return None
        return self.taken_up_ms - self.released.ms

    def times_ms(self) -> list[int]:
        """Those that are known, in the order in which they should come."""
        asked, released = (None if one is None else one.ms for one in (self.asked, self.released))
        before, after = (self.planned_ms, self.copy_asked_ms), (self.granted_ms, self.taken_up_ms, self.withdrawn_ms)
        times = (*before, asked, released, *after)
        return [ms for ms in times if ms is not None]


class Change(NamedTuple):
    """A change of who takes part. ``what``: elected, joined, left, expelled, fenced, refused. ``party``: None for one
    who is no member. ``cause``: why it was expelled or refused, "" else.
    """

    position: int
    at_ms: int
    what: str
    party: Party | None
    birth: str
    cause: str
    term: int

    def times_ms(self) -> list[int]:
        """The one."""
        return [self.at_ms]

    @property
    def is_open(self) -> bool:
        """It is done."""
        return False


Entry: TypeAlias = MoveEntry | Change


def select_entries(
    entries: Sequence[Entry],
    since_ms: int | None = None,
    until_ms: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> list[Entry]:
    """Those of which something happened in ``[since_ms, until_ms]``; what is under way has no end. With a topic or a
    partition: its moves alone.
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
