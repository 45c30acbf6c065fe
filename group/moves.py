"""PURE. The coordinator's rows about moves: grants, requests to release, and withdrawals.

Touching bands of one member are joined by moves from the member to itself. The coordinator asks for all of the bands
together. When every band is free, or no longer asked for, the coordinator grants the bands back at one epoch.

The coordinator asks to release points with state when the target has ready copies (copies.py). After the grant the old
owner keeps a copy of the points until the new owner works. If the new owner fails, the points go back without a
restore.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..keyrange.ranges import KeyRange, join_neighbours
from ..offsets.control import STANDBY
from ..offsets.control_events import CopyAsked, Decision, ReleaseAsked, ReleaseWithdrawn
from ..offsets.decide import Turn, decide_grant
from ..offsets.event_values import PlannedMove, Span
from ..offsets.ledger import SourcePartition
from .cells import Cell, CellState
from .copies import is_near, uncovered_spans
from .members import members_dismissed
from .piece_table import touch
from .pieces import PlacePiece, overlaps
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
    free_places = view.places.free
    if view.unopened_logs or not free_places:  # readers take an empty offset log behind a grant for a lost log
        return DecisionBatch()
    staying = view.present.staying
    decisions: list[Decision] = []
    demoted: list[tuple[SourcePartition, int, list[Span]]] = []
    for place in sorted(free_places):
        ready = [
            (move, free)
            for move, free in _by_move(view, place, CellState.FREE)
            if move.target in staying and not _waits_for_more(view, move)
        ]
        for move, free in ready:
            if move.target != ready[0][0].target:
                continue
            for points in join_neighbours((KeyRange(piece.first, piece.end) for piece in free), KeyRange.join):
                decisions += decide_grant(view.ledger, turn, place, move.target, points, move=move.move)
            for owner in sorted({piece.owner for piece in free if piece.owner in staying} - {move.target}):
                released = [(piece.first, piece.end) for piece in free if piece.owner == owner]
                if place[0] in view.present.stateful:
                    demoted.append((place, owner, uncovered_spans(released, ())))
    number = view.control.moves.move_max
    for n, (place, owner, bands) in enumerate(demoted, number + 1):
        decisions.append(ask_copy(view, turn, n, owner, place, bands, STANDBY))
    return DecisionBatch(decisions)


def ask_copy(
    view: View, turn: Turn, number: int, incarnation: int, place: SourcePartition, bands: Sequence[Span], role: str
) -> CopyAsked:
    """A request to a member for a copy of the state of bands."""
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


def _by_move(view: View, place: SourcePartition, state: CellState) -> list[tuple[PlannedMove, list[PlacePiece]]]:
    """The pieces in a state, by the newest move over each, the newest move first. Of held pieces only the pieces of the
    move's origin count, of free pieces only the pieces that the move's target may have.
    """
    found: dict[int, tuple[PlannedMove, list[PlacePiece]]] = {}
    for piece in view.table.pieces(place):
        move = piece.move
        if move is None or piece.state is not state:
            continue
        if piece.owner == move.origin if state is CellState.HELD else piece.heir in (NOBODY, move.target):
            found.setdefault(move.move, (move, []))[1].append(piece)
    return [found[number] for number in sorted(found, reverse=True)]


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


def withdraw_requests(view: View, turn: Turn) -> DecisionBatch:
    """Withdrawals of requests to release: the target is gone, or the time is over. The owner keeps the points that are
    not released yet.
    """
    staying = view.present.staying
    decisions: list[Decision] = []
    for number, asked in sorted(view.control.moves.release_requests.items()):
        move = view.control.moves.planned.get(number)
        since_ms = view.memory.release_request_ms.get(
            number, view.memory.began_ms
        )  # a predecessor's request begins anew
        over = [cell for cell in view.cells(asked.topic_partition) if overlaps(cell, asked)]
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
    budget = view.open_budget()
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
    budget = view.open_budget()
    return [move.move for move, _ in _askable(view) if not (_needs_no_turn(view, move) or budget.take(move))]


def _needs_no_turn(view: View, move: PlannedMove) -> bool:
    """Whether the budget lets a move begin in any case: the move copies no state, or the budget has counted the move
    with its request for a copy.
    """
    return (
        move.topic not in view.present.stateful or move.origin == move.target or move.move in view.control.moves.copies
    )


def _askable(view: View) -> Iterator[tuple[PlannedMove, _NextRelease]]:
    """Moves that may be asked for now, each with its next release."""
    for move, held in moves_to_ask(view):
        release = _next_release(view, move, [piece for piece in held if piece.asked is None])
        if release is None:
            continue
        has_state = move.topic in view.present.stateful and move.origin != move.target
        copies = view.table.copies(move.topic_partition) if has_state else ()
        if not has_state or is_near(copies, move.target, [(release.first, release.end)]):
            yield move, release


def moves_to_ask(view: View) -> list[tuple[PlannedMove, list[PlacePiece]]]:
    """Planned moves without a request to release, from a working member to a staying member or to itself, each with the
    points that the member holds: in order of places, the newest first.
    """
    if not view.places.moving:
        return []
    works = view.present.living.keys() - {*members_dismissed(view)}
    return [
        (move, held)
        for place in sorted(view.places.moving)
        for move, held in _by_move(view, place, CellState.HELD)
        if move.origin in works
        and move.target in view.present.staying
        and move.move not in view.control.moves.release_requests
    ]


def _next_release(view: View, move: PlannedMove, held: Sequence[PlacePiece]) -> _NextRelease | None:
    """The next release by the origin of a move: the first touching pieces with equal epoch. None: the origin holds
    nothing that was not asked for. The other points are asked for later.
    """
    if not held:
        return None
    last = next((a for a, b in pairwise(held) if (a.end, a.epoch) != (b.first, b.epoch)), held[-1])
    within_ms = JOIN_WITHIN_MS if move.move in view.memory.join_moves else view.rules.release_ms
    return _NextRelease(held[0].epoch, held[0].first, last.end, within_ms)


def moves_to_join(view: View) -> list[PlannedMove]:
    """The moves that join touching bands, from the owner to the owner: the first such bands of the first place that is
    due. []: no place is due.
    """
    rules, seat = view.rules, view.memory
    for place, since_ms in sorted(view.table.touching_ms.items()):
        tried_ms = seat.join_plan_ms.get(place)
        if view.now_ms - since_ms < rules.join_ms:
            continue
        if tried_ms is not None and view.now_ms - tried_ms < JOIN_AGAIN * rules.join_ms:
            continue
        bands: list[Cell] = []
        for a, b in pairwise(view.cells(place)):
            if touch(a, b) and a.owner in view.present.staying:
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
