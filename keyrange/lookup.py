"""PURE. The item at a point: the space is cut into many neighbouring intervals with an item each.

A binary search looks at ten bounds of a thousand. So the space is also cut into equal *buckets*, and the upper bits of
a point are the number of its bucket. A bucket inside one interval has the item at once. Only a bucket with a bound
among its points needs the search.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from .hashing import SPACE_END

T = TypeVar("T")

BUCKETS_PER_BOUND: Final = 8
"""So few buckets have a bound among their points."""
BUCKETS_MAX: Final = 1 << 16


class _Several:
    """A bucket whose points lie in several intervals."""


_SEVERAL: Final = _Several()


class IntervalTable(Generic[T]):
    """Intervals between rising bounds from 0 on; the last interval reaches to the end of the space.

    Each interval holds one of the items.
    """

    __slots__ = ("_at", "_bounds", "_items", "_shift")

    def __init__(self, bounds: Sequence[int], items: Sequence[T]) -> None:
        """Raises ValueError unless the bounds rise from 0 on, within the space, with an item for each bound."""
        if not bounds or bounds[0] or any(bounds[i] >= bounds[i + 1] for i in range(len(bounds) - 1)):
            raise ValueError(f"bounds rise from 0 on; seen {[*bounds][:10]}")
        if len(items) != len(bounds):
            raise ValueError(f"there is one item for each bound; seen {len(items)} for {len(bounds)}")
        self._bounds = [*bounds]
        self._items = [*items]
        buckets = 1
        while buckets < min(BUCKETS_MAX, BUCKETS_PER_BOUND * len(bounds)):
            buckets *= 2
        width = SPACE_END // buckets
        self._shift = width.bit_length() - 1
        self._at: list[T | _Several] = [_SEVERAL] * buckets
        for item, first, end in zip(items, bounds, [*bounds[1:], SPACE_END], strict=True):
            whole_from = -(-first // width)
            whole_to = end // width
            if whole_from < whole_to:
                self._at[whole_from:whole_to] = [item] * (whole_to - whole_from)

    def find(self, point: int) -> T:
        """The item of the interval with this point."""
        found = self._at[point >> self._shift]
        return self._items[bisect_right(self._bounds, point) - 1] if isinstance(found, _Several) else found
