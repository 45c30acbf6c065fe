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
- standbys.py tells which standbys are missing, and which copies are of no use.
"""

from collections import Counter

from ..offsets.control import LEARNER, STANDBY
from ..offsets.control_events import CopyEnded, Decision
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition
from ..offsets.signals import COOLING, SLOT, TURN
from .copies import MoveBudget, counts_for_budget, uncovered_spans
from .moves import ask_copy, moves_to_ask, moves_without_turn
from .standbys import StateRange, bands_at
from .view import DecisionBatch, View

# --- copies to ask for -----------------------------------------------------------------------------------------------


def ask_copies(view: View, turn: Turn) -> DecisionBatch:
    """Requests for copies: for moves, and, if no move is asked a copy for now, for standbys. Standbys get only slots
    for which no move waits.
    """
    slots, budget, lacking = _PassSlots(view), view.open_budget(), moves_wanting_copies(view)
    decisions: list[Decision] = [
        ask_copy(view, turn, move.move, move.target, move.topic_partition, bands, LEARNER)
        for move, bands in lacking
        if not _find_obstacle(view, move, slots, budget)
    ]
    for move, _ in lacking:  # a standby must not take the slot of a waiting move
        slots.take(move.target, move.topic_partition)
    number = view.control.moves.move_max
    for run, incarnation, bands in [] if decisions else _standbys_wanted(view, slots):
        number += 1
        decisions.append(ask_copy(view, turn, number, incarnation, run.place, bands, STANDBY))
    return DecisionBatch(decisions, (), frozenset(budget.taken))


def parked_moves(view: View) -> dict[int, str]:
    """Why planned moves with state have not begun: ``SLOT``, ``TURN`` or ``COOLING``, by move."""
    if not view.present.stateful:
        return {}
    slots, budget = _PassSlots(view), view.open_budget()
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


def moves_wanting_copies(view: View) -> list[tuple[PlannedMove, list[Span]]]:
    """Moves for which a copy is still to be asked, each with the bands of which the target has no copy. Moves from
    leaving members come first, then moves that need no budget.
    """
    found: list[tuple[PlannedMove, list[Span]]] = []
    for move, held in moves_to_ask(view):
        place = move.topic_partition
        if place[0] not in view.present.stateful or move.origin == move.target:
            continue
        if move.move in view.control.moves.copies:
            continue
        own = bands_at(view.table.copies(place), move.target)
        if bands := uncovered_spans([(piece.first, piece.end) for piece in held], own):
            found.append((move, bands))
    leaving = view.heard.leaving
    return sorted(found, key=lambda one: (one[0].origin not in leaving, counts_for_budget(one[0]), one[0].move))


def places_in_pass(view: View, incarnation: int) -> set[SourcePartition]:
    """The places of a member's copies that are not ready: the member has a pass for each."""
    return {
        asked.topic_partition
        for number, asked in view.control.moves.copies.items()
        if asked.incarnation == incarnation and not view.heard.is_ready(incarnation, number)
    }


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
    moves = view.control.moves
    is_changed = view.control.group_epoch != moves.group_epoch
    if not view.places.lacking or view.is_early or moves.release_requests or is_changed:
        return []
    counts = Counter(asked.incarnation for asked in moves.copies.values())
    found: list[tuple[StateRange, int, list[Span]]] = []
    for lack in (lack for place in sorted(view.places.lacking) for lack in view.table.row(place).lacking):
        run, hosts, rest = lack.run, {*lack.hosts}, [*lack.candidates]
        found += [(run, i, [*bands]) for i, bands in lack.incomplete if slots.take(i, run.place)]
        for _ in range(lack.number):
            ranked = sorted(rest, key=lambda m: (m.joined.host in hosts, counts[m.incarnation], m.incarnation))
            # If all members on new hosts lack a slot, the standby waits for a slot there.
            on_best = [m for m in ranked if (m.joined.host in hosts) == (ranked[0].joined.host in hosts)]
            member = next((m for m in on_best if slots.take(m.incarnation, run.place)), None)
            if member is None:
                break
            own = bands_at(view.table.copies(run.place), member.incarnation)
            found.append((run, member.incarnation, uncovered_spans([(run.first, run.end)], own)))
            rest.remove(member)
            hosts.add(member.joined.host)
            counts[member.incarnation] += 1
    return found


# --- copies to end ---------------------------------------------------------------------------------------------------


def end_copies(view: View, turn: Turn) -> DecisionBatch:
    """Ends of copies without a use, each with the reason."""
    found = (unused for place in view.places.unused for unused in view.table.row(place).unused)
    return DecisionBatch([CopyEnded(*turn.next(), number, reason) for number, reason in sorted(found)])
