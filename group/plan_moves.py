"""PURE. The question of a plan, and the moves that answer the question: values in, moves out.

The solver (``target.py``) distributes *shares*. A share is a cell of one owner, cut at the ends of requests and of
moves under way. Requests take precedence over the solver. Points under way belong to their destination.
"""

from collections.abc import Collection, Hashable, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from ..keyrange.ranges import even_bounds
from ..offsets.control import LOAD
from ..offsets.control_events import ReleaseAsked
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import SourcePartition
from ..offsets.signals import MoveAsked
from .cells import Cell, CellState
from .copies import FixedPoints
from .loads import Loads
from .pieces import cut_by, newest
from .shares import NOBODY, PlanMember, Share, Shift
from .target import GAIN_US, solve


class PlanQuestion(NamedTuple):
    """All input of a plan. ``key``: an answer counts for a question with an equal key; ``cause``: of the plan;
    ``balances``: whether the members are balanced, beside the answer to requests; ``number``: the highest number that a
    move had; ``members``: the staying members.

    ``places``: the cells of each place; ``pending``, ``ways``: moves and requests to release under way, by place;
    ``asked``: moves that no plan changes; ``fixed``: points for one target only, by place; ``stateful``: topics with
    stores; ``factors``: the most parts of a partition, by topic; ``halves``: partitions never granted may be halved for
    members with nothing; ``state_stays``: of points with an owner, only points without state move.
    """

    key: Hashable
    cause: str
    balances: bool
    number: int
    members: tuple[PlanMember, ...]
    places: dict[SourcePartition, list[Cell]]
    pending: dict[SourcePartition, list[PlannedMove]]
    ways: dict[SourcePartition, list[ReleaseAsked]]
    asked: frozenset[int]
    fixed: dict[SourcePartition, list[FixedPoints]]
    requests: tuple[MoveAsked, ...]
    stateful: frozenset[str]
    factors: dict[str, int]
    loads: Loads
    halves: bool
    state_stays: bool

    @property
    def size(self) -> int:
        """About the number of shares times the number of members."""
        return sum(map(len, self.places.values())) * len(self.members)


def planned_moves(question: PlanQuestion) -> list[PlannedMove]:
    """The moves of a plan. The solver says who shall have the shares. Then requests take precedence over the solver."""
    shares = _shares(question)
    staying = {member.incarnation for member in question.members}
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


def _parts_by_share(
    question: PlanQuestion, shares: Sequence[Share], staying: Collection[int]
) -> dict[Share, list[Shift]]:
    """The parts of each share, in order of points, as shifts to a new owner or to the present owner."""
    parts = {
        share: [
            Shift(share=share, first=share.first, end=share.end, target=share.owner, gain=0.0, cost_us=share.cost_us)
        ]
        for share in shares
    }
    if not question.balances:
        return parts
    stays = {share for share in shares if question.state_stays and share.has_state and share.owner in staying}
    originals = {share._replace(is_fixed=share.is_fixed or share in stays): share for share in shares}
    floor_us = GAIN_US if question.cause == LOAD else 0
    for shift in solve(question.members, list(originals), floor_us=floor_us):
        own = parts[originals[shift.share]]
        rest = own.pop()._replace(gain=0.0, cost_us=0)  # shifts of a share come in order of points
        own += [rest._replace(end=shift.first)] if rest.first < shift.first else []
        own.append(shift)
        own += [rest._replace(first=shift.end)] if shift.end < rest.end else []
    return parts


def _shares(question: PlanQuestion) -> dict[Share, tuple[Cell, PlannedMove | None]]:
    """The shares to distribute, each with its cell. The value has a move, too, if the move was asked for already: its
    release or its copy.
    """
    staying = {member.incarnation for member in question.members}
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
            is_free = cell.state is CellState.FREE
            is_asked = begun is not None and begun.move in question.asked
            # A plan replaces all moves that have not begun. So a plan that balances nothing repeats these moves.
            is_repeated = begun is not None and not question.balances and begun.origin == _working_owner(cell)
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


def _places_to_halve(question: PlanQuestion) -> frozenset[SourcePartition]:
    """The places that the first plan halves: whole partitions never granted, as many as there are members that would
    have nothing. All members must handle the same topics.
    """
    topics = {member.topics for member in question.members}
    if not question.halves or len(topics) != 1:
        return frozenset()
    able = [place for place in question.places if place[0] in question.members[0].topics]
    idle = len(question.members) - sum(len(question.places[place]) for place in able)
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


def _with_costs(share: Share, question: PlanQuestion) -> Share:
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
        slices=cells,
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
    return cell.owner if cell.state is CellState.HELD else NOBODY


def _last_request(share: Share, epoch: int, requests: Sequence[MoveAsked]) -> MoveAsked | None:
    """The last request over a share at an epoch. A request for another epoch is late."""
    own = [asked for asked in requests if asked.topic_partition == share[:2]]
    over = [asked for asked in own if asked.first <= share.first and share.end <= asked.end]
    over = [asked for asked in over if asked.epoch in (0, epoch)]
    return over[-1] if over else None


def _target_of(asked: MoveAsked, share: Share, question: PlanQuestion, shares: Sequence[Share]) -> int:
    """The target of a request for a share: the named member, else the best other member, else the present owner.
    ``NOBODY``: the named member can't have the share.
    """
    able = [member for member in question.members if share.topic in member.topics]
    if asked.target:
        return asked.target if asked.target in {member.incarnation for member in able} else NOBODY
    others = [member for member in able if member.incarnation != share.owner] or able
    unowned = share._replace(owner=NOBODY)
    shifts = solve(others, [unowned, *(one for one in shares if one.owner != share.owner)], balances=False)
    return next((shift.target for shift in shifts if shift.share is unowned), NOBODY)
