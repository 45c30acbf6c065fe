"""Deliberately dumb twins of ranges, cuts and step functions: plain sets and dicts over a few points.

The space has 2**32 points, so bounds are drawn from ``BOUNDS`` and every function is compared at ``POINTS``: each bound
that is a point, and the points just beside it.
"""

from hypothesis import strategies as st

from keylanes.keyrange.ranges import KeyRange

TOP = 2**32
BOUNDS = (0, 1, 2, 3, 7, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFF0, TOP - 2, TOP - 1, TOP)
POINTS = tuple(sorted({p for b in BOUNDS for p in (b - 1, b, b + 1) if 0 <= p < TOP}))

bounds = st.sampled_from(BOUNDS)
points = st.sampled_from(POINTS)
ranges = st.lists(bounds, min_size=2, max_size=2, unique=True).map(lambda pair: KeyRange(min(pair), max(pair)))
cuts = st.lists(bounds, min_size=2, unique=True).map(lambda chosen: tuple(sorted(chosen)))


def members(first: int, end: int) -> set[int]:
    """The compared points inside ``[first, end)``."""
    return {point for point in POINTS if first <= point < end}
