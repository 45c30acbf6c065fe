"""PURE. The coordinator's rows about copies of state: who is to make one, and which are of no use any more.

A range with state moves like this: COPY ASKED, the target says that it is ready, RELEASE ASKED, released, GRANT, and
who had it keeps a copy until its successor works. Until it is asked to release, the owner works on as ever.

- A member makes ``copies_max`` *passes* at once. A pass reads the changelog of one source partition for one member: all
  copies of that partition that the member makes share it. What has no slot waits, in this order: what no budget
  counts, the rest. What those have who leave waits for none: the time until they go is short, and who is to copy it
  knows best of what it lacks least.
- ``moves_per_minute`` counts what a plan wants between members, and what has much state. What has no owner, what a
  member that leaves has, and what somebody asked for is exempt.
- **A learner keeps its destination** until it owns the points, or its member is gone or leaves, whatever later plans
  say: they begin from there. So state moves at most once for a plan. A request for points of which a copy was begun is
  answered, and comes to nothing for these: who asks may do so again when they have arrived.
- No member is asked for two copies of one point. What it has a copy of already, as a standby, or because it had the
  points before, needs no other one to move there.
- A copy of points on which nobody works is not ended; so the last one that is ready never is.
- Standbys: at rest each range with state has ``standbys`` copies at other members, on other hosts first, at those who
  have the fewest. One that is there stays, unless it has come to lie on the owner's own host and another host is free:
  then one more is made there, and replaces it when it is ready. A copy of several ranges stays as long as one of them
  needs it.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

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
    """Points ``[first, end)`` of a place that one member holds, and that touch."""

    place: Place
    first: int
    end: int
    owner: int


# --- what is asked for -----------------------------------------------------------------------------------------------


def ask_copies(view: View, turn: Turn) -> DecisionBatch:
    """Copies for moves; when none can be asked for, standbys in slots that no move waits for."""
    slots, budget, lacking = _PassSlots(view), MoveBudget(view), moves_wanting_copies(view)
    decisions: list[Decision] = [
        _ask_copy(view, turn, move.move, move.target, (move.topic, move.partition), bands, LEARNER)
        for move, bands in lacking
        if not _held_up(view, move, slots, budget)
    ]
    for move, _ in lacking:  # a standby takes no slot of a move that waits for its turn
        slots.take(move.target, (move.topic, move.partition))
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
    """Why no copy is asked for a move that needs one; "": it may be."""
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
    return CopyAsked(*turn.next(), number, incarnation, *place, tuple(bands), role, view.rules.copy_bytes_per_s)


def moves_wanting_copies(view: View) -> list[tuple[PlannedMove, list[Span]]]:
    """The moves whose targets have no copy of some points yet, and were not asked for one; those first that are to have
    the first slot.
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
    """What the origin of a move holds of it, where no newer one takes it elsewhere."""
    return [
        (cell.first, cell.end)
        for cell in cut_by(view.cells((move.topic, move.partition)), moves)
        if cell.standing is CellState.HELD and cell.owner == move.origin and newest(moves, cell) is move
    ]


class _PassSlots:
    """How many passes more each member may begin."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._passes: dict[int, set[Place]] = {}

    def is_free(self, incarnation: int, place: Place) -> bool:
        """Whether it may copy something of a place."""
        if incarnation not in self._passes:
            self._passes[incarnation] = passes(self.view, incarnation)
        own = self._passes[incarnation]
        return place in own or len(own) < self.view.rules.copies_max

    def take(self, incarnation: int, place: Place) -> bool:
        """The same; if it may, it does from now on."""
        if not self.is_free(incarnation, place):
            return False
        self._passes[incarnation].add(place)
        return True


def _standbys_wanted(view: View, slots: _PassSlots) -> list[tuple[Run, int, list[Span]]]:
    """Copies that are missing at rest: (range, member, bands of it)."""
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
    """The members that keep a standby of a range, of those who have a copy of some of it: who has all of it, is ready,
    is on another host, and was asked first; and who will be one of them when it is ready. ``own``: the copies of the
    place; ``but``: who does not count.
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
    """To whom a range, or some of it, is to go. A move away from who had it before is over, or another one's."""
    cells = cut_by([Cell(run.first, run.end, run.owner, 0, CellState.HELD)], moves)
    over = [move for cell in cells if (move := newest(moves, cell)) is not None]
    return {move.target for move in over if move.origin == run.owner} - {run.owner}


def _bands_at(own: Sequence[CopyProgress], incarnation: int) -> list[Span]:
    return spans_of(kept for kept in own if kept.incarnation == incarnation)


def _is_early(view: View) -> bool:
    """Whether it was not heard yet how far copies have come."""
    return view.now_ms - view.seat.began_ms < view.rules.settle_ms


def runs(view: View, *places: Place) -> list[Run]:
    """The ranges with state that are held, of some places or of all: what touches and has one owner is one."""
    stateful = view.stateful
    found: list[Run] = []
    for place in sorted(places or (place for place in view.control.started if place[0] in stateful)):
        for cell in view.cells(place):
            if cell.standing is not CellState.HELD:
                continue
            if found and (found[-1].place, found[-1].end, found[-1].owner) == (place, cell.first, cell.owner):
                found[-1] = found[-1]._replace(end=cell.end)
            else:
                found.append(Run(place, cell.first, cell.end, cell.owner))
    return found


# --- what is of no use any more --------------------------------------------------------------------------------------


def end_copies(view: View, turn: Turn) -> DecisionBatch:
    """Copies that are of no use any more, each with the reason."""
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
            if cell.standing is not CellState.HELD:  # nobody works there: one of these may be next
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
    """Whether a copy at a member that stays is of use for a cell that somebody else holds: a move takes it there; or
    its owner is not at work yet; or it is a standby.
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


# --- what plans hold to ----------------------------------------------------------------------------------------------


def fixed_points(view: View) -> dict[Place, list[Fixed]]:
    """What a plan may give to nobody else, by place: points of which a copy is on its way to a member, and points with
    state on which nobody works, where it is known whose they are to be.
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
    """Whether something is free, and all of that is for members that are there: for nobody who may come yet."""
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
    """Places where somebody that is gone has something."""
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
    """Whether a free cell is to go to somebody to whom no move takes it. ``own``: the copies of the place."""
    move = newest(moves, cell)
    favoured = move.target if move is not None and move.target in staying else NOBODY
    if favoured and (cell.owner in staying or cell.epoch == 0):
        return False
    wanted = heir(view, own, place, cell, favoured)
    return wanted is not None and (not favoured or wanted not in (NOBODY, favoured))
