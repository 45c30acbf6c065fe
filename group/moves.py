"""PURE. The coordinator's rows about moves: grants, requests to release, and withdrawals.

Touching bands of one member are joined by moves from the member to itself. The coordinator asks for all of the bands
together. When every band is free, or no longer asked for, the coordinator grants the bands back at one epoch.

The coordinator asks to release points with state when the target has ready copies (copies.py). The old owner keeps a
copy of points granted to another member until the new owner works. If the new owner fails, the points go back without a
restore.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from ..keyrange.ranges import KeyRange, join_neighbours
from ..offsets.control import STANDBY
from ..offsets.control_events import CopyAsked, Decision, ReleaseAsked, ReleaseWithdrawn
from ..offsets.decide import Turn, decide_grant
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import Place
from ..offsets.signals import MoveAsked
from .cells import Cell, CellState
from .copies import Fixed, MoveBudget, is_near, kept_of, may_have, spans_of, uncovered_spans
from .members import members_dismissed
from .shares import NOBODY
from .view import DecisionBatch, View

JOIN_WITHIN_MS: Final = 2_000
"""How long bands of one member that become one may take to be released."""


def grant_ranges(view: View, turn: Turn) -> DecisionBatch:
    """Grants of free points, to a single member in each partition. Two grants to different members would share an
    epoch. A member that released points with state is asked to keep a copy.
    """
    free_places = view.standings.free
    if view.unopened or not free_places:  # an empty offset log is taken for lost when ranges were granted before
        return DecisionBatch()
    staying = {member.incarnation for member in view.staying}
    decisions: list[Decision] = []
    demoted: list[tuple[Place, int, list[Span]]] = []
    planned, copies, stateful = moves_pending(view), kept_of(view), view.stateful
    for place in sorted(planned.keys() & free_places):
        moves, kept = planned[place], copies.get(place, [])
        cut = cut_by(view.cells(place), [*moves, *spans_of(kept)])
        cells = [cell for cell in cut if cell.standing is CellState.FREE]
        if place[0] in stateful:
            takes = [(cell, newest(moves, cell)) for cell in cells]
            cells = [
                cell for cell, move in takes if move is not None and may_have(view, kept, place, cell, move.target)
            ]
        ready = [(move, free) for move in moves if (free := _free_for(move, moves, cells)) and move.target in staying]
        ready = [one for one in ready if not _waits_for_more(view, one[0])]
        for move, free in ready:
            if move.target == ready[0][0].target:
                for run in _runs(free, move):
                    decisions += decide_grant(view.ledger, turn, place, move.target, run, move=move.move)
                for owner in sorted({cell.owner for cell in free} & staying - {move.target}):
                    own = [(cell.first, cell.end) for cell in free if cell.owner == owner]
                    if place[0] in stateful:
                        demoted.append((place, owner, uncovered_spans(own, ())))
    number = view.control.moves.move_max
    for n, (place, owner, bands) in enumerate(demoted, number + 1):
        decisions.append(
            CopyAsked(
                *turn.next(),
                move=n,
                incarnation=owner,
                topic=place[0],
                partition=place[1],
                bands=tuple(bands),
                role=STANDBY,
                bytes_per_s=view.rules.copy_bytes_per_s,
            )
        )
    return DecisionBatch(decisions)


def _free_for(move: PlannedMove, moves: Sequence[PlannedMove], cells: Iterable[Cell]) -> list[Cell]:
    """The free cells that a move may take."""
    return [cell for cell in cells if overlaps(cell, move) and newest(moves, cell) is move]


def _waits_for_more(view: View, move: PlannedMove) -> bool:
    """Whether a move joins bands of a member and the member still has to release more of the bands. Points released for
    other moves are granted at once.
    """
    asked, joins = view.control.moves.asked, view.seat.joins
    return move.move in joins and any(
        cell.standing is CellState.HELD and cell.epoch == asked[number].epoch and overlaps(cell, asked[number])
        for number in joins & asked.keys()
        for cell in view.cells(move.topic_partition)
    )


def moves_pending(view: View) -> dict[Place, list[PlannedMove]]:
    """Planned moves that are not done, newest first, by place."""
    by_place: dict[Place, list[PlannedMove]] = {}
    for _, move in sorted(view.control.moves.planned.items(), reverse=True):
        by_place.setdefault(move.topic_partition, []).append(move)
    return by_place


def on_their_way(view: View) -> dict[Place, list[ReleaseAsked]]:
    """Requests to release, by place."""
    ways: dict[Place, list[ReleaseAsked]] = {}
    for asked in view.control.moves.asked.values():
        ways.setdefault(asked.topic_partition, []).append(asked)
    return ways


def overlaps(cell: Cell, move: PlannedMove | ReleaseAsked) -> bool:
    """Whether a cell and a move have a common point."""
    return cell.first < move.end and move.first < cell.end


def newest(moves: Sequence[PlannedMove], cell: Cell) -> PlannedMove | None:
    """The newest move over a cell."""
    return next((move for move in moves if overlaps(cell, move)), None)


def _runs(free: Sequence[Cell], move: PlannedMove) -> list[KeyRange]:
    """The parts of the cells that lie in the move. Touching parts are joined."""
    parts = (KeyRange(max(cell.first, move.first), min(cell.end, move.end)) for cell in free)
    return join_neighbours(parts, KeyRange.join)


def cut_by(found: Iterable[Cell], by: Iterable[MoveAsked | PlannedMove | ReleaseAsked | Span | Fixed]) -> list[Cell]:
    """The cells, cut at the bounds of all items in ``by``."""
    bounds = sorted({bound for one in by for bound in (one.first, one.end)})
    parts: list[Cell] = []
    for cell in found:
        at = [cell.first, *(bound for bound in bounds if cell.first < bound < cell.end), cell.end]
        parts += [cell._replace(first=a, end=b) for a, b in pairwise(at)]
    return parts


def withdrawn(view: View, turn: Turn) -> DecisionBatch:
    """Withdrawals of requests to release: the target is gone, or the time is over. The owner keeps other points."""
    staying = {member.incarnation for member in view.staying}
    decisions: list[Decision] = []
    for number, asked in sorted(view.control.moves.asked.items()):
        move = view.control.moves.planned.get(number)
        since_ms = view.seat.asked_ms.get(number, view.seat.began_ms)  # a predecessor's request begins anew
        place, within = asked.topic_partition, KeyRange(asked.first, asked.end)
        over = [cell for cell in view.cells(place) if cell.first < within.end and within.first < cell.end]
        if not any(cell.standing is CellState.HELD and cell.epoch == asked.epoch for cell in over):
            continue
        if move is None or move.target not in staying:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "its target is gone"))
        elif view.now_ms - since_ms >= asked.deadline_ms:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "deadline"))
    return DecisionBatch(decisions)


def ask_releases(view: View, turn: Turn) -> DecisionBatch:
    """Requests to release points that nobody was asked for yet, not even for a move that went elsewhere. A request for
    points with state waits until the target has ready copies. A dismissed member releases without a request.
    """
    budget = MoveBudget(view)
    decisions: list[Decision] = []
    for move, (epoch, first, end, within_ms) in _askable(view):
        if _needs_no_turn(view, move) or budget.take(move):
            place = move.topic, move.partition
            decisions.append(
                ReleaseAsked(
                    *turn.next(),
                    move=move.move,
                    incarnation=move.origin,
                    epoch=epoch,
                    topic=place[0],
                    partition=place[1],
                    first=first,
                    end=end,
                    deadline_ms=within_ms,
                )
            )
    return DecisionBatch(decisions, (), frozenset(budget.taken))


def held_back(view: View) -> list[int]:
    """Moves that wait because too many moves with much state have begun lately."""
    budget = MoveBudget(view)
    return [move.move for move, _ in _askable(view) if not (_needs_no_turn(view, move) or budget.take(move))]


def _needs_no_turn(view: View, move: PlannedMove) -> bool:
    """Whether a move has no state to wait for, or took its turn in the budget with the request for a copy."""
    return move.topic not in view.stateful or move.origin == move.target or move.move in view.control.moves.copies


def _askable(view: View) -> Iterator[tuple[PlannedMove, tuple[int, int, int, int]]]:
    """Moves that may be asked for, each with the answer of ``_release``."""
    ways, planned, copies, stateful = on_their_way(view), moves_pending(view), kept_of(view), view.stateful
    open_moves = {move.move: move for move in moves_to_ask(view)}
    for place in sorted({move.topic_partition for move in open_moves.values()}):
        moves, own = planned[place], ways.get(place, ())
        cells = cut_by(view.cells(place), [*own, *moves])
        held = [cell for cell in cells if cell.standing is CellState.HELD and not any(overlaps(cell, o) for o in own)]
        for move in (move for move in moves if move.move in open_moves):
            release = _release(view, move, [cell for cell in held if newest(moves, cell) is move])
            if release is None:
                continue
            has_state = place[0] in stateful and move.origin != move.target
            if not has_state or is_near(copies.get(place, ()), move.target, [release[1:3]]):
                yield move, release


def moves_to_ask(view: View) -> list[PlannedMove]:
    """Planned moves without a request to release, from a working member to a staying member or to itself, in order."""
    control, staying = view.control, {member.incarnation for member in view.staying}
    works = {member.incarnation for member in view.living} - {*members_dismissed(view)}
    return [
        move
        for number, move in control.moves.planned.items()
        if move.origin in works and move.target in staying and number not in control.moves.asked
    ]


def _release(view: View, move: PlannedMove, held: Sequence[Cell]) -> tuple[int, int, int, int] | None:
    """Epoch, first, end and deadline of the next release by the move's origin. The other points come later."""
    own = [cell for cell in held if cell.owner == move.origin]
    if not own or move.origin == NOBODY:
        return None
    last = next((a for a, b in pairwise(own) if (a.end, a.epoch) != (b.first, b.epoch)), own[-1])
    within_ms = JOIN_WITHIN_MS if move.move in view.seat.joins else view.rules.release_ms
    return own[0].epoch, own[0].first, last.end, within_ms
