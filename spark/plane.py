"""PURE. Rectangles on the plane of one partition: signed corners, the defects they leave, the edges of the bands.

Every rectangle adds +1 at (from, first), -1 at (from, end), -1 at (to, first) and +1 at (to, end). The sum of the
weights at all corners is the mixed difference of the cover count. Therefore rectangles cover a target exactly once if
and only if the sum with the target's rectangles taken at weight -1 is zero everywhere. The corners left over give every
gap and overlap as an exact rectangle. Precondition, checked elsewhere: every rectangle has from < to and first < end;
an inverted rectangle would be negative cover and could hide an overlap.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..keyrange.steps import Steps


class Rectangle(NamedTuple):
    """``[offset_from, offset_to) x [first, end)``."""

    offset_from: int
    offset_to: int
    first: int
    end: int


class Corner(NamedTuple):
    """A weight at one point of the plane: ``x`` is an offset, ``y`` a point of the key-hash space."""

    x: int
    y: int
    weight: int


class Defect(NamedTuple):
    """A rectangle covered ``cover`` times more often than the target: -1 is a gap, +1 an overlap."""

    offset_from: int
    offset_to: int
    first: int
    end: int
    cover: int


class Band(NamedTuple):
    """Points ``[first, end)``, accounted for from offset ``left`` to offset ``edge``."""

    first: int
    end: int
    left: int
    edge: int


def corners(rectangle: Rectangle, weight: int) -> tuple[Corner, Corner, Corner, Corner]:
    """The four signed corners."""
    x, to, y, end = rectangle
    return Corner(x, y, weight), Corner(x, end, -weight), Corner(to, y, -weight), Corner(to, end, weight)


def residual(tiles: Iterable[Rectangle], target: Iterable[Rectangle]) -> list[Corner]:
    """The corners that do not cancel, in order of (x, y). The plain twin of the Spark job; empty means exact."""
    sums: dict[tuple[int, int], int] = {}
    for weight, rectangles in ((1, tiles), (-1, target)):
        for rectangle in rectangles:
            for x, y, w in corners(rectangle, weight):
                sums[x, y] = sums.get((x, y), 0) + w
    return [Corner(x, y, w) for (x, y), w in sorted(sums.items()) if w]


def defects(left_over: Sequence[Corner]) -> list[Defect]:
    """Gaps and overlaps as exact rectangles, from corners that did not cancel; in order of (end of offsets, points).

    When only the corners up to some x are known, the rectangles with an end at or below x are exact all the same.

    A sweep over the offsets: between two offsets with corners, the cover of each point is constant. A rectangle begins
    where an interval of points gets a cover, and ends where the interval or its cover changes.
    """
    found: list[Defect] = []
    running: dict[tuple[int, int], tuple[int, int]] = {}  # (first, end) -> (offset_from, cover)
    sums: dict[int, int] = {}
    by_x: dict[int, list[Corner]] = {}
    for corner in left_over:
        by_x.setdefault(corner.x, []).append(corner)
    for x in sorted(by_x):
        for _, y, weight in by_x[x]:
            sums[y] = sums.get(y, 0) + weight
        now = _intervals(sums)
        for (first, end), (offset_from, cover) in sorted(running.items()):
            if now.get((first, end)) != cover:
                found.append(Defect(offset_from=offset_from, offset_to=x, first=first, end=end, cover=cover))
                del running[first, end]
        for interval, cover in now.items():
            running.setdefault(interval, (x, cover))
    return found


def _intervals(sums: dict[int, int]) -> dict[tuple[int, int], int]:
    """The maximal intervals of y with one cover count other than zero."""
    intervals: dict[tuple[int, int], int] = {}
    cover, start = 0, 0
    for y in sorted(y for y, weight in sums.items() if weight):
        if cover:
            intervals[start, y] = cover
        cover += sums[y]
        start = y
    return intervals


def bands_of(runs: Iterable[tuple[int, int, int]], left: Steps[int]) -> list[Band]:
    """The bands of a partition, each from its left edge to its right edge, in order of points.

    ``runs`` are ``(first, end, offset_to)`` of tiles. The edge of a point is the greatest ``offset_to`` over the point,
    and without a tile the left edge. Points without a left edge are no part of the audit. Runs are painted from the
    greatest offset down, and each elementary band is painted once: the work is near linear.
    """
    painting = sorted(runs, key=lambda run: -run[2])
    bounds = sorted({b for run in painting for b in run[:2]} | {b for p in left.pieces() for b in p[:2]})
    place = {bound: i for i, bound in enumerate(bounds)}
    edges: list[int | None] = [None] * len(bounds)
    unpainted = list(range(len(bounds) + 1))  # links from each elementary band to the next one without an edge
    missing = len(bounds)
    for first, end, offset_to in painting:
        i, stop = _find(unpainted, place[first]), place[end]
        while i < stop:
            edges[i] = offset_to
            unpainted[i] = i + 1
            missing -= 1
            i = _find(unpainted, i)
        if missing <= 1:  # the last entry is the end of the space, no band
            break
    bands: list[Band] = []
    for i in range(len(bounds) - 1):
        start = left.at(bounds[i])
        if start is None:
            continue
        edge = edges[i]
        band = Band(bounds[i], bounds[i + 1], start, start if edge is None else max(edge, start))
        if bands and bands[-1].end == band.first and bands[-1][2:] == band[2:]:
            band = Band(bands.pop().first, *band[1:])
        bands.append(band)
    return bands


def _find(links: list[int], i: int) -> int:
    """The end of the chain of links from ``i``. Then all links on the way lead to the end: later ways are short."""
    root = i
    while links[root] != root:
        root = links[root]
    while links[i] != root:
        links[i], i = root, links[i]
    return root
