"""PURE. Which copies of state there are, how near they are, and who is to have points that nobody works on.

A copy is a fact of the control log; how far it has come is heard, and lost with a coordinator: then it counts as not
ready until its member says so again. An owner counts as ready.

Points of a topic with stores whose owner is gone, or has released them, go

1. to the member that a move takes them to, if its copy is ready; else to another one whose copy is;
2. to the name of the owner that is gone, as long as its hold is not over: at once when that name is back, and to nobody
   before. Where all were started again under other names nobody is waited for (``renamed``);
3. to the most advanced copy that is not ready;
4. to whom the plan finds best.

Points without state know none of this: a plan says where they go.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..offsets.control import Member
from ..offsets.control_events import CopyAsked
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import Place
from .cells import Cell, CellState
from .shares import NOBODY
from .view import View

STATE_BYTES: Final = 1 << 20
"""A move of less state counts for no budget."""


class CopyProgress(NamedTuple):
    """A copy that was asked for, and how near it is: ``position`` in the changelog, -1 where that was not heard."""

    asked: CopyAsked
    is_ready: bool
    position: int

    @property
    def incarnation(self) -> int:
        """Whose it is."""
        return self.asked.incarnation

    def covers(self, first: int, end: int) -> bool:
        """Whether it has all of these points."""
        return not uncovered_spans([(first, end)], self.asked.bands)

    def touches(self, first: int, end: int) -> bool:
        """Whether it has some of them."""
        return any(span.first < end and first < span.end for span in self.asked.bands)


class Fixed(NamedTuple):
    """Points ``[first, end)`` that a plan gives to nobody but the target; None: to nobody at all yet."""

    first: int
    end: int
    target: int | None


def kept_of(view: View) -> dict[Place, list[CopyProgress]]:
    """All copies, in order of their numbers, by place."""
    found: dict[Place, list[CopyProgress]] = {}
    for number, asked in sorted(view.control.moves.copies.items()):
        told = view.heard.copies.get(asked.incarnation, {}).get(number)
        kept = CopyProgress(asked, False, -1) if told is None else CopyProgress(asked, told.is_ready, told.position)
        found.setdefault((asked.topic, asked.partition), []).append(kept)
    return found


def spans_of(copies: Iterable[CopyProgress]) -> list[Span]:
    """Their bands."""
    return [span for kept in copies for span in kept.asked.bands]


def uncovered_spans(points: Iterable[tuple[int, int]], by: Iterable[Span]) -> list[Span]:
    """What of these ranges lies in none of these bands, in order; touching points as one."""
    left = sorted(points)
    for span in by:
        parts = [
            part for a, b in left for part in ((a, min(b, span.first)), (max(a, span.end), b)) if part[0] < part[1]
        ]
        left = sorted({*parts})
    found: list[Span] = []
    for a, b in left:
        if found and found[-1].end >= a:
            found[-1] = Span(found[-1].first, max(b, found[-1].end))
        else:
            found.append(Span(a, b))
    return found


def counts_for_budget(move: PlannedMove) -> bool:
    """Whether it is a wish of a plan, and has much state."""
    return move.gain > 0 and move.state_bytes >= STATE_BYTES


class MoveBudget:
    """How many moves with much state may begin now. ``taken``: those that were counted. What a leaving member has is
    exempt, as is what plans do not wish themselves.
    """

    def __init__(self, view: View) -> None:
        self._left = view.seat.left_of_budget(view.rules.moves_per_minute, view.now_ms)
        self._leaving = view.heard.leaving
        self.taken: set[int] = set()

    def take(self, move: PlannedMove) -> bool:
        """Whether a move may begin."""
        if not counts_for_budget(move) or move.origin in self._leaving:
            return True
        if len(self.taken) >= self._left:
            return False
        self.taken.add(move.move)
        return True


def passes(view: View, incarnation: int) -> set[Place]:
    """The places of which a member is making copies: those that are ready cost it no slot."""
    return {
        (asked.topic, asked.partition)
        for number, asked in view.control.moves.copies.items()
        if asked.incarnation == incarnation and not view.heard.is_ready(incarnation, number)
    }


def is_near(copies: Sequence[CopyProgress], target: int, points: Iterable[tuple[int, int]]) -> bool:
    """Whether a member has ready copies of all of these points."""
    return not uncovered_spans(
        points, spans_of(kept for kept in copies if kept.incarnation == target and kept.is_ready)
    )


def able(view: View, topic: str) -> list[Member]:
    """The members that stay and can handle a topic."""
    return [m for m in view.staying if any(source.topic == topic for source in m.joined.topics)]


def heir(view: View, copies: Sequence[CopyProgress], place: Place, cell: Cell, favoured: int = NOBODY) -> int | None:
    """Who is to have points with state on which nobody works; ``NOBODY``: whoever a plan finds best; None: nobody yet.

    ``copies``: of the place, none of which has only a part of these points; ``favoured``: to whom a move takes them.
    """
    if cell.epoch == 0 or place[0] not in view.stateful:
        return NOBODY
    there = {member.incarnation: member for member in able(view, place[0])}
    if cell.owner in there:  # it has released them, and has their state
        return cell.owner
    over = [kept for kept in copies if kept.incarnation in there and kept.covers(cell.first, cell.end)]
    best = min(
        over,
        key=lambda k: (not k.is_ready, not (k.is_ready and k.incarnation == favoured), -k.position, k.incarnation),
        default=None,
    )
    if best is not None and best.is_ready:
        return best.incarnation
    if name := held_for(view, cell.owner):
        return next((i for i, member in there.items() if member.joined.instance == name), None)
    return NOBODY if best is None else best.incarnation


def held_for(view: View, incarnation: int) -> str:
    """The name that points of an owner wait for; "": for none."""
    return view.control.members[incarnation].joined.instance if left_of_hold_ms(view, incarnation) > 0 else ""


def left_of_hold_ms(view: View, incarnation: int) -> int:
    """So long points of an owner wait for its name; 0 or less: no more."""
    member = view.control.members.get(incarnation)
    if member is None or not member.joined.instance or incarnation in view.seat.renamed:
        return 0
    if member.expelled:
        since_ms = view.seat.gone_ms.get(incarnation, view.seat.began_ms)  # by a predecessor: it has its time anew
        return member.hold_ms - (view.now_ms - since_ms)
    if incarnation not in view.heard.returns:
        return 0
    now_ms = view.heard.silence_of(member.joined.instance, member.birth).now_ms
    return view.rules.return_ms - (now_ms - view.heard.leaving.get(incarnation, 0))


def renamed_members(view: View) -> set[int]:
    """Who is gone and won't be back under its name: nobody who has state is left, and those who are there are named, as
    many as names are waited for, and have none of these.
    """
    gone = {i: name for i, m in view.control.members.items() if m.expelled and (name := held_for(view, i))}
    there = {member.joined.instance for member in view.staying} - {""}
    if not gone or len(there) < len({*gone.values()}) or not there.isdisjoint(gone.values()):
        return set()
    has_state = any(
        not view.control.is_expelled(owner.incarnation)
        for place, owners in view.control.owners.items()
        if place[0] in view.stateful
        for _, _, owner in owners.pieces()
    )
    return set() if has_state else {*gone}


def may_have(view: View, copies: Sequence[CopyProgress], place: Place, cell: Cell, target: int) -> bool:
    """Whether free points may be granted to a member that a move takes them to."""
    if cell.standing is not CellState.FREE:
        return False
    if cell.owner in {member.incarnation for member in view.staying}:  # it released them for that
        return True
    return heir(view, copies, place, cell, target) in (NOBODY, target)
