"""PURE. The coordinator's rows about copies of state: which copies begin, and which end.

A move of a range with state has these steps: COPY ASKED, the target's "ready", RELEASE ASKED, RELEASED, GRANT. Until
RELEASE ASKED the old owner works as before. After GRANT the old owner keeps a copy until the new owner works.

- A member makes at most ``copies_max`` *passes* at once. A pass reads the changelog of one source partition for one
  member, until the copies are ready. All copies of the partition at the member use the same pass. Further copies wait
  for a slot. Waiting moves that need no budget come first. Moves away from a leaving member need no slot: the time
  until the member goes is short, and the target knows best which copy lacks least.
- ``moves_per_minute`` counts moves that a plan wants between members, with much state. Three kinds are exempt: points
  without an owner, points of a leaving member, and requests.
- **A learner is the destination of its points** until it owns the points, or leaves, or is gone. For later plans the
  points belong to the learner already, so state moves at most once for a plan. A request for points with a copy under
  way is answered and changes nothing for the points. The requester may ask again after their arrival.
- No member is asked for two copies of a point. A standby, or a former owner with a copy, needs no other copy for a
  move.
- A copy of points without a working owner is never ended. So the last ready copy of the points is never ended.
- Standbys: at rest each range with state has ``standbys`` copies at other members. Members on other hosts come first,
  then members with the fewest copies. An existing standby stays, with one exception: the standby shares the owner's
  host, and a member on another host could have the copy. Then this member is asked for a copy, and once the copy is
  ready the old standby ends. A copy of several ranges stays while any of the ranges needs the copy.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..keyrange.ranges import join_neighbours
from ..offsets.control import LEARNER, STANDBY
from ..offsets.control_events import CopyAsked, CopyEnded, Decision
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition
from ..offsets.signals import COOLING, SLOT, TURN
from .cells import Cell, CellState, is_taken_up
from .copies import (
    CopyProgress,
    FixedPoints,
    MoveBudget,
    able,
    copies_by_place,
    counts_for_budget,
    heir,
    name_awaited,
    places_in_pass,
    spans_of,
    uncovered_spans,
)
from .moves import cut_by, moves_pending, moves_to_ask, moves_without_turn, newest
from .shares import NOBODY
from .view import DecisionBatch, View


class StateRange(NamedTuple):
    """Touching points ``[first, end)`` of a place with the same owner."""

    place: SourcePartition
    first: int
    end: int
    owner: int


# --- copies to ask for -----------------------------------------------------------------------------------------------


def ask_copies(view: View, turn: Turn) -> DecisionBatch:
    """Requests for copies: for moves, and, if no move is asked a copy for now, for standbys. Standbys get only slots
    for which no move waits.
    """
    slots, budget, lacking = _PassSlots(view), MoveBudget(view), moves_wanting_copies(view)
    decisions: list[Decision] = [
        _ask_copy(view, turn, move.move, move.target, move.topic_partition, bands, LEARNER)
        for move, bands in lacking
        if not _find_obstacle(view, move, slots, budget)
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
    found = {move.move: _find_obstacle(view, move, slots, budget) for move, _ in moves_wanting_copies(view)}
    found |= dict.fromkeys(moves_without_turn(view), _why_no_turn(view))
    return {move: why for move, why in found.items() if why}


def _find_obstacle(view: View, move: PlannedMove, slots: "_PassSlots", budget: MoveBudget) -> str:
    """Why the copy of a move can't be asked for now: ``SLOT``, ``TURN`` or ``COOLING``. "": no obstacle, and the copy
    has taken its slot and its turn in the budget.
    """
    place = move.topic_partition
    if not slots.is_free(move.target, place) and move.origin not in view.heard.leaving:
        return SLOT
    if not budget.take(move):
        return _why_no_turn(view)
    slots.take(move.target, place)
    return ""


def _why_no_turn(view: View) -> str:
    return COOLING if view.memory.cools(view.now_ms) else TURN


def _ask_copy(
    view: View, turn: Turn, number: int, incarnation: int, place: SourcePartition, bands: Sequence[Span], role: str
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
    """Moves for which a copy is still to be asked, each with the bands of which the target has no copy. Moves from
    leaving members come first, then moves that need no budget.
    """
    control, copies, planned = view.control, copies_by_place(view), moves_pending(view)
    stateful, leaving = view.stateful, view.heard.leaving
    found: list[tuple[PlannedMove, list[Span]]] = []
    for move in moves_to_ask(view):
        place = move.topic_partition
        if place[0] not in stateful or move.origin == move.target or move.move in control.moves.copies:
            continue
        own = [kept for kept in copies.get(place, ()) if kept.incarnation == move.target]
        if bands := uncovered_spans(_points_of(view, move, planned[place]), spans_of(own)):
            found.append((move, bands))
    return sorted(found, key=lambda one: (one[0].origin not in leaving, counts_for_budget(one[0]), one[0].move))


def _points_of(view: View, move: PlannedMove, moves: Sequence[PlannedMove]) -> list[tuple[int, int]]:
    """The points of a move that the origin holds, without the points under a newer move. ``moves``: of the place."""
    return [
        (cell.first, cell.end)
        for cell in cut_by(view.cells(move.topic_partition), moves)
        if cell.state is CellState.HELD and cell.owner == move.origin and newest(moves, cell) is move
    ]


class _PassSlots:
    """The slots for passes at each member: the passes under way, and the passes that this decision begins."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._passes: dict[int, set[SourcePartition]] = {}

    def is_free(self, incarnation: int, place: SourcePartition) -> bool:
        """Whether the member has a slot for a copy of this place: a pass of the place, or room for a further pass."""
        if incarnation not in self._passes:
            self._passes[incarnation] = places_in_pass(self.view, incarnation)
        own = self._passes[incarnation]
        return place in own or len(own) < self.view.rules.copies_max

    def take(self, incarnation: int, place: SourcePartition) -> bool:
        """Reserve a slot for this place. False: the member has none left."""
        if not self.is_free(incarnation, place):
            return False
        self._passes[incarnation].add(place)
        return True


def _standbys_wanted(view: View, slots: _PassSlots) -> list[tuple[StateRange, int, list[Span]]]:
    """Standbys that are missing at rest and have a slot, as (range, member, missing bands of the range)."""
    moves, wanted = view.control.moves, view.rules.standbys
    if not wanted or _is_early(view) or moves.release_requests or view.control.group_epoch != moves.group_epoch:
        return []
    copies, planned = copies_by_place(view), moves_pending(view)
    staying = {member.incarnation: member for member in view.staying_members}
    counts = Counter(kept.incarnation for own in copies.values() for kept in own)
    found: list[tuple[StateRange, int, list[Span]]] = []
    for run in runs(view):
        own = copies.get(run.place, [])
        if run.owner not in staying or _targets(run, planned.get(run.place, ())):
            continue
        present = keepers(view, run, own, ())
        lacks = {i: uncovered_spans([(run.first, run.end)], _bands_at(own, i)) for i in present}
        found += [(run, i, bands) for i, bands in lacks.items() if bands and slots.take(i, run.place)]
        owner_host = staying[run.owner].joined.host
        hosts = {owner_host, *(staying[incarnation].joined.host for incarnation in present)}
        rest = [m for m in able(view, run.place[0]) if m.incarnation not in (run.owner, *present)]
        lacking = wanted - len(present)
        if lacking <= 0:  # enough standbys: only a standby on the owner's host is replaced, by one on another host
            rest = [member for member in rest if member.joined.host != owner_host]
            lacking = wanted - sum(staying[incarnation].joined.host != owner_host for incarnation in present)
        for _ in range(min(lacking, len(rest))):
            ranked = sorted(rest, key=lambda m: (m.joined.host in hosts, counts[m.incarnation], m.incarnation))
            # If all members on new hosts lack a slot, the standby waits for a slot there.
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


def keepers(view: View, run: StateRange, own: Sequence[CopyProgress], without: Collection[int]) -> list[int]:
    """The members that keep a standby of a range, chosen from the members with a copy of some part of the range.

    The list has the ``standbys`` members that are best now, and the ``standbys`` members that will be best once all
    copies are ready. Best now: first complete copies, then ready copies, then copies on other hosts than the owner's.
    Best later: first complete copies, then copies on other hosts, then ready copies. Of equals the copy that was asked
    for earliest comes first. ``own``: the copies of the place; ``without``: members that do not count.
    """
    hosts = {member.incarnation: member.joined.host for member in view.living_members}
    staying = {member.incarnation for member in view.staying_members}
    over = [kept for kept in own if kept.touches(run.first, run.end)]

    def rank_now(incarnation: int) -> tuple[bool, bool, bool, int]:
        has = [kept for kept in over if kept.incarnation == incarnation]
        lacks = bool(uncovered_spans([(run.first, run.end)], spans_of(has)))
        is_ready = all(kept.is_ready for kept in has)
        is_on_owner_host = hosts[incarnation] == hosts.get(run.owner)
        return lacks, not is_ready, is_on_owner_host, min(kept.asked.move for kept in has)

    def rank_later(incarnation: int) -> tuple[bool, bool, bool, int]:
        lacks, is_unready, is_on_owner_host, move = rank_now(incarnation)
        return lacks, is_on_owner_host, is_unready, move

    there = ({kept.incarnation for kept in over} & staying) - {run.owner, *without}
    now, later = (sorted(there, key=rank)[: view.rules.standbys] for rank in (rank_now, rank_later))
    return [*now, *(incarnation for incarnation in later if incarnation not in now)]


def _targets(run: StateRange, moves: Sequence[PlannedMove]) -> set[int]:
    """The members to which a range, or part of the range, is to go. Only moves away from the present owner count."""
    cells = cut_by([Cell(first=run.first, end=run.end, owner=run.owner, epoch=0, state=CellState.HELD)], moves)
    over = [move for cell in cells if (move := newest(moves, cell)) is not None]
    return {move.target for move in over if move.origin == run.owner} - {run.owner}


def _bands_at(own: Sequence[CopyProgress], incarnation: int) -> list[Span]:
    return spans_of(kept for kept in own if kept.incarnation == incarnation)


def _is_early(view: View) -> bool:
    """Whether this coordinator began too recently to have heard the progress of copies."""
    return view.now_ms - view.memory.began_ms < view.rules.settle_ms


def runs(view: View, *places: SourcePartition) -> list[StateRange]:
    """Ranges with state that are held, of the given places or of all. Touching cells with the same owner are joined."""
    stateful = view.stateful
    held = (
        StateRange(place, cell.first, cell.end, cell.owner)
        for place in sorted(places or (place for place in view.control.started if place[0] in stateful))
        for cell in view.cells(place)
        if cell.state is CellState.HELD
    )
    return join_neighbours(
        held, lambda a, b: a._replace(end=b.end) if (a.place, a.owner) == (b.place, b.owner) else None
    )


# --- copies to end ---------------------------------------------------------------------------------------------------


def end_copies(view: View, turn: Turn) -> DecisionBatch:
    """Ends of copies without a use, each with the reason."""
    found: list[tuple[int, str]] = []
    copies = copies_by_place(view)
    if not copies:
        return DecisionBatch()
    planned, staying = moves_pending(view), {member.incarnation for member in view.staying_members}
    for place, own in copies.items():
        moves = planned.get(place, [])
        standbys = [kept for kept in own if kept.asked.role == STANDBY]
        keepers_by_run = [(run, keepers(view, run, standbys, _targets(run, moves))) for run in runs(view, place)]
        used: set[int] = set()
        for cell in cut_by(view.cells(place), [*moves, *spans_of(own)]):
            over = [kept for kept in own if kept.touches(cell.first, cell.end)]
            if cell.state is not CellState.HELD:  # nobody works there: a copy holder may be the next owner
                used |= {k.asked.move for k in over if k.incarnation in staying or k.is_ready}
                continue
            over = [kept for kept in over if kept.incarnation in staying - {cell.owner}]
            members = next((members for run, members in keepers_by_run if run.first <= cell.first < run.end), ())
            used |= {k.asked.move for k in over if _is_used(view, place, cell, newest(moves, cell), k, members)}
        over = [kept for kept in own if kept.asked.move not in used]
        found += [(kept.asked.move, _reason(view, kept, is_staying=kept.incarnation in staying)) for kept in over]
    return DecisionBatch([CopyEnded(*turn.next(), number, reason) for number, reason in sorted(found)])


def _is_used(
    view: View,
    place: SourcePartition,
    cell: Cell,
    move: PlannedMove | None,
    kept: CopyProgress,
    keepers: Collection[int],
) -> bool:
    """Whether a staying member's copy of a cell that another member owns is of use. The copy is of use in three cases:
    a move takes the cell to the member, the owner is not at work yet, or the member keeps a standby. ``move``: the
    newest over the cell; ``keepers``: the members that keep a standby of the cell.
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


def fixed_points(view: View) -> dict[SourcePartition, list[FixedPoints]]:
    """Points that a plan may give only to one member, by place. Points are fixed while a copy of a move is under way to
    its target. Points with state and without a working owner are fixed if the next owner is known or awaited.
    """
    copies, planned, stateful = copies_by_place(view), moves_pending(view), view.stateful
    places = {place for place in view.control.started if place[0] in stateful}
    places &= copies.keys() | view.cell_cache.free | _unheld(view)
    found: dict[SourcePartition, list[FixedPoints]] = {}
    for place in sorted(places):
        moves, own = planned.get(place, []), copies.get(place, [])
        for cell in cut_by(view.cells(place), [*moves, *spans_of(own)]):
            target = _target(view, place, cell, newest(moves, cell), own)
            if target != NOBODY:
                found.setdefault(place, []).append(FixedPoints(cell.first, cell.end, target))
    return found


def have_heirs(view: View) -> bool:
    """Whether some points are free, no point is unread, and every free point has an heir among the present members."""
    if not view.cell_cache.free or view.cell_cache.unread:
        return False
    heirs = {
        place: [Span(f.first, f.end) for f in fixes if f.target is not None]
        for place, fixes in fixed_points(view).items()
    }
    return not any(
        uncovered_spans([(cell.first, cell.end)], heirs.get(place, ()))
        for place in view.cell_cache.free
        for cell in view.cells(place)
        if cell.state is CellState.FREE
    )


def _unheld(view: View) -> set[SourcePartition]:
    """Places with points that are not held, if the control log still knows a gone member; else none: without a gone
    member no points wait for a name.
    """
    if not any(member.expelled for member in view.control.members.values()):
        return set()
    return view.cell_cache.unheld


def awaited_names(view: View) -> set[str]:
    """The names for which state waits, and the present names to which state goes back."""
    owners = {
        cell.owner
        for place in _unheld(view)
        if place[0] in view.stateful
        for cell in view.cells(place)
        if cell.state is not CellState.HELD
    }
    return {name for owner in owners if (name := name_awaited(view, owner))}


def _target(
    view: View, place: SourcePartition, cell: Cell, move: PlannedMove | None, own: Sequence[CopyProgress]
) -> int | None:
    """The only member to which a plan may give a cell. ``NOBODY``: the cell is not fixed; None: no member yet.
    ``move``: the newest over the cell; ``own``: the copies of the place.
    """
    staying = {member.incarnation for member in view.staying_members}
    favoured = move.target if move is not None and move.target in staying else NOBODY
    if cell.state is CellState.HELD:
        is_begun = move is not None and move.move in view.control.moves.copies and move.origin == cell.owner
        return favoured if is_begun else NOBODY
    if cell.owner in staying and favoured:  # released for this move
        return favoured
    return heir(view, own, place, cell, favoured)


def is_orphan(
    view: View,
    place: SourcePartition,
    cell: Cell,
    moves: Sequence[PlannedMove],
    own: Sequence[CopyProgress],
    staying: Collection[int],
) -> bool:
    """Whether no move takes a free cell to the member that is to have the cell: a plan has to make such a move. A cell
    that waits for a name is no orphan. ``moves``, ``own``: the moves and the copies of the place.
    """
    move = newest(moves, cell)
    favoured = move.target if move is not None and move.target in staying else NOBODY
    if favoured and (cell.owner in staying or cell.epoch == 0):
        return False
    wanted = heir(view, own, place, cell, favoured)
    return wanted is not None and (not favoured or wanted not in (NOBODY, favoured))
