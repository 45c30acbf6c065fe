"""PURE. The input of a coordinator's decisions: the folds, the signals, and the coordinator's own memory."""

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ..offsets.control import LOAD, Control, Member
from ..offsets.control_events import Decision, MemberExpelled, PlanMade, RangesGranted, ReleaseAsked
from ..offsets.event_values import PinnedEnd, PlannedMove
from ..offsets.ledger import Ledger, SourcePartition
from .cells import Cell
from .copies import MoveBudget
from .piece_table import PieceTable, PlaceSets
from .present import members_present, renamed_members
from .signals_fold import Heard
from .standbys import StandbyRules

JOIN: Final = "join bands"
"""The cause of a plan that joins bands of a member."""
MINUTE_MS: Final = 60_000
"""The time to which ``moves_per_minute`` refers. Two plans for load within this time halve ``moves_per_minute``."""
HALVED_MS: Final = 600_000
"""How long ``moves_per_minute`` stays halved after two plans for load within ``MINUTE_MS``."""
NEVER: Final = -1
"""No version of the loads has this number. So the next look at the loads happens at any version."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a coordinator. Times are in ms.

    ``session_ms``: the silence after which a member is expelled; ``interval_ms``: the time between two beats;
    ``start_window_ms``: how long the first plan waits for other members to start; ``plan_interval_ms``: the least time
    between two plans; ``release_ms``: how long an owner may take to release points before the request is withdrawn;
    ``stop_ms``: how long a member may take to leave; ``leave_ms``: how much of ``stop_ms`` a member waits for copies of
    its state; ``load_interval_ms``: how often members tell the cost of their ranges.

    ``moves_per_minute``: the most moves by plans with much state between members; ``copies_max``: the most passes of a
    member at once (copy_requests.py), each at ``copy_bytes_per_s`` at most; ``standbys``: the number of members with a
    copy of each range's state; ``return_ms``: how long ranges with state wait for the name of a gone member.
    ``join_ms``: how long a member has touching bands before they are joined. ``inline_max``: a plan is made at once if
    its shares times its members are at most this number; another thread makes a larger plan. ``measure_ms``: how long a
    change of the group waits for all loads.
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
    inline_max: int = 2_000
    measure_ms: int = 500
    leave_ms: int = 15_000
    return_ms: int = 60_000
    standbys: int = 0
    copies_max: int = 2
    copy_bytes_per_s: int = 16 * 1024 * 1024

    @property
    def settle_ms(self) -> int:
        """How long the coordinator waits for new reports of loads and copies, after a change or after its own start."""
        return 2 * self.load_interval_ms


class Begun(NamedTuple):
    """The start of a partition: the first offset, the declared start, and the number of partitions of the topic."""

    offset: int
    start: str
    partitions: int


class SourceFound(NamedTuple):
    """The broker's answer about a source topic. ``begun``: the partitions not started yet."""

    identity: str
    partitions: int
    begun: tuple[tuple[int, Begun], ...] = ()


class PlanAnswer(NamedTuple):
    """The answer to a question for a plan (plans.py). ``key``: the key of the question."""

    key: Hashable
    moves: list[PlannedMove]


@dataclass(slots=True)
class CoordinatorMemory:
    """A coordinator's memory for its term, beside the folds and the signals. A lost memory costs only time."""

    app: str
    birth: str
    """The birth of the coordinator's process."""
    began_ms: int
    is_alone: bool = False
    """The broker proves that no other process exists: all other members are gone."""
    fenced: set[int] = field(default_factory=set)
    """Members that are fenced. The fence began after their expulsion was read back."""
    read: set[tuple[SourcePartition, int]] = field(default_factory=set)
    """See ``Read`` in cells.py."""
    sources: dict[str, SourceFound] = field(default_factory=dict)
    """The broker's answers about source topics, by topic."""
    missing_topics: set[str] = field(default_factory=set)
    """Topics without an answer from the broker: missing, or not readable. No decision waits for lost topics."""
    ends: tuple[PinnedEnd, ...] | None = None
    """The ends of the sources, while a member runs until it has caught up."""
    log_partitions: int = 0
    """The number of partitions of the offset log. Each partition begins with an event of its own."""
    planned_ms: int | None = None
    """The time of the last plan."""
    release_request_ms: dict[int, int] = field(default_factory=dict)
    """The time of each own request to release, by move. Requests of a predecessor are missing."""
    moved_ms: int | None = None
    """The time of the last grant."""
    expulsion_ms: dict[int, int] = field(default_factory=dict)
    """The time of each own expulsion, by incarnation. Expulsions by a predecessor are missing."""
    renamed: set[int] = field(default_factory=set)
    """Gone members that won't be back under their names (present.py)."""
    budgeted_ms: deque[int] = field(default_factory=deque)
    """The times when moves by plans with much state between members began. A move begins with the request for a copy,
    or, if there was a copy, with the request to release.
    """
    load_plan_ms: int | None = None
    """The time of the last plan for load."""
    cooldown_ms: int | None = None
    """The time of the last plan for load that came within ``MINUTE_MS`` of another plan for load."""
    epoch_seen: tuple[int, int] = (0, 0)
    """The newest group epoch, and the time when this coordinator first saw the epoch."""
    loads_look_ms: int | None = None
    """The time of the last look at the loads for a plan."""
    loads_version: int = 0
    """The version of the loads at the last look."""
    is_skewed: bool = False
    """Whether the last look showed a skew, and nothing has moved since. A single look may show a skew that never was:
    members tell their loads one after another, and a new owner works off a backlog.
    """
    join_moves: set[int] = field(default_factory=set)
    """The moves of the last plan that joins bands."""
    join_plan_ms: dict[SourcePartition, int] = field(default_factory=dict)
    """The time of the last plan that joins bands, by place."""
    answer: PlanAnswer | None = None
    """The host's answer to the last large question. A new plan empties the field, and so does a look at the loads."""
    table: PieceTable = field(default_factory=PieceTable)
    """The pieces of all places, up to date as of the last view."""

    def note(self, batch: "DecisionBatch", now_ms: int) -> None:
        """Note a decided batch before it is written. No other function changes what the memory has of past looks."""
        self._note_look(batch.noted, now_ms)
        for decision in batch.decisions:
            match decision:
                case PlanMade():
                    self.planned_ms, self.answer = now_ms, None
                    self._forget_skew()
                    if decision.cause == LOAD and decision.part == 0:  # a plan in several parts is one plan
                        if self.load_plan_ms is not None and now_ms - self.load_plan_ms < MINUTE_MS:
                            self.cooldown_ms = now_ms
                        self.load_plan_ms = now_ms
                    if decision.cause == JOIN:
                        self.join_moves = {move.move for move in decision.moves}
                        self.join_plan_ms |= {move.topic_partition: now_ms for move in decision.moves}
                case ReleaseAsked():
                    self.release_request_ms[decision.move] = now_ms
                case MemberExpelled():
                    self.expulsion_ms[decision.incarnation] = now_ms
                case RangesGranted():
                    self.moved_ms = now_ms
                    self._forget_skew()
        self.budgeted_ms.extend([now_ms] * len(batch.budgeted))
        while self.budgeted_ms and now_ms - self.budgeted_ms[0] >= MINUTE_MS:
            self.budgeted_ms.popleft()

    def _note_look(self, noted: "Noted", now_ms: int) -> None:
        self.renamed |= noted.renamed
        if noted.group_epoch is not None and noted.group_epoch != self.epoch_seen[0]:
            self.epoch_seen = noted.group_epoch, now_ms
        if noted.loads is not None:
            self.loads_look_ms, self.answer = now_ms, None
            self.loads_version, self.is_skewed = noted.loads

    def _forget_skew(self) -> None:
        """Forget the skew that the last look has shown: something has moved since. The next look needs no new loads."""
        if self.is_skewed:
            self.is_skewed, self.loads_version = False, NEVER

    def cools(self, now_ms: int) -> bool:
        """Whether only half as many moves with much state may begin now."""
        return self.cooldown_ms is not None and now_ms - self.cooldown_ms < HALVED_MS

    def left_of_budget(self, moves_per_minute: int, now_ms: int) -> int:
        """The number of moves with much state that may begin now."""
        if self.cools(now_ms):
            moves_per_minute = (moves_per_minute + 1) // 2
        return moves_per_minute - sum(now_ms - begun_ms < MINUTE_MS for begun_ms in self.budgeted_ms)


class View:
    """The input of a decision, unchanged while the decision is made. ``memory``: the coordinator's memory;
    ``position``: the end of the control log that was read; ``now_ms``: by any clock that never goes back.

    Making a view brings the memory's table of pieces up to date. ``renamed``: gone members that won't be back under
    their names.
    """

    def __init__(
        self, ledger: Ledger, heard: Heard, memory: CoordinatorMemory, rules: Rules, position: int, now_ms: int
    ) -> None:
        self.ledger = ledger
        self.heard = heard
        self.memory = memory
        self.rules = rules
        self.position = position
        self.now_ms = now_ms
        self.renamed = frozenset(memory.renamed)
        present = members_present(self.control, heard.leaving, self._awaited_names())
        if renamed := renamed_members(self.control, present):
            self.renamed |= renamed
            present = replace(present, awaited=self._awaited_names())
        self.present = present
        self.table = memory.table
        self.table.look(ledger, memory.read, present, heard.copies, StandbyRules(rules.standbys, self.is_early), now_ms)

    def _awaited_names(self) -> dict[int, str]:
        """The names for which points wait, by the incarnation of their owner."""
        members = self.control.members.items()
        return {i: member.joined.instance for i, member in members if self.left_of_hold_ms(i) > 0}

    def left_of_hold_ms(self, incarnation: int) -> int:
        """How long the points of an owner still wait for its name, in ms; 0 or less: no longer. Points wait from the
        expulsion of the owner, or from its request to leave if its name will be back.
        """
        member = self.control.members.get(incarnation)
        if member is None or not member.joined.instance or incarnation in self.renamed:
            return 0
        if member.expelled:
            since_ms = self.memory.expulsion_ms.get(
                incarnation, self.memory.began_ms
            )  # after a predecessor the hold begins anew
            return member.hold_ms - (self.now_ms - since_ms)
        if incarnation not in self.heard.returns:
            return 0
        now_ms = self.heard.silence_of(member.joined.instance, member.birth).now_ms
        return self.rules.return_ms - (now_ms - self.heard.leaving.get(incarnation, 0))

    @property
    def control(self) -> Control:
        """The fold of the control log."""
        return self.ledger.control

    @property
    def living_members(self) -> Collection[Member]:
        """Members that are not expelled, by incarnation."""
        return self.present.living.values()

    @property
    def staying_members(self) -> Collection[Member]:
        """Living members that do not leave, by incarnation."""
        return self.present.staying.values()

    @property
    def unseen(self) -> list[str]:
        """Source topics that some living member can handle and that the coordinator has not looked up yet. No other
        topics are looked up.
        """
        return sorted(self.present.handled - self.memory.sources.keys() - self.memory.missing_topics)

    @property
    def lacks_ends(self) -> bool:
        """Whether a member runs until it has caught up and the ends are not pinned. No record is handled for the member
        before.
        """
        return self.control.has_member_until_caught_up and self.control.pinned is None

    @property
    def unopened_logs(self) -> list[int]:
        """Partitions of the offset log without a first event."""
        return sorted(set(range(self.memory.log_partitions)) - self.ledger.opened)

    @property
    def is_early(self) -> bool:
        """Whether this coordinator began too recently to have heard the progress of copies."""
        return self.now_ms - self.memory.began_ms < self.rules.settle_ms

    def cells(self, place: SourcePartition) -> list[Cell]:
        """The cells of a source partition; the caller must not change the list."""
        return self.table.cells(place)

    @property
    def places(self) -> PlaceSets:
        """Where the table has something that a row looks for."""
        return self.table.places

    def open_budget(self) -> MoveBudget:
        """A new account of the moves with much state that may begin now."""
        left = self.memory.left_of_budget(self.rules.moves_per_minute, self.now_ms)
        return MoveBudget(left, self.heard.leaving)


class LoadsLook(NamedTuple):
    """A look at the loads for a plan: the version of the loads, and whether the look showed a skew that a second look
    has to confirm.
    """

    version: int
    is_skewed: bool


class Noted(NamedTuple):
    """What a look leaves for later looks, beside its decisions. ``group_epoch``: the group epoch that the look saw;
    None: the look did not ask. ``loads``: the look at the loads; None: the loads were not looked at. ``renamed``: gone
    members that won't be back under their names (present.py). Their state is granted in several steps, and after the
    first step the logs no longer tell that the members were renamed.
    """

    group_epoch: int | None = None
    loads: LoadsLook | None = None
    renamed: frozenset[int] = frozenset()


class DecisionBatch(NamedTuple):
    """Decisions that are written together. ``answered``: the requests that the batch answers; ``budgeted``: the batch's
    moves that count for a budget; ``noted``: for the coordinator's memory, also of a batch without decisions.
    """

    decisions: Sequence[Decision] = ()
    answered: tuple[str, ...] = ()
    budgeted: frozenset[int] = frozenset()
    noted: Noted = Noted()
