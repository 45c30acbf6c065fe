"""PURE. The coordinator's row about plans: when a plan is due, what goes in, and what comes out.

A plan names the whole assignment, as moves from the present assignment. Points under way belong to their destination:
points asked for and not released, points free and not granted, and points with a copy under way. So a later plan does
not send a range back while the range is on its way. Points with a copy under way are fixed. Points with state and
without an owner are fixed, too, where copies or a name tell the next owner (learning.py). Points that wait for a name
are no part of a plan.

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

A plan is made from values (a ``Question``) and from the loads, which another thread may read. A small question is
answered at once. A large question is in ``needs``, and ``answer_of`` works the answer out in a thread. The answer
counts if the values are unchanged.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

import msgspec

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import even_bounds
from ..offsets.control import LOAD, Member
from ..offsets.control_events import PlanMade, ReleaseAsked
from ..offsets.decide import Turn
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import Place
from ..offsets.signals import MoveAsked
from .cells import Cell, CellState
from .copies import Fixed, kept_of, spans_of
from .learning import awaited_names, fixed_points, have_heirs, is_orphan
from .loads import Loads
from .members import members_dismissed
from .moves import cut_by, moves_pending, moves_to_join, newest, on_their_way, overlaps
from .shares import NOBODY, Share, Shift, Taker
from .target import GAIN_US, solve
from .view import JOIN, DecisionBatch, PlanAnswer, View

CHANGE: Final = "change"
"""The cause of a plan that answers events of the control log."""
LEAVE: Final = "leave"
"""The cause of a plan that moves the points of a leaving member."""
REQUEST: Final = "request"
"""The cause of a plan that answers requests for moves."""
MOVES_MAX: Final = 2_000
"""The most moves in one event of a plan."""


class Question(NamedTuple):
    """All input of a plan. ``key``: an answer counts for a question with an equal key; ``cause``: of the plan;
    ``levels``: whether the members are balanced, beside the answer to requests; ``number``: the highest number that a
    move had; ``takers``: the staying members.

    ``places``: the cells of each place; ``pending``, ``ways``: moves and requests to release under way, by place;
    ``asked``: moves that no plan changes; ``fixed``: points for one target only, by place; ``stateful``: topics with
    stores; ``factors``: the most parts of a partition, by topic; ``halves``: partitions never granted may be halved for
    members with nothing; ``state_stays``: of points with an owner, only points without state move.
    """

    key: Hashable
    cause: str
    levels: bool
    number: int
    takers: tuple[Taker, ...]
    places: dict[Place, list[Cell]]
    pending: dict[Place, list[PlannedMove]]
    ways: dict[Place, list[ReleaseAsked]]
    asked: frozenset[int]
    fixed: dict[Place, list[Fixed]]
    requests: tuple[MoveAsked, ...]
    stateful: frozenset[str]
    factors: dict[str, int]
    loads: Loads
    halves: bool
    state_stays: bool

    @property
    def size(self) -> int:
        """About the number of shares times the number of members."""
        return sum(map(len, self.places.values())) * len(self.takers)


def make_plan(view: View, turn: Turn) -> DecisionBatch:
    """A plan, if there is a cause and a member to own something."""
    question = _question_due(view)
    if question is None:
        return DecisionBatch()
    if question.cause == JOIN:
        moves: list[PlannedMove] | None = moves_to_join(view)
    elif view.seat.answer is not None and view.seat.answer.key == question.key:
        moves = view.seat.answer.moves
    else:
        moves = None if question.size > view.rules.inline_max else answer_of(question).moves
    if moves is None or (question.cause == LOAD and not _confirms_skew(view, moves)):
        return DecisionBatch()
    control, cause = view.control, question.cause
    # The group epoch that the plan answers. A plan for load is a cause of its own: the fold counts one epoch more when
    # it takes the plan.
    answers = control.group_epoch + (cause == LOAD) if question.levels else control.moves.group_epoch
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
    seat, was_skewed = view.seat, view.seat.is_skewed
    seat.weighed, seat.weighed_ms = view.heard.loads.version, view.now_ms
    seat.is_skewed, seat.answer = bool(moves) and not was_skewed, None
    return bool(moves) and was_skewed


def open_question(view: View) -> Question | None:
    """The question for the plan that is due, if the plan is too large to be made at once and has no answer yet."""
    question = _question_due(view)
    if question is None or question.cause == JOIN or question.size <= view.rules.inline_max:
        return None
    answer = view.seat.answer
    return None if answer is not None and answer.key == question.key else question


def answer_of(question: Question) -> PlanAnswer:
    """The answer to a question: all moves from the present assignment to the planned assignment, without the moves that
    owners were already asked for.
    """
    return PlanAnswer(question.key, _moves(question))


# --- when a plan is due --------------------------------------------------------------------------------------------


def _question_due(view: View) -> Question | None:
    """The question for the plan that is due now. None: no plan is due."""
    # A coordinator that has not read the offset log would take every range for free.
    if not view.staying or view.unseen or view.unopened or view.lacks_ends:
        return None
    control, requests = view.control, tuple(view.heard.moves.values())
    is_time = _is_time(view)
    is_changed = control.group_epoch > control.moves.group_epoch and _has_heard(view)
    is_due = is_time and (is_changed or _has_orphans(view))
    must_leave = is_time and not is_due and _has_leavers(view)
    if requests or is_due or must_leave:
        cause = REQUEST if requests else CHANGE if is_due else LEAVE
        return _question(view, cause, requests, levels=is_due or must_leave)
    if is_time and _may_weigh(view):
        return _question(view, LOAD, (), levels=True)
    if is_time and _is_at_rest(view) and moves_to_join(view):
        return _question(view, JOIN, (), levels=False)
    return None


def _has_orphans(view: View) -> bool:
    """Whether free points have no move although a member can handle the topic. Points are orphans, for example, if the
    owner released them just after the withdrawal of the request.
    """
    if not view.standings.free:
        return False
    staying = {member.incarnation for member in view.staying}
    topics = {source.topic for member in view.staying for source in member.joined.topics}
    planned, copies = moves_pending(view), kept_of(view)
    return any(
        cell.standing is CellState.FREE and is_orphan(view, place, cell, moves, own, staying)
        for place in view.standings.free
        if place[0] in topics
        for moves, own in ((planned.get(place, ()), copies.get(place, ())),)
        for cell in (cut_by(view.cells(place), spans_of(own)) if own else view.cells(place))
    )


def _has_leavers(view: View) -> bool:
    """Whether a leaving member still works and owns points without a move that another member could have."""
    staying = {member.incarnation for member in view.staying}
    leaving = {member.incarnation for member in view.living} - staying - {*members_dismissed(view)}
    if not leaving:
        return False
    topics = {source.topic for member in view.staying for source in member.joined.topics}
    planned = moves_pending(view)
    return any(
        cell.owner in leaving
        and cell.standing is CellState.HELD
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
    seat, rules = view.seat, view.rules
    births = {*view.heard.asked, *(member.birth for member in view.living), seat.birth}
    if seat.planned_ms is not None:
        return len(births) == 1 or view.now_ms - seat.planned_ms >= rules.plan_interval_ms
    if _starts_together(view):
        return len(births) >= view.heard.expected or view.now_ms - seat.began_ms >= rules.session_ms
    return len(births) == 1 or view.now_ms - seat.began_ms >= rules.start_window_ms or have_heirs(view)


def _starts_together(view: View) -> bool:
    """Whether the next plan is the first for members started together, before any member owns something."""
    is_first = view.seat.planned_ms is None and view.heard.expected > 1
    return is_first and not any(member.incarnation in view.control.held for member in view.living)


def _has_heard(view: View) -> bool:
    """Whether a change may be answered: all loads are known, ``measure_ms`` is over, or points are free. The wait is
    short: a member tells its loads as soon as it has read of a join.
    """
    seat, epoch, loads = view.seat, view.control.group_epoch, view.heard.loads
    if seat.changed[0] != epoch:
        seat.changed = epoch, view.now_ms
    if view.standings.free or view.now_ms - seat.changed[1] >= view.rules.measure_ms:
        return True
    return all(
        cell.standing is not CellState.HELD or loads.cost(place, cell.first, cell.end) is not None
        for place in view.control.started
        for cell in view.cells(place)
    )


def _is_at_rest(view: View) -> bool:
    """Whether nothing is under way, and loads were measured since the last change."""
    seat, settle_ms = view.seat, view.rules.settle_ms
    since_ms = max(ms for ms in (seat.began_ms, seat.planned_ms, seat.moved_ms) if ms is not None)
    if view.control.moves.asked or view.now_ms - since_ms < settle_ms:
        return False
    return (
        not _has_waiting_moves(view)
        and not awaited_names(view)
        and not any(
            cell.standing is CellState.FREE and newest(moves, cell) is not None
            for place, moves in (moves_pending(view).items() if view.standings.free else ())
            if place in view.standings.free
            for cell in view.cells(place)
        )
    )


def _has_waiting_moves(view: View) -> bool:
    """Whether a planned move was not asked for yet: the move waits for a slot, for the budget or for a ready copy."""
    staying = {member.incarnation for member in view.staying}
    living = {member.incarnation for member in view.living}
    return any(
        cell.owner == move.origin and cell.standing is CellState.HELD and overlaps(cell, move)
        for move in view.control.moves.planned.values()
        if move.origin != move.target and move.origin in living and move.target in staying
        for cell in view.cells(move.topic_partition)
    )


def _may_weigh(view: View) -> bool:
    """Whether a look at the loads is due: all is at rest, and there are new loads, or the last look showed a skew that
    a second look has to confirm.
    """
    seat, loads = view.seat, view.heard.loads
    if len(view.staying) < 2 or (loads.version == seat.weighed and not seat.is_skewed):
        return False
    is_early = seat.weighed_ms is not None and view.now_ms - seat.weighed_ms < view.rules.load_interval_ms
    return not is_early and _is_at_rest(view)


# --- the question --------------------------------------------------------------------------------------------------


def _question(view: View, cause: str, requests: tuple[MoveAsked, ...], *, levels: bool) -> Question:
    control = view.control
    takers = tuple(_taker(member) for member in view.staying)
    names = tuple(request.request for request in requests)
    state_stays = _must_state_stay(view)
    key = (cause, levels, state_stays, view.position, tuple(taker.incarnation for taker in takers), names)
    factors: dict[str, int] = {}
    for member in view.staying:
        for source in member.joined.topics:
            factors[source.topic] = min(source.factor, factors.get(source.topic, source.factor))
    whole = tuple(_ask_whole(request, factors) for request in requests)
    return Question(
        key=key,
        cause=cause,
        levels=levels,
        number=control.moves.move_max,
        takers=takers,
        places={place: view.cells(place) for place in sorted(control.started)},
        pending=moves_pending(view),
        ways=on_their_way(view),
        asked=frozenset(control.moves.asked.keys() | control.moves.copies.keys()),
        fixed=fixed_points(view),
        requests=whole,
        stateful=view.stateful,
        factors=factors,
        loads=view.heard.loads,
        halves=levels and _starts_together(view),
        state_stays=state_stays,
    )


def _must_state_stay(view: View) -> bool:
    """Whether state waits for names or goes back to names, and every other member owns something already."""
    names = awaited_names(view)
    return bool(names) and all(
        member.incarnation in view.control.held or member.joined.instance in names for member in view.staying
    )


def _ask_whole(request: MoveAsked, factors: Mapping[str, int]) -> MoveAsked:
    """Widen a request to the whole partition if the topic is declared with a single worker."""
    if factors.get(request.topic) != 1:
        return request
    return msgspec.structs.replace(request, first=0, end=SPACE_END)


def _taker(member: Member) -> Taker:
    topics = frozenset(source.topic for source in member.joined.topics)
    return Taker(member.incarnation, member.joined.capacity or 1.0, topics)


# --- the answer ----------------------------------------------------------------------------------------------------


def _moves(question: Question) -> list[PlannedMove]:
    """The moves of a plan. The solver says who shall have the shares. Then requests take precedence over the solver."""
    shares = _shares(question)
    staying = {taker.incarnation for taker in question.takers}
    parts = _parts_by_share(question, list(shares), staying)
    number, moves = question.number, list[PlannedMove]()
    for share, (cell, on_its_way) in sorted(shares.items(), key=lambda item: item[0][:4]):
        asked = None if share.is_fixed else _last_request(share, cell.epoch, question.requests)
        # A request without a named member is done when the points have a new epoch: even the owner may get them back.
        needs_new_epoch = asked is not None and not asked.target
        if asked is not None:
            target = _target_of(asked, share, question, list(shares))
            parts[share] = [
                Shift(share=share, first=share.first, end=share.end, target=target, gain=0.0, cost_us=share.cost_us)
            ]
        origin = _working_owner(cell)
        for _, first, end, wanted, gain, cost_us in parts[share]:
            if wanted == NOBODY or wanted not in staying or (on_its_way and on_its_way.target == wanted):
                continue
            if wanted != origin or needs_new_epoch:
                number += 1
                state_bytes = share.state_bytes * (end - first) // share.points
                move = PlannedMove(
                    move=number,
                    topic=share.topic,
                    partition=share.partition,
                    first=first,
                    end=end,
                    origin=origin,
                    target=wanted,
                    state_bytes=state_bytes,
                    gain=gain if origin else 0.0,
                    cost_us=cost_us,
                )
                moves.append(move)
    return moves


def _parts_by_share(question: Question, shares: Sequence[Share], staying: Collection[int]) -> dict[Share, list[Shift]]:
    """The parts of each share, in order of points, as shifts to a new owner or to the present owner."""
    parts = {
        share: [
            Shift(share=share, first=share.first, end=share.end, target=share.owner, gain=0.0, cost_us=share.cost_us)
        ]
        for share in shares
    }
    if not question.levels:
        return parts
    stays = {share for share in shares if question.state_stays and share.has_state and share.owner in staying}
    originals = {share._replace(is_fixed=share.is_fixed or share in stays): share for share in shares}
    floor_us = GAIN_US if question.cause == LOAD else 0
    for shift in solve(question.takers, list(originals), floor_us=floor_us):
        own = parts[originals[shift.share]]
        rest = own.pop()._replace(gain=0.0, cost_us=0)  # shifts of a share come in order of points
        own += [rest._replace(end=shift.first)] if rest.first < shift.first else []
        own.append(shift)
        own += [rest._replace(first=shift.end)] if shift.end < rest.end else []
    return parts


def _shares(question: Question) -> dict[Share, tuple[Cell, PlannedMove | None]]:
    """The shares to distribute, each with its cell. The value has a move, too, if the move was asked for already: its
    release or its copy.
    """
    staying = {taker.incarnation for taker in question.takers}
    shares: dict[Share, tuple[Cell, PlannedMove | None]] = {}
    halved = _places_to_halve(question)
    for place, found in question.places.items():
        requested = [request for request in question.requests if request.topic_partition == place]
        parts = _halves(found, question.factors[place[0]]) if place in halved else found
        fixes = question.fixed.get(place, ())
        for cell in cut_by(parts, [*requested, *question.ways.get(place, ()), *fixes]):
            begun = newest(question.pending.get(place, ()), cell)
            if begun is not None and begun.target not in staying:
                begun = None
            is_free = cell.standing is CellState.FREE
            is_asked = begun is not None and begun.move in question.asked
            # A plan replaces all moves that have not begun. So a plan that balances nothing repeats these moves.
            is_repeated = begun is not None and not question.levels and begun.origin == _working_owner(cell)
            # Points under way belong to their destination: a plan begins there.
            is_under_way = is_free or is_asked or is_repeated
            owner = begun.target if begun is not None and is_under_way else _working_owner(cell)
            if (fix := next((f for f in fixes if f.first <= cell.first and cell.end <= f.end), None)) is not None:
                if fix.target is None:
                    continue
                owner = fix.target
            share = Share(
                topic=place[0],
                partition=place[1],
                first=cell.first,
                end=cell.end,
                owner=owner,
                has_state=place[0] in question.stateful,
            )
            share = _with_costs(share, question)._replace(is_fixed=fix is not None)
            shares[share] = cell, begun if is_asked else None
    return shares


def _places_to_halve(question: Question) -> frozenset[Place]:
    """The places that the first plan halves: whole partitions never granted, as many as there are members that would
    have nothing. All members must handle the same topics.
    """
    topics = {taker.topics for taker in question.takers}
    if not question.halves or len(topics) != 1:
        return frozenset()
    able = [place for place in question.places if place[0] in question.takers[0].topics]
    idle = len(question.takers) - sum(len(question.places[place]) for place in able)
    new = (
        place
        for place in able
        if [cell.epoch for cell in question.places[place]] == [0] and question.factors[place[0]] > 1
    )
    return frozenset(islice(new, max(0, idle)))


def _halves(found: Sequence[Cell], factor: int) -> list[Cell]:
    """Two halves of a whole partition, cut at the middle bound of the declared cut. ``found``: the only cell."""
    (whole,), middle = found, even_bounds(factor)[factor // 2]
    return [whole._replace(end=middle), whole._replace(first=middle)]


def _with_costs(share: Share, question: Question) -> Share:
    """The share with its cost, and with the cells of the declared cut if parting the share may pay."""
    cost = question.loads.cost(share.topic_partition, share.first, share.end)
    if cost is None:
        return share
    cells: tuple[tuple[int, int], ...] = ()
    if cost.busy_us_per_s >= GAIN_US:
        cells = _parts_of(share, question.factors.get(share.topic, 1), question.loads)
    return share._replace(
        busy_us_per_s=cost.busy_us_per_s,
        records_per_s=cost.records_per_s,
        backlog=cost.backlog,
        state_bytes=cost.state_bytes,
        cells=cells,
    )


def _parts_of(share: Share, factor: int, loads: Loads) -> tuple[tuple[int, int], ...]:
    """The cells of the declared cut in a share, each with its load."""
    if factor < 2:
        return ()
    inside = [at for at in even_bounds(factor) if share.first < at < share.end]
    parts: list[tuple[int, int]] = []
    for a, b in pairwise([share.first, *inside, share.end]):
        cost = loads.cost(share.topic_partition, a, b)
        if cost is None:  # a report came in meanwhile
            return ()
        parts.append((a, cost.busy_us_per_s))
    return tuple(parts) if len(parts) > 1 else ()


def _working_owner(cell: Cell) -> int:
    """The member that works on the points of a cell; ``NOBODY``: no member may commit for the points."""
    return cell.owner if cell.standing is CellState.HELD else NOBODY


def _last_request(share: Share, epoch: int, requests: Sequence[MoveAsked]) -> MoveAsked | None:
    """The last request over a share at an epoch. A request for another epoch is late."""
    own = [asked for asked in requests if asked.topic_partition == share[:2]]
    over = [asked for asked in own if asked.first <= share.first and share.end <= asked.end]
    over = [asked for asked in over if asked.epoch in (0, epoch)]
    return over[-1] if over else None


def _target_of(asked: MoveAsked, share: Share, question: Question, shares: Sequence[Share]) -> int:
    """The target of a request for a share: the named member, else the best other member, else the present owner.
    ``NOBODY``: the named member can't have the share.
    """
    able = [taker for taker in question.takers if share.topic in taker.topics]
    if asked.target:
        return asked.target if asked.target in {taker.incarnation for taker in able} else NOBODY
    others = [taker for taker in able if taker.incarnation != share.owner] or able
    unowned = share._replace(owner=NOBODY)
    shifts = solve(others, [unowned, *(one for one in shares if one.owner != share.owner)], levels=False)
    return next((shift.target for shift in shifts if shift.share is unowned), NOBODY)
