"""The fold of the control log: the coordinator, the members, the owners of ranges, the starts of partitions.

Rules, the same in every reader:

1. An election counts if its term is higher than all before, and if the election names the same application as the
   first election. A term belongs to one process.
2. Every other event counts if its term is the highest, with the next *number* of the term. An append that arrives late,
   behind another decision or for the second time, does not count. A coordinator that lost needs no fence, for nobody
   listens to its decisions.
3. JOINED counts once for each incarnation and for each birth; EXPELLED and FENCED are only ever set.

A fenced member that owns nothing any more is forgotten, so the fold does not grow with restarts. An incarnation that
was used and is not known counts as expelled.

**The fold is changed in place.** ``evolve_control`` changes the given ``Control`` and returns the same object. A caller
that wants to go on from one fold in two ways, or to know its earlier value, takes a ``copy`` first.
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
"""The cause of a plan without an event of the control log as its cause."""
LEARNER: Final = "learner"
STANDBY: Final = "standby"
"""The roles of a copy. A learner shall own the bands of the copy; a standby has the copy for later."""
REFUSALS_MAX: Final = 64
"""The number of refused births that are remembered. Only the refused process needs the reason, for a moment."""


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a process, as the control log tells. ``joined``: the event, with the member's abilities."""

    joined: MemberJoined
    expelled: bool = False
    fenced: bool = False
    hold_ms: int = 0
    """The time after the expulsion for which the member's ranges with state wait for its name."""
    cause: str = ""
    """The reason of the expulsion."""

    @property
    def incarnation(self) -> int:
        """The incarnation's number."""
        return self.joined.incarnation

    @property
    def birth(self) -> str:
        """A text unique to this run of the process."""
        return self.joined.birth

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """All transactional ids that a fence has to cover."""
        return self.joined.transactional_ids


class Owner(NamedTuple):
    """The incarnation with the last grant of a point, and the epoch of the grant."""

    epoch: int
    incarnation: int


@dataclass(slots=True)
class Moves:
    """Planned and requested changes of ownership. ``planned``: the moves of the newest whole plan, and earlier moves
    that have begun.

    ``parts``: the parts of a plan whose last part was not read yet; ``copies``, ``release_requests``: requests to
    members to copy state, and to release ranges, by move. A copy is over when its member owns all of its bands, or was
    expelled, or the copy was ended. ``answer``: the request for a member's plan, until the next whole plan.
    """

    plan: int = 0
    group_epoch: int = 0
    """The group epoch that the newest whole plan answers."""
    planned: dict[int, PlannedMove] = field(default_factory=dict)
    parts: tuple[PlanMade, ...] = ()
    copies: dict[int, CopyAsked] = field(default_factory=dict)
    release_requests: dict[int, ReleaseAsked] = field(default_factory=dict)
    answer: AnswerAsked | None = None
    move_max: int = NO_MOVE
    """The highest number that a move had."""

    def copy(self) -> "Moves":
        """An equal value, independent of later changes."""
        return replace(
            self, planned=self.planned.copy(), copies=self.copies.copy(), release_requests=self.release_requests.copy()
        )


@dataclass(slots=True)
class Control:
    """The fold; only ``evolve_control`` changes the object. ``coordinator``: the birth of the last elected process;
    ``number``: the number of the last event of its term.

    ``members`` by incarnation; ``owners`` by place; ``started``: offsets by (topic, partition), and ``start_events``
    their events; ``stores`` by name; ``identities``: the broker's identity of a source topic, by topic name.
    """

    created: AppCreated | None = None
    app_birth: str = ""
    """A text that no other application's logs have; "": no election yet."""
    level: int = 0
    term: int = 0
    number: int = 0
    coordinator: str | None = None
    coordinator_instance: str = ""
    """The name of the last elected process; "" for none."""
    is_vacant: bool = False
    """Whether the last elected process was expelled as a member since then: it decides nothing any more."""
    incarnation_max: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    owners: dict[tuple[str, int], Steps[Owner]] = field(default_factory=dict)
    points_owned: dict[int, int] = field(default_factory=dict)
    """The number of points that an incarnation owns, over all places; no entry: none."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The reason of each refusal, by birth."""
    started: dict[tuple[str, int], int] = field(default_factory=dict)
    start_events: dict[tuple[str, int], PartitionStarted] = field(default_factory=dict)
    stores: dict[str, StoreDeclared] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    pinned: tuple[PinnedEnd, ...] | None = None
    """The ends at which members with ``until_level`` stop, as long as the group has such a member."""
    moves: Moves = field(default_factory=Moves)
    group_epoch: int = 0
    """The number of causes so far for ranges to move."""

    def copy(self) -> "Control":
        """An equal fold, independent of later changes."""
        return replace(
            self,
            members=self.members.copy(),
            owners=self.owners.copy(),  # its values are never changed, only replaced
            points_owned=self.points_owned.copy(),
            refusals=self.refusals.copy(),
            started=self.started.copy(),
            start_events=self.start_events.copy(),
            stores=self.stores.copy(),
            identities=self.identities.copy(),
            moves=self.moves.copy(),
        )

    @property
    def incarnation_next(self) -> int:
        """The least incarnation that was never used, from 1."""
        return self.incarnation_max + 1

    def unfenced_members(self) -> list[Member]:
        """Members whose transactional ids were not fenced yet, by incarnation."""
        return [m for _, m in sorted(self.members.items()) if not m.fenced]

    def is_expelled(self, incarnation: int) -> bool:
        """Whether the incarnation may commit no more."""
        member = self.members.get(incarnation)
        return incarnation <= self.incarnation_max if member is None else member.expelled

    def is_fenced(self, incarnation: int) -> bool:
        """Whether the last transaction of the incarnation is decided, and no further transaction can begin."""
        member = self.members.get(incarnation)
        return incarnation <= self.incarnation_max if member is None else member.fenced

    @property
    def has_member_until_caught_up(self) -> bool:
        """Whether the group has a member with ``until_level``. Then the first writes to source topics are events, too:
        the member waits for the records of these topics.
        """
        return any(member.joined.until_level and not member.expelled for member in self.members.values())

    def member_of(self, birth: str) -> Member | None:
        """The member with that birth; None: the birth has not joined, or the member was forgotten."""
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
    """Fold in an event: **the same object, changed**. An event that does not count changes nothing."""
    if event_counts(control, event):
        apply_event(control, event)
    return control


def apply_event(control: Control, event: ControlEvent) -> None:
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
            if event.cause == LOAD and control.moves.plan != before:  # no other event marks this cause
                control.group_epoch += 1
        case CopyAsked() | CopyEnded() | ReleaseAsked() | ReleaseWithdrawn() | AnswerAsked():
            _moves(control.moves, event)


def _members(control: Control, event: MemberJoined | MemberRefused | MemberExpelled | MemberFenced) -> None:
    if isinstance(event, MemberRefused):
        control.refusals[event.birth] = event.reason
        if len(control.refusals) > REFUSALS_MAX:
            del control.refusals[next(iter(control.refusals))]
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
        if not control.has_member_until_caught_up:
            control.pinned = None


def _grant(control: Control, grant: RangesGranted) -> None:
    """At each point the higher epoch wins. A fenced former owner without points is forgotten."""
    place, new = grant.topic_partition, Owner(grant.epoch, grant.incarnation)
    before, held = control.owners.get(place), control.points_owned
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
        if copy.topic_partition == place and copy.incarnation == grant.incarnation and _owns(owners, copy):
            del control.moves.copies[move]
    if control.moves.release_requests:
        for move, request in list(control.moves.release_requests.items()):
            if request.topic_partition == place and not _waits(owners, request):
                del control.moves.release_requests[move]
                control.moves.planned.pop(move, None)  # done: only another move may ask the new owner
    for loser in losers:
        if held.get(loser) == 0:
            del held[loser]
            _retire(control, loser)


def _waits(owners: Steps[Owner], request: ReleaseAsked) -> bool:
    """Whether some points of a request for a release still belong to the epoch of the request."""
    return any(owner.epoch == request.epoch for _, _, owner in owners.pieces(request.first, request.end))


def _owns(owners: Steps[Owner], copy: CopyAsked) -> bool:
    """Whether the member with a copy owns all points of the copy."""
    return all(
        owner is not None and owner.incarnation == copy.incarnation
        for band in copy.bands
        for _, _, owner in owners.all_pieces(band.first, band.end)
    )


def _retire(control: Control, incarnation: int) -> None:
    """Forget a fenced member that owns nothing."""
    member = control.members.get(incarnation)
    if member is not None and member.fenced and incarnation not in control.points_owned:
        del control.members[incarnation]


def _sources(control: Control, event: PartitionStarted | StoreDeclared | SourceIdentified) -> None:
    """The first event of each stays: an offset in the logs or a number in state keys depends on the event."""
    match event:
        case PartitionStarted():
            place = event.topic_partition
            if place not in control.started:
                control.started[place], control.start_events[place] = event.offset, event
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
            moves.release_requests[event.move] = event
        case ReleaseWithdrawn():  # only a new plan brings the move back
            moves.release_requests.pop(event.move, None)
            moves.planned.pop(event.move, None)


def _plan(moves: Moves, event: PlanMade) -> None:
    """A plan takes effect with its last part. Parts of another plan, or out of turn, do not belong to the plan."""
    moves.move_max = max([moves.move_max, *(move.move for move in event.moves)])
    parts = (*moves.parts, event) if event.part and moves.parts and moves.parts[0].plan == event.plan else (event,)
    if [part.part for part in parts] != list(range(len(parts))):
        moves.parts = ()
    elif len(parts) < event.parts:
        moves.parts = parts
    else:
        begun = {m: move for m, move in moves.planned.items() if m in moves.copies or m in moves.release_requests}
        moves.planned = {**begun, **{move.move: move for part in parts for move in part.moves}}
        moves.plan, moves.group_epoch, moves.parts, moves.answer = event.plan, event.group_epoch, (), None
