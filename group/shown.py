"""PURE. How a group stands, for people: from its logs alone, also of an application that is down.

EMPTY          no member
IN_REBALANCE   points are asked for, or have no owner that may commit
SYNC           points were granted, and their owner has not cut them into workers yet
RUNNING        else
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from ..keyrange.hashing import SPACE_END
from ..offsets.control import Control, Member
from ..offsets.ledger import PartitionLedger, Place
from .cells import NOTHING, Standing, cells


class GroupState(Enum):
    """See the module."""

    EMPTY = "EMPTY"
    IN_REBALANCE = "IN_REBALANCE"
    SYNC = "SYNC"
    RUNNING = "RUNNING"


class Held(NamedTuple):
    """Points ``[first, end)`` of a source partition, at an epoch."""

    topic: str
    partition: int
    first: int
    end: int
    epoch: int

    @property
    def label(self) -> str:
        """For people; the whole partition without its points."""
        is_whole = self.end - self.first == SPACE_END
        return f"{self.topic}[{self.partition}]" + ("" if is_whole else f" {self.first:08x}-{self.end:08x}")


class MemberShown(NamedTuple):
    """One that is not fenced. ``standing``: "member", or "expelled: CAUSE"; ``share``: of all points."""

    incarnation: int
    instance: str
    birth: str
    host: str
    level: int
    standing: str
    is_coordinator: bool
    held: tuple[Held, ...]
    share: float


class GroupShown(NamedTuple):
    """A group. ``group_epoch``: causes so far; ``assignment_epoch``: that the newest plan answers; ``waits``: what
    waits for what, a sentence each.
    """

    state: GroupState
    term: int
    coordinator: str | None
    level: int
    group_epoch: int
    assignment_epoch: int
    members: tuple[MemberShown, ...]
    waits: tuple[str, ...]


def shown(control: Control, folds: Mapping[Place, PartitionLedger]) -> GroupShown:
    """A group, by the folds of its logs."""
    held: dict[int, list[Held]] = {}
    waits: list[str] = []
    uncut = False
    for place in sorted(control.started):
        cut = folds.get(place, NOTHING).workers()
        for cell in cells(control, folds, place, ()):
            points = Held(*place, cell.first, cell.end, cell.epoch)
            if cell.standing is Standing.HELD:
                held.setdefault(cell.owner, []).append(points)
                owners = [owner for _, _, (owner, _) in cut.pieces(cell.first, cell.end)]
                if owners != [cell.owner] * len(owners) or not owners:
                    uncut = True
                    waits.append(f"{points.label} waits for incarnation {cell.owner} to take it up")
            else:
                waits.append(f"{points.label} {_why(control, place, cell.standing, cell.owner)}")
    asked = [
        f"{Held(a.topic, a.partition, a.first, a.end, a.epoch).label} is to be released by incarnation {a.incarnation}"
        for _, a in sorted(control.moves.asked.items())
    ]
    state = GroupState.RUNNING
    if not any(not member.expelled for member in control.members.values()):
        state = GroupState.EMPTY
    elif asked or len(waits) > sum("to take it up" in line for line in waits):
        state = GroupState.IN_REBALANCE
    elif uncut:
        state = GroupState.SYNC
    there = [member for _, member in sorted(control.members.items()) if not member.fenced]
    members = tuple(_member(control, member, held) for member in there)
    return GroupShown(
        state,
        control.term,
        control.coordinator,
        control.level,
        control.group_epoch,
        control.moves.group_epoch,
        members,
        (*asked, *waits),
    )


def _member(control: Control, member: Member, held: Mapping[int, list[Held]]) -> MemberShown:
    own = tuple(held.get(member.incarnation, ()))
    points = sum(one.end - one.first for one in own)
    standing = f"expelled: {member.cause}" if member.expelled else "member"
    return MemberShown(
        member.incarnation,
        member.joined.instance,
        member.birth,
        member.joined.host,
        member.joined.level,
        standing,
        member.birth == control.coordinator,
        own,
        points / (SPACE_END * max(1, len(control.started))),
    )


def _why(control: Control, place: Place, standing: Standing, owner: int) -> str:
    if standing is Standing.LEAVING:
        return f"waits until incarnation {owner}, which was expelled, is fenced"
    living = [member for member in control.members.values() if not member.expelled]
    if not any(source.topic == place[0] for member in living for source in member.joined.topics):
        return "waits for a capable member"
    if standing is Standing.UNREAD:
        return f"waits until what incarnation {owner}, which is fenced, has committed is read"
    return "waits to be granted"
