"""PURE. Whether the keys of a topic lie where fewer partitions put them: whether it got more of them since.

Then old records of a key lie in one partition and new ones in another. State belongs to a key of a partition, so a key
would have two states, in silence: nothing in a single record shows that.

A sample speaks for an older number of partitions only where all keys that lie astray by the number of now lie by that.
Keys that are placed by hand lie where a given number puts them with a chance of 1 / partitions each; that chance is
divided by the numbers that are tried. Not found: growth of which too few keys tell, what lies between the two ends of
a sample, and a topic that grew twice whose oldest records are still there.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ...brokers.partitioner import PartitionOfKey
from ...errors import OutputRefused
from ...state.sampling import CHANCE_MAX

KEYS_OF_ONE_PARTITION: Final = 64
"""More than so many have to lie astray where they lie in one partition: one may be somebody's choice."""


class Moved(NamedTuple):
    """What was found. ``before``: the older number of partitions; ``astray``: so many keys lie by that one alone, of
    ``seen``.
    """

    before: int
    astray: int
    seen: int


def find_moved_keys(
    seen: Mapping[int, Collection[bytes]], partitions: int, partition_of: PartitionOfKey
) -> Moved | None:
    """What the keys that were seen in partitions say of a topic that has so many, 2 or more; None: nothing. An empty
    key has no place.
    """
    keys = [(place, key) for place, own in sorted(seen.items()) for key in sorted({*own}) if key]
    astray = [(place, key) for place, key in keys if _place_of(key, partitions, partition_of) not in (place, None)]
    counts = Counter(place for place, _ in astray)
    if not astray or (len(counts) == 1 and len(astray) <= KEYS_OF_ONE_PARTITION):
        return None
    if len(astray) * math.log(partitions) < math.log((partitions - 1) / CHANCE_MAX):
        return None
    for before in range(partitions - 1, 0, -1):
        if all(_place_of(key, before, partition_of) == place for place, key in astray):
            return Moved(before, len(astray), len(keys))
    return None


def _place_of(key: bytes, partitions: int, partition_of: PartitionOfKey) -> int | None:
    """None where a partitioner of the user's own gives none: it fails for outputs, where that is said."""
    try:
        return partition_of(key, partitions)
    except OutputRefused:
        return None
