"""PURE. The accounts of the solver: each member's load and pieces, in order, so that a step looks at few members."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from ..keyrange.hashing import SPACE_END
from ..offsets.ledger import SourcePartition
from .shares import READ_NS, UNIT_US, PlanMember, Share

MILLI: Final = 1_000
"""Capacities are whole thousandths here, so that loads and fullness are whole numbers."""
READERS_LEAST: Final = 2
"""So many members may read a partition in any case: two readers pay off at any cost of a record."""
IDLE: Final = 8
"""Points are idle if their load is at most 1/``IDLE`` of an even part of the owner's load. An old report may leave as
much load on idle points (reports.py).
"""


@dataclass(slots=True, eq=False)
class SharePiece:
    """A share, or a part of a share. ``number``: the number of the share; ``slices``: the cells of the share in the
    piece, each with its whole weight.
    """

    number: int
    place: SourcePartition
    first: int
    end: int
    weight: int
    cost_us: int
    slices: tuple[tuple[int, int], ...]
    owner: int
    is_owned: bool
    """Whether the owner before the plan can handle the points: moving the piece disturbs a working member."""
    gain: float = 0.0
    """The relief by the step that moved the piece (``Shift.gain``)."""
    is_fixed: bool = False
    """Whether the piece stays with its owner. A fixed piece counts for the owner, and the owner never gives it."""


Entry: TypeAlias = tuple[int, int, int, SharePiece]
"""(weight, number, first, piece). The first three values differ between any two entries, so pieces are never compared.
"""


def weights_of(shares: Sequence[Share]) -> list[int]:
    """The weight of each share: a base by points plus the measured load. A share without a measured load gets the mean
    load per point of its topic, else the mean over all topics.
    """
    busy, points = Counter[str](), Counter[str]()
    for share in shares:
        if share.busy_us_per_s is not None:
            for name in (share.topic, ""):
                busy[name] += share.busy_us_per_s
                points[name] += share.points
    found: list[int] = []
    for share in shares:
        known, name = share.busy_us_per_s, share.topic if points[share.topic] else ""
        if known is None:
            known = busy[name] * share.points // points[name] if points[name] else 0
        found.append(_base(share.first, share.end) + known)
    return found


def _base(first: int, end: int) -> int:
    return UNIT_US * (end - first) // SPACE_END


def pieces_of(shares: Sequence[Share], owned: Collection[int]) -> list[SharePiece]:
    """A piece for each share, by number. ``owned``: the numbers of shares whose owner can handle them."""
    found: list[SharePiece] = []
    for number, (share, weight) in enumerate(zip(shares, weights_of(shares), strict=True)):
        bounds = [*(first for first, _ in share.slices), share.end]
        cells = tuple((a, _base(a, b) + busy) for (a, b), (_, busy) in zip(pairwise(bounds), share.slices, strict=True))
        total = sum(cell for _, cell in cells) if cells else weight
        kept = (share.topic_partition, share.first, share.end, total, share.cost_us, cells, share.owner)
        found.append(SharePiece(number, *kept, number in owned, is_fixed=share.is_fixed))
    return found


class Books:
    """The load and the pieces of each member. Fullness is load over capacity, in whole microseconds a second."""

    def __init__(self, members: Collection[PlanMember], shares: Sequence[Share]) -> None:
        self.members = {member.incarnation: member for member in members}
        self.capacity = {i: max(1, round(member.capacity * MILLI)) for i, member in self.members.items()}
        """By incarnation, in thousandths."""
        self.load = dict.fromkeys(self.members, 0)
        """By incarnation: the weights of its pieces, and the cost of reading their partitions."""
        self.full = dict.fromkeys(self.members, 0)
        """By incarnation: the fullness."""
        self.by_topic: Counter[tuple[int, str]] = Counter()
        """By incarnation and topic: the weights of the pieces."""
        self._points = dict.fromkeys(self.members, 0)
        """By incarnation: the number of points."""
        self.owned: dict[int, dict[str, list[Entry]]] = {i: {} for i in self.members}
        """By incarnation and topic: the pieces that the member may give, the lightest first."""
        self.partable: dict[int, list[Entry]] = {i: [] for i in self.members}
        """By incarnation: the pieces that the member may give in part, the lightest first."""
        self.pieces: dict[SourcePartition, list[SharePiece]] = {}
        """By place: the pieces with an owner, in order of points."""
        self._reads: Counter[tuple[int, SourcePartition]] = Counter()
        """By incarnation and place: the number of pieces. A member with a piece of a place reads the place."""
        self._charges, self._readers_max = _reading_costs(shares)
        self._kinds: dict[frozenset[str], list[tuple[int, int]]] = {}
        """The kinds of members, by their topics: (fullness, incarnation), the least full first."""
        for incarnation in sorted(self.members):
            self._kinds.setdefault(self.members[incarnation].topics, []).append((0, incarnation))
        self._able = {topic: self._able_kinds(topic) for topic in {share.topic for share in shares}}
        self.givers = [(0, incarnation) for incarnation in sorted(self.members)]
        """(fullness, incarnation) of members that may give, the fullest last. Members put aside are missing."""

    def _able_kinds(self, topic: str) -> list[list[tuple[int, int]]]:
        """The kinds of members that can handle a topic: the lists of ``_kinds``, so each change is seen here, too."""
        return [ordered for topics, ordered in self._kinds.items() if topic in topics]

    def can(self, incarnation: int, topic: str) -> bool:
        """Whether a member is there and can handle the topic."""
        member = self.members.get(incarnation)
        return member is not None and topic in member.topics

    def is_able(self, topic: str) -> bool:
        """Whether any member can handle the topic."""
        return bool(self._able[topic])

    def least_full(self, topic: str, most: int) -> Iterator[int]:
        """Yield the least full members that can handle a topic, from each kind of member. A kind has members with equal
        topics. At most ``most`` equally full members of a kind come.
        """
        for ordered in self._able[topic]:
            for full, incarnation in ordered[:most]:
                if full != ordered[0][0]:
                    break
                yield incarnation

    def least_full_of_all(self) -> list[int]:
        """The least full member of each kind, the least full first."""
        return [incarnation for _, incarnation in sorted(ordered[0] for ordered in self._kinds.values())]

    # --- giving and taking ------------------------------------------------------------------------------------------

    def give(self, piece: SharePiece, incarnation: int) -> None:
        """Give a piece to a member."""
        piece.owner = incarnation
        insort(self.pieces.setdefault(piece.place, []), piece, key=_first)
        self._count(piece, incarnation, 1)

    def take(self, piece: SharePiece) -> None:
        """Take a piece from its owner."""
        over = self.pieces[piece.place]
        del over[bisect_left(over, piece.first, key=_first)]
        self._count(piece, piece.owner, -1)

    def _count(self, piece: SharePiece, incarnation: int, sign: int) -> None:
        """Count a piece for a member (``sign`` 1), or no longer (``sign`` -1)."""
        topic, entry = piece.place[0], (piece.weight, piece.number, piece.first, piece)
        lists = [] if piece.is_fixed else [self.owned[incarnation].setdefault(topic, [])]
        lists += [self.partable[incarnation]] if len(piece.slices) > 1 and not piece.is_fixed else []
        for ordered in lists:
            if sign > 0:
                insort(ordered, entry)
            else:
                del ordered[bisect_left(ordered, entry[:3])]  # a shorter tuple sorts before the entry
        self.by_topic[incarnation, topic] += sign * piece.weight
        self._points[incarnation] += sign * (piece.end - piece.first)
        reads = self._reads[incarnation, piece.place]
        self._reads[incarnation, piece.place] = reads + sign
        others = reads if sign > 0 else reads - 1
        charge = 0 if others else self._charges[piece.place]  # reading begins with the first piece, ends with the last
        self._add_load(incarnation, sign * (piece.weight + charge))

    def _add_load(self, incarnation: int, more: int) -> None:
        """Add load to a member, or take load away, and put the member in its new place in the orders by fullness."""
        before = (self.full[incarnation], incarnation)
        self.load[incarnation] += more
        self.full[incarnation] = self.fullness(incarnation)
        for ordered in (self._kinds[self.members[incarnation].topics], self.givers):
            at = bisect_left(ordered, before)
            if at < len(ordered) and ordered[at] == before:
                del ordered[at]
                insort(ordered, (self.full[incarnation], incarnation))

    def cut(self, piece: SharePiece, at: int) -> tuple[SharePiece, SharePiece]:
        """Cut a piece without an owner into two parts. The right part begins at cell ``at``."""
        point = piece.slices[at][0]
        parts: list[SharePiece] = []
        for first, end, cells in ((piece.first, point, piece.slices[:at]), (point, piece.end, piece.slices[at:])):
            cost_us = piece.cost_us * (end - first) // (piece.end - piece.first)
            weight = sum(busy for _, busy in cells)
            rest = (piece.number, piece.place, first, end, weight, cost_us, cells, piece.owner, piece.is_owned)
            parts.append(SharePiece(*rest, piece.gain))
        return parts[0], parts[1]

    # --- questions --------------------------------------------------------------------------------------------------

    def fullness(self, incarnation: int, more: int = 0) -> int:
        """The fullness of a member with ``more`` load."""
        return (self.load[incarnation] + more) * MILLI // self.capacity[incarnation]

    def takes(self, incarnation: int, place: SourcePartition, weight: int) -> int:
        """By how much a member's load rises with ``weight`` of a partition. A new reader pays for reading."""
        return weight + (0 if self._reads[incarnation, place] else self._charges[place])

    def is_last(self, piece: SharePiece) -> bool:
        """Whether the owner of a piece has nothing else of the partition."""
        return self._reads[piece.owner, piece.place] == 1

    def loses(self, piece: SharePiece) -> int:
        """By how much the owner's load falls without a piece."""
        return piece.weight + (self._charges[piece.place] if self.is_last(piece) else 0)

    def is_idle(self, piece: SharePiece) -> bool:
        """Whether a piece has next to nothing of its owner's load, for its number of points (``IDLE``)."""
        evenly = self.load[piece.owner] * (piece.end - piece.first)
        return piece.weight * self._points[piece.owner] * IDLE < evenly

    def readers(self, place: SourcePartition) -> list[int]:
        """The owners of pieces of a partition, the least full first."""
        found = {piece.owner for piece in self.pieces.get(place, ())}
        return sorted(found, key=lambda incarnation: (self.full[incarnation], incarnation))

    def may_read(self, incarnation: int, place: SourcePartition, instead_of: int) -> bool:
        """Whether a member may own something of a partition. More than ``2 + c / r`` readers gain nothing, where ``c``
        is the handlers' time and ``r`` the cost of reading. Without a measured load any number may read.
        ``instead_of``: a member that stops reading the place; 0: none.
        """
        most = self._readers_max.get(place)
        if most is None or self._reads[incarnation, place]:
            return True
        pieces = self.pieces.get(place, ())
        return len(pieces) < most or len({piece.owner for piece in pieces} - {instead_of}) < most

    def neighbours(self, piece: SharePiece) -> tuple[int, int]:
        """The owners of the pieces that touch a piece on the left and on the right; 0 for no owner."""
        over = self.pieces.get(piece.place, [])
        at = bisect_left(over, piece.first, key=_first)
        right = at + 1 if at < len(over) and over[at] is piece else at
        left_owner = over[at - 1].owner if at and over[at - 1].end == piece.first else 0
        right_owner = over[right].owner if right < len(over) and over[right].first == piece.end else 0
        return left_owner, right_owner

    def bands(self, incarnation: int, place: SourcePartition) -> int:
        """How many bands of a partition a member has. Touching pieces count as a single band."""
        if not self._reads[incarnation, place]:
            return 0
        own = [piece for piece in self.pieces[place] if piece.owner == incarnation]
        return 1 + sum(a.end != b.first for a, b in pairwise(own))

    # --- members put aside ------------------------------------------------------------------------------------------

    def put_aside(self) -> None:
        """Put the fullest member aside: for now the member gives nothing."""
        self.givers.pop()

    def put_back(self) -> None:
        """Let all members give again."""
        self.givers = sorted((full, incarnation) for incarnation, full in self.full.items())


def _first(piece: SharePiece) -> int:
    return piece.first


def _reading_costs(shares: Sequence[Share]) -> tuple[dict[SourcePartition, int], dict[SourcePartition, int]]:
    """What each reader of a partition pays for reading, and the most readers that gain something. A partition without a
    measured load has no number of readers.
    """
    busy, records = Counter[SourcePartition](), Counter[SourcePartition]()
    measured: set[SourcePartition] = set()
    for share in shares:
        records[share.topic_partition] += share.records_per_s
        if share.busy_us_per_s is not None:
            busy[share.topic_partition] += share.busy_us_per_s
            measured.add(share.topic_partition)
    charges = {place: count * READ_NS // 1_000 for place, count in records.items()}
    most = {place: READERS_LEAST + busy[place] // max(1, charges[place]) for place in measured}
    return charges, most
