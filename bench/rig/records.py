"""Source records: the same in every process and run, numbered within their key.

Keys are drawn with a seed (uniform, or Zipf(1.0) by rank), or all distinct. The filler does not compress, as keys and
values of real systems mostly do not.
"""

import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from struct import Struct
from typing import Any

VALUE_BYTES = 100
SEED = 7
FILLER = Random(SEED).randbytes(4_096)
_head = Struct("<IIQ")


def key_bytes(key: int) -> bytes:
    """A key as it is on the wire."""
    return b"key-%06d" % key


def keys_of(distribution: str, records: int, keys: int) -> "array[int]":
    """The key of each record, the same in every process and run."""
    if distribution == "distinct":
        return array("I", range(records))
    if distribution == "zipf":
        weights = list(accumulate(1 / (rank + 1) for rank in range(keys)))
        return array("I", Random(SEED).choices(range(keys), cum_weights=weights, k=records))
    draw = Random(SEED).random
    return array("I", (int(draw() * keys) for _ in range(records)))


def counts_of(keys: "array[int]", distinct: int) -> "array[int]":
    """How many records each key has."""
    counts = array("I", bytes(4 * distinct))
    for key in keys:
        counts[key] += 1
    return counts


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key's records."""
    return zlib.crc32(key) % partitions


def value_of(key: int, number: int, third: int, place: int, size: int = VALUE_BYTES) -> bytes:
    """A value: its head, and filler that differs from record to record; below 16 bytes a part of the head."""
    start = place % (len(FILLER) - VALUE_BYTES)
    rest = max(size - _head.size, 0)
    filler = FILLER[start : start + rest] if rest <= VALUE_BYTES else (FILLER * (rest // len(FILLER) + 1))[:rest]
    return (_head.pack(key, number, third) + filler)[:size]


def records_of(order: dict[str, Any]) -> Iterator[tuple[int, bytes, bytes]]:
    """(partition, key, value) of all records; the third field of a value is the running index."""
    numbers = [0] * order["keys"]
    for i, key in enumerate(keys_of(order["distribution"], order["records"], order["keys"])):
        name = key_bytes(key)
        yield partition_of(name, order["partitions"]), name, value_of(key, numbers[key], i, i)
        numbers[key] += 1
