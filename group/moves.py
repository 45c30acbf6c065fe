"""PURE. The coordinator's rows about what moves: grants, requests to release and their end, plans.

A plan says all of what shall be, as moves from what is. What is on its way when it is made (asked for and not released,
or free and not granted) belongs to where it goes: so plans that follow each other do not send a range here and there.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ..keyrange.ranges import KeyRange
from ..offsets.control import Member
from ..offsets.control_events import Decision, PlanMade, ReleaseAsked, ReleaseWithdrawn
from ..offsets.decide import Turn, decide_grant
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import Place
from ..offsets.signals import MoveAsked
from .cells import Cell, Standing
from .target import NOBODY, Share, Taker, solve
from .view import Batch, View

CHANGE: Final = "change"
"""The cause of a plan that answers events of the control log."""
REQUEST: Final = "request"
MOVES_MAX: Final = 2_000
"""In one event of a plan."""


def granted(view: View, turn: Turn) -> Batch:
    """In each partition the points of one move: two grants to different members would share an epoch."""
    staying = {member.incarnation for member in view.staying}
    decisions: list[Decision] = []
    if view.unopened:  # a log that is empty, and of which something was granted, is taken for lost
        return Batch()
    for place, moves in sorted(_planned(view).items()):
        for move in moves:
            if move.target not in staying:
                continue
            free = [cell for cell in view.cells(place) if cell.standing is Standing.FREE and _overlaps(cell, move)]
            free = [cell for cell in free if _newest(moves, cell) is move]
            if free:
                for run in _runs(free, move):
                    decisions += decide_grant(view.ledger, turn, place, move.target, run, move=move.move)
                break
    return Batch(decisions)


def _planned(view: View) -> dict[Place, list[PlannedMove]]:
    """The planned moves that are not done, newest first, by place."""
    by_place: dict[Place, list[PlannedMove]] = {}
    for _, move in sorted(view.control.moves.planned.items(), reverse=True):
        by_place.setdefault((move.topic, move.partition), []).append(move)
    return by_place


def _on_their_way(view: View) -> dict[Place, list[ReleaseAsked]]:
    """What members are asked to release, by place."""
    ways: dict[Place, list[ReleaseAsked]] = {}
    for asked in view.control.moves.asked.values():
        ways.setdefault((asked.topic, asked.partition), []).append(asked)
    return ways


def _overlaps(cell: Cell, move: PlannedMove | ReleaseAsked) -> bool:
    return cell.first < move.end and move.first < cell.end


def _newest(moves: Sequence[PlannedMove], cell: Cell) -> PlannedMove | None:
    """The newest move over a cell."""
    return next((move for move in moves if _overlaps(cell, move)), None)


def _runs(free: Sequence[Cell], move: PlannedMove) -> list[KeyRange]:
    """What of these cells lies in the move, touching ones as one."""
    runs: list[KeyRange] = []
    for cell in free:
        part = KeyRange(max(cell.first, move.first), min(cell.end, move.end))
        if runs and runs[-1].end == part.first:
            runs[-1] = runs[-1].join(part)
        else:
            runs.append(part)
    return runs


def withdrawn(view: View, turn: Turn) -> Batch:
    """Releases that are waited for no longer: what was not released stays where it is."""
    staying = {member.incarnation for member in view.staying}
    decisions: list[Decision] = []
    for number, asked in sorted(view.control.moves.asked.items()):
        move = view.control.moves.planned.get(number)
        since_ms = view.seat.asked_ms.get(number, view.seat.began_ms)  # by a predecessor: it has its time anew
        place, within = (asked.topic, asked.partition), KeyRange(asked.first, asked.end)
        over = [cell for cell in view.cells(place) if cell.first < within.end and within.first < cell.end]
        if not any(cell.standing is Standing.HELD and cell.epoch == asked.epoch for cell in over):
            continue
        if move is None or move.target not in staying:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "its target is gone"))
        elif view.now_ms - since_ms >= asked.deadline_ms:
            decisions.append(ReleaseWithdrawn(*turn.next(), number, "deadline"))
    return Batch(decisions)


def asked(view: View, turn: Turn) -> Batch:
    """What members are to release, and were not asked for yet, also not by a move that went elsewhere. Who leaves does
    so unasked.
    """
    staying = {member.incarnation for member in view.staying}
    decisions: list[Decision] = []
    ways = _on_their_way(view)
    for place, moves in sorted(_planned(view).items()):
        own = ways.get(place, ())
        standing = [cell for cell in _cut_by(view.cells(place), own) if not any(_overlaps(cell, way) for way in own)]
        for move in moves:
            if move.move in view.control.moves.asked or move.target not in staying or move.origin not in staying:
                continue
            held = [cell for cell in standing if _overlaps(cell, move) and cell.standing is Standing.HELD]
            held = [cell for cell in held if cell.owner == move.origin and _newest(moves, cell) is move]
            if held and move.origin != NOBODY:
                last = next((a for a, b in pairwise(held) if a.end != b.first), held[-1])  # the rest comes behind it
                first, end = max(held[0].first, move.first), min(last.end, move.end)
                decisions.append(
                    ReleaseAsked(
                        *turn.next(),
                        move.move,
                        move.origin,
                        held[0].epoch,
                        *place,
                        first,
                        end,
                        view.rules.release_ms,
                    )
                )
    return Batch(decisions)


def planned(view: View, turn: Turn) -> Batch:
    """A plan, when there is a cause or a request or an orphan, and somebody to have something."""
    control = view.control
    requests = view.heard.moves
    # Who has not read the offset log yet takes all for free.
    if not view.staying or view.unseen or view.unopened or view.lacks_ends:
        return Batch()
    is_due = _is_time(view) and (control.group_epoch > control.moves.group_epoch or _has_orphans(view))
    if not (is_due or requests):
        return Batch()
    moves = moves_of(view, list(requests.values()), levels=is_due)
    cause = REQUEST if requests else CHANGE
    answers = control.group_epoch if is_due else control.moves.group_epoch
    chunks = [moves[i : i + MOVES_MAX] for i in range(0, len(moves), MOVES_MAX)] or [[]]
    plan = control.moves.plan + 1
    return Batch(
        [
            PlanMade(*turn.next(), plan, answers, cause, view.position, part, len(chunks), tuple(chunk))
            for part, chunk in enumerate(chunks)
        ],
        tuple(requests),
    )


def _has_orphans(view: View) -> bool:
    """Whether something is free that no move takes anywhere, although somebody can handle it: such as what was released
    when that had just been withdrawn.
    """
    staying = {member.incarnation for member in view.staying}
    topics = {source.topic for member in view.staying for source in member.joined.topics}
    planned = _planned(view)
    return any(
        cell.standing is Standing.FREE and ((move := _newest(moves, cell)) is None or move.target not in staying)
        for place in view.control.started
        if place[0] in topics
        for moves in (planned.get(place, ()),)
        for cell in view.cells(place)
    )


def _is_time(view: View) -> bool:
    """Whether a plan may be made now. Who is alone in sight waits for nobody."""
    others = [birth for birth in view.heard.asked if birth != view.seat.birth]
    others += [member.birth for member in view.living if member.birth != view.seat.birth]
    if not others:
        return True
    if view.seat.planned_ms is None:
        return view.now_ms - view.seat.began_ms >= view.rules.start_window_ms
    return view.now_ms - view.seat.planned_ms >= view.rules.plan_interval_ms


def moves_of(view: View, requests: Sequence[MoveAsked], *, levels: bool) -> list[PlannedMove]:
    """All moves that lead from what is to what shall be, but those whose release is asked for already.

    ``levels``: also between members; else only what is requested moves, and what was on its way before.
    """
    takers = [_taker(member) for member in view.staying]
    staying = {taker.incarnation for taker in takers}
    planned = _planned(view)
    number = view.control.moves.move_max
    shares: dict[Share, tuple[Cell, PlannedMove | None]] = {}
    ways = _on_their_way(view)
    for place in sorted(view.control.started):
        requested = [request for request in requests if (request.topic, request.partition) == place]
        for cell in _cut_by(view.cells(place), [*requested, *ways.get(place, ())]):
            begun = _newest(planned.get(place, ()), cell)
            if begun is not None and begun.target not in staying:
                begun = None
            is_free = cell.standing is Standing.FREE
            is_asked = begun is not None and begun.move in view.control.moves.asked
            # What is on its way belongs to where it goes: a plan begins there.
            owner = begun.target if begun is not None and (is_free or is_asked) else _owner(cell)
            share = Share(*place, cell.first, cell.end, owner, _has_state(view, place[0]))
            shares[share] = cell, begun if is_asked else None
    target = {share: share.owner for share in shares}
    if levels:
        target.update({shift.share: shift.target for shift in solve(takers, list(shares))})
    moves: list[PlannedMove] = []
    for share, (cell, on_its_way) in sorted(shares.items()):
        asked = _requested(share, cell.epoch, requests)
        wanted = target[share] if asked is None else _target_of(asked, share, takers)
        if wanted == NOBODY or wanted not in staying or (on_its_way and on_its_way.target == wanted):
            continue
        origin = _owner(cell)
        goes_and_comes = asked is not None and not asked.target  # it is given up where nobody else can have it
        if wanted != origin or goes_and_comes:
            number += 1
            moves.append(PlannedMove(number, *share[:4], origin, wanted, 0, 0.0, 0))
    return moves


def _taker(member: Member) -> Taker:
    topics = frozenset(source.topic for source in member.joined.topics)
    return Taker(member.incarnation, member.joined.capacity or 1.0, topics)


def _owner(cell: Cell) -> int:
    """Who works on the points of a cell."""
    return cell.owner if cell.standing is Standing.HELD else NOBODY


def _has_state(view: View, topic: str) -> bool:
    return any(store.topic == topic for store in view.control.stores.values())


def _cut_by(found: Iterable[Cell], asked: Sequence[MoveAsked | ReleaseAsked]) -> list[Cell]:
    """The cells, cut where what is requested, or on its way already, begins and ends."""
    bounds = sorted({bound for one in asked for bound in (one.first, one.end)})
    parts: list[Cell] = []
    for cell in found:
        at = [cell.first, *(bound for bound in bounds if cell.first < bound < cell.end), cell.end]
        parts += [cell._replace(first=a, end=b) for a, b in pairwise(at)]
    return parts


def _requested(share: Share, epoch: int, requests: Sequence[MoveAsked]) -> MoveAsked | None:
    """The last request over a share that is held at an epoch; one that names another one is late."""
    own = [asked for asked in requests if (asked.topic, asked.partition) == share[:2]]
    over = [asked for asked in own if asked.first <= share.first and share.end <= asked.end]
    over = [asked for asked in over if asked.epoch in (0, epoch)]
    return over[-1] if over else None


def _target_of(asked: MoveAsked, share: Share, takers: Sequence[Taker]) -> int:
    """Where a request has it go: to whom it names, else to the best of the others, else back to where it is."""
    if asked.target:
        able = [taker.incarnation for taker in takers if share.topic in taker.topics]
        return asked.target if asked.target in able else NOBODY
    others = [taker for taker in takers if taker.incarnation != share.owner and share.topic in taker.topics]
    shifts = solve(others or takers, [share._replace(owner=NOBODY)])
    return shifts[0].target if shifts else NOBODY
