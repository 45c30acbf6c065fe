"""PURE. The coordinator's row about plans: when a plan is due, what goes in, and what comes out.

A plan names the whole assignment, as moves from the present assignment. Points under way belong to their destination:
points asked for and not released, points free and not granted, and points with a copy under way. So a later plan does
not send a range back while the range is on its way. Points with a copy under way are fixed. Points with state and
without an owner are fixed, too, where copies or a name tell the next owner (pieces.py). Points that wait for a
name are no part of a plan.

| cause | due when | what moves |
|---|---|---|
| request | somebody asks for a move | the points asked for; if a change is due, everything |
| change | the members have changed and loads are known; an orphan exists | points without an owner; more for balance |
| leave | a leaving member owns points that no move takes away | the same |
| load | all is at rest, and two looks since then show a skew that a plan relieves | enough to balance the members |
| join bands | all is at rest, and a member has had touching bands for long enough | the bands, back to the member |

A short absence of a name is no reason to move state. While state waits for a name or goes back to a name, and no other
member is new, points with state stay with their owners. Loads are not looked at meanwhile. So restarted processes copy
no state.

The coordinator makes no plan for load or to join bands in its first two load intervals: loads are not heard yet.

Only the first plan parts partitions before loads are measured, and only for members that were started together and
outnumber the partitions. Otherwise members would be idle until loads are known. A partition gets two halves, no more:
two readers pay off at any cost of a record, and no plan would take a part back from a third reader. Points granted
before keep their cut: their load will be known, and their state lies with the owner.

A plan is made from values (a ``PlanQuestion``) and from the loads, which another thread may read. A small question is
answered at once. A large question is in ``needs``, and ``answer_of`` works the answer out in a thread. The answer
counts if the values are unchanged.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ..keyrange.hashing import SPACE_END
from ..offsets.control import LOAD, Member
from ..offsets.control_events import PlanMade
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import SourcePartition
from ..offsets.signals import MoveAsked
from .cells import CellState
from .copies import FixedPoints
from .members import members_dismissed
from .moves import moves_to_join
from .pieces import PlacePiece, overlaps
from .plan_moves import PlanQuestion, planned_moves
from .shares import NOBODY, PlanMember
from .view import JOIN, DecisionBatch, LoadsLook, Noted, PlanAnswer, View

CHANGE: Final = "change"
"""The cause of a plan that answers events of the control log."""
LEAVE: Final = "leave"
"""The cause of a plan that moves the points of a leaving member."""
REQUEST: Final = "request"
"""The cause of a plan that answers requests for moves."""
MOVES_MAX: Final = 2_000
"""The most moves in one event of a plan."""


def make_plan(view: View, turn: Turn) -> DecisionBatch:
    """A plan, if there is a cause and a member to own something."""
    question = _question_due(view)
    noted = Noted(view.control.group_epoch if _may_plan(view) and _is_changed(view) else None)
    if question is None:
        return DecisionBatch(noted=noted)
    if question.cause == JOIN:
        moves: list[PlannedMove] | None = moves_to_join(view)
    elif view.memory.answer is not None and view.memory.answer.key == question.key:
        moves = view.memory.answer.moves
    else:
        moves = None if question.size > view.rules.inline_max else answer_of(question).moves
    if moves is not None and question.cause == LOAD:
        # A plan for load needs two looks in a row that show a skew: this look, and the look before.
        was_skewed = view.memory.is_skewed
        noted = noted._replace(loads=LoadsLook(view.heard.loads.version, bool(moves) and not was_skewed))
        moves = moves if moves and was_skewed else None
    if moves is None:
        return DecisionBatch(noted=noted)
    control, cause = view.control, question.cause
    # The group epoch that the plan answers. A plan for load is a cause of its own: the fold counts one epoch more when
    # it takes the plan.
    answers = control.group_epoch + (cause == LOAD) if question.balances else control.moves.group_epoch
    chunks = [moves[i : i + MOVES_MAX] for i in range(0, len(moves), MOVES_MAX)] or [[]]
    plan = control.moves.plan + 1
    return DecisionBatch(
        [
            PlanMade(
                *turn.next(),
                plan=plan,
                group_epoch=answers,
                cause=cause,
                input=view.position,
                part=part,
                parts=len(chunks),
                moves=tuple(chunk),
            )
            for part, chunk in enumerate(chunks)
        ],
        tuple(request.request for request in question.requests),
        noted=noted,
    )


def open_question(view: View) -> PlanQuestion | None:
    """The question for the plan that is due, if the plan is too large to be made at once and has no answer yet."""
    question = _question_due(view)
    if question is None or question.cause == JOIN or question.size <= view.rules.inline_max:
        return None
    answer = view.memory.answer
    return None if answer is not None and answer.key == question.key else question


def answer_of(question: PlanQuestion) -> PlanAnswer:
    """The answer to a question: all moves from the present assignment to the planned assignment, without the moves that
    owners were already asked for.
    """
    return PlanAnswer(question.key, planned_moves(question))


# --- when a plan is due --------------------------------------------------------------------------------------------


def _question_due(view: View) -> PlanQuestion | None:
    """The question for the plan that is due now. None: no plan is due."""
    if not _may_plan(view):
        return None
    requests = tuple(view.heard.moves.values())
    is_time = _is_time(view)
    is_due = is_time and ((_is_changed(view) and _has_heard(view)) or _has_orphans(view))
    must_leave = is_time and not is_due and _has_leavers(view)
    if requests or is_due or must_leave:
        cause = REQUEST if requests else CHANGE if is_due else LEAVE
        return _question(view, cause, requests, balances=is_due or must_leave)
    if is_time and _may_weigh(view):
        return _question(view, LOAD, (), balances=True)
    if is_time and view.table.touching_ms and moves_to_join(view) and _is_at_rest(view):
        return _question(view, JOIN, (), balances=False)
    return None


def _may_plan(view: View) -> bool:
    """Whether there is a member to own something, and this coordinator knows the sources and the offset log. A
    coordinator that has not read the offset log would take every range for free.
    """
    return bool(view.staying_members) and not (view.unseen or view.unopened_logs or view.lacks_ends)


def _is_changed(view: View) -> bool:
    """Whether the control log has a cause that no plan has answered yet."""
    return view.control.group_epoch > view.control.moves.group_epoch


def _has_orphans(view: View) -> bool:
    """Whether free points have no move although a member can handle the topic. Points are orphans, for example, if the
    owner released them just after the withdrawal of the request.
    """
    return any(
        _is_orphan(view, piece)
        for place in view.places.free
        if place[0] in view.present.able
        for piece in view.table.pieces(place)
    )


def _is_orphan(view: View, piece: PlacePiece) -> bool:
    """Whether no move takes a free piece to the member that is to have the piece: a plan has to make such a move. A
    piece that waits for a name is no orphan.
    """
    if piece.state is not CellState.FREE or piece.heir is None:
        return False
    favoured = piece.move.target if piece.move is not None else NOBODY
    return favoured not in view.present.staying or piece.heir not in (NOBODY, favoured)


def _has_leavers(view: View) -> bool:
    """Whether a leaving member still works and owns points without a move that another member could have."""
    leaving = view.present.living.keys() - view.present.staying.keys() - {*members_dismissed(view)}
    return bool(leaving) and any(
        piece.is_held
        and piece.owner in leaving
        and (piece.move is None or piece.move.target not in view.present.staying)
        for place in view.control.started
        if place[0] in view.present.able
        for piece in view.table.pieces(place)
    )


def _is_time(view: View) -> bool:
    """Whether enough time has passed for a plan. A later plan of a coordinator waits for ``plan_interval_ms``. The
    first plan waits for all members started together, if their number is known, for a session at most. Otherwise the
    first plan waits for ``start_window_ms``, unless every free point has an heir. A process alone in sight waits for
    nobody.
    """
    seat, rules = view.memory, view.rules
    births = {*view.heard.join_requests, *(member.birth for member in view.living_members), seat.birth}
    if seat.planned_ms is not None:
        return len(births) == 1 or view.now_ms - seat.planned_ms >= rules.plan_interval_ms
    if _starts_together(view):
        return len(births) >= view.heard.expected or view.now_ms - seat.began_ms >= rules.session_ms
    return len(births) == 1 or view.now_ms - seat.began_ms >= rules.start_window_ms or _have_heirs(view)


def _starts_together(view: View) -> bool:
    """Whether the next plan is the first for members started together, before any member owns something."""
    is_first = view.memory.planned_ms is None and view.heard.expected > 1
    return is_first and not any(member.incarnation in view.control.points_owned for member in view.living_members)


def _has_heard(view: View) -> bool:
    """Whether a change may be answered: all loads are known, ``measure_ms`` is over, or points are free. The wait is
    short: a member tells its loads as soon as it has read of a join.
    """
    (epoch, seen_ms), loads = view.memory.epoch_seen, view.heard.loads
    waited_ms = view.now_ms - seen_ms if epoch == view.control.group_epoch else 0
    if view.places.free or waited_ms >= view.rules.measure_ms:
        return True
    return all(
        cell.state is not CellState.HELD or loads.cost(place, cell.first, cell.end) is not None
        for place in view.control.started
        for cell in view.cells(place)
    )


def _is_at_rest(view: View) -> bool:
    """Whether nothing is under way, and loads were measured since the last change."""
    seat, settle_ms = view.memory, view.rules.settle_ms
    since_ms = max(ms for ms in (seat.began_ms, seat.planned_ms, seat.moved_ms) if ms is not None)
    if view.control.moves.release_requests or view.now_ms - since_ms < settle_ms:
        return False
    return (
        not _has_waiting_moves(view)
        and not _awaited_names(view)
        and not any(
            piece.state is CellState.FREE and piece.move is not None
            for place in view.places.free
            for piece in view.table.pieces(place)
        )
    )


def _has_waiting_moves(view: View) -> bool:
    """Whether a planned move was not asked for yet: the move waits for a slot, for the budget or for a ready copy."""
    return any(
        cell.owner == move.origin and cell.state is CellState.HELD and overlaps(cell, move)
        for place in view.places.moving
        for move in view.table.moves(place)
        if move.origin != move.target and move.target in view.present.staying
        for cell in view.cells(place)
    )


def _have_heirs(view: View) -> bool:
    """Whether some points are free, no point is unread, and every free point has an heir among the present members."""
    if not view.places.free or view.places.unread:
        return False
    return all(
        piece.heir not in (NOBODY, None)
        for place in view.places.free
        for piece in view.table.pieces(place)
        if piece.state is CellState.FREE
    )


def _awaited_names(view: View) -> set[str]:
    """The names for which state waits, and the present names to which state goes back."""
    if view.control.members.keys() == view.present.living.keys():
        return set()  # without a gone member no points wait for a name
    owners = {
        piece.owner
        for place in view.places.unheld
        if place[0] in view.present.stateful
        for piece in view.table.pieces(place)
        if not piece.is_held
    }
    return {view.present.awaited[owner] for owner in owners if owner in view.present.awaited}


def _may_weigh(view: View) -> bool:
    """Whether a look at the loads is due: all is at rest, and there are new loads, or the last look showed a skew that
    a second look has to confirm.
    """
    seat, loads = view.memory, view.heard.loads
    if len(view.staying_members) < 2 or (loads.version == seat.loads_version and not seat.is_skewed):
        return False
    is_early = seat.loads_look_ms is not None and view.now_ms - seat.loads_look_ms < view.rules.load_interval_ms
    return not is_early and _is_at_rest(view)


# --- the question --------------------------------------------------------------------------------------------------


def _question(view: View, cause: str, requests: tuple[MoveAsked, ...], *, balances: bool) -> PlanQuestion:
    control = view.control
    members = tuple(_plan_member(member) for member in view.staying_members)
    names = tuple(request.request for request in requests)
    state_stays = _must_state_stay(view)
    key = (cause, balances, state_stays, view.position, tuple(member.incarnation for member in members), names)
    factors: dict[str, int] = {}
    for member in view.staying_members:
        for source in member.joined.topics:
            factors[source.topic] = min(source.factor, factors.get(source.topic, source.factor))
    whole = tuple(_ask_whole(request, factors) for request in requests)
    return PlanQuestion(
        key=key,
        cause=cause,
        balances=balances,
        number=control.moves.move_max,
        members=members,
        places={place: view.cells(place) for place in sorted(control.started)},
        pending={place: view.table.moves(place) for place in control.started},
        ways={place: view.table.requests(place) for place in control.started},
        asked=frozenset(control.moves.release_requests.keys() | control.moves.copies.keys()),
        fixed={place: fixed for place in control.started if (fixed := _fixed_points(view, place))},
        requests=whole,
        stateful=view.present.stateful,
        factors=factors,
        loads=view.heard.loads,
        halves=balances and _starts_together(view),
        state_stays=state_stays,
    )


def _fixed_points(view: View, place: SourcePartition) -> list[FixedPoints]:
    """Points that a plan may give only to one member, or to no member yet."""
    pieces = view.table.pieces(place)
    return [FixedPoints(piece.first, piece.end, piece.heir) for piece in pieces if piece.heir != NOBODY]


def _must_state_stay(view: View) -> bool:
    """Whether state waits for names or goes back to names, and every other member owns something already."""
    names = _awaited_names(view)
    return bool(names) and all(
        member.incarnation in view.control.points_owned or member.joined.instance in names
        for member in view.staying_members
    )


def _ask_whole(request: MoveAsked, factors: Mapping[str, int]) -> MoveAsked:
    """Widen a request to the whole partition if the topic is declared with a single worker."""
    if factors.get(request.topic) != 1:
        return request
    return msgspec.structs.replace(request, first=0, end=SPACE_END)


def _plan_member(member: Member) -> PlanMember:
    topics = frozenset(source.topic for source in member.joined.topics)
    return PlanMember(member.incarnation, member.joined.capacity or 1.0, topics)
