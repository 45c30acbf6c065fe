"""PURE. Pieces of source partitions: the owner of each point, the way of the point, and the next step on the way.

| column | from |
|---|---|
| owner, epoch, state | the folds of both logs (cells.py) |
| is_taken_up | the fold of the offset log |
| move, asked | the plan, and the requests to release |
| copies | the copies asked for |
| heir | copies, names and members (copies.py) |
| awaits | all of the above |

The rows of the coordinator and the texts for people read these columns. piece_table.py keeps the pieces of all places
between looks.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from ..offsets.control_events import ReleaseAsked
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import PartitionLedger, SourcePartition
from ..offsets.signals import MoveAsked
from .cells import Cell, CellState, is_taken_up
from .copies import CopyProgress, FixedPoints, heir, is_near, spans_of
from .present import Present
from .shares import NOBODY


class Awaits(Enum):
    """What points wait for: the next step on their way. Points at work that go nowhere wait for nothing."""

    NOTHING = "nothing"
    ASK = "the coordinator asks the owner to release them"
    COPY = "the target has a ready copy"
    RELEASE = "the owner releases them"
    FENCE = "the owner, which was expelled, is fenced"
    READ = "the offset log of the owner, which is fenced, is read"
    MEMBER = "a member can handle them"
    GRANT = "the coordinator grants them"
    TAKE_UP = "the owner takes them up"


class PlacePiece(NamedTuple):
    """Points ``[first, end)`` of a source partition that are equal in all columns. ``owner``, ``epoch``, ``state``: see
    ``Cell``; ``is_taken_up``: the owner has cut all of the points into workers; ``move``: the newest planned move over
    the points; ``asked``: the open request to release the points; ``copies``: the numbers of the copies of the points.

    ``heir``: the only member to which a plan may give the points. ``NOBODY``: the plan decides; None: no member yet.
    """

    place: SourcePartition
    first: int
    end: int
    owner: int
    epoch: int
    state: CellState
    is_taken_up: bool
    move: PlannedMove | None
    asked: ReleaseAsked | None
    copies: tuple[int, ...]
    heir: int | None
    awaits: Awaits

    @property
    def is_held(self) -> bool:
        """Whether the owner may commit."""
        return self.state is CellState.HELD


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What the pieces of a place are worked out from, beside the members. ``moves``: the newest first; ``copies``: in
    order of their numbers.
    """

    place: SourcePartition
    fold: PartitionLedger
    cells: Sequence[Cell]
    moves: Sequence[PlannedMove]
    requests: Sequence[ReleaseAsked]
    copies: Sequence[CopyProgress]

    @property
    def copy_numbers(self) -> set[int]:
        """The numbers of the copies. A copy for a move has the number of the move."""
        return {kept.asked.move for kept in self.copies}


def pieces_of(present: Present, facts: PlaceFacts) -> list[PlacePiece]:
    """The pieces of a place, in order of points."""
    return [
        _piece_of(present, facts, cell)
        for cell in cut_by(facts.cells, [*facts.moves, *facts.requests, *spans_of(facts.copies)])
    ]


def _piece_of(present: Present, facts: PlaceFacts, cell: Cell) -> PlacePiece:
    place, is_held = facts.place, cell.state is CellState.HELD
    move = newest(facts.moves, cell)
    piece = PlacePiece(
        place=place,
        first=cell.first,
        end=cell.end,
        owner=cell.owner,
        epoch=cell.epoch,
        state=cell.state,
        is_taken_up=is_held and is_taken_up(facts.fold.parts[cell.epoch], cell.first, cell.end),
        move=move,
        asked=next((asked for asked in facts.requests if overlaps(cell, asked)), None),
        copies=tuple(kept.asked.move for kept in facts.copies if kept.touches(cell.first, cell.end)),
        heir=_heir_of(present, facts, cell, move),
        awaits=Awaits.NOTHING,
    )
    return piece._replace(awaits=_step_awaited(present, facts, piece))


def _heir_of(present: Present, facts: PlaceFacts, cell: Cell, move: PlannedMove | None) -> int | None:
    """See ``PlacePiece.heir``. Points are fixed while a copy of a move is under way to its target. Points with state
    and without a working owner are fixed if the next owner is known or awaited.
    """
    if facts.place[0] not in present.stateful:
        return NOBODY
    favoured = move.target if move is not None and move.target in present.staying else NOBODY
    if cell.state is CellState.HELD:
        is_begun = move is not None and move.origin == cell.owner and move.move in facts.copy_numbers
        return favoured if is_begun else NOBODY
    if cell.owner in present.staying and favoured:  # released for this move
        return favoured
    return heir(present, facts.copies, facts.place, cell, favoured)


def _step_awaited(present: Present, facts: PlaceFacts, piece: PlacePiece) -> Awaits:
    """See ``PlacePiece.awaits``."""
    if not piece.is_held:
        if piece.state is CellState.LEAVING:
            return Awaits.FENCE
        if facts.place[0] not in present.handled:
            return Awaits.MEMBER
        return Awaits.READ if piece.state is CellState.UNREAD else Awaits.GRANT
    if piece.asked is not None and piece.asked.epoch == piece.epoch:
        return Awaits.RELEASE
    if not piece.is_taken_up:
        return Awaits.TAKE_UP
    move = piece.move
    if move is None or move.origin != piece.owner or move.target == piece.owner or move.target not in present.staying:
        return Awaits.NOTHING
    is_copied = is_near(facts.copies, move.target, [(piece.first, piece.end)])
    return Awaits.COPY if facts.place[0] in present.stateful and not is_copied else Awaits.ASK


# --- points ----------------------------------------------------------------------------------------------------------


def overlaps(cell: Cell, move: PlannedMove | ReleaseAsked) -> bool:
    """Whether a cell and a move have a common point."""
    return cell.first < move.end and move.first < cell.end


def newest(moves: Sequence[PlannedMove], cell: Cell) -> PlannedMove | None:
    """The newest move over a cell. ``moves``: of the place, the newest first."""
    return next((move for move in moves if overlaps(cell, move)), None)


def cut_by(
    found: Iterable[Cell], by: Collection[MoveAsked | PlannedMove | ReleaseAsked | Span | FixedPoints]
) -> list[Cell]:
    """The cells, cut at the bounds of all items in ``by``."""
    if not by:
        return [*found]
    bounds = sorted({bound for one in by for bound in (one.first, one.end)})
    parts: list[Cell] = []
    for cell in found:
        at = [cell.first, *(bound for bound in bounds if cell.first < bound < cell.end), cell.end]
        parts += [cell._replace(first=a, end=b) for a, b in pairwise(at)]
    return parts
