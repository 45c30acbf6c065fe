"""PURE. Samples of a table: how much state a range has, by estimate; and some records' keys with state.

Keys lie evenly over the points. Hence the state of the sampled points tells the state of all points. A part of the
range with fewer entries than the sample takes is known exactly.
"""

from itertools import pairwise
from typing import Final

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange, even_bounds
from .keys import bounds_of, is_state_key, parse_key, point_in
from .tables import Table

SAMPLE_KEYS: Final = 256
"""The number of keys of a partition that are sampled to tell by which partitioner they were placed; 2 ms of work."""
PARTITIONS_LOOKED_AT_MAX: Final = 16
"""The most partitions of a topic that are sampled: the keys of more partitions would say the same."""
CHANCE_MAX: Final = 1e-6
"""A finding that chance alone brings about with this probability, for keys placed by hand, does not count."""
PLACES: Final = 8
"""A range is sampled at the beginnings of this number of equal parts."""
ENTRIES: Final = 64
"""The number of entries that are read of each part."""
PAGE: Final = 16
"""The number of entries that are read at once for records' keys. The next page begins behind the last point: the rest
of a large map is skipped.
"""
PAGES_BYTES_MAX: Final = 4 * 1024 * 1024
"""No page is read after this number of bytes."""


def sampled_bytes(table: Table, within: KeyRange) -> int:
    """The estimated bytes of keys and values in a range; blocks on the table."""
    size = points = 0
    for first, end in pairwise(even_bounds(min(PLACES, within.size), within)):
        found = table.page(*bounds_of(KeyRange(first, end)), ENTRIES)
        entries = [(key, value) for key, value in found if is_state_key(key)]  # a broker's table has beacons, too
        size += sum(len(key) + len(value) for key, value in entries)
        is_all = len(found) < ENTRIES or not entries
        points += end - first if is_all else point_in(entries[-1][0]) + 1 - first
    return size * within.size // points


def sampled_keys(table: Table, keys_max: int) -> list[bytes]:
    """The first records' keys with state in a table, in order of points, each once; blocks on the table."""
    keys: dict[bytes, None] = {}
    point = size = 0
    while point < SPACE_END and len(keys) < keys_max and size < PAGES_BYTES_MAX:
        page = table.page(*bounds_of(KeyRange(point, SPACE_END)), PAGE)
        found = [key for key, _ in page if is_state_key(key)]  # a broker's table has beacons, too
        keys.update((parse_key(key).key, None) for key in found)
        size += sum(len(key) + len(value) for key, value in page)
        if len(page) < PAGE:
            break
        point = point_in(page[-1][0]) + 1
    return list(keys)[:keys_max]
