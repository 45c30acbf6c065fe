"""PURE. Which partition of a topic a key goes to: the same as Kafka's Java clients choose, so that topics line up.

Source: murmur2 as in Kafka's ``org.apache.kafka.common.utils.Utils`` (32 bits, seed 0x9747b28c).
"""

from functools import lru_cache

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def murmur2(data: bytes) -> int:
    """The hash, as an unsigned 32-bit integer."""
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
    """The partition in ``[0, partitions)`` of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partition_without_key(source_partition: int, source_offset: int, i: int, partitions: int) -> int:
    """The partition of an output without a key: spread, yet the same whenever the record is handled again."""
    return (source_partition + source_offset + i) % partitions
