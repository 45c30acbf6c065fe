"""The fold of the control log: who coordinates, who takes part, who owns what, where each partition started.

Rules, the same in every reader:

1. An election counts if its term is higher than all before it, and if it names the application as the first one did. A
   term is one process's.
2. Every other event counts if its term is the highest, and if its *number* is the next one of that term. So an append
   that arrives late, behind another decision or for the second time, counts for nothing; a coordinator that lost needs
   no fence, for nobody listens to it. In terms of level 0 events have no number.
3. JOINED counts once for each incarnation and for each birth; EXPELLED and FENCED are only ever set.

A member that was fenced and owns nothing any more is forgotten, so the fold does not grow with restarts. Whoever is
not known and has an incarnation that was used is expelled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

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
from .event_values import NUMBERLESS, PinnedEnd, PlannedMove

K = TypeVar("K")
V = TypeVar("V")

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


@dataclass(frozen=True, slots=True)
class Moves:
    """What shall become of ranges. ``planned``: the moves of the newest whole plan, and those begun before it.

    ``parts``: of a plan whose last part was not read yet; ``copies``, ``asked``: what was asked of members, by move.
    """

    plan: int = 0
    group_epoch: int = 0
    """That the newest whole plan answers."""
    planned: Mapping[int, PlannedMove] = field(default_factory=lambda: MappingProxyType({}))
    parts: tuple[PlanMade, ...] = ()
    copies: Mapping[int, CopyAsked] = field(default_factory=lambda: MappingProxyType({}))
    asked: Mapping[int, ReleaseAsked] = field(default_factory=lambda: MappingProxyType({}))
    answer: AnswerAsked | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """The fold. ``coordinator``: the birth of who was elected last; ``number``: of the last event of its term.

    ``members`` by incarnation; ``owners`` by place; ``started``: offsets by (topic, partition), and ``begun`` the
    events that say them; ``stores`` by name; ``identities``: what the broker calls a source topic, by its name.
    """

    created: AppCreated | None = None
    app_birth: str = ""
    """Text that no other application's logs have; "": nobody has taken part yet."""
    level: int = 0
    term: int = 0
    is_numbered: bool = False
    """Whether the events of the term have numbers."""
    number: int = NUMBERLESS
    coordinator: str | None = None
    incarnation_max: int = 0
    members: Mapping[int, Member] = field(default_factory=lambda: MappingProxyType({}))
    owners: Mapping[tuple[str, int], Steps[Owner]] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Why, by birth."""
    started: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    begun: Mapping[tuple[str, int], PartitionStarted] = field(default_factory=lambda: MappingProxyType({}))
    stores: Mapping[str, StoreDeclared] = field(default_factory=lambda: MappingProxyType({}))
    identities: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pinned: tuple[PinnedEnd, ...] | None = None
    """Where a run to the level ends, while somebody runs to it."""
    moves: Moves = field(default_factory=Moves)
    group_epoch: int = 0
    """How many causes there were so far for ranges to move."""

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

    def member_of(self, birth: str) -> Member | None:
        """The member of that birth; None when it has not joined, or was forgotten."""
        return next((member for member in self.members.values() if member.birth == birth), None)


def event_counts(control: Control, event: ControlEvent) -> bool:
    """Whether the event, read when the fold was ``control``, counts."""
    match event:
        case AppCreated():
            return control.created is None
        case CoordinatorElected():
            # One of level 0 that comes behind the rise of the level: its writer can't read this log any more.
            is_ours = event.app_birth == control.app_birth or not control.app_birth
            return event.term > control.term and (is_ours if event.app_birth else control.level == 0)
        case _:
            number = control.number + 1 if control.is_numbered else NUMBERLESS
            return event.term == control.term and event.number == number


def evolve_control(control: Control, event: ControlEvent) -> Control:
    """The fold with one more event; one that does not count changes nothing."""
    if not event_counts(control, event):
        return control
    if isinstance(event, AppCreated):
        return replace(control, created=event)
    if isinstance(event, CoordinatorElected):
        return replace(
            control,
            term=event.term,
            coordinator=event.birth,
            is_numbered=bool(event.app_birth),
            number=NUMBERLESS,
            app_birth=event.app_birth or control.app_birth,
        )
    control = replace(control, number=event.number)
    match event:
        case MemberJoined() | MemberRefused() | MemberExpelled() | MemberFenced():
            return _members(control, event)
        case RangesGranted():
            return _grant(control, event)
        case PartitionStarted() | StoreDeclared() | SourceIdentified():
            return _sources(control, event)
        case EndsPinned() if control.pinned is None:
            return replace(control, pinned=event.ends)
        case LevelRaised() if event.level > control.level:
            return _cause(replace(control, level=event.level))
        case PlanMade() | CopyAsked() | CopyEnded() | ReleaseAsked() | ReleaseWithdrawn() | AnswerAsked():
            return _moves(control, event)
        case _:
            return control


def _cause(control: Control) -> Control:
    """One more cause for ranges to move."""
    return replace(control, group_epoch=control.group_epoch + 1)


def _members(control: Control, event: MemberJoined | MemberRefused | MemberExpelled | MemberFenced) -> Control:
    match event:
        case MemberRefused():
            refused = {**control.refused, event.birth: event.reason}
            for birth in list(refused)[:-REFUSALS_MAX]:
                del refused[birth]
            return replace(control, refused=MappingProxyType(refused))
        case MemberJoined():
            if event.incarnation <= control.incarnation_max or control.member_of(event.birth) is not None:
                return control
            members = _with(control.members, event.incarnation, Member(event))
            birth = control.app_birth or event.birth  # on logs of level 0 nothing else says it
            return _cause(replace(control, members=members, incarnation_max=event.incarnation, app_birth=birth))
        case MemberExpelled():
            member = control.members.get(event.incarnation)
            if member is None or member.expelled:
                return control
            members = _with(control.members, event.incarnation, replace(member, expelled=True, hold_ms=event.hold_ms))
            is_level_wanted = any(m.joined.until_level and not m.expelled for m in members.values())
            pinned = control.pinned if is_level_wanted else None
            return _cause(replace(control, members=members, pinned=pinned))
        case MemberFenced():
            member = control.members.get(event.incarnation)
            if member is None:
                return control
            fenced = _with(control.members, event.incarnation, replace(member, fenced=True))
            return _retired(replace(control, members=fenced), (event.incarnation,))


def _grant(control: Control, grant: RangesGranted) -> Control:
    """At each point the higher epoch wins; who owned it and is fenced is forgotten once it owns nothing."""
    place = (grant.topic, grant.partition)
    before: Steps[Owner] = control.owners.get(place, Steps())
    new = Owner(grant.epoch, grant.incarnation)
    pieces: list[tuple[int, int, Owner]] = []
    losers: set[int] = set()
    for band in grant.bands:
        if not 0 <= band.first < band.end <= SPACE_END:
            continue
        for first, end, owner in before.all_pieces(band.first, band.end):
            if owner is None or owner.epoch < grant.epoch:
                pieces.append((first, end, new))
                losers |= set() if owner is None else {owner.incarnation}
    control = replace(control, owners=_with(control.owners, place, before.replace(pieces)))
    moves = control.moves
    if moves.asked:
        asked = {
            m: ask for m, ask in moves.asked.items() if (ask.topic, ask.partition) != place or _waits(control, ask)
        }
        control = replace(control, moves=replace(moves, asked=MappingProxyType(asked)))
    return _retired(control, losers)


def _waits(control: Control, ask: ReleaseAsked) -> bool:
    """Whether points that were asked for are still those of the epoch that was asked."""
    owners = control.owners.get((ask.topic, ask.partition), Steps())
    return any(owner.epoch == ask.epoch for _, _, owner in owners.pieces(ask.first, ask.end))


def _retired(control: Control, incarnations: Iterable[int]) -> Control:
    """Without those of these members that are fenced and own nothing."""
    candidates = {i for i in incarnations if i in control.members and control.members[i].fenced}
    if candidates:
        owning = {owner.incarnation for owners in control.owners.values() for _, _, owner in owners.pieces()}
        candidates -= owning
    if not candidates:
        return control
    members = {i: member for i, member in control.members.items() if i not in candidates}
    return replace(control, members=MappingProxyType(members))


def _sources(control: Control, event: PartitionStarted | StoreDeclared | SourceIdentified) -> Control:
    match event:
        case PartitionStarted() if (place := (event.topic, event.partition)) not in control.started:
            begun = _with(control.begun, place, event)
            return _cause(replace(control, started=_with(control.started, place, event.offset), begun=begun))
        case StoreDeclared() if event.name not in control.stores:  # a number that was given once stays
            return replace(control, stores=_with(control.stores, event.name, event))
        case SourceIdentified() if event.topic not in control.identities:  # the offsets in the logs are this one's
            return replace(control, identities=_with(control.identities, event.topic, event.identity))
        case _:
            return control


def _moves(
    control: Control, event: PlanMade | CopyAsked | CopyEnded | ReleaseAsked | ReleaseWithdrawn | AnswerAsked
) -> Control:
    moves = control.moves
    match event:
        case AnswerAsked():
            moves = replace(moves, answer=event)
        case CopyAsked():
            moves = replace(moves, copies=_with(moves.copies, event.move, event))
        case CopyEnded():
            moves = replace(moves, copies=_without(moves.copies, event.move))
        case ReleaseAsked():
            moves = replace(moves, asked=_with(moves.asked, event.move, event))
        case ReleaseWithdrawn():
            moves = replace(moves, asked=_without(moves.asked, event.move))
        case PlanMade():
            return _plan(control, event)
    return replace(control, moves=moves)


def _plan(control: Control, event: PlanMade) -> Control:
    """A plan takes effect with its last part; parts of another one, or out of turn, are no part of it."""
    moves = control.moves
    parts = (*moves.parts, event) if event.part and moves.parts and moves.parts[0].plan == event.plan else (event,)
    if [part.part for part in parts] != list(range(len(parts))):
        return replace(control, moves=replace(moves, parts=()))
    if len(parts) < event.parts:
        return replace(control, moves=replace(moves, parts=parts))
    begun = {m: move for m, move in moves.planned.items() if m in moves.copies or m in moves.asked}
    planned = {**begun, **{move.move: move for part in parts for move in part.moves}}
    return replace(
        control,
        moves=replace(
            moves,
            plan=event.plan,
            group_epoch=event.group_epoch,
            planned=MappingProxyType(planned),
            parts=(),
            answer=None,
        ),
    )


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    return MappingProxyType({k: v for k, v in mapping.items() if k != key})
