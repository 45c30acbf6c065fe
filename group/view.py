"""PURE. What a coordinator has in view when it decides: the folds, what it heard, and what only it knows."""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..offsets.control import LOAD, Control, Member
from ..offsets.control_events import Decision, MemberExpelled, PlanMade, RangesGranted, ReleaseAsked
from ..offsets.event_values import PinnedEnd, PlannedMove
from ..offsets.ledger import Ledger, Place
from .cells import Cell, cells
from .heard import Heard
from .standings import Standings

JOIN: Final = "join bands"
"""The cause of a plan that makes bands of one member one."""
MINUTE_MS: Final = 60_000
HALVED_MS: Final = 600_000
"""So long only half as many moves with state may begin, after a plan for load that came soon after another one."""
NEVER: Final = -1
"""No version of the loads: they are to be looked at whatever it is."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in ms. ``start_window_ms``: how long the first plan waits for others who start; ``stop_ms``: how long one
    that leaves may take, ``leave_ms``: how long it waits of that for others to have copies of its state;
    ``load_interval_ms``: how often members say what their ranges cost.

    ``moves_per_minute``: with much state, between members, by plans; ``copies_max``: passes that a member makes at
    once, no faster than ``copy_bytes_per_s``; ``standbys``: members that keep a copy of each range's state;
    ``return_ms``: how long ranges with state wait for the name of a member that is gone. ``join_ms``: how long a
    member holds bands that touch until they become one, ``join_within_ms``: how long that may take. ``inline_max``:
    shares times members of a plan that is worked out at once. ``measure_ms``: so long a change of the group waits
    until all loads are told.
    """

    session_ms: int = 10_000
    interval_ms: int = 1_000
    start_window_ms: int = 1_000
    plan_interval_ms: int = 1_000
    release_ms: int = 30_000
    stop_ms: int = 45_000
    load_interval_ms: int = 2_000
    moves_per_minute: int = 10
    join_ms: int = 10_000
    join_within_ms: int = 2_000
    inline_max: int = 2_000
    measure_ms: int = 500
    leave_ms: int = 15_000
    return_ms: int = 60_000
    standbys: int = 0
    copies_max: int = 2
    copy_bytes_per_s: int = 16 * 1024 * 1024

    @property
    def settle_ms(self) -> int:
        """So long after a change loads are measured anew."""
        return 2 * self.load_interval_ms


class Begun(NamedTuple):
    """Where a partition is started, what it was told to start from, and how many partitions its topic has."""

    offset: int
    start: str
    partitions: int


class SourceFound(NamedTuple):
    """What the broker says of a source topic. ``begun``: of its partitions that were not started yet."""

    identity: str
    partitions: int
    begun: tuple[tuple[int, Begun], ...] = ()


class PlanAnswer(NamedTuple):
    """What came of a plan that was asked for. ``key``: what it was worked out of."""

    key: Hashable
    moves: list[PlannedMove]


@dataclass(slots=True)
class CoordinatorMemory:
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
    found: dict[str, SourceFound] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Topics that the broker was asked for and does not have, or can't tell: nothing waits for these."""
    ends: tuple[PinnedEnd, ...] | None = None
    """Where the sources end, while somebody runs to the level."""
    log_partitions: int = 0
    """How many the offset log has: each begins with an event of its own."""
    planned_ms: int | None = None
    asked_ms: dict[int, int] = field(default_factory=dict)
    """When each release was seen to be asked for, by move."""
    moved_ms: int | None = None
    """When something was granted last."""
    gone_ms: dict[int, int] = field(default_factory=dict)
    """When each member was seen to be expelled."""
    renamed: set[int] = field(default_factory=set)
    """Who is gone and won't be back under its name (copies.py)."""
    budgeted_ms: deque[int] = field(default_factory=deque)
    """When moves with much state that plans want between members began: a copy was asked for, or, where there was one,
    the release.
    """
    levelled_ms: int | None = None
    """When there was a plan for load last."""
    halved_ms: int | None = None
    """When there was one soon after another."""
    changed: tuple[int, int] = (0, 0)
    """The newest group epoch, and when it was seen first."""
    weighed_ms: int | None = None
    weighed: int = 0
    """When loads were looked at last for a plan, and their version."""
    is_skewed: bool = False
    """Whether there was a skew then, and nothing has moved since. Members tell their loads one after the other, and who
    takes over works off what has waited: one look may see what never was.
    """
    joins: set[int] = field(default_factory=set)
    """The moves of the last plan that makes bands one."""
    joined_ms: dict[Place, int] = field(default_factory=dict)
    """When bands that touch were last to become one."""
    answer: PlanAnswer | None = None
    standings: Standings = field(default_factory=Standings)

    def note(self, batch: "DecisionBatch", now_ms: int) -> None:
        """A batch is decided and about to be written."""
        for decision in batch.decisions:
            match decision:
                case PlanMade():
                    self.planned_ms, self.answer = now_ms, None
                    self._looks_anew()
                    if decision.cause == LOAD and not decision.part:
                        is_soon = self.levelled_ms is not None and now_ms - self.levelled_ms < MINUTE_MS
                        self.halved_ms = now_ms if is_soon else self.halved_ms
                        self.levelled_ms = now_ms
                    if decision.cause == JOIN:
                        self.joins = {move.move for move in decision.moves}
                        self.joined_ms |= {(move.topic, move.partition): now_ms for move in decision.moves}
                case ReleaseAsked():
                    self.asked_ms[decision.move] = now_ms
                case MemberExpelled():
                    self.gone_ms[decision.incarnation] = now_ms
                case RangesGranted():
                    self.moved_ms = now_ms
                    self._looks_anew()
        self.budgeted_ms.extend([now_ms] * len(batch.budgeted))

    def _looks_anew(self) -> None:
        """What was seen of the loads was before something moved."""
        if self.is_skewed:
            self.is_skewed, self.weighed = False, NEVER

    def cools(self, now_ms: int) -> bool:
        """Whether only half as many moves with much state may begin."""
        return self.halved_ms is not None and now_ms - self.halved_ms < HALVED_MS

    def left_of_budget(self, moves_per_minute: int, now_ms: int) -> int:
        """How many moves with much state may begin now."""
        if self.cools(now_ms):
            moves_per_minute = (moves_per_minute + 1) // 2
        while self.budgeted_ms and now_ms - self.budgeted_ms[0] >= MINUTE_MS:
            self.budgeted_ms.popleft()
        return moves_per_minute - len(self.budgeted_ms)


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision is made of, as it stands while that is made. ``position``: up to which the control log was
    read; ``now_ms``: by any clock that does not go back.
    """

    ledger: Ledger
    heard: Heard
    seat: CoordinatorMemory
    rules: Rules
    position: int
    now_ms: int
    _looked: list[bool] = field(default_factory=list)

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
    def stateful(self) -> frozenset[str]:
        """The source topics with stores."""
        return frozenset(store.topic for store in self.control.stores.values())

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

    @property
    def standings(self) -> Standings:
        """How it stands with all places."""
        if not self._looked:
            self.seat.standings.refresh(self.ledger, self.seat.read, self.now_ms)
            self._looked.append(True)
        return self.seat.standings

    def cells(self, place: Place) -> list[Cell]:
        """How it stands with a source partition."""
        if place in self.control.started:
            return self.standings.cells(place)
        return cells(self.control, self.ledger.partitions, place, self.seat.read)


class DecisionBatch(NamedTuple):
    """Decisions that are written together. ``answered``: the requests that they answer; ``budgeted``: the moves among
    them that count for a budget.
    """

    decisions: Sequence[Decision] = ()
    answered: tuple[str, ...] = ()
    budgeted: frozenset[int] = frozenset()
