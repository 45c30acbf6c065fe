"""The fold of the control log: who coordinates, who takes part, who owns what, where each partition started.

Rules, the same in every reader:

1. An election counts if its term is higher than all before it, and if it names the application as the first one did. A
   term is one process's.
2. Every other event counts if its term is the highest, and if its *number* is the next one of that term. So an append
   that arrives late, behind another decision or for the second time, counts for nothing; a coordinator that lost needs
   no fence, for nobody listens to it.
3. JOINED counts once for each incarnation and for each birth; EXPELLED and FENCED are only ever set.

A member that was fenced and owns nothing any more is forgotten, so the fold does not grow with restarts. Whoever is
not known and has an incarnation that was used is expelled.

**The fold is changed in place.** ``evolve_control`` changes the ``Control`` that it is given and returns the same one.
Who wants to go on from one fold in two ways, or to know later what it was, takes a ``copy`` first.
"""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from .control_events import (
    AnswerAsked,
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    CopyAsked,
    CopyEnded,
    EndsPinned,
    LevelRaised,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    MemberRefused,
    PartitionStarted,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
    SourceIdentified,
    StoreDeclared,
)
from .event_values import NO_MOVE, PinnedEnd, PlannedMove

LOAD: Final = "load"
"""The cause of a plan that is not an event of the control log."""
LEARNER: Final = "learner"
STANDBY: Final = "standby"
"""The roles of a copy: of a member that shall own its bands, or of one that keeps it for later."""
REFUSALS_MAX: Final = 64
"""So many refused births are remembered: each is of interest to the process that asked, and only for a moment."""


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a process, as the control log tells it. ``joined``: the event, with all that it can do."""

    joined: MemberJoined
    expelled: bool = False
    fenced: bool = False
    hold_ms: int = 0
    """So long after it was expelled its ranges with state wait for its name."""
    cause: str = ""
    """Why it was expelled."""

    @property
    def incarnation(self) -> int:
        """Its number."""
        return self.joined.incarnation

    @property
    def birth(self) -> str:
        """Text that no other run of a process ever had."""
        return self.joined.birth

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """All that have to be fenced."""
        return self.joined.transactional_ids


class Owner(NamedTuple):
    """Who was granted a point last, and at which epoch."""

    epoch: int
    incarnation: int


@dataclass(slots=True)
class Moves:
    """What shall become of ranges. ``planned``: the moves of the newest whole plan, and those begun before it.

    ``parts``: of a plan whose last part was not read yet; ``copies``, ``asked``: what was asked of members, by move. A
    copy is over when its member owns all of its bands, or was expelled, or it was ended.
    """

    plan: int = 0
    group_epoch: int = 0
    """That the newest whole plan answers."""
    planned: dict[int, PlannedMove] = field(default_factory=dict)
    parts: tuple[PlanMade, ...] = ()
    copies: dict[int, CopyAsked] = field(default_factory=dict)
    asked: dict[int, ReleaseAsked] = field(default_factory=dict)
    answer: AnswerAsked | None = None
    move_max: int = NO_MOVE
    """The highest number that a move had."""

    def copy(self) -> "Moves":
        """Equal ones that change by themselves."""
        return replace(self, planned=self.planned.copy(), copies=self.copies.copy(), asked=self.asked.copy())


@dataclass(slots=True)
class Control:
    """The fold; only ``evolve_control`` changes it. ``coordinator``: the birth of who was elected last; ``number``: of
    the last event of its term.

    ``members`` by incarnation; ``owners`` by place; ``started``: offsets by (topic, partition), and ``begun`` the
    events that say them; ``stores`` by name; ``identities``: what the broker calls a source topic, by its name.
    """

    created: AppCreated | None = None
    app_birth: str = ""
    """Text that no other application's logs have; "": nobody was elected yet."""
    level: int = 0
    term: int = 0
    number: int = 0
    coordinator: str | None = None
    coordinator_instance: str = ""
    """The name of who was elected last; "" for none."""
    is_vacant: bool = False
    """Whether who was elected last was expelled as a member since: it decides no more."""
    incarnation_max: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    owners: dict[tuple[str, int], Steps[Owner]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    """How many points an incarnation owns, over all places; not in it: none."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by birth."""
    started: dict[tuple[str, int], int] = field(default_factory=dict)
    begun: dict[tuple[str, int], PartitionStarted] = field(default_factory=dict)
    stores: dict[str, StoreDeclared] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    pinned: tuple[PinnedEnd, ...] | None = None
    """Where a run to the level ends, while somebody runs to it."""
    moves: Moves = field(default_factory=Moves)
    group_epoch: int = 0
    """How many causes there were so far for ranges to move."""

    def copy(self) -> "Control":
        """An equal fold that changes by itself."""
        return replace(
            self,
            members=self.members.copy(),
            owners=self.owners.copy(),  # what is in it is never changed, only replaced
            held=self.held.copy(),
            refused=self.refused.copy(),
            started=self.started.copy(),
            begun=self.begun.copy(),
            stores=self.stores.copy(),
            identities=self.identities.copy(),
            moves=self.moves.copy(),
        )

    @property
    def incarnation_next(self) -> int:
        """The least incarnation that was never used, from 1."""
        return self.incarnation_max + 1

    def unfenced(self) -> list[Member]:
        """Members whose transactional ids were not fenced yet, by incarnation."""
        return [m for _, m in sorted(self.members.items()) if not m.fenced]

    def is_expelled(self, incarnation: int) -> bool:
        """Whether the incarnation may commit no more."""
        member = self.members.get(incarnation)
        return incarnation <= self.incarnation_max if member is None else member.expelled

    def is_fenced(self, incarnation: int) -> bool:
        """Whether the last transaction of the incarnation is decided, and it can begin none."""
        member = self.members.get(incarnation)
        return incarnation <= self.incarnation_max if member is None else member.fenced

    @property
    def runs_to_level(self) -> bool:
        """Whether a member runs to the level: then first writes to sources are written down."""
        return any(member.joined.until_level and not member.expelled for member in self.members.values())

    def member_of(self, birth: str) -> Member | None:
        """The member of that birth; None when it has not joined, or was forgotten."""
        return next((member for member in self.members.values() if member.birth == birth), None)


def event_counts(control: Control, event: ControlEvent) -> bool:
    """Whether the event, read when the fold was ``control``, counts."""
    match event:
        case AppCreated():
            return control.created is None
        case CoordinatorElected():
            is_ours = event.app_birth == control.app_birth or not control.app_birth
            return event.term > control.term and is_ours
        case _:
            return event.term == control.term and event.number == control.number + 1


def evolve_control(control: Control, event: ControlEvent) -> Control:
    """The fold with one more event: **the same object, changed**. An event that does not count changes nothing."""
    if event_counts(control, event):
        take(control, event)
    return control


def take(control: Control, event: ControlEvent) -> None:
    """Change the fold by an event that counts."""
    if isinstance(event, AppCreated):
        control.created = event
        return
    if isinstance(event, CoordinatorElected):
        control.term, control.coordinator = event.term, event.birth
        control.coordinator_instance, control.is_vacant = event.instance, False
        control.app_birth, control.number = event.app_birth, 0
        return
    control.number = event.number
    match event:
        case RangesGranted():
            _grant(control, event)
        case MemberJoined() | MemberRefused() | MemberExpelled() | MemberFenced():
            _members(control, event)
        case PartitionStarted() | StoreDeclared() | SourceIdentified():
            _sources(control, event)
        case EndsPinned():
            control.pinned = event.ends if control.pinned is None else control.pinned
        case LevelRaised():
            if event.level > control.level:
                control.level = event.level
                control.group_epoch += 1
        case PlanMade():
            before = control.moves.plan
            _plan(control.moves, event)
            if event.cause == LOAD and control.moves.plan != before:  # no other event says that it is one
                control.group_epoch += 1
        case CopyAsked() | CopyEnded() | ReleaseAsked() | ReleaseWithdrawn() | AnswerAsked():
            _moves(control.moves, event)


def _members(control: Control, event: MemberJoined | MemberRefused | MemberExpelled | MemberFenced) -> None:
    if isinstance(event, MemberRefused):
        control.refused[event.birth] = event.reason
        if len(control.refused) > REFUSALS_MAX:
            del control.refused[next(iter(control.refused))]
        return
    if isinstance(event, MemberJoined):
        if event.incarnation > control.incarnation_max and control.member_of(event.birth) is None:
            control.members[event.incarnation] = Member(event)
            control.incarnation_max = event.incarnation
            control.group_epoch += 1
        return
    member = control.members.get(event.incarnation)
    if member is None:
        return
    if isinstance(event, MemberFenced):
        control.members[event.incarnation] = replace(member, fenced=True)
        _retire(control, event.incarnation)
    elif not member.expelled:
        control.members[event.incarnation] = replace(member, expelled=True, hold_ms=event.hold_ms, cause=event.cause)
        control.is_vacant = control.is_vacant or member.birth == control.coordinator
        copies = control.moves.copies
        control.moves.copies = {move: copy for move, copy in copies.items() if copy.incarnation != event.incarnation}
        control.group_epoch += 1
        if not control.runs_to_level:
            control.pinned = None


def _grant(control: Control, grant: RangesGranted) -> None:
    """At each point the higher epoch wins; who owned it and is fenced is forgotten once it owns nothing."""
    place, new = (grant.topic, grant.partition), Owner(grant.epoch, grant.incarnation)
    before, held = control.owners.get(place), control.held
    owners: Steps[Owner] = Steps() if before is None else before.copy()
    losers: list[int] = []
    for band in grant.bands:
        if not 0 <= band.first < band.end <= SPACE_END:
            continue
        for first, end, owner in owners.all_pieces(band.first, band.end):
            if owner is not None and owner.epoch >= new.epoch:
                continue
            owners.put(first, end, new)
            held[new.incarnation] = held.get(new.incarnation, 0) + end - first
            if owner is not None:
                losers.append(owner.incarnation)
                held[owner.incarnation] -= end - first
    control.owners[place] = owners
    for move, copy in list(control.moves.copies.items()):
        if (copy.topic, copy.partition) == place and copy.incarnation == grant.incarnation and _owns(owners, copy):
            del control.moves.copies[move]
    if control.moves.asked:
        for move, ask in list(control.moves.asked.items()):
            if (ask.topic, ask.partition) == place and not _waits(owners, ask):
                del control.moves.asked[move]
                control.moves.planned.pop(move, None)  # it is done: who has the points may be asked by another alone
    for loser in losers:
        if held.get(loser) == 0:
            del held[loser]
            _retire(control, loser)


def _waits(owners: Steps[Owner], ask: ReleaseAsked) -> bool:
    """Whether points that were asked for are still those of the epoch that was asked."""
    return any(owner.epoch == ask.epoch for _, _, owner in owners.pieces(ask.first, ask.end))


def _owns(owners: Steps[Owner], copy: CopyAsked) -> bool:
    """Whether the member that has a copy owns all of its points."""
    return all(
        owner is not None and owner.incarnation == copy.incarnation
        for band in copy.bands
        for _, _, owner in owners.all_pieces(band.first, band.end)
    )


def _retire(control: Control, incarnation: int) -> None:
    """Forget the member if it is fenced and owns nothing."""
    member = control.members.get(incarnation)
    if member is not None and member.fenced and incarnation not in control.held:
        del control.members[incarnation]


def _sources(control: Control, event: PartitionStarted | StoreDeclared | SourceIdentified) -> None:
    """The first of each stays: an offset in the logs, a number in keys of state, hang on it."""
    match event:
        case PartitionStarted():
            place = (event.topic, event.partition)
            if place not in control.started:
                control.started[place], control.begun[place] = event.offset, event
                control.group_epoch += 1
        case StoreDeclared():
            control.stores.setdefault(event.name, event)
        case SourceIdentified():
            control.identities.setdefault(event.topic, event.identity)


def _moves(moves: Moves, event: CopyAsked | CopyEnded | ReleaseAsked | ReleaseWithdrawn | AnswerAsked) -> None:
    match event:
        case AnswerAsked():
            moves.answer = event
        case CopyAsked():
            moves.copies[event.move] = event
            moves.move_max = max(moves.move_max, event.move)
        case CopyEnded():
            moves.copies.pop(event.move, None)
        case ReleaseAsked():
            moves.asked[event.move] = event
        case ReleaseWithdrawn():  # only a new plan has it again
            moves.asked.pop(event.move, None)
            moves.planned.pop(event.move, None)


def _plan(moves: Moves, event: PlanMade) -> None:
    """A plan takes effect with its last part; parts of another one, or out of turn, are no part of it."""
    moves.move_max = max([moves.move_max, *(move.move for move in event.moves)])
    parts = (*moves.parts, event) if event.part and moves.parts and moves.parts[0].plan == event.plan else (event,)
    if [part.part for part in parts] != list(range(len(parts))):
        moves.parts = ()
    elif len(parts) < event.parts:
        moves.parts = parts
    else:
        begun = {m: move for m, move in moves.planned.items() if m in moves.copies or m in moves.asked}
        moves.planned = {**begun, **{move.move: move for part in parts for move in part.moves}}
        moves.plan, moves.group_epoch, moves.parts, moves.answer = event.plan, event.group_epoch, (), None
