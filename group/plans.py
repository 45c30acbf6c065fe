"""PURE. The coordinator's row about plans: when a plan is due, what goes in, and what comes out.

A plan names the whole assignment, as moves from the present assignment. Points under way belong to their destination:
points asked for and not released, points free and not granted, and points with a copy under way. So a later plan does
not send a range back while the range is on its way. Points with a copy under way are fixed. Points with state and
without an owner are fixed, too, where copies or a name tell the next owner (copy_requests.py). Points that wait for a
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

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ..keyrange.hashing import SPACE_END
from ..offsets.control import LOAD, Member
from ..offsets.control_events import PlanMade
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove
from ..offsets.signals import MoveAsked
from .cells import CellState
from .copies import copies_by_place, spans_of
from .copy_requests import awaited_names, fixed_points, have_heirs, is_orphan
from .members import members_dismissed
from .moves import cut_by, moves_pending, moves_to_join, newest, on_their_way, overlaps
from .plan_moves import PlanQuestion, planned_moves
from .shares import PlanMember
from .view import JOIN, DecisionBatch, PlanAnswer, View

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
    if question is None:
        return DecisionBatch()
    if question.cause == JOIN:
        moves: list[PlannedMove] | None = moves_to_join(view)
    elif view.memory.answer is not None and view.memory.answer.key == question.key:
        moves = view.memory.answer.moves
    else:
        moves = None if question.size > view.rules.inline_max else answer_of(question).moves
    if moves is None or (question.cause == LOAD and not _confirms_skew(view, moves)):
        return DecisionBatch()
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
    )


def _confirms_skew(view: View, moves: Sequence[PlannedMove]) -> bool:
    """Whether this look at the loads and the look before both show a skew. Note this look in the coordinator's memory.
    ``moves``: the moves that would relieve a member now.
    """
    seat, was_skewed = view.memory, view.memory.is_skewed
    seat.loads_version, seat.loads_look_ms = view.heard.loads.version, view.now_ms
    seat.is_skewed, seat.answer = bool(moves) and not was_skewed, None
    return bool(moves) and was_skewed


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
    # A coordinator that has not read the offset log would take every range for free.
    if not view.staying_members or view.unseen or view.unopened_logs or view.lacks_ends:
        return None
    control, requests = view.control, tuple(view.heard.moves.values())
    is_time = _is_time(view)
    is_changed = control.group_epoch > control.moves.group_epoch and _has_heard(view)
    is_due = is_time and (is_changed or _has_orphans(view))
    must_leave = is_time and not is_due and _has_leavers(view)
    if requests or is_due or must_leave:
        cause = REQUEST if requests else CHANGE if is_due else LEAVE
        return _question(view, cause, requests, balances=is_due or must_leave)
    if is_time and _may_weigh(view):
        return _question(view, LOAD, (), balances=True)
    if is_time and _is_at_rest(view) and moves_to_join(view):
        return _question(view, JOIN, (), balances=False)
    return None


def _has_orphans(view: View) -> bool:
    """Whether free points have no move although a member can handle the topic. Points are orphans, for example, if the
    owner released them just after the withdrawal of the request.
    """
    if not view.cell_cache.free:
        return False
    staying = {member.incarnation for member in view.staying_members}
    topics = {source.topic for member in view.staying_members for source in member.joined.topics}
    planned, copies = moves_pending(view), copies_by_place(view)
    return any(
        cell.state is CellState.FREE and is_orphan(view, place, cell, moves, own, staying)
        for place in view.cell_cache.free
        if place[0] in topics
        for moves, own in ((planned.get(place, ()), copies.get(place, ())),)
        for cell in (cut_by(view.cells(place), spans_of(own)) if own else view.cells(place))
    )


def _has_leavers(view: View) -> bool:
    """Whether a leaving member still works and owns points without a move that another member could have."""
    staying = {member.incarnation for member in view.staying_members}
    leaving = {member.incarnation for member in view.living_members} - staying - {*members_dismissed(view)}
    if not leaving:
        return False
    topics = {source.topic for member in view.staying_members for source in member.joined.topics}
    planned = moves_pending(view)
    return any(
        cell.owner in leaving
        and cell.state is CellState.HELD
        and ((move := newest(planned.get(place, ()), cell)) is None or move.target not in staying)
        for place in view.control.started
        if place[0] in topics
        for cell in view.cells(place)
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
    return len(births) == 1 or view.now_ms - seat.began_ms >= rules.start_window_ms or have_heirs(view)


def _starts_together(view: View) -> bool:
    """Whether the next plan is the first for members started together, before any member owns something."""
    is_first = view.memory.planned_ms is None and view.heard.expected > 1
    return is_first and not any(member.incarnation in view.control.points_owned for member in view.living_members)


def _has_heard(view: View) -> bool:
    """Whether a change may be answered: all loads are known, ``measure_ms`` is over, or points are free. The wait is
    short: a member tells its loads as soon as it has read of a join.
    """
    seat, epoch, loads = view.memory, view.control.group_epoch, view.heard.loads
    if seat.epoch_seen[0] != epoch:
        seat.epoch_seen = epoch, view.now_ms
    if view.cell_cache.free or view.now_ms - seat.epoch_seen[1] >= view.rules.measure_ms:
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
        and not awaited_names(view)
        and not any(
            cell.state is CellState.FREE and newest(moves, cell) is not None
            for place, moves in (moves_pending(view).items() if view.cell_cache.free else ())
            if place in view.cell_cache.free
            for cell in view.cells(place)
        )
    )


def _has_waiting_moves(view: View) -> bool:
    """Whether a planned move was not asked for yet: the move waits for a slot, for the budget or for a ready copy."""
    staying = {member.incarnation for member in view.staying_members}
    living = {member.incarnation for member in view.living_members}
    return any(
        cell.owner == move.origin and cell.state is CellState.HELD and overlaps(cell, move)
        for move in view.control.moves.planned.values()
        if move.origin != move.target and move.origin in living and move.target in staying
        for cell in view.cells(move.topic_partition)
    )


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
        pending=moves_pending(view),
        ways=on_their_way(view),
        asked=frozenset(control.moves.release_requests.keys() | control.moves.copies.keys()),
        fixed=fixed_points(view),
        requests=whole,
        stateful=view.stateful,
        factors=factors,
        loads=view.heard.loads,
        halves=balances and _starts_together(view),
        state_stays=state_stays,
    )


def _must_state_stay(view: View) -> bool:
    """Whether state waits for names or goes back to names, and every other member owns something already."""
    names = awaited_names(view)
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
