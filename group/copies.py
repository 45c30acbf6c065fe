"""PURE. Copies of state, the progress of each copy, and the heir of points without a working owner.

A copy is a fact of the control log. The progress of a copy is only heard. So a new coordinator does not know the
progress, and a copy counts as not ready until its member reports again. An owner counts as ready.

Points of a topic with stores whose owner is gone, or has released the points, go

1. to the target of their move, if the target's copy is ready; else to another member with a ready copy
2. to the member with the name of the gone owner, while the *hold* lasts: at once when such a member is there, and to no
   other member before. If all members were restarted under other names, nobody is waited for (``renamed_members``)
3. to the most advanced copy that is not ready
4. to the plan's best member

For points without state the plan alone decides.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..keyrange.steps import Steps
from ..offsets.control import Member
from ..offsets.control_events import CopyAsked
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition, is_span
from .cells import Cell, CellState
from .shares import NOBODY
from .view import View

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


def copies_by_place(view: View) -> dict[SourcePartition, list[CopyProgress]]:
    """All copies, in order of their numbers, by place."""
    found: dict[SourcePartition, list[CopyProgress]] = {}
    for number, asked in sorted(view.control.moves.copies.items()):
        told = view.heard.copies.get(asked.incarnation, {}).get(number)
        kept = CopyProgress(asked, False, -1) if told is None else CopyProgress(asked, told.is_ready, told.position)
        found.setdefault(asked.topic_partition, []).append(kept)
    return found


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
    """The budget for moves with much state (``moves_per_minute``), for one decision. ``taken``: the moves counted by
    this decision. Moves away from a leaving member are exempt, and so are moves that no plan wished for.
    """

    def __init__(self, view: View) -> None:
        self._left = view.memory.left_of_budget(view.rules.moves_per_minute, view.now_ms)
        self._leaving = view.heard.leaving
        self.taken: set[int] = set()

    def take(self, move: PlannedMove) -> bool:
        """Whether a move may begin. If so, the budget counts the move, unless the move is exempt."""
        if not counts_for_budget(move) or move.origin in self._leaving:
            return True
        if len(self.taken) >= self._left:
            return False
        self.taken.add(move.move)
        return True


def places_in_pass(view: View, incarnation: int) -> set[SourcePartition]:
    """The places of a member's copies that are not ready: the member has a pass for each (copy_requests.py)."""
    return {
        asked.topic_partition
        for number, asked in view.control.moves.copies.items()
        if asked.incarnation == incarnation and not view.heard.is_ready(incarnation, number)
    }


def is_near(copies: Sequence[CopyProgress], target: int, points: Iterable[tuple[int, int]]) -> bool:
    """Whether a member has ready copies of all of the points."""
    return not uncovered_spans(
        points, spans_of(kept for kept in copies if kept.incarnation == target and kept.is_ready)
    )


def able(view: View, topic: str) -> list[Member]:
    """Staying members that can handle a topic."""
    return [m for m in view.staying_members if any(source.topic == topic for source in m.joined.topics)]


def heir(
    view: View, copies: Sequence[CopyProgress], place: SourcePartition, cell: Cell, favoured: int = NOBODY
) -> int | None:
    """The next owner of points without a working owner. ``NOBODY``: the plan decides, as for points without state;
    None: no member yet, because the points wait for a name.

    ``copies``: the copies of the place; each has all of the points or none. ``favoured``: the target of the points'
    move; ``NOBODY``: no move.
    """
    if cell.epoch == 0 or place[0] not in view.stateful:
        return NOBODY
    there = {member.incarnation: member for member in able(view, place[0])}
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
    if name := name_awaited(view, cell.owner):
        return next((i for i, member in there.items() if member.joined.instance == name), None)
    return NOBODY if best is None else best.incarnation


def name_awaited(view: View, incarnation: int) -> str:
    """The name for which the points of an owner wait; "": no name."""
    return view.control.members[incarnation].joined.instance if left_of_hold_ms(view, incarnation) > 0 else ""


def left_of_hold_ms(view: View, incarnation: int) -> int:
    """How long the points of an owner still wait for its name, in ms; 0 or less: no longer. Points wait from the
    expulsion of the owner, or from its request to leave if its name will be back.
    """
    member = view.control.members.get(incarnation)
    if member is None or not member.joined.instance or incarnation in view.memory.renamed:
        return 0
    if member.expelled:
        since_ms = view.memory.expulsion_ms.get(
            incarnation, view.memory.began_ms
        )  # after a predecessor the hold begins anew
        return member.hold_ms - (view.now_ms - since_ms)
    if incarnation not in view.heard.returns:
        return 0
    now_ms = view.heard.silence_of(member.joined.instance, member.birth).now_ms
    return view.rules.return_ms - (now_ms - view.heard.leaving.get(incarnation, 0))


def renamed_members(view: View) -> set[int]:
    """Gone members that won't be back under their names, because all members were restarted under other names. A
    restart under other names is assumed if all owners of state are gone, at least as many names are present as are
    awaited, and no awaited name is present.
    """
    awaited = {i: name for i, m in view.control.members.items() if m.expelled and (name := name_awaited(view, i))}
    there = {member.joined.instance for member in view.staying_members} - {""}
    if not awaited or len(there) < len({*awaited.values()}) or not there.isdisjoint(awaited.values()):
        return set()
    is_state_owned = any(
        not view.control.is_expelled(owner.incarnation)
        for place, owners in view.control.owners.items()
        if place[0] in view.stateful
        for _, _, owner in owners.pieces()
    )
    return set() if is_state_owned else {*awaited}


def may_have(view: View, copies: Sequence[CopyProgress], place: SourcePartition, cell: Cell, target: int) -> bool:
    """Whether free points with state may be granted to the target of their move."""
    if cell.state is not CellState.FREE:
        return False
    if cell.owner in {member.incarnation for member in view.staying_members}:  # released for the move
        return True
    return heir(view, copies, place, cell, target) in (NOBODY, target)
