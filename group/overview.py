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
from ..offsets.ledger import Ledger, SourcePartition
from ..offsets.signals import COOLING, SLOT, TURN, Copy
from .cells import Cell, CellState
from .copies import counts_for_budget
from .piece_table import PieceTable
from .pieces import Awaits, PlacePiece
from .present import members_present
from .standbys import StandbyRules

NOTHING_TOLD: Final[Mapping[int, Mapping[int, Copy]]] = MappingProxyType({})
"""No member has told the progress of its copies."""
NO_REASONS: Final[Mapping[int, str]] = MappingProxyType({})
"""The coordinator has told no reason why a move waits."""
NOTHING_READ: Final[frozenset[tuple[SourcePartition, int]]] = frozenset()
"""People who look at a group read no log to an own append."""
NO_STANDBYS: Final = StandbyRules(0, is_early=True)
"""The overview asks for no standbys."""
OF_MOVES: Final = (Awaits.ASK, Awaits.COPY)
"""What only a move waits for: the points are at work."""
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
    table: PieceTable, ledger: Ledger, told: Mapping[int, Mapping[int, Copy]], parked: Mapping[int, str]
) -> GroupShown:
    """A group, by the folds of its logs. ``table``: a new table, or the table of the last call. ``told``: the progress
    of copies, by incarnation and move; ``parked``: by move, why the move has not begun (``SLOT``, ``TURN``, ``COOLING``
    of offsets/signals.py). Both may be empty if nothing was heard.
    """
    control = ledger.control
    awaited = {i: m.joined.instance for i, m in control.members.items() if m.hold_ms}
    table.look(ledger, NOTHING_READ, members_present(control, (), awaited), told, NO_STANDBYS, 0)
    copies = tuple(copies_shown(control, told))
    waits: dict[str, list[OwnedRange]] = {}
    moves: dict[int, MoveShown] = {}
    for piece in (piece for place in sorted(control.started) for piece in table.pieces(place)):
        why, move = why_it_waits(control, piece, copies, parked), piece.move
        if why and piece.awaits not in OF_MOVES:
            waits.setdefault(f"waits for {why}", []).append(_range_of(piece.place, piece))
        if why and move is not None and move.move not in moves and _is_under_way(control, piece, move):
            moves[move.move] = _move_shown(move, why)
    there = [member for _, member in sorted(control.members.items()) if not member.fenced]
    held = _ranges_held(control, table)
    return GroupShown(
        state=_state_of(control, table),
        term=control.term,
        coordinator=control.coordinator,
        level=control.level,
        group_epoch=control.group_epoch,
        assignment_epoch=control.moves.group_epoch,
        members=tuple(_member(control, member, held.get(member.incarnation, ())) for member in there),
        waits=tuple(sorted(WaitShown(points, why) for why, own in waits.items() for points in as_few(own))),
        moves=tuple(move for _, move in sorted(moves.items())),
        copies=copies,
    )


def _ranges_held(control: Control, table: PieceTable) -> dict[int, list[OwnedRange]]:
    """The ranges for which each incarnation may commit."""
    held: dict[int, list[OwnedRange]] = {}
    for place in sorted(control.started):
        for cell in table.cells(place):
            if cell.state is CellState.HELD:
                held.setdefault(cell.owner, []).append(_range_of(place, cell))
    return held


def _state_of(control: Control, table: PieceTable) -> GroupState:
    if all(member.expelled for member in control.members.values()):
        return GroupState.EMPTY
    if control.moves.release_requests or table.places.unheld:
        return GroupState.IN_REBALANCE
    return GroupState.SYNC if table.places.uncut else GroupState.RUNNING


def _range_of(place: SourcePartition, cell: Cell | PlacePiece) -> OwnedRange:
    return OwnedRange(topic=place[0], partition=place[1], first=cell.first, end=cell.end, epoch=cell.epoch)


def _is_under_way(control: Control, piece: PlacePiece, move: PlannedMove) -> bool:
    """Whether a move may still take a piece to its target, or joins the piece. If the target is gone, the next plan
    gives the points to a present member. If a third member holds the points, a plan gave the points away.
    """
    return not control.is_expelled(move.target) and (not piece.is_held or piece.owner in (move.origin, move.target))


def _move_shown(move: PlannedMove, why: str) -> MoveShown:
    return MoveShown(
        move=move.move,
        topic=move.topic,
        partition=move.partition,
        first=move.first,
        end=move.end,
        origin=move.origin,
        target=move.target,
        waits_for=why,
    )


# --- why points wait -------------------------------------------------------------------------------------------------


def why_it_waits(control: Control, piece: PlacePiece, copies: Sequence[CopyShown], parked: Mapping[int, str]) -> str:
    """What points wait for, in words; "": nothing. ``parked``: see ``show_group``."""
    owner = f"incarnation {piece.owner}"
    match piece.awaits:
        case Awaits.NOTHING:
            return ""
        case Awaits.ASK | Awaits.COPY:
            return why_not_asked(control, piece.owner, piece.move, copies, parked) if piece.move is not None else ""
        case Awaits.RELEASE:
            return f"{owner} to release it"
        case Awaits.TAKE_UP:
            return f"{owner} to take it up"
        case Awaits.FENCE:
            why = f"{owner}, which was expelled, to be fenced"
        case Awaits.READ:
            why = f"the commits of {owner}, which is fenced, to be read"
        case Awaits.MEMBER:
            why = "a capable member"
        case Awaits.GRANT:
            why = "the coordinator to grant it"
    name = name_of_hold(control, piece.place, piece.owner)
    return f"{why}, or for {name}" if name else why


def why_not_asked(
    control: Control, owner: int, move: PlannedMove, copies: Sequence[CopyShown], parked: Mapping[int, str]
) -> str:
    """What a move waits for before its owner is asked, in words. ``parked``: see ``show_group``. If no reason
    is known, the answer names the possible reasons.
    """
    own = [copy for copy in copies if copy.incarnation == move.target]
    over = [
        copy
        for copy in own
        for held in copy.held
        if held[:2] == move.topic_partition and held.first < move.end and move.first < held.end
    ]
    is_stateful = move.topic in {store.topic for store in control.stores.values()}
    slot, turn = f"a slot at incarnation {move.target}, which makes other copies (copies_max)", ITS_TURN[TURN]
    if over and not all(copy.is_ready for copy in over):
        return f"incarnation {move.target} to copy its state ({over[0].progress})"
    if reason := parked.get(move.move):
        return slot if reason == SLOT else ITS_TURN.get(reason, reason)
    if over or not is_stateful:
        return f"the coordinator to ask incarnation {owner} for it"
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


# --- copies, ranges and members --------------------------------------------------------------------------------------


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


def as_few(held: Iterable[OwnedRange]) -> list[OwnedRange]:
    """The points in order. Touching ranges of a partition are joined, at the epoch of the first range."""
    return join_neighbours(sorted(held), lambda a, b: a._replace(end=b.end) if a[:2] == b[:2] else None)


def _member(control: Control, member: Member, held: Sequence[OwnedRange]) -> MemberShown:
    points = sum(one.end - one.first for one in held)
    standing = f"expelled: {member.cause}" if member.expelled else "member"
    return MemberShown(
        incarnation=member.incarnation,
        instance=member.joined.instance,
        birth=member.birth,
        host=member.joined.host,
        level=member.joined.level,
        standing=standing,
        is_coordinator=member.birth == control.coordinator,
        held=tuple(held),
        share=points / (SPACE_END * max(1, len(control.started))),
        endpoint=member.joined.endpoint,
    )
