"""PURE. Whether the keys of a topic lie where fewer partitions put them, because the topic got more partitions.

In a grown topic, old records of a key lie in one partition and new records in another. State belongs to a key of a
partition: a key would have two states, in silence, for a single record does not show the growth.

A sample speaks for an older number of partitions only when the older number explains all keys that lie astray by the
present number. Keys that a user has placed by hand may look the same by chance: a given number puts a key into the
partition of its record with a chance of 1 / partitions. ``CHANCE_MAX`` is the limit of the chance for all tried numbers
together. The sample does not find growth that too few keys show, growth between the two ends of a sample, and a topic
that grew twice and still has its oldest records.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ...brokers.partitioner import PartitionOfKey
from ...errors import OutputRefused
from ...state.sampling import CHANCE_MAX

KEYS_OF_ONE_PARTITION: Final = 64
"""Up to this many astray keys in a single partition prove nothing: a user may have chosen the partition."""


class Moved(NamedTuple):
    """Keys that moved. ``before``: the older number of partitions; ``astray``: how many of the ``seen`` keys lie where
    only the older number puts them.
    """

    before: int
    astray: int
    seen: int


def find_moved_keys(
    seen: Mapping[int, Collection[bytes]], partitions: int, partition_of: PartitionOfKey
) -> Moved | None:
    """Compare keys, by the partition of their records, with a topic's present number of ``partitions``, 2 or more.
    None: the keys show no growth. An empty key is left out.
    """
    keys = [(partition, key) for partition, own in sorted(seen.items()) for key in sorted({*own}) if key]
    astray = [(at, key) for at, key in keys if _partition_of_key(key, partitions, partition_of) not in (at, None)]
    counts = Counter(partition for partition, _ in astray)
    if not astray or (len(counts) == 1 and len(astray) <= KEYS_OF_ONE_PARTITION):
        return None
    # All astray keys lie by chance where one of the older numbers puts them: (partitions - 1) / partitions ** keys.
    chance_log = math.log(partitions - 1) - len(astray) * math.log(partitions)
    if chance_log > math.log(CHANCE_MAX):
        return None
    for before in range(partitions - 1, 0, -1):
        if all(_partition_of_key(key, before, partition_of) == partition for partition, key in astray):
            return Moved(before, len(astray), len(keys))
    return None


def _partition_of_key(key: bytes, partitions: int, partition_of: PartitionOfKey) -> int | None:
    """The partition of a key; None when a user's partitioner fails. The failure is told where outputs are built."""
    try:
        return partition_of(key, partitions)
    except OutputRefused:
        return None
