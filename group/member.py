"""PURE. The next steps of one member, from the logs as read so far and from what the member holds.

Requests and grants are events of the control log. A member compares the log with its ranges (held_ranges.py), and does
the missing steps. Nothing else counts: a grant that changes nothing in the member's own fold is no grant.

| step | condition |
|---|---|
| ``Out`` | the process was expelled; nothing else is done |
| ``Fail`` | a step has failed for good; nothing else is done |
| ``GoOn`` | a request to release was withdrawn, and the release is not through |
| ``HearRequest`` | a request to release is new |
| ``WindDown`` | workers have points of a request, and no release of the points has begun |
| ``HearGrants`` | points were granted, and were not taken up at this epoch |
| ``TakeBack`` | of these, with state: nobody has changed the state since the own release |
| ``RestoreState`` | of these, with state: others may have changed the state |
| ``TakeUp`` | of these, without state or taken back; and grants whose restore has ended |
| ``ExpectMore`` | others are asked to release more of a place that is worked on here |
| ``GiveUpAll`` | the process stops: all points that are not given up yet |
| ``FollowCopies`` | the requests for copies changed, or points were released |
| ``LogEnds`` | the ends of new places are known, and nothing is being taken up |
| ``Settle`` | a plan answers the joining, and its free points were taken up |
| ``SayReleased`` | a release is committed, and the coordinator was not told |

- A grant waits while a transaction that releases some of its points has no known outcome: the reader of the control log
  may come before the answer of the broker.
- State changes only with progress. A grant at the edges of the own release finds the state of the own release, unless a
  copy was followed since: a copy writes values that may be older.
- A request means the epochs that the member owned when the member heard the request. A later grant is not meant.
- No step waits for another step. The host begins a step and notes the begin (``note_step``), later the end.
- No decision of a member depends on the time.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias, assert_never

from ..keyrange.ranges import WHOLE, KeyRange, join_neighbours
from ..keyrange.steps import Steps
from ..offsets.control import Control
from ..offsets.control_events import CopyAsked, ReleaseAsked
from ..offsets.ledger import Ledger, SourcePartition
from ..offsets.signals import ReleaseTold
from .held_ranges import Grant, HeldRanges
from .members import LEFT

EPOCH_ANY: Final = 1 << 62
"""Above all epochs."""


class NotJoined(NamedTuple):
    """The process has not joined: it asks, and waits for an answer."""


class Rejected(NamedTuple):
    """The process was refused; see features.py."""

    reason: str


class Out(NamedTuple):
    """The process was expelled: it stops at once, and commits no more. ``cause``: "" if the cause is forgotten."""

    cause: str


class Works(NamedTuple):
    """The process is a member."""

    incarnation: int


State: TypeAlias = NotJoined | Rejected | Out | Works


class Fail(NamedTuple):
    """End the run with the error of the step that failed."""


class GoOn(NamedTuple):
    """Let workers that are not released yet go on."""

    move: int


class HearRequest(NamedTuple):
    """Note a request to release, and the newest epoch that the request means."""

    move: int
    epoch: int


class WindDown(NamedTuple):
    """Begin no record of ``within``, and release the workers there under grants up to ``epoch``. ``ranges``: the points
    of these workers.
    """

    move: int
    place: SourcePartition
    within: KeyRange
    epoch: int
    ranges: tuple[KeyRange, ...]


class HearGrants(NamedTuple):
    """Note that the member begins to take grants up."""

    grants: tuple[Grant, ...]


class TakeBack(NamedTuple):
    """The state of grants lies here as the member released it: use the state at once."""

    grants: tuple[Grant, ...]


class RestoreState(NamedTuple):
    """Begin to restore the state of grants."""

    grants: tuple[Grant, ...]


class TakeUp(NamedTuple):
    """Make workers for grants; begin to read; begin a look at the sources."""

    grants: tuple[Grant, ...]


class ExpectMore(NamedTuple):
    """Prepare to read behind the front: points of these moves will come."""

    moves: frozenset[int]


class GiveUpAll(NamedTuple):
    """Release these points in the last transactions."""

    ranges: tuple[tuple[SourcePartition, KeyRange], ...]


class FollowCopies(NamedTuple):
    """Follow these copies, and no others."""

    copies: tuple[CopyAsked, ...]


class LogEnds(NamedTuple):
    """Log the ends of new places."""

    places: tuple[SourcePartition, ...]


class Settle(NamedTuple):
    """The member works on its first grants: who waits for the start may go on."""


class SayReleased(NamedTuple):
    """Tell the coordinator of a committed release."""

    told: ReleaseTold


Step: TypeAlias = (
    Out
    | Fail
    | GoOn
    | HearRequest
    | WindDown
    | HearGrants
    | TakeBack
    | RestoreState
    | TakeUp
    | ExpectMore
    | GiveUpAll
    | FollowCopies
    | LogEnds
    | Settle
    | SayReleased
)


class OwnProcess(NamedTuple):
    """A process of the group. ``incarnation``: as the process remembers, None before the join; the log forgets former
    members. ``topics``: source topics with a handler; ``stateful``: those with stores.
    """

    birth: str
    incarnation: int | None
    topics: frozenset[str]
    stateful: frozenset[str]


NextSteps: TypeAlias = Callable[[Ledger, OwnProcess, HeldRanges], list[Step]]


def state_of(control: Control, birth: str, incarnation: int | None) -> State:
    """The state of the process born as ``birth``; ``incarnation``: see ``OwnProcess``."""
    member = control.member_of(birth)
    if member is None and incarnation is None:
        return Rejected(control.refusals[birth]) if birth in control.refusals else NotJoined()
    if member is None or (incarnation is not None and member.incarnation != incarnation):
        return Out("")  # the member was forgotten, and a late copy of its request to join may have been admitted anew
    if member.expelled:
        return Out(member.cause)
    return Works(member.incarnation)


def has_left(control: Control, incarnation: int) -> bool:
    """Whether the group goes on without a process that asked to leave."""
    member = control.members.get(incarnation)
    return control.is_expelled(incarnation) and (member is None or member.cause == LEFT)


def next_steps(ledger: Ledger, own: OwnProcess, held: HeldRanges) -> list[Step]:
    """The steps to begin now, in this order."""
    control = ledger.control
    state = state_of(control, own.birth, own.incarnation)
    if isinstance(state, Out):
        return [state]
    if not isinstance(state, Works):
        return []
    if held.has_failed:
        return [Fail()]
    incarnation = state.incarnation
    held.own_grants.refresh(control, incarnation)
    requests = {m: one for m, one in control.moves.release_requests.items() if one.incarnation == incarnation}
    withdrawn = sorted(held.open_releases.keys() - requests.keys())
    steps: list[Step] = [GoOn(move) for move in withdrawn if not held.open_releases[move]]
    grants: list[Grant] = []
    if held.gives_all_up:
        if not held.is_giving_all_up:
            points = {place: _points_at_work(held, held.winding, place, WHOLE, EPOCH_ANY) for place in held.working}
            steps.append(GiveUpAll(tuple((place, one) for place, ranges in points.items() for one in ranges)))
    else:
        grants = _lacking_grants(own, held)
        steps += _release_steps(held, requests)
        steps += _grant_steps(ledger, own, held, grants)
        if not grants and (expected := _expected_moves(control, held, incarnation)) - held.expected_moves:
            steps.append(ExpectMore(expected))
    copies = tuple(copy for _, copy in sorted(control.moves.copies.items()) if copy.incarnation == incarnation)
    if copies != held.copies:
        steps.append(FollowCopies(copies))
    if not (grants or held.restoring or held.whole or held.looks):
        if held.new_places:
            steps.append(LogEnds(tuple(held.new_places)))
        if not held.is_settled and not held.open_releases and _answers_joining(control, incarnation):
            steps.append(Settle())
    return steps + [SayReleased(told) for told in held.untold]


def note_step(held: HeldRanges, own: OwnProcess, step: Step) -> None:
    """Note that a step was begun."""
    match step:
        case GoOn(move):
            held.open_releases[move] = True
        case HearRequest(move, epoch):
            held.epoch_bounds[move] = epoch
        case WindDown(move, place, _, _, ranges):
            held.note_winding(move, place, ranges)
        case HearGrants(grants):
            held.note_grants(grants)
        case RestoreState(grants):
            held.note_restore_begun(grants)
        case TakeUp(grants):
            held.note_taken_up(grants)
        case ExpectMore(moves):
            held.expected_moves = moves
        case GiveUpAll(points):
            held.note_giving_all_up(points)
        case FollowCopies(copies):
            held.note_copies([copy for copy in copies if copy.topic in own.stateful])
            held.copies = copies
        case LogEnds():
            held.new_places.clear()
        case Settle():
            held.is_settled = True
        case SayReleased(told):
            held.untold.remove(told)
        case Out() | Fail() | TakeBack():
            pass
        case _:
            assert_never(step)


# --- giving up -------------------------------------------------------------------------------------------------------


def _release_steps(held: HeldRanges, requests: Mapping[int, ReleaseAsked]) -> Iterator[Step]:
    """The steps for requests to release, by move. Points of two requests are released once."""
    winding = dict(held.winding)
    for move, asked in sorted(requests.items()):
        pieces = held.own_grants.pieces.get(asked.topic_partition, ())
        if move in held.open_releases or all(epoch != asked.epoch for _, _, epoch in pieces):
            continue
        within = range_of(asked)
        bound = held.epoch_bounds.get(move)
        if bound is None:
            inside = [epoch for first, end, epoch in pieces if within.overlaps(KeyRange(first, end))]
            bound = max(inside, default=asked.epoch)
            yield HearRequest(move, bound)
        if ranges := tuple(_points_at_work(held, winding, asked.topic_partition, within, bound)):
            begun = ((one.first, one.end, move) for one in ranges)
            winding[asked.topic_partition] = winding.get(asked.topic_partition, Steps()).replace(begun)
            yield WindDown(move=move, place=asked.topic_partition, within=within, epoch=bound, ranges=ranges)


def _points_at_work(
    held: HeldRanges,
    winding: Mapping[SourcePartition, Steps[int]],
    place: SourcePartition,
    within: KeyRange,
    bound: int,
) -> list[KeyRange]:
    """The points with workers under grants up to ``bound`` that are not winding down, touching ranges joined."""
    points = (
        KeyRange(a, b)
        for first, end, epoch in held.working.get(place, Steps()).pieces(within.first, within.end)
        if epoch <= bound
        for a, b, move in winding.get(place, Steps()).all_pieces(first, end)
        if move is None
    )
    return join_neighbours(points, KeyRange.join)


def range_of(asked: ReleaseAsked) -> KeyRange:
    """The points asked for."""
    return KeyRange(asked.first, asked.end)


# --- taking up -------------------------------------------------------------------------------------------------------


def _lacking_grants(own: OwnProcess, held: HeldRanges) -> list[Grant]:
    """The grants that were not taken up, by place and epoch."""
    found: list[Grant] = []
    changed = held.own_grants.changed
    for place in sorted(changed):
        taken, lacking = held.taken.get(place, Steps()), list[Grant]()
        for first, end, epoch in held.own_grants.pieces[place] if place[0] in own.topics else ():
            parts = (KeyRange(a, b) for a, b, known in taken.all_pieces(first, end) if known != epoch)
            lacking += [Grant(place, epoch, part) for part in join_neighbours(parts, KeyRange.join)]
        if not lacking:
            changed.remove(place)
        found += sorted(grant for grant in lacking if not held.is_uncommitted(place, grant.within))
    return found


def _grant_steps(ledger: Ledger, own: OwnProcess, held: HeldRanges, grants: list[Grant]) -> Iterator[Step]:
    """The steps for grants that were not taken up, and for grants whose restore has ended."""
    stateful = [one for one in grants if one.place[0] in own.stateful]
    unchanged = [one for one in stateful if _is_unchanged(ledger, held, one)]
    changed = dict.fromkeys(stateful).keys() - unchanged
    ready = (*held.whole, *(one for one in grants if one not in changed))
    if grants:
        yield HearGrants(tuple(grants))
    if unchanged:
        yield TakeBack(tuple(unchanged))
    if ready:
        yield TakeUp(ready)
    if changed:
        yield RestoreState(tuple(sorted(changed)))


def _is_unchanged(ledger: Ledger, held: HeldRanges, grant: Grant) -> bool:
    """Whether the grant goes on where the member released the points, and no copy was followed since."""
    place, epoch, within = grant
    if held.followed.get(place, Steps()).pieces(within.first, within.end):
        return False
    ours, part = held.given_up.get(place, Steps()), ledger.partition(place).parts[epoch]
    return all(ours.is_constant(*piece) for piece in part.froms.pieces(within.first, within.end))


def _expected_moves(control: Control, held: HeldRanges, incarnation: int) -> frozenset[int]:
    """The moves to this member that others are asked to release, of places that are worked on here."""
    planned = (control.moves.planned.get(move) for move in control.moves.release_requests)
    return frozenset(
        move.move
        for move in planned
        if move is not None
        and move.target == incarnation != move.origin
        and held.working.get(move.topic_partition, Steps()).pieces()
    )


def _answers_joining(control: Control, incarnation: int) -> bool:
    """Whether a plan answers the joining, and the points of the plan that nobody else holds were granted."""
    if control.moves.group_epoch < control.group_epoch:
        return False
    return all(
        any(owner.incarnation == incarnation for _, _, owner in owners.pieces(move.first, move.end))
        for move in control.moves.planned.values()
        if move.target == incarnation and not move.origin
        for owners in [control.owners.get(move.topic_partition, Steps())]
    )
