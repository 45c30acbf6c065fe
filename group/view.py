"""PURE. What a coordinator has in view when it decides: the folds, what it heard, and what only it knows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..offsets.control import Control, Member
from ..offsets.control_events import Decision
from ..offsets.event_values import PinnedEnd
from ..offsets.ledger import Ledger, Place
from .cells import Cell, cells
from .heard import Heard


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in ms. ``start_window_ms``: how long the first plan waits for others who start; ``leave_ms``: how long
    one that leaves may take.
    """

    session_ms: int = 10_000
    interval_ms: int = 1_000
    start_window_ms: int = 1_000
    plan_interval_ms: int = 1_000
    release_ms: int = 30_000
    leave_ms: int = 15_000


class Begun(NamedTuple):
    """Where a partition is started, what it was told to start from, and how many partitions its topic has."""

    offset: int
    start: str
    partitions: int


class Found(NamedTuple):
    """What the broker says of a source topic. ``begun``: of its partitions that were not started yet."""

    identity: str
    partitions: int
    begun: tuple[tuple[int, Begun], ...] = ()


@dataclass(slots=True)
class Seat:
    """What a coordinator knows for its term beside folds and signals; it is lost with it, and costs time only."""

    app: str
    birth: str
    """Of its process."""
    began_ms: int
    is_alone: bool = False
    """The broker proves that there is no other process: everybody else is gone."""
    fenced: set[int] = field(default_factory=set)
    """Whose fence is through that began after their expulsion was read back."""
    read: set[tuple[Place, int]] = field(default_factory=set)
    """See cells.py."""
    found: dict[str, Found] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Topics that the broker was asked for and does not have, or can't tell: nothing waits for these."""
    ends: tuple[PinnedEnd, ...] | None = None
    """Where the sources end, while somebody runs to the level."""
    log_partitions: int = 0
    """How many the offset log has: each begins with an event of its own."""
    planned_ms: int | None = None
    asked_ms: dict[int, int] = field(default_factory=dict)
    """When each release was seen to be asked for, by move."""


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision is made of, as it stands while that is made. ``position``: up to which the control log was
    read; ``now_ms``: by any clock that does not go back.
    """

    ledger: Ledger
    heard: Heard
    seat: Seat
    rules: Rules
    position: int
    now_ms: int
    _cells: dict[Place, list[Cell]] = field(default_factory=dict)

    @property
    def control(self) -> Control:
        """The fold of the control log."""
        return self.ledger.control

    @property
    def living(self) -> list[Member]:
        """Members that were not expelled, by incarnation."""
        return [member for _, member in sorted(self.control.members.items()) if not member.expelled]

    @property
    def staying(self) -> list[Member]:
        """Those of them that do not leave."""
        return [member for member in self.living if member.incarnation not in self.heard.leaving]

    @property
    def handled(self) -> set[str]:
        """The source topics that a living member can handle. Of others, which it had, nothing is asked for any more."""
        return {source.topic for member in self.living for source in member.joined.topics}

    @property
    def unseen(self) -> list[str]:
        """The source topics that somebody can handle, and that were not looked at yet."""
        return sorted(self.handled - self.seat.found.keys() - self.seat.lost)

    @property
    def lacks_ends(self) -> bool:
        """Whether somebody runs to the level, and the ends are not pinned: no record is worked for it before."""
        return self.control.runs_to_level and self.control.pinned is None

    @property
    def unopened(self) -> list[int]:
        """The partitions of the offset log that have no first event yet."""
        return sorted(set(range(self.seat.log_partitions)) - self.ledger.opened)

    def cells(self, place: Place) -> list[Cell]:
        """How it stands with a source partition."""
        if (known := self._cells.get(place)) is None:
            known = self._cells[place] = cells(self.control, self.ledger.partitions, place, self.seat.read)
        return known


class Batch(NamedTuple):
    """Decisions that are written together. ``answered``: the requests that they answer."""

    decisions: Sequence[Decision] = ()
    answered: tuple[str, ...] = ()
