"""PURE. What shall be: which member owns what. A problem in plain numbers goes in, the moves that solve it come out.

Wanted, in this order (the tests hold each against a plain twin):

A. Everything that somebody can handle has an owner who can; what nobody can handle waits.
B. What need not move stays: who can handle it keeps it, unless that would break C.
C. No move would level two members any further: for each pair, the fuller one owns nothing that the other could take
   and still be the less full one. With whole partitions: no two counts differ by more than one.
D. Of several equal choices the first by number: the same problem in any order has the same solution.

Phases: (1) what is owned rightly stays; (2) what has no owner goes to the least full member that can handle it; (3) one
share after the other goes from the fullest to the least full, until C holds. Full is the share of points over the
capacity. Of equally full members that which owns the least of the topic is taken, so topics spread; shares with state
move last.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

NOBODY: Final = 0


@dataclass(frozen=True, slots=True)
class Taker:
    """A member that may own something. ``capacity``: relative to 1.0; ``topics``: that it can handle."""

    incarnation: int
    capacity: float
    topics: frozenset[str]


class Share(NamedTuple):
    """Points of a source partition that have one owner (``NOBODY``: none)."""

    topic: str
    partition: int
    first: int
    end: int
    owner: int
    has_state: bool = False

    @property
    def points(self) -> int:
        """How many there are."""
        return self.end - self.first


class Shift(NamedTuple):
    """A share is to go to a member."""

    share: Share
    target: int


class _Books:
    """Who has how much, while it is solved."""

    def __init__(self, takers: Collection[Taker]) -> None:
        self.takers = {taker.incarnation: taker for taker in takers}
        self.owned: dict[int, set[Share]] = {taker.incarnation: set() for taker in takers}
        self._points: Counter[int] = Counter()
        self._by_topic: Counter[tuple[int, str]] = Counter()

    def can(self, incarnation: int, topic: str) -> bool:
        """Whether it is there and can handle the topic."""
        taker = self.takers.get(incarnation)
        return taker is not None and topic in taker.topics

    def give(self, share: Share, incarnation: int, *, sign: int = 1) -> None:
        """It owns this too, or (-1) no more."""
        (self.owned[incarnation].add if sign > 0 else self.owned[incarnation].discard)(share)
        self._points[incarnation] += sign * share.points
        self._by_topic[incarnation, share.topic] += sign * share.points

    def fullness(self, incarnation: int, more: int = 0) -> Fraction:
        """How full it would be with so many points more."""
        return Fraction(self._points[incarnation] + more) / Fraction(self.takers[incarnation].capacity)

    def rank(self, incarnation: int, topic: str) -> tuple[Fraction, int, int]:
        """The least is the one to take more of a topic."""
        return self.fullness(incarnation), self._by_topic[incarnation, topic], incarnation

    def cost(self, share: Share, giver: int, taker: int) -> tuple[bool, int, Share]:
        """The least is the one to move: without state, and of the topic of which the one owns most more."""
        excess = self._by_topic[giver, share.topic] - self._by_topic[taker, share.topic]
        return share.has_state, -excess, share


def solve(takers: Collection[Taker], shares: Sequence[Share]) -> list[Shift]:
    """The shifts that bring about what shall be, in order of the shares; those with no owner who can handle them
    included. Raises ValueError for two takers of one incarnation.
    """
    if len({taker.incarnation for taker in takers}) != len(takers):
        raise ValueError(f"each incarnation is there once; seen {sorted(t.incarnation for t in takers)}")
    books, target = _Books(takers), dict[Share, int]()
    homeless: list[Share] = []
    for share in sorted(shares):
        if books.can(share.owner, share.topic):
            books.give(share, share.owner)
            target[share] = share.owner
        else:
            homeless.append(share)
    for share in homeless:
        able = [incarnation for incarnation in books.takers if books.can(incarnation, share.topic)]
        if able:
            target[share] = min(able, key=lambda incarnation: books.rank(incarnation, share.topic))
            books.give(share, target[share])
    while (shift := _levelling(books)) is not None:
        books.give(shift.share, target[shift.share], sign=-1)
        books.give(shift.share, shift.target)
        target[shift.share] = shift.target
    return [Shift(share, target[share]) for share in sorted(target) if target[share] != share.owner]


def _levelling(books: _Books) -> Shift | None:
    """The share that is to go from a fuller member to a less full one; None: all are level."""
    by_fullness = sorted(books.takers, key=lambda incarnation: (books.fullness(incarnation), incarnation))
    for giver in reversed(by_fullness):
        for taker in by_fullness:
            if books.fullness(taker) >= books.fullness(giver):
                break
            gaining = [
                share
                for share in books.owned[giver]
                if books.can(taker, share.topic) and books.fullness(taker, share.points) < books.fullness(giver)
            ]
            if gaining:
                return Shift(min(gaining, key=lambda share: books.cost(share, giver, taker)), taker)
    return None
