"""A step function over the points: a value for each range of points.

The edges of a partition, the owner of each point, the first offset of a grant: all are values that are constant on
ranges. ``Steps`` holds a function in canonical form (neighbours with equal values are one piece), so functions that
agree at every point are equal. ``put`` changes a function; ``replace`` returns a new function and leaves the old alone.
"""

from bisect import bisect_right
from collections.abc import Iterable
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
            self.put(first, end, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and self._firsts == other._firsts and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # a value compared often and hashed never

    def __repr__(self) -> str:
        return "Steps(" + ", ".join(f"[{f:08x},{e:08x})={v!r}" for f, e, v in self.pieces()) + ")"

    def at(self, point: int) -> V | None:
        """The value at a point."""
        return self._values[bisect_right(self._firsts, point) - 1]

    def pieces(self, first: int = 0, end: int = SPACE_END) -> list[tuple[int, int, V]]:
        """The defined pieces inside ``[first, end)``, clipped to the interval, in order of points."""
        return [(a, b, value) for a, b, value in self.all_pieces(first, end) if value is not None]

    def all_pieces(self, first: int = 0, end: int = SPACE_END) -> list[tuple[int, int, V | None]]:
        """The pieces inside ``[first, end)``, clipped to the interval, with None where nothing is defined."""
        if first >= end:
            return []
        firsts, values = self._firsts, self._values
        i = bisect_right(firsts, first) - 1
        last = bisect_right(firsts, end - 1, i) - 1
        found: list[tuple[int, int, V | None]] = []
        while i < last:
            found.append((first, firsts[i + 1], values[i]))
            i += 1
            first = firsts[i]
        found.append((first, end, values[i]))
        return found

    def is_constant(self, first: int, end: int, value: V | None) -> bool:
        """Whether the function has this value, or None, at every point of ``[first, end)``, which is not empty."""
        i = bisect_right(self._firsts, first) - 1
        stop = self._firsts[i + 1] if i + 1 < len(self._firsts) else SPACE_END
        return self._values[i] == value and stop >= end

    def goes_on_in(self, other: "Steps[V]") -> bool:
        """Whether the other function has the same value wherever this function is defined."""
        firsts, values = self._firsts, self._values
        for i in range(len(firsts)):
            value = values[i]
            if value is not None:
                stop = firsts[i + 1] if i + 1 < len(firsts) else SPACE_END
                if not other.is_constant(firsts[i], stop, value):
                    return False
        return True

    def copy(self) -> "Steps[V]":
        """An equal function, independent of this function's later changes."""
        new: Steps[V] = Steps()
        new._firsts = self._firsts.copy()
        new._values = self._values.copy()
        return new

    def replace(self, pieces: Iterable[tuple[int, int, V | None]]) -> "Steps[V]":
        """A new function with other values on the given pieces; None makes the function undefined there."""
        new = self.copy()
        for first, end, value in pieces:
            new.put(first, end, value)
        return new

    def put(self, first: int, end: int, value: V | None) -> None:
        """Set this value at every point of ``[first, end)``; None makes the function undefined there.

        Raises ValueError unless ``0 <= first < end <= 2**32``.
        """
        if not 0 <= first < end <= SPACE_END:
            raise ValueError(f"a piece needs 0 <= first < end <= {SPACE_END}; seen first={first}, end={end}")
        if end - first == SPACE_END:
            self._firsts, self._values = [0], [value]
            return
        firsts, values = self._firsts, self._values
        touched = bisect_right(firsts, first) - 1
        touched_last = bisect_right(firsts, end - 1, touched) - 1
        behind = touched_last + 1
        new_firsts: list[int] = []
        new_values: list[V | None] = []
        keeps_left = firsts[touched] < first
        left = touched if keeps_left else touched - 1
        if left < 0 or values[left] != value:  # else the piece on the left goes on
            new_firsts.append(first)
            new_values.append(value)
        if end < (firsts[behind] if behind < len(firsts) else SPACE_END):
            if values[touched_last] != value:
                new_firsts.append(end)
                new_values.append(values[touched_last])
        elif behind < len(firsts) and values[behind] == value:
            behind += 1  # the piece on the right begins further left
        replaced = touched + 1 if keeps_left else touched
        firsts[replaced:behind] = new_firsts
        values[replaced:behind] = new_values
