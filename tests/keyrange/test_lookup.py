"""What lies at a point, beside the search by halves that this is to be faster than."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.lookup import IntervalTable
from keylanes.keyrange.ranges import even_bounds

from ..tiers.marks import tier

pytestmark = tier("check")

_points = st.integers(0, SPACE_END - 1)
_crowded = st.integers(0, 40).map(lambda step: 7 * (1 << 22) + step)


@given(st.sets(_points | _crowded, max_size=60), st.lists(_points | _crowded, max_size=40))
def test_every_point_is_found_where_halving_finds_it(bounds: set[int], points: list[int]) -> None:
    """Whether bounds lie apart or together: at each of them, one beside it, at the ends and anywhere."""
    rising = sorted({0, *bounds})
    lookup = IntervalTable(rising, range(len(rising)))
    beside = [point for bound in rising for point in (bound - 1, bound, bound + 1) if 0 <= point < SPACE_END]
    for point in [*points, *beside, 0, SPACE_END - 1]:
        assert lookup.find(point) == bisect_right(rising, point) - 1


@pytest.mark.parametrize("workers", [1, 2, 1_000, 40_000])
def test_even_bounds(workers: int) -> None:
    """As partitions are cut: also with more workers than there may be buckets for."""
    rising = even_bounds(workers)[:-1]
    lookup = IntervalTable(rising, range(len(rising)))
    for point in (0, 1, 12_345_678, SPACE_END // 3, *rising[-3:], SPACE_END - 1):
        assert lookup.find(point) == bisect_right(rising, point) - 1


@pytest.mark.parametrize("bounds", [[], [1], [0, 0], [0, 5, 4]])
def test_bounds_that_do_not_rise_from_0_are_refused(bounds: list[int]) -> None:
    """A point below the first bound would be nowhere."""
    with pytest.raises(ValueError, match="bounds rise from 0 on"):
        IntervalTable(bounds, bounds)


@pytest.mark.parametrize("items", [[], ["a"], ["a", "b", "c"]])
def test_each_interval_holds_one_item(items: list[str]) -> None:
    """One too few or too many would be somebody else's."""
    with pytest.raises(ValueError, match="one item for each bound"):
        IntervalTable([0, 5], items)
