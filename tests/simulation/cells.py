"""Points of a source partition, cut into cells wherever a bound occurs: what is done of each, and who may go on."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylanes.keyrange.hashing import SPACE_END

NOBODY: Final = -1


class Holder(NamedTuple):
    """Who may commit a cell."""

    epoch: int
    incarnation: int


@dataclass
class Cells:
    """The edges and holders of one source partition. ``bounds``: where each cell begins."""

    bounds: list[int] = field(default_factory=lambda: [0])
    edges: list[int] = field(default_factory=lambda: [0])
    holders: list[Holder] = field(default_factory=lambda: [Holder(NOBODY, NOBODY)])

    def within(self, first: int, end: int) -> range:
        """The numbers of the cells that make up ``[first, end)``; cut where need be."""
        return range(self._cut(first), self._cut(end))

    def pieces(self) -> Iterator[tuple[int, int, Holder]]:
        """Where each cell begins and ends, and who holds it."""
        return zip(self.bounds, [*self.bounds[1:], SPACE_END], self.holders, strict=True)

    def _cut(self, point: int) -> int:
        if point == SPACE_END:
            return len(self.bounds)
        at = bisect_right(self.bounds, point)
        if self.bounds[at - 1] == point:
            return at - 1
        self.bounds.insert(at, point)
        self.edges.insert(at, self.edges[at - 1])
        self.holders.insert(at, self.holders[at - 1])
        return at
