"""PURE. Which of many neighbouring intervals a point lies in.

A search by halves looks at ten bounds of a thousand. A table of the upper bits of points says where to search: mostly
there is one interval left.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from .hashing import SPACE_END

BUCKETS_PER_BOUND: Final = 4
BUCKETS_MAX: Final = 1 << 16


class Lookup:
    """Intervals between rising bounds, of which the first is 0; the last one reaches to the end of the space."""

    __slots__ = ("_at", "_bounds", "_shift")

    def __init__(self, bounds: Sequence[int]) -> None:
        """Raises ValueError unless the bounds rise from 0 on, within the space."""
        if not bounds or bounds[0] or any(bounds[i] >= bounds[i + 1] for i in range(len(bounds) - 1)):
            raise ValueError(f"bounds rise from 0 on; seen {[*bounds][:10]}")
        self._bounds = [*bounds]
        buckets = 1
        while buckets < min(BUCKETS_MAX, BUCKETS_PER_BOUND * len(bounds)):
            buckets *= 2
        width = SPACE_END // buckets
        self._shift = width.bit_length() - 1
        self._at: list[int] = []
        """Of each bucket, and of the end: the interval of its first point."""
        interval, last = 0, len(bounds) - 1
        for bucket in range(buckets + 1):
            while interval < last and bounds[interval + 1] <= bucket * width:
                interval += 1
            self._at.append(interval)

    def find(self, point: int) -> int:
        """The place of the interval that holds the point, counted from 0."""
        bucket = point >> self._shift
        first, last = self._at[bucket], self._at[bucket + 1]
        return first if first == last else bisect_right(self._bounds, point, first + 1, last + 1) - 1
