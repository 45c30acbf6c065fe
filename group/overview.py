"""PURE. The state of a group, for people, from the logs alone, also of a stopped application.

EMPTY          no member
IN_REBALANCE   points are asked for, or have no owner that may commit
SYNC           points were granted, but not all are cut into workers yet
RUNNING        otherwise
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import join_neighbours
from ..offsets.control import Control, Member
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import PartitionLedger, SourcePartition
from ..offsets.signals import COOLING, SLOT, TURN, Copy
from .cells import NOTHING, Cell, CellState, cells, is_taken_up
from .copies import counts_for_budget

NOTHING_TOLD: Final[Mapping[int, Mapping[int, Copy]]] = MappingProxyType({})
"""No member has told the progress of its copies."""
NO_REASONS: Final[Mapping[int, str]] = MappingProxyType({})
"""The coordinator has told no reason why a move waits."""
ITS_TURN: Final = {
    TURN: "its turn (moves_per_minute)",
    COOLING: "its turn (half of moves_per_minute, as the group cools down)",
}


class GroupState(Enum):
    """The state of a group; see the module."""

    EMPTY = "EMPTY"
    IN_REBALANCE = "IN_REBALANCE"
    SYNC = "SYNC"
    RUNNING = "RUNNING"


class OwnedRange(NamedTuple):
    """Points ``[first, end)`` of a source partition, at an epoch."""

    topic: str
    partition: int
    first: int
    end: int
    epoch: int

    @property
    def label(self) -> str:
        """The points, for people; a whole partition has no points in the label."""
        return f"{self.topic}[{self.partition}]{'' if self.is_whole else f' {self.points}'}"

    @property
    def topic_partition(self) -> SourcePartition:
        """The source partition of the points."""
        return self.topic, self.partition

    @property
    def is_whole(self) -> bool:
        """Whether the range has all points of the partition."""
        return self.end - self.first == SPACE_END

    @property
    def points(self) -> str:
        """The points alone, in hexadecimal."""
        return f"{self.first:08x}-{self.end:08x}"


class WaitShown(NamedTuple):
    """Points of which something is awaited: to have an owner, to be cut into workers, or to be released. ``held``: the
    points; ``why``: what is awaited, in words.
    """

    held: OwnedRange
    why: str

    def __str__(self) -> str:
        """A sentence for people."""
        return f"{self.held.label} {self.why}"


class MoveShown(NamedTuple):
    """A move under way: points ``[first, end)`` go from one incarnation (0: nobody) to another. ``waits_for``: in
    words.
    """

    move: int
    topic: str
    partition: int
    first: int
    end: int
    origin: int
    target: int
    waits_for: str

    @property
    def moving_range(self) -> OwnedRange:
        """The points that move."""
        return OwnedRange(*self[1:5], 0)

    @property
    def way(self) -> str:
        """The origin and the target, for people."""
        if self.origin == self.target:
            return f"of {self.target} (joins its own ranges)"
        return f"from {self.origin or 'nobody'} to {self.target}"


class CopyShown(NamedTuple):
    """A copy of the state of points at an incarnation. ``position``, ``high``: the progress in the changelog, -1 if
    unknown. While the progress is unknown ``is_ready`` is False.
    """

    move: int
    incarnation: int
    role: str
    held: tuple[OwnedRange, ...]
    position: int
    high: int
    is_ready: bool

    @property
    def label(self) -> str:
        """The points and the progress, for people."""
        return f"{', '.join(held.label for held in self.held)} ({self.role}, {self.progress})"

    @property
    def progress(self) -> str:
        """The progress, for people."""
        if self.is_ready:
            return "ready"
        return f"{self.position} of {self.high} of the changelog" if self.position >= 0 else "begun"


class MemberShown(NamedTuple):
    """A member that is not fenced. ``standing``: "member", or "expelled: CAUSE"; ``held``: the ranges for which the
    member may commit; ``share``: the fraction of the points of all places.
    """

    incarnation: int
    instance: str
    birth: str
    host: str
    level: int
    standing: str
    is_coordinator: bool
    held: tuple[OwnedRange, ...]
    share: float
    endpoint: str = ""


class GroupShown(NamedTuple):
    """A group. ``group_epoch``: the number of causes so far; ``assignment_epoch``: the group epoch of the newest plan;
    ``waits``: waiting points and their reasons; ``moves``: the moves under way; ``copies``: the copies asked for.
    """

    state: GroupState
    term: int
    coordinator: str | None
    level: int
    group_epoch: int
    assignment_epoch: int
    members: tuple[MemberShown, ...]
    waits: tuple[WaitShown, ...]
    moves: tuple[MoveShown, ...] = ()
    copies: tuple[CopyShown, ...] = ()


def show_group(
    control: Control,
    folds: Mapping[SourcePartition, PartitionLedger],
    told: Mapping[int, Mapping[int, Copy]],
    parked: Mapping[int, str],
) -> GroupShown:
    """A group, by the folds of its logs. ``told``: the progress of copies, by incarnation and move; ``parked``: by
    move, why the move has not begun (``SLOT``, ``TURN``, ``COOLING`` of offsets/signals.py). Both may be empty if
    nothing was heard.
    """
    copies = tuple(copies_shown(control, told))
    held: dict[int, list[OwnedRange]] = {}
    uncut: list[tuple[str, OwnedRange]] = []
    free: list[tuple[str, OwnedRange]] = []
    for place in sorted(control.started):
        parts = folds.get(place, NOTHING).parts
        for cell in cells(control, folds, place, ()):
            points = OwnedRange(topic=place[0], partition=place[1], first=cell.first, end=cell.end, epoch=cell.epoch)
            if cell.state is CellState.HELD:
                held.setdefault(cell.owner, []).append(points)
                if not is_taken_up(parts[cell.epoch], cell.first, cell.end):
                    uncut.append((f"waits for incarnation {cell.owner} to take it up", points))
            else:
                free.append((_why_not_held(control, place, cell.state, cell.owner), points))
    asked = [
        (
            f"is to be released by incarnation {a.incarnation}",
            OwnedRange(topic=a.topic, partition=a.partition, first=a.first, end=a.end, epoch=a.epoch),
        )
        for _, a in sorted(control.moves.release_requests.items())
    ]
    state = GroupState.RUNNING
    if not any(not member.expelled for member in control.members.values()):
        state = GroupState.EMPTY
    elif asked or free:
        state = GroupState.IN_REBALANCE
    elif uncut:
        state = GroupState.SYNC
    there = [member for _, member in sorted(control.members.items()) if not member.fenced]
    members = tuple(_member(control, member, held) for member in there)
    return GroupShown(
        state=state,
        term=control.term,
        coordinator=control.coordinator,
        level=control.level,
        group_epoch=control.group_epoch,
        assignment_epoch=control.moves.group_epoch,
        members=members,
        waits=(*_waits_shown(asked), *_waits_shown([*uncut, *free])),
        moves=tuple(_moves(control, folds, copies, parked)),
        copies=copies,
    )


def copies_shown(control: Control, told: Mapping[int, Mapping[int, Copy]]) -> Iterator[CopyShown]:
    """All copies asked for. ``told``: see ``show_group``."""
    for number, asked in sorted(control.moves.copies.items()):
        held = tuple(
            OwnedRange(topic=asked.topic, partition=asked.partition, first=band.first, end=band.end, epoch=0)
            for band in asked.bands
        )
        copy = told.get(asked.incarnation, {}).get(number)
        position, high, is_ready = (-1, -1, False) if copy is None else (copy.position, copy.high, copy.is_ready)
        yield CopyShown(
            move=number,
            incarnation=asked.incarnation,
            role=asked.role,
            held=held,
            position=position,
            high=high,
            is_ready=is_ready,
        )


def _moves(
    control: Control,
    folds: Mapping[SourcePartition, PartitionLedger],
    copies: Sequence[CopyShown],
    parked: Mapping[int, str],
) -> Iterator[MoveShown]:
    """Yield the moves whose points are not all taken up by the target yet."""
    for number, move in sorted(control.moves.planned.items()):
        if control.is_expelled(move.target):
            continue  # the next plan gives the points to a present member
        place = move.topic_partition
        parts = folds.get(place, NOTHING).parts
        for cell in cells(control, folds, place, ()):
            if not (cell.first < move.end and move.first < cell.end):
                continue
            if cell.state is CellState.HELD and cell.owner not in (move.origin, move.target):
                continue  # the owner died before the move began, and a plan gave the points away
            is_asked = number in control.moves.release_requests
            is_cut = cell.owner != 0 and is_taken_up(parts[cell.epoch], cell.first, cell.end)
            waits_for = _waits_for(cell, move.target, is_asked=is_asked, is_cut=is_cut)
            if cell.state is CellState.HELD and cell.owner == move.origin != move.target and not is_asked:
                waits_for = waits_for_copy(control, move, copies, parked) or waits_for
            elif cell.state is not CellState.HELD and (name := name_of_hold(control, place, cell.owner)):
                waits_for += f", or for {name}"
            if waits_for:
                yield MoveShown(
                    move=number,
                    topic=place[0],
                    partition=place[1],
                    first=move.first,
                    end=move.end,
                    origin=move.origin,
                    target=move.target,
                    waits_for=waits_for,
                )
                break


def _waits_for(cell: Cell, target: int, *, is_asked: bool, is_cut: bool) -> str:
    """The next step of the move of a cell to its target, in words; "": the target is at work."""
    if cell.state is CellState.FREE:
        return "the coordinator to grant it"
    if cell.state is not CellState.HELD:
        return f"incarnation {cell.owner}, which was expelled, to be fenced"
    if cell.owner == target:
        return "" if is_cut else f"incarnation {target} to take it up"
    owner = f"incarnation {cell.owner}"
    return f"{owner} to release it" if is_asked else f"the coordinator to ask {owner} for it"


def waits_for_copy(
    control: Control, move: PlannedMove, copies: Sequence[CopyShown], parked: Mapping[int, str] = NO_REASONS
) -> str:
    """What a move with state waits for before its owner is asked to release, in words; "": nothing. ``parked``: see
    ``show_group``. If no reason is known, the answer names the possible reasons.
    """
    if move.topic not in {store.topic for store in control.stores.values()}:
        return ""
    own = [copy for copy in copies if copy.incarnation == move.target]
    over = [
        copy
        for copy in own
        for held in copy.held
        if held[:2] == move.topic_partition and held.first < move.end and move.first < held.end
    ]
    slot, turn = f"a slot at incarnation {move.target}, which makes other copies (copies_max)", ITS_TURN[TURN]
    if over and not all(copy.is_ready for copy in over):
        return f"incarnation {move.target} to copy its state ({over[0].progress})"
    if reason := parked.get(move.move):
        return slot if reason == SLOT else ITS_TURN.get(reason, reason)
    if over:
        return ""
    may_be = [slot] if any(not copy.is_ready for copy in own) else []
    may_be += [turn] if counts_for_budget(move) else []
    return ", or ".join(may_be) or "the coordinator to ask for a copy"


def name_of_hold(control: Control, place: SourcePartition, owner: int) -> str:
    """The name for which points with state wait (their *hold*), and the longest wait, in words; "": no name."""
    member = control.members.get(owner)
    is_stateful = place[0] in {store.topic for store in control.stores.values()}
    if member is None or not member.hold_ms or not is_stateful:
        return ""
    return f"{member.joined.instance!r} to come back, {member.hold_ms / 1000:g} s at most"


def as_few(held: Iterable[OwnedRange]) -> list[OwnedRange]:
    """The points in order. Touching ranges of a partition are joined, at the epoch of the first range."""
    return join_neighbours(sorted(held), lambda a, b: a._replace(end=b.end) if a[:2] == b[:2] else None)


def _waits_shown(waits: Iterable[tuple[str, OwnedRange]]) -> list[WaitShown]:
    """The waits, in order of points. Touching ranges with the same reason are joined."""
    by_reason: dict[str, list[OwnedRange]] = {}
    for why, points in waits:
        by_reason.setdefault(why, []).append(points)
    return sorted(WaitShown(points, why) for why, own in by_reason.items() for points in as_few(own))


def _member(control: Control, member: Member, held: Mapping[int, list[OwnedRange]]) -> MemberShown:
    own = tuple(held.get(member.incarnation, ()))
    points = sum(one.end - one.first for one in own)
    standing = f"expelled: {member.cause}" if member.expelled else "member"
    return MemberShown(
        incarnation=member.incarnation,
        instance=member.joined.instance,
        birth=member.birth,
        host=member.joined.host,
        level=member.joined.level,
        standing=standing,
        is_coordinator=member.birth == control.coordinator,
        held=own,
        share=points / (SPACE_END * max(1, len(control.started))),
        endpoint=member.joined.endpoint,
    )


def _why_not_held(control: Control, place: SourcePartition, state: CellState, owner: int) -> str:
    """What is awaited for points that are not held, in words."""
    step, name = _next_step(control, place, state, owner), name_of_hold(control, place, owner)
    return f"{step}, or for {name}" if name else step


def _next_step(control: Control, place: SourcePartition, state: CellState, owner: int) -> str:
    """The next step to a new owner, in words."""
    if state is CellState.LEAVING:
        return f"waits until incarnation {owner}, which was expelled, is fenced"
    living = [member for member in control.members.values() if not member.expelled]
    if not any(source.topic == place[0] for member in living for source in member.joined.topics):
        return "waits for a capable member"
    if state is CellState.UNREAD:
        return f"waits until what incarnation {owner}, which is fenced, has committed is read"
    return "waits to be granted"
