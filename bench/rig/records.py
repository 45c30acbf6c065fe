"""Source records: the same in every process and run, numbered within their key."""

import random
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct

from keylanes.brokers.protocol import Outgoing

VALUE_BYTES = 100
SEED = 7
PLACE = Struct("<II")
"""What a value begins with: the number of its key, and its own number within the key."""
FILLER = random.Random(SEED).randbytes(4_096)  # does not compress, as keys and values of real systems mostly do not


def uniform_keys(count: int, keys: int) -> "array[int]":
    """Which key each of ``count`` records has: drawn at random, the same in every process and run."""
    draw = random.Random(SEED).random
    return array("I", (int(draw() * keys) for _ in range(count)))


def key_bytes(key: int) -> bytes:
    """A key as it is on the wire."""
    return b"key-%06d" % key


def source_records(topic: str, keys: Sequence[int]) -> Iterator[Outgoing]:
    """Records for partition 0: a value starts with the number of its key and with its own number within the key."""
    numbers = [0] * (max(keys) + 1)
    for i, key in enumerate(keys):
        start = i % (len(FILLER) - VALUE_BYTES)
        value = PLACE.pack(key, numbers[key]) + FILLER[start : start + VALUE_BYTES - PLACE.size]
        numbers[key] += 1
        yield Outgoing(topic, 0, key_bytes(key), value)


def key_and_number(value: bytes) -> tuple[int, int]:
    """The number of a value's key and its own number within the key."""
    key, number = PLACE.unpack_from(value)
    return key, number
