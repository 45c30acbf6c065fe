"""Which worker owns which range of one partition.

An assignment covers a range of points exactly once. It is never edited: split and merge check, copy, apply and return a
new one with the next revision, so a reader that holds an old one sees no half-made change. Workers are
numbered; a number never comes back.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from .ranges import KeyRange


@dataclass(frozen=True, slots=True)
class Assignment:
    """Ranges that lie side by side, and their workers.

    ``bounds`` has one entry more than ``workers``; worker i owns ``[bounds[i], bounds[i + 1])``. ``number_next`` is the
    least worker number that was never used. ``epoch`` is that of the grant the ranges are held under. Raises
    ValueError when the parts don't fit together.
    """

    epoch: int
    revision: int
    bounds: tuple[int, ...]
    workers: tuple[int, ...]
    number_next: int

    def __post_init__(self) -> None:
        if len(self.bounds) != len(self.workers) + 1 or not self.workers:
            raise ValueError(f"n workers have n + 1 bounds, n >= 1; seen {len(self.workers)} and {len(self.bounds)}")
        for first, end in pairwise(self.bounds):
            KeyRange(first, end)
        if len(set(self.workers)) != len(self.workers) or max(self.workers) >= self.number_next:
            raise ValueError(f"worker numbers are distinct and below number_next={self.number_next}")

    @property
    def range(self) -> KeyRange:
        """The points that the assignment covers."""
        return KeyRange(self.bounds[0], self.bounds[-1])

    def index_of_point(self, point: int) -> int:
        """The place in ``workers`` of the owner; raises ValueError for a point outside."""
        if not self.bounds[0] <= point < self.bounds[-1]:
            raise ValueError(f"the assignment covers {self.range}; seen point {point:08x}")
        return bisect_right(self.bounds, point) - 1

    def worker_of_point(self, point: int) -> int:
        """The owner's number; raises ValueError for a point outside."""
        return self.workers[self.index_of_point(point)]

    def range_of(self, worker: int) -> KeyRange:
        """The range of a worker; raises ValueError for a number that owns nothing."""
        i = self._index(worker)
        return KeyRange(self.bounds[i], self.bounds[i + 1])

    def split(self, worker: int, at: int) -> "Assignment":
        """The worker's range as two, each with a new number, the left one the lower; raises ValueError."""
        i = self._index(worker)
        left, _ = self.range_of(worker).split(at)
        n = self.number_next
        return Assignment(
            self.epoch,
            self.revision + 1,
            self.bounds[: i + 1] + (left.end,) + self.bounds[i + 1 :],
            self.workers[:i] + (n, n + 1) + self.workers[i + 1 :],
            n + 2,
        )

    def merge(self, left: int, right: int) -> "Assignment":
        """Two neighbours as one with a new number; raises ValueError when they are not neighbours."""
        i = self._index(left)
        if i + 1 >= len(self.workers) or self.workers[i + 1] != right:
            raise ValueError(f"worker {left} can be merged with its right neighbour only; seen {right}")
        n = self.number_next
        return Assignment(
            self.epoch,
            self.revision + 1,
            self.bounds[: i + 1] + self.bounds[i + 2 :],
            self.workers[:i] + (n,) + self.workers[i + 2 :],
            n + 1,
        )

    def _index(self, worker: int) -> int:
        try:
            return self.workers.index(worker)
        except ValueError:
            raise ValueError(f"worker {worker} owns nothing here; owners are {self.workers}") from None


def cut(epoch: int, bounds: tuple[int, ...], number_first: int) -> Assignment:
    """A fresh assignment: one worker per pair of neighbouring bounds, numbered from ``number_first``."""
    n = len(bounds) - 1
    return Assignment(epoch, 0, bounds, tuple(range(number_first, number_first + n)), number_first + n)


def recut(present: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How to come from one cut to another: ``(points to split at, bounds to merge away)``, both rising.

    Both cuts must cover the same points; raises ValueError otherwise. Splitting needs no agreement between workers,
    so a host splits first and merges neighbours as they become level.
    """
    if _span(present) != _span(wanted):
        raise ValueError(f"both cuts must cover the same points; seen {_span(present)} and {_span(wanted)}")
    return tuple(sorted(set(wanted) - set(present))), tuple(sorted(set(present) - set(wanted)))


def _span(bounds: tuple[int, ...]) -> KeyRange:
    """The points a cut covers; raises ValueError unless the bounds rise."""
    if any(first >= end for first, end in pairwise(bounds)) or len(bounds) < 2:
        raise ValueError(f"a cut has two bounds or more, and they rise; seen {bounds}")
    return KeyRange(bounds[0], bounds[-1])
