"""PURE. Requests from outside a group (a move of points, an expulsion) and their progress by the control log."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..errors import SettingsError
from ..keyrange.ranges import WHOLE, KeyRange, even_bounds
from ..offsets.control import Control, Member
from ..offsets.ledger import SourcePartition
from ..offsets.signals import DIED, ExpelAsked, MoveAsked, Signal
from .members import OPERATOR
from .overview import OwnedRange

ANYBODY: Final = "any"
"""The word for a target of the coordinator's choice."""
NOBODY: Final = 0
"""The target of a request that leaves the choice to the coordinator."""
LISTED_MAX: Final = 20
"""The most allowed values named in an error."""


class Stage(NamedTuple):
    """The progress of a request. ``words``: for people; ``has_begun``: the group works on the request, and the signal
    need not be sent again.
    """

    words: str
    is_done: bool = False
    has_begun: bool = False


class Request(Protocol):
    """A request to the group."""

    @property
    def signal(self) -> Signal:
        """The signal to send; always the same."""

    def stage(self, control: Control) -> Stage:
        """The progress. Raises SettingsError when the request can't be done any more."""


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A request to move points of a source partition. ``request``: a unique text; ``by``: the requester, in words;
    ``target``: the incarnation, ``NOBODY``: the best other member; ``epoch``: the newest epoch of the points at the
    time of the request.
    """

    request: str
    by: str
    place: SourcePartition
    within: KeyRange
    target: int
    epoch: int

    @property
    def signal(self) -> MoveAsked:
        """See ``Request``. A request without a named member names the epoch. So a signal that arrives after the move is
        done moves nothing again.
        """
        epoch = NOBODY if self.target else self.epoch
        return MoveAsked(
            request=self.request,
            by=self.by,
            topic=self.place[0],
            partition=self.place[1],
            first=self.within.first,
            end=self.within.end,
            target=self.target,
            epoch=epoch,
        )

    @property
    def label(self) -> str:
        """The points to move, for people."""
        return OwnedRange(
            topic=self.place[0], partition=self.place[1], first=self.within.first, end=self.within.end, epoch=0
        ).label

    def stage(self, control: Control) -> Stage:
        """See ``Request``."""
        owners = control.owners.get(self.place)
        found = [] if owners is None else [owner for _, _, owner in owners.all_pieces(*_bounds(self.within))]
        if self.target:
            is_done = all(owner is not None and owner.incarnation == self.target for owner in found)
        else:
            is_done = all(owner is not None and owner.epoch > self.epoch for owner in found)
        if found and is_done:
            names = ", ".join(dict.fromkeys(_name(control, owner.incarnation) for owner in found if owner is not None))
            return Stage(f"{self.label} belongs to {names}", is_done=True)
        if self.target and control.is_expelled(self.target):
            raise SettingsError(f"{self.label} can't go to incarnation {self.target}, which was expelled meanwhile")
        asked = [
            a for a in control.moves.release_requests.values() if self._concerns(a.topic, a.partition, a.first, a.end)
        ]
        if asked:
            who = ", ".join(dict.fromkeys(_name(control, one.incarnation) for one in asked))
            return Stage(f"{self.label} waits for {who} to release it", has_begun=True)
        planned = [m for m in control.moves.planned.values() if self._concerns(m.topic, m.partition, m.first, m.end)]
        there = {owner.incarnation for owner in found if owner is not None}
        if any(m.target == (self.target or m.target) and {m.target} != there for m in planned):
            return Stage(f"{self.label} is to move, by plan {control.moves.plan}", has_begun=True)
        return Stage(f"{self.label} waits for the coordinator to plan it")

    def _concerns(self, topic: str, partition: int, first: int, end: int) -> bool:
        return (topic, partition) == self.place and first < self.within.end and self.within.first < end


@dataclass(frozen=True, slots=True)
class Expulsion:
    """A request to expel an incarnation, for a cause. ``name``: the member, for people."""

    request: str
    by: str
    incarnation: int
    name: str
    cause: str = OPERATOR

    @property
    def signal(self) -> ExpelAsked:
        """See ``Request``."""
        return ExpelAsked(self.request, self.by, self.incarnation, self.cause)

    def stage(self, control: Control) -> Stage:
        """See ``Request``."""
        if not control.is_expelled(self.incarnation):
            return Stage(f"{self.name} waits for the coordinator to expel it")
        return Stage(f"{self.name} is expelled; its ranges go to the others", is_done=True)


def make_move_request(
    control: Control,
    request: str,
    by: str,
    place: SourcePartition,
    to: str,
    *,
    points: Sequence[str] = (),
    cells: str | None = None,
) -> MoveRequest:
    """A request for a move, if the control log allows the move. ``to``, ``points``, ``cells``: as the user gave them.
    Raises SettingsError.
    """
    _check_members(control)
    _check_place(control, place)
    target = None if to == ANYBODY else member_of(control, to)
    able = [member for member in _living_members(control) if _factor(member, place[0])]
    if not able:
        raise SettingsError(f"no member can handle topic {place[0]!r}: start a process that has a handler for it")
    if target is not None and target not in able:
        raise SettingsError(
            f"{_text_of_member(target)} can't handle topic {place[0]!r}; those who can are "
            f"{_list_text(map(_text_of_member, able))}"
        )
    factor = _factor(target or able[0], place[0])
    within = _within(factor, points, cells)
    owners = control.owners.get(place)
    epochs = [] if owners is None else [owner.epoch for _, _, owner in owners.pieces(*_bounds(within))]
    incarnation = NOBODY if target is None else target.incarnation
    return MoveRequest(
        request=request, by=by, place=place, within=within, target=incarnation, epoch=max(epochs, default=0)
    )


def make_expulsion(control: Control, request: str, by: str, who: str) -> Expulsion:
    """A request for an expulsion, if the control log has the member. ``who``: as the user gave it. Raises
    SettingsError.
    """
    _check_members(control)
    member = member_of(control, who)
    return Expulsion(request, by, member.incarnation, _text_of_member(member))


def make_expulsion_of_dead(control: Control, request: str, by: str, birth: str) -> Expulsion:
    """A request to expel a dead process. Raises SettingsError if the process is no member, or no member any more."""
    member = control.member_of(birth)
    if member is None or member.expelled:
        raise SettingsError(f"no process of birth {birth} takes part")
    return Expulsion(request=request, by=by, incarnation=member.incarnation, name=_text_of_member(member), cause=DIED)


def member_of(control: Control, who: str) -> Member:
    """The member with this incarnation, else with this name (``group_instance_id``). Raises SettingsError."""
    living = _living_members(control)
    found = [member for member in living if str(member.incarnation) == who]
    found += [member for member in living if member.joined.instance == who]
    if found:
        return found[0]
    was_member = who.isdecimal() and 0 < int(who) <= control.incarnation_max
    why = "is no member any more" if was_member else "is no member"
    raise SettingsError(
        f"{who!r} {why}; there are {_list_text(map(_text_of_member, living))}: give an incarnation, or a name"
    )


def _within(factor: int, points: Sequence[str], cells: str | None) -> KeyRange:
    """The points that the user means. The bounds are bounds of the declared cut. Raises SettingsError."""
    bounds = even_bounds(factor)
    if cells is not None:
        if points:
            raise SettingsError("give either FIRST and END or --cells")
        found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", cells)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not 0 <= first <= last < factor:
            raise SettingsError(
                f"--cells: seen {cells!r}; allowed is A..B, both of them included, with 0 <= A <= B <= {factor - 1}: "
                f"the partition is declared with {factor} cells (parallelising_factor)"
            )
        return KeyRange(bounds[first], bounds[last + 1])
    if [*points] in ([], ["whole"]):
        return WHOLE
    if len(points) != 2:
        raise SettingsError(f"give FIRST and END, --cells A..B, or whole; seen {' '.join(points)!r}")
    given = [_point(point) for point in points]
    if given[0] >= given[1] or not all(point in bounds for point in given):
        near = ", ".join(f"{bound:08x}" for bound in bounds[:LISTED_MAX])
        more = "" if len(bounds) <= LISTED_MAX else f" and so on, {factor} cells of equal size"
        raise SettingsError(
            f"FIRST and END are bounds of cells of the declared cut, FIRST below END; seen {points[0]} and {points[1]}"
            f"; bounds are {near}{more}"
        )
    return KeyRange(*given)


def _point(text: str) -> int:
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,9}", text):
        raise SettingsError(f"{text!r} is no point; a point is hexadecimal, as keylanes group shows it, e.g. 40000000")
    return int(text, 16)


def _bounds(within: KeyRange) -> tuple[int, int]:
    return within.first, within.end


def _living_members(control: Control) -> list[Member]:
    return [member for _, member in sorted(control.members.items()) if not member.expelled]


def _factor(member: Member, topic: str) -> int:
    """The number of cells of a member's declared cut; 0: the member can't handle the topic."""
    return next((source.factor for source in member.joined.topics if source.topic == topic), 0)


def _check_members(control: Control) -> None:
    if not _living_members(control):
        raise SettingsError("the application has no member: start a process first")


def _check_place(control: Control, place: SourcePartition) -> None:
    if place in control.started:
        return
    partitions = sorted(partition for topic, partition in control.started if topic == place[0])
    if partitions:
        raise SettingsError(
            f"{place[0]}[{place[1]}] was not started; partitions of {place[0]} that were are {_list_text(partitions)}"
        )
    topics = sorted({topic for topic, _ in control.started})
    raise SettingsError(
        f"{place[0]!r} is no source topic of the application; its topics are {_list_text(topics) or 'none so far'}"
    )


def _list_text(things: Iterable[object]) -> str:
    found = [str(thing) for thing in things]
    return ", ".join(found[:LISTED_MAX]) + (f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else "")


def _text_of_member(member: Member) -> str:
    return f"incarnation {member.incarnation}" + (f" {member.joined.instance}" if member.joined.instance else "")


def _name(control: Control, incarnation: int) -> str:
    member = control.members.get(incarnation)
    return f"incarnation {incarnation}" if member is None else _text_of_member(member)
