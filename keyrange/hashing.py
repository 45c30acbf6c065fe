"""From a key to its point.

A point is the upper 32 bits of XXH64(key, seed 42), so the space is ``[0, 2**32)``: every bound, also the end of the
space, fits a signed 64-bit integer, a msgpack integer and a RocksDB key, and Spark computes the same natively as
``shiftrightunsigned(xxhash64(key), 32)``. A record without a key has no order to keep: its point is drawn from its
partition and offset (``xxhash64(int partition, long offset)`` in Spark's terms). So such records spread over all
workers.

Source of the chaining rule: Spark's ``xxhash64`` hashes an int as 4 and a long as 8 little-endian bytes and seeds each
column with the hash of the one before; the seed of the first is 42.
"""

from struct import Struct
from typing import Final

from xxhash import xxh64_intdigest

SEED: Final = 42
SPACE_END: Final = 1 << 32
HASH_NAME: Final = "xxh64-seed42-high32"
"""Written into the logs; a log that names another function is refused."""

_INT: Final = Struct("<i").pack
_LONG: Final = Struct("<q").pack
_INT_0: Final = _INT(0)


def point_of_key(key: bytes) -> int:
    """The point of a key, in ``[0, 2**32)``. An empty key is a key."""
    return xxh64_intdigest(key, SEED) >> 32


def point_without_key(partition: int, offset: int) -> int:
    """The point of a record without a key, in ``[0, 2**32)``, from its partition and offset."""
    return xxh64_intdigest(_LONG(offset), xxh64_intdigest(_INT(partition), SEED)) >> 32


def point_of(key: bytes | None, partition: int, offset: int) -> int:
    """The point of a record, in ``[0, 2**32)``."""
    if key is None:
        return point_without_key(partition, offset)
    return xxh64_intdigest(key, SEED) >> 32


def hash_chain_text(text: str, seed: int = SEED) -> int:
    """XXH64 of UTF-8 text on top of ``seed``; with an int or long chained behind it, Spark's ``xxhash64(a, b)``."""
    return xxh64_intdigest(text.encode(), seed)


def hash_chain_int(value: int, seed: int) -> int:
    """XXH64 of a 32-bit signed integer (Spark's ``int``) on top of ``seed``."""
    return xxh64_intdigest(_INT(value), seed)


def hash_chain_long(value: int, seed: int) -> int:
    """XXH64 of a 64-bit signed integer (Spark's ``bigint``) on top of ``seed``."""
    return xxh64_intdigest(_LONG(value), seed)


def hash_chain_long_int_bytes(long: int, number: int, data: bytes, seed: int) -> int:
    """XXH64 of a long, an int and bytes in turn on top of ``seed``: the three functions above at one stroke."""
    middle = _INT(number) if number else _INT_0
    return xxh64_intdigest(data, xxh64_intdigest(middle, xxh64_intdigest(_LONG(long), seed)))
