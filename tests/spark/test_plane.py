"""Signed corners, the defects they leave and the edges of bands, against a brute force on small grids."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.steps import Steps
from keylanes.spark.plane import Rectangle, bands_of, defects, residual

from ..tiers.marks import tier

pytestmark = tier("check")

X, Y = 6, 5
TOP = 1 << 32


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangle:
    """A rectangle inside the grid."""
    x, y = draw(st.integers(0, X - 1)), draw(st.integers(0, Y - 1))
    return Rectangle(x, draw(st.integers(x + 1, X)), y, draw(st.integers(y + 1, Y)))


@st.composite
def tilings(draw: st.DrawFn) -> list[Rectangle]:
    """Rectangles that cover the grid exactly once: bands, each cut at some offsets, neighbours not always alike."""
    tiles = []
    y = 0
    while y < Y:
        end = draw(st.integers(y + 1, Y))
        cuts = sorted({0, X, *draw(st.lists(st.integers(1, X - 1), max_size=3))})
        tiles += [Rectangle(a, b, y, end) for a, b in pairwise(cuts)]
        y = end
    return tiles


@st.composite
def broken(draw: st.DrawFn) -> list[Rectangle]:
    """A tiling from which some tiles are taken, and to which some are added."""
    tiles = draw(tilings())
    for _ in range(draw(st.integers(0, 2))):
        if tiles:
            tiles.pop(draw(st.integers(0, len(tiles) - 1)))
    return tiles + draw(st.lists(rectangles(), max_size=2))


def cover(tiles: list[Rectangle]) -> dict[tuple[int, int], int]:
    """How often each cell of the grid is covered."""
    return {
        (x, y): sum(t.offset_from <= x < t.offset_to and t.first <= y < t.end for t in tiles)
        for x in range(X)
        for y in range(Y)
    }


WHOLE = [Rectangle(0, X, 0, Y)]


@given(broken())
def test_corners_are_left_over_exactly_when_some_cell_is_not_covered_once(tiles: list[Rectangle]) -> None:
    """The verdict of the corners is that of counting cells."""
    exact = all(count == 1 for count in cover(tiles).values())
    assert (residual(tiles, WHOLE) == []) == exact


@given(broken())
def test_the_defects_are_the_cells_that_are_covered_wrongly(tiles: list[Rectangle]) -> None:
    """Gaps and overlaps are disjoint rectangles with the right count, and there are no others."""
    found = dict.fromkeys(cover([]), 0)
    for d in defects(residual(tiles, WHOLE)):
        for x in range(d.offset_from, d.offset_to):
            for y in range(d.first, d.end):
                assert found[x, y] == 0
                found[x, y] = d.cover
    assert found == {cell: count - 1 for cell, count in cover(tiles).items()}


def test_one_lost_tile_is_one_defect() -> None:
    """The gap is not cut where its neighbours are."""
    tiles = [Rectangle(0, 3, 0, 5), Rectangle(3, 6, 0, 2), Rectangle(3, 6, 3, 5)]
    assert [tuple(d) for d in defects(residual(tiles, WHOLE))] == [(3, 6, 2, 3, -1)]


@given(
    st.lists(rectangles(), max_size=6),
    st.lists(st.tuples(st.integers(0, Y - 1), st.integers(0, 3)), max_size=2),
)
def test_bands_hold_the_greatest_offset_over_each_point(tiles: list[Rectangle], marks: list[tuple[int, int]]) -> None:
    """Edge and left edge of every point are those of a search over all tiles; bands are maximal and in order."""
    left = Steps([(0, TOP, 0), *((y, y + 1, at) for y, at in marks)])
    bands = bands_of([(t.first, t.end, t.offset_to) for t in tiles], left)
    assert [band.first for band in bands[1:]] == [band.end for band in bands[:-1]]
    assert (bands[0].first, bands[-1].end) == (0, TOP)
    assert all(a[2:] != b[2:] for a, b in pairwise(bands))
    for y in range(Y + 1):
        (band,) = (band for band in bands if band.first <= y < band.end)
        start = left.at(y) or 0
        assert band.left == start
        assert band.edge == max([start, *(t.offset_to for t in tiles if t.first <= y < t.end)])


def test_points_without_a_left_edge_have_no_band() -> None:
    """A partition that the application never started is not part of the audit."""
    assert bands_of([], Steps()) == []
    assert bands_of([(0, 5, 9)], Steps()) == []
