"""PURE. The partition of a topic for a key, as other Kafka clients choose the partition. So a key lies in one
partition, whichever client writes the key. See docs/partitioners.md.

Sources: murmur2 as in Kafka's ``org.apache.kafka.common.utils.Utils`` (32 bits, seed 0x9747b28c); librdkafka's
``rd_kafka_msg_partitioner_consistent`` (CRC-32 of the key, unsigned).
"""

import operator
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from ..errors import OutputRefused, SettingsError

PartitionOfKey: TypeAlias = Callable[[bytes, int], int]
"""From a key and the number of partitions of a topic to the partition of that key, in ``[0, partitions)``."""

Partitioner: TypeAlias = Literal["murmur2", "crc32"] | PartitionOfKey
"""How the keys of a topic are spread over its partitions. ``"murmur2"``: as Kafka's Java clients and aiokafka do.
``"crc32"``: as librdkafka's clients do, confluent-kafka and Quix Streams among them. Or a function of one's own.
"""

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def murmur2(data: bytes) -> int:
    """The hash of the data, as an unsigned 32-bit integer."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    rest = length & 3
    if rest == 3:
        h ^= data[whole + 2] << 16
    if rest >= 2:
        h ^= data[whole + 1] << 8
    if rest >= 1:
        h = (h ^ data[whole]) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition in ``[0, partitions)`` of a key, by murmur2."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partition_by_crc32(key: bytes, partitions: int) -> int:
    """The partition in ``[0, partitions)`` of a key, by CRC-32.

    An empty key goes to partition 0 (librdkafka's ``consistent``), so the records keep their order. Clients with
    librdkafka's default, ``consistent_random``, take an empty key for no key and send the record anywhere.
    """
    return zlib.crc32(key) % partitions


MURMUR2: Final = "murmur2"
BY_NAME: Final[Mapping[str, PartitionOfKey]] = {MURMUR2: partition_of_key, "crc32": partition_by_crc32}
"""The partitioners with a name. The first partitioner is the default of a topic."""


def name_of(partitioner: Partitioner) -> str:
    """The name of a partitioner, for people."""
    return partitioner if isinstance(partitioner, str) else getattr(partitioner, "__qualname__", repr(partitioner))


def check_partitioner(partitioner: Partitioner, topic: str) -> PartitionOfKey:
    """The function of a topic's partitioner. A user's function then raises OutputRefused for a result that is no
    partition.

    Raises SettingsError for a value that is no partitioner.
    """
    if isinstance(partitioner, str) and partitioner in BY_NAME:
        return BY_NAME[partitioner]
    if isinstance(partitioner, str) or not callable(partitioner):
        raise SettingsError(
            f"partitioners: {topic!r} has {partitioner!r}; a partitioner is {', '.join(map(repr, BY_NAME))} or a "
            "function (key: bytes, partitions: int) -> int. Give it the one that the other writers of the topic use"
        )
    name, function = name_of(partitioner), partitioner

    def partition(key: bytes, partitions: int) -> int:
        try:
            found = operator.index(function(key, partitions))
        except Exception as error:  # a user's function may raise anything
            why = f"failed for a key of {len(key)} bytes: {error!r}"
            raise OutputRefused(f"{topic!r}: its partitioner {name} {why}") from error
        if not 0 <= found < partitions:
            raise OutputRefused(
                f"{topic!r}: its partitioner {name} gave partition {found} for a key of {len(key)} bytes; it has "
                f"partitions 0 to {partitions - 1}. Mend the function that App(partitioners=…) names"
            )
        return found

    return partition


def partition_without_key(source_partition: int, source_offset: int, i: int, partitions: int) -> int:
    """The partition of an output without a key: spread, yet the same whenever the record is handled again."""
    return (source_partition + source_offset + i) % partitions
