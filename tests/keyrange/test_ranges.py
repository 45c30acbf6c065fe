"""Key ranges against sets of points."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.ranges import WHOLE, KeyRange, even_bounds, join_neighbours

from ..tiers.marks import tier
from .twins import BOUNDS, POINTS, TOP, bounds, members, points, ranges

pytestmark = tier("check")


@given(first=st.integers(-2, TOP + 2) | bounds, end=st.integers(-2, TOP + 2) | bounds)
def test_a_range_is_refused_unless_it_holds_a_point_and_lies_in_the_space(first: int, end: int) -> None:
    """0 <= first < end <= 2**32, and a ValueError that names what was seen for all else."""
    if 0 <= first < end <= TOP:
        assert KeyRange(first, end).size == end - first > 0
    else:
        with pytest.raises(ValueError, match=f"seen first={first}, end={end}"):
            KeyRange(first, end)


@given(ranges, points)
def test_contains_is_membership_in_the_set(band: KeyRange, point: int) -> None:
    """The first point is in, the end is not."""
    assert band.contains(point) == (point in members(band.first, band.end))
    assert band.contains(band.first)
    assert not band.contains(band.end)


@given(ranges, ranges)
def test_covers_and_overlaps_are_subset_and_common_points(one: KeyRange, other: KeyRange) -> None:
    """The compared points lie on and beside every bound, so sets of them tell what whole ranges do."""
    mine, theirs = members(one.first, one.end), members(other.first, other.end)
    assert one.covers(other) == (theirs <= mine)
    assert one.overlaps(other) == bool(mine & theirs) == other.overlaps(one)


@given(ranges, bounds)
def test_split_divides_the_points_and_join_brings_them_back(band: KeyRange, at: int) -> None:
    """Two ranges that meet, none of them empty; a split at a border or outside is refused."""
    if band.first < at < band.end:
        left, right = band.split(at)
        assert members(left.first, left.end) == {p for p in members(band.first, band.end) if p < at}
        assert members(right.first, right.end) == {p for p in members(band.first, band.end) if p >= at}
        assert left.join(right) == band
    else:
        with pytest.raises(ValueError, match="strictly inside"):
            band.split(at)


@given(ranges, ranges)
def test_only_ranges_that_meet_are_joined(left: KeyRange, right: KeyRange) -> None:
    """A join over a gap or an overlap, or in the wrong order, is refused."""
    if left.end == right.first:
        assert left.join(right) == KeyRange(left.first, right.end)
    else:
        with pytest.raises(ValueError, match="can be joined"):
            left.join(right)


class Counted(NamedTuple):
    """Points of one colour, made of so many parts."""

    first: int
    end: int
    colour: str
    parts: int

    def join(self, right: "Counted") -> "Counted | None":
        """One of both if they have one colour."""
        is_one = self.colour == right.colour
        return Counted(self.first, right.end, self.colour, self.parts + right.parts) if is_one else None


@given(st.lists(st.builds(lambda one, colour: Counted(one.first, one.end, colour, 1), ranges, st.sampled_from("rb"))))
def test_neighbours_are_joined_as_if_each_touching_pair_was_looked_for_anew(parts: list[Counted]) -> None:
    """In any order; the dumb way joins the first pair that touches and has one colour until there is none."""
    joined = list(parts)
    while (pair := next((i for i, (a, b) in enumerate(pairwise(joined)) if a[1:3] == b[::2]), None)) is not None:
        left, right = joined[pair : pair + 2]
        joined[pair : pair + 2] = [Counted(left.first, right.end, left.colour, left.parts + right.parts)]
    assert join_neighbours(parts, Counted.join) == joined


@given(st.sets(ranges))
def test_ranges_sort_by_their_first_point(bands: set[KeyRange]) -> None:
    """Order is that of first, then of end."""
    assert sorted(bands) == sorted(bands, key=lambda band: (band.first, band.end))


def test_a_range_reads_as_hexadecimal_and_half_open() -> None:
    """The whole space needs nine digits for its end."""
    assert str(WHOLE) == "[00000000, 100000000)"
    assert WHOLE.size == TOP
    assert all(WHOLE.contains(point) for point in POINTS)


@given(ranges, st.integers(1, 3000))
def test_even_bounds_cut_into_parts_that_differ_by_one_point_at_most(band: KeyRange, parts: int) -> None:
    """Rising bounds from the first to the end, as many parts as asked for, more than there are points refused."""
    if parts > band.size:
        with pytest.raises(ValueError, match=f"seen {parts}"):
            even_bounds(parts, band)
        return
    cut = even_bounds(parts, band)
    sizes = {end - first for first, end in pairwise(cut)}
    assert (cut[0], cut[-1], len(cut)) == (band.first, band.end, parts + 1)
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 12), st.data())
def test_even_bounds_of_few_points_are_those_of_dealing_them_out(size: int, data: st.DataObject) -> None:
    """The dumb way: point j of n goes to the part whose share of the line it lies in."""
    parts = data.draw(st.integers(1, size))
    first = data.draw(st.sampled_from([0, 5, TOP - size]))
    cut = even_bounds(parts, KeyRange(first, first + size))
    dealt = [next(j for j in range(size + 1) if j * parts > i * size - parts) for i in range(parts + 1)]
    assert cut == tuple(first + j for j in dealt)


@pytest.mark.parametrize("parts", [0, -1])
def test_no_parts_are_refused(parts: int) -> None:
    """A partition is cut into one part at least."""
    with pytest.raises(ValueError, match="1 to"):
        even_bounds(parts)


def test_the_bounds_the_twins_draw_hold_both_ends_of_the_space() -> None:
    """A twin that never sees the ends would miss the mistakes made there."""
    assert {0, 1, TOP - 1, TOP} <= set(BOUNDS)
