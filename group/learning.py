"""PURE. The coordinator's rows about copies of state: which copies begin, and which end.

A move of a range with state has these steps: COPY ASKED, the target's "ready", RELEASE ASKED, RELEASED, GRANT. The old
owner keeps a copy until its successor works. Until RELEASE ASKED the old owner works on as before.

- A member makes at most ``copies_max`` *passes* at once. A pass reads the changelog of one source partition for one
  member: all copies of the partition at the member use the same pass. Other copies wait for a slot. Waiting moves that
  need no budget come first. Moves away from a leaving member need no slot: the time until the member goes is short, and
  the target knows best which copy lacks least.
- ``moves_per_minute`` counts moves that a plan wants between members, with much state. Three kinds are exempt: points
  without an owner, points of a leaving member, and requests.
- **A learner keeps its destination** until the learner owns the points, or leaves, or is gone. Later plans begin from
  there, so state moves at most once for a plan. A request for points with a copy under way is answered and changes
  nothing for the points. The requester may ask again after their arrival.
- No member is asked for two copies of a point. A standby, or a former owner with a copy, needs no other copy for a
  move.
- A copy of points without a working owner is never ended. So the last ready copy of the points is never ended.
- Standbys: at rest each range with state has ``standbys`` copies at other members. Other hosts come first, then members
  with the fewest copies. An existing standby stays, with one exception: the standby shares the owner's host, and
  another host is free. Then the other host gets a copy, and the ready copy replaces the old standby. A copy of several
  ranges stays while any of the ranges needs the copy.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..keyrange.ranges import join_neighbours
from ..offsets.control import LEARNER, STANDBY
from ..offsets.control_events import CopyAsked, CopyEnded, Decision
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import Place
from ..offsets.signals import COOLING, SLOT, TURN
from .cells import Cell, CellState, is_taken_up
from .copies import (
    CopyProgress,
    Fixed,
    MoveBudget,
    able,
    counts_for_budget,
    heir,
    held_for,
    kept_of,
    passes,
    spans_of,
    uncovered_spans,
)
from .moves import cut_by, held_back, moves_pending, moves_to_ask, newest
from .shares import NOBODY
from .view import DecisionBatch, View


class Run(NamedTuple):
    """Touching points ``[first, end)`` of a place with the same owner."""

    place: Place
    first: int
    end: int
    owner: int


# --- copies to ask for -----------------------------------------------------------------------------------------------


def ask_copies(view: View, turn: Turn) -> DecisionBatch:
    """Copies for moves. If no move needs a copy now, standbys in the slots that no move waits for."""
    slots, budget, lacking = _PassSlots(view), MoveBudget(view), moves_wanting_copies(view)
    decisions: list[Decision] = [
        _ask_copy(view, turn, move.move, move.target, move.topic_partition, bands, LEARNER)
        for move, bands in lacking
        if not _held_up(view, move, slots, budget)
    ]
    for move, _ in lacking:  # a standby must not take the slot of a waiting move
        slots.take(move.target, move.topic_partition)
    number = view.control.moves.move_max
    for run, incarnation, bands in [] if decisions else _standbys_wanted(view, slots):
        number += 1
        decisions.append(_ask_copy(view, turn, number, incarnation, run.place, bands, STANDBY))
    return DecisionBatch(decisions, (), frozenset(budget.taken))


def parked_moves(view: View) -> dict[int, str]:
    """Why planned moves with state have not begun: ``SLOT``, ``TURN`` or ``COOLING``, by move."""
    if not view.stateful:
        return {}
    slots, budget = _PassSlots(view), MoveBudget(view)
    found = {move.move: _held_up(view, move, slots, budget) for move, _ in moves_wanting_copies(view)}
    found |= dict.fromkeys(held_back(view), _turn(view))
    return {move: why for move, why in found.items() if why}


def _held_up(view: View, move: PlannedMove, slots: "_PassSlots", budget: MoveBudget) -> str:
    """Why a move that needs a copy gets none yet. "": the copy may be asked for."""
    place = move.topic, move.partition
    if not slots.is_free(move.target, place) and move.origin not in view.heard.leaving:
        return SLOT
    if not budget.take(move):
        return _turn(view)
    slots.take(move.target, place)
    return ""


def _turn(view: View) -> str:
    return COOLING if view.seat.cools(view.now_ms) else TURN


def _ask_copy(
    view: View, turn: Turn, number: int, incarnation: int, place: Place, bands: Sequence[Span], role: str
) -> CopyAsked:
    return CopyAsked(
        *turn.next(),
        move=number,
        incarnation=incarnation,
        topic=place[0],
        partition=place[1],
        bands=tuple(bands),
        role=role,
        bytes_per_s=view.rules.copy_bytes_per_s,
    )


def moves_wanting_copies(view: View) -> list[tuple[PlannedMove, list[Span]]]:
    """Moves whose targets lack copies of some points and were not asked for a copy, with the missing bands. Moves from
    leaving members come first, then moves that need no budget.
    """
    control, copies, planned = view.control, kept_of(view), moves_pending(view)
    stateful, leaving = view.stateful, view.heard.leaving
    found: list[tuple[PlannedMove, list[Span]]] = []
    for move in moves_to_ask(view):
        place = move.topic, move.partition
        if place[0] not in stateful or move.origin == move.target or move.move in control.moves.copies:
            continue
        own = [kept for kept in copies.get(place, ()) if kept.incarnation == move.target]
        if bands := uncovered_spans(_points_of(view, move, planned[place]), spans_of(own)):
            found.append((move, bands))
    return sorted(found, key=lambda one: (one[0].origin not in leaving, counts_for_budget(one[0]), one[0].move))


def _points_of(view: View, move: PlannedMove, moves: Sequence[PlannedMove]) -> list[tuple[int, int]]:
    """The points of a move that the origin owns, without the points that a newer move takes elsewhere."""
    return [
        (cell.first, cell.end)
        for cell in cut_by(view.cells(move.topic_partition), moves)
        if cell.standing is CellState.HELD and cell.owner == move.origin and newest(moves, cell) is move
    ]


class _PassSlots:
    """The number of further passes that each member may begin."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._passes: dict[int, set[Place]] = {}

    def is_free(self, incarnation: int, place: Place) -> bool:
        """Whether the member has a slot for a copy of this place."""
        if incarnation not in self._passes:
            self._passes[incarnation] = passes(self.view, incarnation)
        own = self._passes[incarnation]
        return place in own or len(own) < self.view.rules.copies_max

    def take(self, incarnation: int, place: Place) -> bool:
        """Reserve a slot for this place. False: the member has none left."""
        if not self.is_free(incarnation, place):
            return False
        self._passes[incarnation].add(place)
        return True


def _standbys_wanted(view: View, slots: _PassSlots) -> list[tuple[Run, int, list[Span]]]:
    """Copies missing at rest, as (range, member, bands of the range)."""
    moves, wanted = view.control.moves, view.rules.standbys
    if not wanted or _is_early(view) or moves.asked or view.control.group_epoch != moves.group_epoch:
        return []
    copies, planned = kept_of(view), moves_pending(view)
    staying = {member.incarnation: member for member in view.staying}
    counts = Counter(kept.incarnation for own in copies.values() for kept in own)
    found: list[tuple[Run, int, list[Span]]] = []
    for run in runs(view):
        own = copies.get(run.place, [])
        if run.owner not in staying or _targets(run, planned.get(run.place, ())):
            continue
        having = keepers(view, run, own, ())
        lacks = {i: uncovered_spans([(run.first, run.end)], _bands_at(own, i)) for i in having}
        found += [(run, i, bands) for i, bands in lacks.items() if bands and slots.take(i, run.place)]
        at_home = staying[run.owner].joined.host
        hosts = {at_home, *(staying[incarnation].joined.host for incarnation in having)}
        rest = [m for m in able(view, run.place[0]) if m.incarnation not in (run.owner, *having)]
        lacking = wanted - len(having)
        if lacking <= 0:
            rest = [member for member in rest if member.joined.host != at_home]
            lacking = wanted - sum(staying[incarnation].joined.host != at_home for incarnation in having)
        for _ in range(min(lacking, len(rest))):
            ranked = sorted(rest, key=lambda m: (m.joined.host in hosts, counts[m.incarnation], m.incarnation))
            on_best = [m for m in ranked if (m.joined.host in hosts) == (ranked[0].joined.host in hosts)]
            member = next((m for m in on_best if slots.take(m.incarnation, run.place)), None)
            if member is None:
                break
            bands = uncovered_spans([(run.first, run.end)], _bands_at(own, member.incarnation))
            found.append((run, member.incarnation, bands))
            rest.remove(member)
            hosts.add(member.joined.host)
            counts[member.incarnation] += 1
    return found


def keepers(view: View, run: Run, own: Sequence[CopyProgress], but: Collection[int]) -> list[int]:
    """The members that keep a standby of a range, chosen from the members with a copy of some part of the range. The
    best complete, ready copies on other hosts come first, then the copies asked for earliest. The list also has members
    that will be best when ready. ``own``: the copies of the place; ``but``: members that do not count.
    """
    hosts = {member.incarnation: member.joined.host for member in view.living}
    staying = {member.incarnation for member in view.staying}
    over = [kept for kept in own if kept.touches(run.first, run.end)]

    def rank(incarnation: int) -> tuple[bool, bool, bool, int]:
        has = [kept for kept in over if kept.incarnation == incarnation]
        lacks = bool(uncovered_spans([(run.first, run.end)], spans_of(has)))
        is_ready = all(kept.is_ready for kept in has)
        is_here = hosts[incarnation] == hosts.get(run.owner)
        return lacks, not is_ready, is_here, min(kept.asked.move for kept in has)

    def rank_then(incarnation: int) -> tuple[bool, bool, bool, int]:
        lacks, is_far, is_here, move = rank(incarnation)
        return lacks, is_here, is_far, move

    there = ({kept.incarnation for kept in over} & staying) - {run.owner, *but}
    now, then = (sorted(there, key=key)[: view.rules.standbys] for key in (rank, rank_then))
    return [*now, *(incarnation for incarnation in then if incarnation not in now)]


def _targets(run: Run, moves: Sequence[PlannedMove]) -> set[int]:
    """The members to which a range, or part of the range, is to go. Only moves away from the present owner count."""
    cells = cut_by([Cell(first=run.first, end=run.end, owner=run.owner, epoch=0, standing=CellState.HELD)], moves)
    over = [move for cell in cells if (move := newest(moves, cell)) is not None]
    return {move.target for move in over if move.origin == run.owner} - {run.owner}


def _bands_at(own: Sequence[CopyProgress], incarnation: int) -> list[Span]:
    return spans_of(kept for kept in own if kept.incarnation == incarnation)


def _is_early(view: View) -> bool:
    """Whether this coordinator began too recently to have heard the progress of copies."""
    return view.now_ms - view.seat.began_ms < view.rules.settle_ms


def runs(view: View, *places: Place) -> list[Run]:
    """Ranges with state that have an owner, of some places or of all. Touching cells with the same owner are joined."""
    stateful = view.stateful
    held = (
        Run(place, cell.first, cell.end, cell.owner)
        for place in sorted(places or (place for place in view.control.started if place[0] in stateful))
        for cell in view.cells(place)
        if cell.standing is CellState.HELD
    )
    return join_neighbours(
        held, lambda a, b: a._replace(end=b.end) if (a.place, a.owner) == (b.place, b.owner) else None
    )


# --- copies to end ---------------------------------------------------------------------------------------------------


def end_copies(view: View, turn: Turn) -> DecisionBatch:
    """Copies without a use, each with the reason."""
    found: list[tuple[int, str]] = []
    copies = kept_of(view)
    if not copies:
        return DecisionBatch()
    planned, staying = moves_pending(view), {member.incarnation for member in view.staying}
    for place, own in copies.items():
        moves = planned.get(place, [])
        standbys = [kept for kept in own if kept.asked.role == STANDBY]
        keeping = [(run, keepers(view, run, standbys, _targets(run, moves))) for run in runs(view, place)]
        used: set[int] = set()
        for cell in cut_by(view.cells(place), [*moves, *spans_of(own)]):
            over = [kept for kept in own if kept.touches(cell.first, cell.end)]
            if cell.standing is not CellState.HELD:  # nobody works there: a copy holder may be the next owner
                used |= {k.asked.move for k in over if k.incarnation in staying or k.is_ready}
                continue
            over = [kept for kept in over if kept.incarnation in staying - {cell.owner}]
            keeps = next((members for run, members in keeping if run.first <= cell.first < run.end), ())
            used |= {k.asked.move for k in over if _is_used(view, place, cell, newest(moves, cell), k, keeps)}
        over = [kept for kept in own if kept.asked.move not in used]
        found += [(kept.asked.move, _reason(view, kept, is_staying=kept.incarnation in staying)) for kept in over]
    return DecisionBatch([CopyEnded(*turn.next(), number, reason) for number, reason in sorted(found)])


def _is_used(
    view: View, place: Place, cell: Cell, move: PlannedMove | None, kept: CopyProgress, keepers: Collection[int]
) -> bool:
    """Whether a staying member's copy of a cell that another member owns is of use. The copy is of use in three cases:
    a move takes the cell to the member, the owner is not at work yet, or the member keeps a standby.
    """
    if move is not None and move.origin == cell.owner and move.target == kept.incarnation:
        return True
    part = view.ledger.partition(place).parts.get(cell.epoch)
    if part is None or not is_taken_up(part, cell.first, cell.end):
        return True
    return kept.asked.role == STANDBY and (kept.incarnation in keepers or _is_early(view))


def _reason(view: View, kept: CopyProgress, *, is_staying: bool) -> str:
    if not is_staying:
        return "its member leaves"
    if kept.asked.role == LEARNER:
        return "its move is over"
    return f"{view.rules.standbys} others have one" if view.rules.standbys else "its range is at work elsewhere"


# --- points fixed for plans ------------------------------------------------------------------------------------------


def fixed_points(view: View) -> dict[Place, list[Fixed]]:
    """Points that a plan may give to nobody else, by place. A point is fixed while a copy is under way to a member. A
    point with state and without a working owner is fixed if the next owner is known or awaited.
    """
    copies, planned, stateful = kept_of(view), moves_pending(view), view.stateful
    places = {place for place in view.control.started if place[0] in stateful}
    places &= copies.keys() | view.standings.free | _unheld(view)
    found: dict[Place, list[Fixed]] = {}
    for place in sorted(places):
        moves, own = planned.get(place, []), copies.get(place, [])
        for cell in cut_by(view.cells(place), [*moves, *spans_of(own)]):
            target = _target(view, place, cell, newest(moves, cell), own)
            if target != NOBODY:
                found.setdefault(place, []).append(Fixed(cell.first, cell.end, target))
    return found


def have_heirs(view: View) -> bool:
    """Whether some points are free and every free point has an heir among the present members."""
    if not view.standings.free or view.standings.unread:
        return False
    heirs = {
        place: [Span(f.first, f.end) for f in fixes if f.target is not None]
        for place, fixes in fixed_points(view).items()
    }
    return not any(
        uncovered_spans([(cell.first, cell.end)], heirs.get(place, ()))
        for place in view.standings.free
        for cell in view.cells(place)
        if cell.standing is CellState.FREE
    )


def _unheld(view: View) -> set[Place]:
    """Places with points of a member that is gone."""
    if not any(member.expelled for member in view.control.members.values()):
        return set()
    return view.standings.unheld


def awaited_names(view: View) -> set[str]:
    """The names that state waits for, or goes back to."""
    owners = {
        cell.owner
        for place in _unheld(view)
        if place[0] in view.stateful
        for cell in view.cells(place)
        if cell.standing is not CellState.HELD
    }
    return {name for owner in owners if (name := held_for(view, owner))}


def _target(view: View, place: Place, cell: Cell, move: PlannedMove | None, own: Sequence[CopyProgress]) -> int | None:
    staying = {member.incarnation for member in view.staying}
    favoured = move.target if move is not None and move.target in staying else NOBODY
    if cell.standing is CellState.HELD:
        is_begun = move is not None and move.move in view.control.moves.copies and move.origin == cell.owner
        return favoured if is_begun else NOBODY
    if cell.owner in staying and favoured:  # released for this move
        return favoured
    return heir(view, own, place, cell, favoured)


def is_orphan(
    view: View,
    place: Place,
    cell: Cell,
    moves: Sequence[PlannedMove],
    own: Sequence[CopyProgress],
    staying: Collection[int],
) -> bool:
    """Whether a free cell is to go to a member without a move for the cell. ``own``: the copies of the place."""
    move = newest(moves, cell)
    favoured = move.target if move is not None and move.target in staying else NOBODY
    if favoured and (cell.owner in staying or cell.epoch == 0):
        return False
    wanted = heir(view, own, place, cell, favoured)
    return wanted is not None and (not favoured or wanted not in (NOBODY, favoured))
