"""A step function over the points: which value holds where.

The edges of a partition, the owner of each point, the offset a grant runs from: all are values that are constant on
ranges. ``Steps`` holds such a function in canonical form (neighbours with equal values are one piece), so two that
agree at every point are equal. Values are frozen; ``replace`` returns a new function.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from .hashing import SPACE_END

V = TypeVar("V")


class Steps(Generic[V]):
    """A function from points ``[0, 2**32)`` to a value or None (not defined there)."""

    __slots__ = ("_firsts", "_values")

    def __init__(self, pieces: Iterable[tuple[int, int, V]] = ()) -> None:
        """From ``(first, end, value)`` pieces in any order; a later piece covers an earlier one."""
        self._firsts: list[int] = [0]
        self._values: list[V | None] = [None]
        for first, end, value in pieces:
            self._put(first, end, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and self._firsts == other._firsts and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # a value compared often and hashed never

    def __repr__(self) -> str:
        return "Steps(" + ", ".join(f"[{f:08x},{e:08x})={v!r}" for f, e, v in self.pieces()) + ")"

    def at(self, point: int) -> V | None:
        """The value at a point."""
        return self._values[bisect_right(self._firsts, point) - 1]

    def pieces(self, first: int = 0, end: int = SPACE_END) -> Iterator[tuple[int, int, V]]:
        """The defined pieces inside ``[first, end)``, clipped to it, in order of points."""
        for a, b, value in self.all_pieces(first, end):
            if value is not None:
                yield a, b, value

    def all_pieces(self, first: int = 0, end: int = SPACE_END) -> Iterator[tuple[int, int, V | None]]:
        """The pieces inside ``[first, end)``, clipped to it, with None where nothing is defined."""
        i = bisect_right(self._firsts, first) - 1
        while first < end and i < len(self._firsts) and self._firsts[i] < end:
            stop = self._firsts[i + 1] if i + 1 < len(self._firsts) else SPACE_END
            yield max(first, self._firsts[i]), min(end, stop), self._values[i]
            i += 1

    def is_constant(self, first: int, end: int, value: V) -> bool:
        """Whether the function has this value at every point of ``[first, end)``, of which there is at least one."""
        i = bisect_right(self._firsts, first) - 1
        stop = self._firsts[i + 1] if i + 1 < len(self._firsts) else SPACE_END
        return self._values[i] == value and stop >= end

    def replace(self, pieces: Iterable[tuple[int, int, V | None]]) -> "Steps[V]":
        """A new function that differs on the given pieces; None makes it undefined there."""
        new: Steps[V] = Steps()
        new._firsts = self._firsts.copy()
        new._values = self._values.copy()
        for first, end, value in pieces:
            new._put(first, end, value)
        return new

    def _put(self, first: int, end: int, value: V | None) -> None:
        if not 0 <= first < end <= SPACE_END:
            raise ValueError(f"a piece needs 0 <= first < end <= {SPACE_END}; seen first={first}, end={end}")
        firsts, values = self._firsts, self._values
        i = bisect_right(firsts, first) - 1
        j = bisect_right(firsts, end - 1) - 1
        after = values[j]
        ends_inside = end < (firsts[j + 1] if j + 1 < len(firsts) else SPACE_END)
        keep_left = firsts[i] < first
        new_firsts = ([firsts[i]] if keep_left else []) + [first] + ([end] if ends_inside else [])
        new_values = ([values[i]] if keep_left else []) + [value] + ([after] if ends_inside else [])
        lo, hi = i, j + 1
        if lo > 0:  # take both neighbours in, so that equal ones melt
            lo -= 1
            new_firsts.insert(0, firsts[lo])
            new_values.insert(0, values[lo])
        if hi < len(firsts):
            new_firsts.append(firsts[hi])
            new_values.append(values[hi])
            hi += 1
        melted = [k for k in range(len(new_firsts)) if k == 0 or new_values[k] != new_values[k - 1]]
        firsts[lo:hi] = [new_firsts[k] for k in melted]
        values[lo:hi] = [new_values[k] for k in melted]
