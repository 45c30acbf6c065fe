"""PURE. Copies of state, the progress of each copy, and the heir of points without a working owner.

A copy is a fact of the control log. The progress of a copy is only heard. So a new coordinator does not know the
progress, and a copy counts as not ready until its member reports again. An owner counts as ready.

Points of a topic with stores whose owner is gone, or has released the points, go

1. to the target of their move, if the target's copy is ready; else to another member with a ready copy
2. to the member with the name of the gone owner, while the *hold* lasts: at once when such a member is there, and to no
   other member before. If all members were restarted under other names, nobody is waited for (present.py)
3. to the most advanced copy that is not ready
4. to the plan's best member

For points without state the plan alone decides.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from ..keyrange.steps import Steps
from ..offsets.control_events import CopyAsked
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition, is_span
from .cells import Cell
from .present import Present
from .shares import NOBODY

STATE_BYTES: Final = 1 << 20
"""A move with less state counts for no budget."""


class CopyProgress(NamedTuple):
    """A copy asked for, and its progress. ``position``: in the changelog, -1 if none was heard."""

    asked: CopyAsked
    is_ready: bool
    position: int

    @property
    def incarnation(self) -> int:
        """The incarnation with the copy."""
        return self.asked.incarnation

    def covers(self, first: int, end: int) -> bool:
        """Whether the copy has all of the points."""
        return not uncovered_spans([(first, end)], self.asked.bands)

    def touches(self, first: int, end: int) -> bool:
        """Whether the copy has some of the points."""
        return any(span.first < end and first < span.end for span in self.asked.bands)


class FixedPoints(NamedTuple):
    """Points ``[first, end)`` that a plan gives only to the target; None: to no member yet."""

    first: int
    end: int
    target: int | None


def spans_of(copies: Iterable[CopyProgress]) -> list[Span]:
    """The bands of the copies."""
    return [span for kept in copies for span in kept.asked.bands]


def uncovered_spans(points: Iterable[tuple[int, int]], by: Iterable[Span]) -> list[Span]:
    """The points of the ranges outside all of the bands, in order. Touching points are joined."""
    left = Steps((first, end, True) for first, end in points)
    for span in by:
        if is_span(span.first, span.end):
            left.put(span.first, span.end, None)
    return [Span(first, end) for first, end, _ in left.pieces()]


def counts_for_budget(move: PlannedMove) -> bool:
    """Whether a plan wished for the move, and the move has much state."""
    return move.gain > 0 and move.state_bytes >= STATE_BYTES


class MoveBudget:
    """The budget for moves with much state (``moves_per_minute``), for one decision. ``left``: the number of moves that
    may begin; ``taken``: the moves counted by this decision. Moves away from a leaving member are exempt, and so are
    moves that no plan wished for.
    """

    def __init__(self, left: int, leaving: Collection[int]) -> None:
        self._left = left
        self._leaving = leaving
        self.taken: set[int] = set()

    def take(self, move: PlannedMove) -> bool:
        """Whether a move may begin. If so, the budget counts the move, unless the move is exempt."""
        if not counts_for_budget(move) or move.origin in self._leaving:
            return True
        if len(self.taken) >= self._left:
            return False
        self.taken.add(move.move)
        return True


def is_near(copies: Sequence[CopyProgress], target: int, points: Iterable[tuple[int, int]]) -> bool:
    """Whether a member has ready copies of all of the points."""
    return not uncovered_spans(
        points, spans_of(kept for kept in copies if kept.incarnation == target and kept.is_ready)
    )


def heir(
    present: Present, copies: Sequence[CopyProgress], place: SourcePartition, cell: Cell, favoured: int
) -> int | None:
    """The next owner of points without a working owner. ``NOBODY``: the plan decides, as for points without state;
    None: no member yet, because the points wait for a name.

    ``copies``: the copies of the place; each has all of the points or none. ``favoured``: the target of the points'
    move; ``NOBODY``: no move.
    """
    if cell.epoch == 0 or place[0] not in present.stateful:
        return NOBODY
    there = present.able.get(place[0], {})
    if cell.owner in there:  # the owner has released the points, and has the state
        return cell.owner
    over = [copy for copy in copies if copy.incarnation in there and copy.covers(cell.first, cell.end)]
    best = min(
        over,
        key=lambda k: (not k.is_ready, not (k.is_ready and k.incarnation == favoured), -k.position, k.incarnation),
        default=None,
    )
    if best is not None and best.is_ready:
        return best.incarnation
    if name := present.awaited.get(cell.owner):
        return next((i for i, member in there.items() if member.joined.instance == name), None)
    return NOBODY if best is None else best.incarnation
