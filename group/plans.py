"""PURE. The coordinator's row about plans: when a plan is due, what goes in, and what comes out.

A plan names the whole assignment, as moves from the present assignment. Points under way belong to their destination:
points asked for and not released, points free and not granted, and points with a copy under way. So later plans do not
send a range here and there. Points with a copy under way are fixed. Points with state and without an owner are fixed,
too, where copies or a name tell the next owner (learning.py). Points that wait for a name are no part of a plan.

| cause | due when | what moves |
|---|---|---|
| request | somebody asks for a move | the points asked for; if a change is due, everything |
| change | the members have changed and loads are known; an orphan exists | points without an owner; more for balance |
| leave | a leaving member owns points that no move takes away | the same |
| load | all is at rest, and two looks since then show a skew that a plan relieves | enough to balance the members |
| join bands | all is at rest, and a member has had touching bands for long enough | the bands, back to the member |

A short absence of a name is no reason to move state. While state waits for a name or goes back to it, and no other
member is new, state stays where it is. Loads are not looked at meanwhile. So restarted processes copy no state.

The coordinator makes no plan of its own wish in its first two load intervals: loads are not heard yet.

Only the first plan parts partitions before loads are measured. The plan must be for members that were started together
and outnumber the partitions. So no member is idle until loads are known. A partition gets two halves, no more: two
readers pay off at any cost of a record, and no plan would take a part back from a third reader. Points granted before
keep their cut: the load will be known, and the state lies there.

A plan is made from values (a ``Question``) and from the loads, which another thread may read. A small question is
answered at once. A large question is in ``needs``, and ``answer_of`` works the answer out in a thread. The answer
counts if the values are unchanged.
"""

from collections.abc import Hashable, Mapping, Sequence
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
from .moves import cut_by, moves_pending, newest, on_their_way, overlaps
from .shares import NOBODY, Share, Taker
from .standings import touch
from .target import GAIN_US, solve
from .view import JOIN, DecisionBatch, PlanAnswer, View

CHANGE: Final = "change"
"""The cause of a plan that answers events of the control log."""
LEAVE: Final = "leave"
"""The cause of a plan that moves the points of a leaving member."""
REQUEST: Final = "request"
JOIN_AGAIN: Final = 6
"""A place is tried again after this many times ``join_ms``."""
MOVES_MAX: Final = 2_000
"""The most moves in one event of a plan."""


class Question(NamedTuple):
    """All input of a plan. ``places``: the cells of each place; ``pending``, ``ways``: moves and requests to release
    under way, by place; ``asked``: moves that no plan changes; ``fixed``: points for one target only, by place;
    ``stateful``: topics with stores; ``factors``: the most parts of a partition, by topic; ``number``: the highest
    number of a move; ``halves``: partitions never granted may be halved for members with nothing; ``state_stays``: of
    points with an owner, only points without state move.
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
        moves: list[PlannedMove] | None = _moves_to_join(view)
    elif view.seat.answer is not None and view.seat.answer.key == question.key:
        moves = view.seat.answer.moves
    else:
        moves = None if question.size > view.rules.inline_max else answer_of(question).moves
    if moves is None:
        return DecisionBatch()
    control, cause = view.control, question.cause
    if cause == LOAD:
        seat, was_skewed = view.seat, view.seat.is_skewed
        seat.weighed, seat.weighed_ms = view.heard.loads.version, view.now_ms
        seat.is_skewed, seat.answer = bool(moves) and not was_skewed, None
        if not moves or not was_skewed:
            return DecisionBatch()
    # A plan for load is a cause of its own. The fold counts the cause when it takes the plan.
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


def open_question(view: View) -> Question | None:
    """The plan that is due and too large to be made at once."""
    question = _question_due(view)
    if question is None or question.cause == JOIN or question.size <= view.rules.inline_max:
        return None
    answer = view.seat.answer
    return None if answer is not None and answer.key == question.key else question


def answer_of(question: Question) -> PlanAnswer:
    """All moves from the present assignment to the planned assignment, without moves that are asked for already."""
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
    is_left = is_time and not is_due and _has_leavers(view)
    if requests or is_due or is_left:
        cause = REQUEST if requests else CHANGE if is_due else LEAVE
        return _question(view, cause, requests, levels=is_due or is_left)
    if is_time and _may_weigh(view):
        return _question(view, LOAD, (), levels=True)
    if is_time and _is_at_rest(view) and _moves_to_join(view):
        return _question(view, JOIN, (), levels=False)
    return None


def _has_orphans(view: View) -> bool:
    """Whether free points have no move although a member can handle the topic. Points released just after the
    withdrawal of the request are orphans.
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
    """Whether a plan may be made now. A process alone in sight waits for nobody. The first plan waits for all members
    started together, if their number is known, for a session at most. Otherwise the plan waits for a short time, unless
    every free point has an heir.
    """
    seat, rules = view.seat, view.rules
    there = {*view.heard.asked, *(member.birth for member in view.living), seat.birth}
    if seat.planned_ms is not None:
        return len(there) == 1 or view.now_ms - seat.planned_ms >= rules.plan_interval_ms
    if _starts_together(view):
        return len(there) >= view.heard.expected or view.now_ms - seat.began_ms >= rules.session_ms
    return len(there) == 1 or view.now_ms - seat.began_ms >= rules.start_window_ms or have_heirs(view)


def _starts_together(view: View) -> bool:
    """Whether the next plan is the first for members started together, before any member owns something."""
    is_first = view.seat.planned_ms is None and view.heard.expected > 1
    return is_first and not any(member.incarnation in view.control.held for member in view.living)


def _has_heard(view: View) -> bool:
    """Whether a change may be answered: all loads are known, the time to wait is over, or points are free. Each working
    member tells its loads after reading of a join.
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
        not _waits(view)
        and not awaited_names(view)
        and not any(
            cell.standing is CellState.FREE and newest(moves, cell) is not None
            for place, moves in (moves_pending(view).items() if view.standings.free else ())
            if place in view.standings.free
            for cell in view.cells(place)
        )
    )


def _waits(view: View) -> bool:
    """Whether a planned move was not asked for yet: a slot, budget or a finished copy is missing."""
    staying = {member.incarnation for member in view.staying}
    living = {member.incarnation for member in view.living}
    return any(
        cell.owner == move.origin and cell.standing is CellState.HELD and overlaps(cell, move)
        for move in view.control.moves.planned.values()
        if move.origin != move.target and move.origin in living and move.target in staying
        for cell in view.cells(move.topic_partition)
    )


def _may_weigh(view: View) -> bool:
    """Whether a new look at the loads may show something new."""
    seat, loads = view.seat, view.heard.loads
    if len(view.staying) < 2 or (loads.version == seat.weighed and not seat.is_skewed):
        return False
    is_early = seat.weighed_ms is not None and view.now_ms - seat.weighed_ms < view.rules.load_interval_ms
    return not is_early and _is_at_rest(view)


# --- what it is made of --------------------------------------------------------------------------------------------


def _question(view: View, cause: str, requests: tuple[MoveAsked, ...], *, levels: bool) -> Question:
    control = view.control
    takers = tuple(_taker(member) for member in view.staying)
    names = tuple(request.request for request in requests)
    state_stays = _comes_back(view)
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


def _comes_back(view: View) -> bool:
    """Whether state waits for names or goes back to them, and every other member owns something."""
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


def _moves_to_join(view: View) -> list[PlannedMove]:
    """Moves that join the touching bands of one place: from the owner to the owner."""
    rules, seat = view.rules, view.seat
    staying = {member.incarnation for member in view.staying}
    for place, since_ms in sorted(view.standings.touching_ms.items()):
        tried_ms = seat.joined_ms.get(place)
        if view.now_ms - since_ms < rules.join_ms:
            continue
        if tried_ms is not None and view.now_ms - tried_ms < JOIN_AGAIN * rules.join_ms:
            continue
        run: list[Cell] = []
        for a, b in pairwise(view.cells(place)):
            if touch(a, b) and a.owner in staying:
                run = run or [a]
                run.append(b)
            elif run:
                break
        first = view.control.moves.move_max + 1
        if run:
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
                for n, cell in enumerate(run)
            ]
    return []


# --- the answer ----------------------------------------------------------------------------------------------------


def _moves(question: Question) -> list[PlannedMove]:
    shares = _shares(question)
    staying = {taker.incarnation for taker in question.takers}
    parts = {share: [(share.first, share.end, share.owner, 0.0, share.cost_us)] for share in shares}
    if question.levels:
        stays = {share for share in shares if question.state_stays and share.has_state and share.owner in staying}
        known = {share._replace(is_fixed=share.is_fixed or share in stays): share for share in shares}
        floor_us = GAIN_US if question.cause == LOAD else 0
        for shift in solve(question.takers, list(known), floor_us=floor_us):
            rest = parts[known[shift.share]]
            first, end, owner, *_ = rest.pop()
            rest += [(first, shift.first, owner, 0.0, 0)] if first < shift.first else []
            rest.append((shift.first, shift.end, shift.target, shift.gain, shift.cost_us))
            rest += [(shift.end, end, owner, 0.0, 0)] if shift.end < end else []
    number, moves = question.number, list[PlannedMove]()
    for share, (cell, on_its_way) in sorted(shares.items(), key=lambda item: item[0][:4]):
        asked = None if share.is_fixed else _last_request(share, cell.epoch, question.requests)
        goes_and_comes = asked is not None and not asked.target  # given up even if nobody else can have them
        if asked is not None:
            target = _target_of(asked, share, question, list(shares))
            parts[share] = [(share.first, share.end, target, 0.0, share.cost_us)]
        origin = _owner(cell)
        for first, end, wanted, gain, cost_us in parts[share]:
            if wanted == NOBODY or wanted not in staying or (on_its_way and on_its_way.target == wanted):
                continue
            if wanted != origin or goes_and_comes:
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


def _shares(question: Question) -> dict[Share, tuple[Cell, PlannedMove | None]]:
    """The shares to distribute, each with its cell, and with the move whose release was asked for."""
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
            is_to_come = begun is not None and not question.levels and begun.origin == _owner(cell)
            # Points under way belong to their destination: a plan begins there.
            owner = begun.target if begun is not None and (is_free or is_asked or is_to_come) else _owner(cell)
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
    """The places that the first plan halves: whole partitions never granted, as many as there are members with nothing.
    All members must handle the same topics.
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
    """Two halves of a whole partition, cut at the middle of the declared cut."""
    (whole,), middle = found, even_bounds(factor)[factor // 2]
    return [whole._replace(end=middle), whole._replace(first=middle)]


def _with_costs(share: Share, question: Question) -> Share:
    """The share with its cost, and with the cells where the share may be parted."""
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


def _owner(cell: Cell) -> int:
    """The member that works on the points of a cell."""
    return cell.owner if cell.standing is CellState.HELD else NOBODY


def _last_request(share: Share, epoch: int, requests: Sequence[MoveAsked]) -> MoveAsked | None:
    """The last request over a share at an epoch. A request for another epoch is late."""
    own = [asked for asked in requests if asked.topic_partition == share[:2]]
    over = [asked for asked in own if asked.first <= share.first and share.end <= asked.end]
    over = [asked for asked in over if asked.epoch in (0, epoch)]
    return over[-1] if over else None


def _target_of(asked: MoveAsked, share: Share, question: Question, shares: Sequence[Share]) -> int:
    """The target of a request for a share: the named member, else the best other member, else the present owner."""
    able = [taker for taker in question.takers if share.topic in taker.topics]
    if asked.target:
        return asked.target if asked.target in {taker.incarnation for taker in able} else NOBODY
    others = [taker for taker in able if taker.incarnation != share.owner] or able
    given_up = share._replace(owner=NOBODY)
    shifts = solve(others, [given_up, *(one for one in shares if one.owner != share.owner)], levels=False)
    return next((shift.target for shift in shifts if shift.share is given_up), NOBODY)
