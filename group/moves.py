"""PURE. The coordinator's rows about moves: grants, requests to release, and withdrawals.

Touching bands of one member are joined by moves from the member to itself. The coordinator asks for all of the bands
together. When every band is free, or no longer asked for, the coordinator grants the bands back at one epoch.

The coordinator asks to release points with state when the target has ready copies (copies.py). After the grant the old
owner keeps a copy of the points until the new owner works. If the new owner fails, the points go back without a
restore.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..keyrange.ranges import KeyRange, join_neighbours
from ..offsets.control import STANDBY
from ..offsets.control_events import CopyAsked, Decision, ReleaseAsked, ReleaseWithdrawn
from ..offsets.decide import Turn, decide_grant
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition
from ..offsets.signals import MoveAsked
from .cell_cache import touch
from .cells import Cell, CellState
from .copies import CopyProgress, FixedPoints, MoveBudget, copies_by_place, is_near, may_have, spans_of, uncovered_spans
from .members import members_dismissed
from .shares import NOBODY
from .view import DecisionBatch, View

JOIN_WITHIN_MS: Final = 2_000
"""How long the release of bands that are joined may take."""
JOIN_AGAIN: Final = 6
"""The bands of a place are tried again after this many times ``join_ms``."""


class _NextRelease(NamedTuple):
    """Points ``[first, end)`` at an epoch that the origin of a move is to release next, within a time in ms."""

    epoch: int
    first: int
    end: int
    within_ms: int


def grant_ranges(view: View, turn: Turn) -> DecisionBatch:
    """Grants of free points. A batch has grants to a single member in each partition, because all grants of a partition
    in a batch get the same epoch. A member that released points with state is asked to keep a copy.
    """
    free_places = view.cell_cache.free
    if view.unopened_logs or not free_places:  # readers take an empty offset log behind a grant for a lost log
        return DecisionBatch()
    staying = {member.incarnation for member in view.staying_members}
    decisions: list[Decision] = []
    demoted: list[tuple[SourcePartition, int, list[Span]]] = []
    planned, copies, stateful = moves_pending(view), copies_by_place(view), view.stateful
    for place in sorted(planned.keys() & free_places):
        moves, own = planned[place], copies.get(place, [])
        cut = cut_by(view.cells(place), [*moves, *spans_of(own)])
        cells = [cell for cell in cut if cell.state is CellState.FREE]
        if place[0] in stateful:
            cells = _grantable_cells(view, place, cells, moves, own)
        ready = [(move, free) for move in moves if (free := _free_for(move, moves, cells)) and move.target in staying]
        ready = [(move, free) for move, free in ready if not _waits_for_more(view, move)]
        for move, free in ready:
            if move.target != ready[0][0].target:
                continue
            for points in _joined_points(free, move):
                decisions += decide_grant(view.ledger, turn, place, move.target, points, move=move.move)
            for owner in sorted({cell.owner for cell in free} & staying - {move.target}):
                released = [(cell.first, cell.end) for cell in free if cell.owner == owner]
                if place[0] in stateful:
                    demoted.append((place, owner, uncovered_spans(released, ())))
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


def _grantable_cells(
    view: View,
    place: SourcePartition,
    free: Sequence[Cell],
    moves: Sequence[PlannedMove],
    copies: Sequence[CopyProgress],
) -> list[Cell]:
    """The free cells with state that the target of their newest move may have."""
    takes = [(cell, newest(moves, cell)) for cell in free]
    return [cell for cell, move in takes if move is not None and may_have(view, copies, place, cell, move.target)]


def _free_for(move: PlannedMove, moves: Sequence[PlannedMove], cells: Iterable[Cell]) -> list[Cell]:
    """The free cells for which a move is the newest move."""
    return [cell for cell in cells if overlaps(cell, move) and newest(moves, cell) is move]


def _waits_for_more(view: View, move: PlannedMove) -> bool:
    """Whether a move joins bands of a member, and the member was asked for more of the bands and has not released them
    yet. Points released for other moves are granted at once.
    """
    asked, joins = view.control.moves.release_requests, view.memory.join_moves
    return move.move in joins and any(
        cell.state is CellState.HELD and cell.epoch == asked[number].epoch and overlaps(cell, asked[number])
        for number in joins & asked.keys()
        for cell in view.cells(move.topic_partition)
    )


def moves_pending(view: View) -> dict[SourcePartition, list[PlannedMove]]:
    """Planned moves that are not done, newest first, by place."""
    by_place: dict[SourcePartition, list[PlannedMove]] = {}
    for _, move in sorted(view.control.moves.planned.items(), reverse=True):
        by_place.setdefault(move.topic_partition, []).append(move)
    return by_place


def on_their_way(view: View) -> dict[SourcePartition, list[ReleaseAsked]]:
    """Requests to release, by place."""
    ways: dict[SourcePartition, list[ReleaseAsked]] = {}
    for asked in view.control.moves.release_requests.values():
        ways.setdefault(asked.topic_partition, []).append(asked)
    return ways


def overlaps(cell: Cell, move: PlannedMove | ReleaseAsked) -> bool:
    """Whether a cell and a move have a common point."""
    return cell.first < move.end and move.first < cell.end


def newest(moves: Sequence[PlannedMove], cell: Cell) -> PlannedMove | None:
    """The newest move over a cell. ``moves``: of the place, the newest first."""
    return next((move for move in moves if overlaps(cell, move)), None)


def _joined_points(free: Sequence[Cell], move: PlannedMove) -> list[KeyRange]:
    """The points of the cells that lie in the move. Touching ranges are joined."""
    parts = (KeyRange(max(cell.first, move.first), min(cell.end, move.end)) for cell in free)
    return join_neighbours(parts, KeyRange.join)


def cut_by(
    found: Iterable[Cell], by: Iterable[MoveAsked | PlannedMove | ReleaseAsked | Span | FixedPoints]
) -> list[Cell]:
    """The cells, cut at the bounds of all items in ``by``."""
    bounds = sorted({bound for one in by for bound in (one.first, one.end)})
    parts: list[Cell] = []
    for cell in found:
        at = [cell.first, *(bound for bound in bounds if cell.first < bound < cell.end), cell.end]
        parts += [cell._replace(first=a, end=b) for a, b in pairwise(at)]
    return parts


def withdraw_requests(view: View, turn: Turn) -> DecisionBatch:
    """Withdrawals of requests to release: the target is gone, or the time is over. The owner keeps the points that are
    not released yet.
    """
    staying = {member.incarnation for member in view.staying_members}
    decisions: list[Decision] = []
    for number, asked in sorted(view.control.moves.release_requests.items()):
        move = view.control.moves.planned.get(number)
        since_ms = view.memory.release_request_ms.get(
            number, view.memory.began_ms
        )  # a predecessor's request begins anew
        place, within = asked.topic_partition, KeyRange(asked.first, asked.end)
        over = [cell for cell in view.cells(place) if cell.first < within.end and within.first < cell.end]
        if not any(cell.state is CellState.HELD and cell.epoch == asked.epoch for cell in over):
            continue  # all points are released
        if move is None or move.target not in staying:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "its target is gone"))
        elif view.now_ms - since_ms >= asked.deadline_ms:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "deadline"))
    return DecisionBatch(decisions)


def ask_releases(view: View, turn: Turn) -> DecisionBatch:
    """Requests to release points. Points under an open request of any move are not asked for again. A request for
    points with state waits until the target has ready copies. A dismissed member releases without a request.
    """
    budget = MoveBudget(view)
    decisions: list[Decision] = []
    for move, (epoch, first, end, within_ms) in _askable(view):
        if _needs_no_turn(view, move) or budget.take(move):
            place = move.topic_partition
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


def moves_without_turn(view: View) -> list[int]:
    """The moves that could be asked for now, but for the budget: too many moves with much state have begun lately."""
    budget = MoveBudget(view)
    return [move.move for move, _ in _askable(view) if not (_needs_no_turn(view, move) or budget.take(move))]


def _needs_no_turn(view: View, move: PlannedMove) -> bool:
    """Whether the budget lets a move begin in any case: the move copies no state, or the budget has counted the move
    with its request for a copy.
    """
    return move.topic not in view.stateful or move.origin == move.target or move.move in view.control.moves.copies


def _askable(view: View) -> Iterator[tuple[PlannedMove, _NextRelease]]:
    """Moves that may be asked for now, each with its next release."""
    ways, planned, copies, stateful = on_their_way(view), moves_pending(view), copies_by_place(view), view.stateful
    open_moves = {move.move: move for move in moves_to_ask(view)}
    for place in sorted({move.topic_partition for move in open_moves.values()}):
        moves, own = planned[place], ways.get(place, ())
        cells = cut_by(view.cells(place), [*own, *moves])
        held = [cell for cell in cells if cell.state is CellState.HELD and not any(overlaps(cell, o) for o in own)]
        for move in (move for move in moves if move.move in open_moves):
            release = _next_release(view, move, [cell for cell in held if newest(moves, cell) is move])
            if release is None:
                continue
            has_state = place[0] in stateful and move.origin != move.target
            if not has_state or is_near(copies.get(place, ()), move.target, [(release.first, release.end)]):
                yield move, release


def moves_to_ask(view: View) -> list[PlannedMove]:
    """Planned moves without a request to release, from a working member to a staying member or to itself, in order."""
    control, staying = view.control, {member.incarnation for member in view.staying_members}
    works = {member.incarnation for member in view.living_members} - {*members_dismissed(view)}
    return [
        move
        for number, move in control.moves.planned.items()
        if move.origin in works and move.target in staying and number not in control.moves.release_requests
    ]


def _next_release(view: View, move: PlannedMove, held: Sequence[Cell]) -> _NextRelease | None:
    """The next release by the origin of a move: the first touching cells with equal epoch. None: the origin holds
    nothing. The other points are asked for later.
    """
    own = [cell for cell in held if cell.owner == move.origin]
    if not own or move.origin == NOBODY:
        return None
    last = next((a for a, b in pairwise(own) if (a.end, a.epoch) != (b.first, b.epoch)), own[-1])
    within_ms = JOIN_WITHIN_MS if move.move in view.memory.join_moves else view.rules.release_ms
    return _NextRelease(own[0].epoch, own[0].first, last.end, within_ms)


def moves_to_join(view: View) -> list[PlannedMove]:
    """The moves that join touching bands, from the owner to the owner: the first such bands of the first place that is
    due. []: no place is due.
    """
    rules, seat = view.rules, view.memory
    staying = {member.incarnation for member in view.staying_members}
    for place, since_ms in sorted(view.cell_cache.touching_ms.items()):
        tried_ms = seat.join_plan_ms.get(place)
        if view.now_ms - since_ms < rules.join_ms:
            continue
        if tried_ms is not None and view.now_ms - tried_ms < JOIN_AGAIN * rules.join_ms:
            continue
        bands: list[Cell] = []
        for a, b in pairwise(view.cells(place)):
            if touch(a, b) and a.owner in staying:
                bands = bands or [a]
                bands.append(b)
            elif bands:
                break
        first = view.control.moves.move_max + 1
        if bands:
            return [
                PlannedMove(
                    move=first + n,
                    topic=place[0],
                    partition=place[1],
                    first=cell.first,
                    end=cell.end,
                    origin=cell.owner,
                    target=cell.owner,
                    state_bytes=0,
                    gain=0.0,
                    cost_us=0,
                )
                for n, cell in enumerate(bands)
            ]
    return []
