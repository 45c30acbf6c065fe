"""PURE. How much state a range has, about: a few entries are looked at, in several places of it.

Keys lie evenly over the points, so what the looked-at points hold tells what all hold. A place with fewer entries than
are looked at is known exactly.
"""

from itertools import pairwise
from typing import Final

from ..keyrange.ranges import KeyRange, even_bounds
from .keys import bounds_of, is_state_key, point_in
from .tables import Table

PLACES: Final = 8
ENTRIES: Final = 64
"""Of each place."""


def sampled_bytes(table: Table, within: KeyRange) -> int:
    """About so many bytes of keys and values; blocks on the table."""
    size = points = 0
    for first, end in pairwise(even_bounds(min(PLACES, within.size), within)):
        found = table.page(*bounds_of(KeyRange(first, end)), ENTRIES)
        entries = [(key, value) for key, value in found if is_state_key(key)]  # beside these there are beacons
        size += sum(len(key) + len(value) for key, value in entries)
        is_all = len(found) < ENTRIES or not entries
        points += end - first if is_all else point_in(entries[-1][0]) + 1 - first
    return size * within.size // points
