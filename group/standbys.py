"""PURE. Which members keep a standby of a range with state, which standbys lack, and which copies are of no use.

At rest each range with state has ``standbys`` copies at other members. Members on other hosts come first, then members
with the fewest copies. An existing standby stays, with one exception: the standby shares the owner's host, and a member
on another host could have the copy. Then this member is asked for a copy, and once the copy is ready the old standby
ends. A copy of several ranges stays while any of the ranges needs the copy.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..keyrange.ranges import join_neighbours
from ..offsets.control import LEARNER, STANDBY, Member
from ..offsets.event_values import Span
from ..offsets.ledger import SourcePartition
from .copies import CopyProgress, spans_of, uncovered_spans
from .pieces import PlacePiece
from .present import Present


class StandbyRules(NamedTuple):
    """``standbys``: the number of copies that each range is to have; ``is_early``: the coordinator began too recently
    to have heard the progress of copies.
    """

    standbys: int
    is_early: bool


class StateRange(NamedTuple):
    """Touching held points ``[first, end)`` of a place with the same owner. ``targets``: the other members to which
    moves take some of the points from this owner.
    """

    place: SourcePartition
    first: int
    end: int
    owner: int
    targets: frozenset[int]


class StandbysLacking(NamedTuple):
    """What a range lacks of standbys. ``incomplete``: members with a standby of a part of the range, and the missing
    bands; ``number``: how many of the ``candidates`` are to have a standby, too; ``hosts``: hosts of the owner and of
    the standbys.
    """

    run: StateRange
    incomplete: tuple[tuple[int, tuple[Span, ...]], ...]
    number: int
    candidates: tuple[Member, ...]
    hosts: frozenset[str]


def ranges_with_state(pieces: Iterable[PlacePiece]) -> list[StateRange]:
    """The held ranges of a place. Touching pieces with the same owner are joined."""

    def range_of(piece: PlacePiece) -> StateRange:
        move, owner = piece.move, piece.owner
        targets = {move.target} if move is not None and move.origin == owner else set[int]()
        return StateRange(
            place=piece.place, first=piece.first, end=piece.end, owner=owner, targets=frozenset(targets - {owner})
        )

    def join(left: StateRange, right: StateRange) -> StateRange | None:
        joined = left._replace(end=right.end, targets=left.targets | right.targets)
        return joined if left.owner == right.owner else None

    return join_neighbours((range_of(piece) for piece in pieces if piece.is_held), join)


def keepers(
    present: Present, standbys: int, run: StateRange, copies: Sequence[CopyProgress], without: Collection[int]
) -> list[int]:
    """The members that keep a standby of a range, chosen from the members with a copy of some part of the range.

    The list has the ``standbys`` members that are best now, and the ``standbys`` members that will be best once all
    copies are ready. Best now: first complete copies, then ready copies, then copies on other hosts than the owner's.
    Best later: first complete copies, then copies on other hosts, then ready copies. Of equals the copy that was asked
    for earliest comes first. ``copies``: of the place; ``without``: members that do not count.
    """
    over = [kept for kept in copies if kept.touches(run.first, run.end)]
    owner_host = present.living[run.owner].joined.host if run.owner in present.living else None

    def rank_now(incarnation: int) -> tuple[bool, bool, bool, int]:
        has = [kept for kept in over if kept.incarnation == incarnation]
        lacks = bool(uncovered_spans([(run.first, run.end)], spans_of(has)))
        is_ready = all(kept.is_ready for kept in has)
        is_on_owner_host = present.living[incarnation].joined.host == owner_host
        return lacks, not is_ready, is_on_owner_host, min(kept.asked.move for kept in has)

    def rank_later(incarnation: int) -> tuple[bool, bool, bool, int]:
        lacks, is_unready, is_on_owner_host, move = rank_now(incarnation)
        return lacks, is_on_owner_host, is_unready, move

    there = {kept.incarnation for kept in over if kept.incarnation in present.staying} - {run.owner, *without}
    if len(there) < 2:
        return [*there] if standbys else []
    now, later = (sorted(there, key=rank)[:standbys] for rank in (rank_now, rank_later))
    return [*now, *(incarnation for incarnation in later if incarnation not in now)]


def standbys_lacking(
    present: Present, standbys: int, ranges: Iterable[StateRange], copies: Sequence[CopyProgress]
) -> list[StandbysLacking]:
    """What the ranges of a place lack, of the ranges whose owner stays and that go nowhere."""
    found: list[StandbysLacking] = []
    for run in ranges if standbys else ():
        if run.owner not in present.staying or run.targets:
            continue
        kept_by = keepers(present, standbys, run, copies, ())
        lacks = ((i, tuple(uncovered_spans([(run.first, run.end)], bands_at(copies, i)))) for i in kept_by)
        incomplete = tuple((i, bands) for i, bands in lacks if bands)
        owner_host = present.staying[run.owner].joined.host
        able = present.able.get(run.place[0], {})
        rest = [member for i, member in able.items() if i != run.owner and i not in kept_by]
        lacking = standbys - len(kept_by)
        if lacking <= 0:  # enough standbys: only a standby on the owner's host is replaced, by one on another host
            rest = [member for member in rest if member.joined.host != owner_host]
            lacking = standbys - sum(present.staying[i].joined.host != owner_host for i in kept_by)
        number = max(0, min(lacking, len(rest)))
        if incomplete or number:
            hosts = frozenset({owner_host, *(present.staying[i].joined.host for i in kept_by)})
            found.append(
                StandbysLacking(run=run, incomplete=incomplete, number=number, candidates=tuple(rest), hosts=hosts)
            )
    return found


def bands_at(copies: Iterable[CopyProgress], incarnation: int) -> list[Span]:
    """The bands of which a member has a copy."""
    return spans_of(kept for kept in copies if kept.incarnation == incarnation)


# --- copies without a use --------------------------------------------------------------------------------------------


def unused_copies(
    present: Present,
    rules: StandbyRules,
    pieces: Sequence[PlacePiece],
    ranges: Sequence[StateRange],
    copies: Sequence[CopyProgress],
) -> list[tuple[int, str]]:
    """The copies of a place that are of no use, by number, each with the reason."""
    standbys = [kept for kept in copies if kept.asked.role == STANDBY]
    kept_by = [(run, keepers(present, rules.standbys, run, standbys, run.targets)) for run in ranges]
    used: set[int] = set()
    for piece in pieces:
        over = [kept for kept in copies if kept.asked.move in piece.copies]
        if not piece.is_held:  # nobody works there: a copy holder may be the next owner
            used |= {k.asked.move for k in over if k.incarnation in present.staying or k.is_ready}
            continue
        over = [kept for kept in over if kept.incarnation in present.staying and kept.incarnation != piece.owner]
        members = next((members for run, members in kept_by if run.first <= piece.first < run.end), ())
        used |= {kept.asked.move for kept in over if _is_used(rules, piece, kept, members)}
    return [(k.asked.move, _reason(present, rules, k)) for k in copies if k.asked.move not in used]


def _is_used(rules: StandbyRules, piece: PlacePiece, kept: CopyProgress, members: Collection[int]) -> bool:
    """Whether a staying member's copy of a piece that another member owns is of use. The copy is of use in three cases:
    a move takes the piece to the member, the owner is not at work yet, or the member keeps a standby of the piece.
    ``members``: the members that keep such a standby.
    """
    move = piece.move
    if move is not None and move.origin == piece.owner and move.target == kept.incarnation:
        return True
    if not piece.is_taken_up:
        return True
    return kept.asked.role == STANDBY and (kept.incarnation in members or rules.is_early)


def _reason(present: Present, rules: StandbyRules, kept: CopyProgress) -> str:
    if kept.incarnation not in present.staying:
        return "its member leaves"
    if kept.asked.role == LEARNER:
        return "its move is over"
    return f"{rules.standbys} others have one" if rules.standbys else "its range is at work elsewhere"
