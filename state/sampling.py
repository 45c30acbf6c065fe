"""PURE. What a sample of a table tells: how much state a range has, about, and which records' keys have some.

Keys lie evenly over the points, so what the looked-at points hold tells what all hold. A place with fewer entries than
are looked at is known exactly.
"""

from itertools import pairwise
from typing import Final

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange, even_bounds
from .keys import bounds_of, is_state_key, parse_key, point_in
from .tables import Table

SAMPLE_KEYS: Final = 256
"""So many keys of a partition are looked at where it is asked by which partitioner they were placed; 2 ms of work."""
PARTITIONS_LOOKED_AT_MAX: Final = 16
"""Of a topic: the keys of more partitions would say the same."""
CHANCE_MAX: Final = 1e-6
"""A finding that this likely comes about when keys are placed by hand is none."""
PLACES: Final = 8
ENTRIES: Final = 64
"""Of each place."""
PAGE: Final = 16
"""Entries of a page of which the records' keys are taken: what is left of a large map is passed over behind it."""
PAGES_BYTES_MAX: Final = 4 * 1024 * 1024
"""No page is read behind so many."""


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


def sampled_keys(table: Table, keys_max: int) -> list[bytes]:
    """The first keys of records, in order of points, that have state in a table, each once; blocks on the table."""
    keys: dict[bytes, None] = {}
    point = size = 0
    while point < SPACE_END and len(keys) < keys_max and size < PAGES_BYTES_MAX:
        page = table.page(*bounds_of(KeyRange(point, SPACE_END)), PAGE)
        found = [key for key, _ in page if is_state_key(key)]  # beside these there are beacons
        keys.update((parse_key(key).key, None) for key in found)
        size += sum(len(key) + len(value) for key, value in page)
        if len(page) < PAGE:
            break
        point = point_in(page[-1][0]) + 1
    return list(keys)[:keys_max]
