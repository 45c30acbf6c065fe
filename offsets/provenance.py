"""Where an output came from: one compact header on each output and dead letter, and the hash that is summed up.

The header ``kl`` holds a msgpack array ``[1, source topic, source partition, source offset, i, n]``: the output is the
i-th (from 0) of the n outputs of that record. The digest of an output is, in Spark's terms, ``xxhash64(string topic,
int partition, bigint offset, int i, string destination)``, read as an unsigned 64-bit integer; a commit event carries
the sum of them mod 2**64.
"""

from typing import Final, NamedTuple

import msgspec

from ..keyrange.hashing import hash_chain_int, hash_chain_long_int_bytes, hash_chain_text

HEADER: Final = "kl"
VERSION: Final = 1
DIGEST_MASK: Final = (1 << 64) - 1


class Provenance(NamedTuple):
    """The decoded header. ``i`` counts from 0 to ``n - 1``."""

    version: int
    topic: str
    partition: int
    offset: int
    i: int
    n: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Provenance)
_untyped = msgspec.msgpack.Decoder()
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_provenance(topic: str, partition: int, offset: int, i: int, n: int) -> bytes:
    """The header's value."""
    return _encoder.encode((VERSION, topic, partition, offset, i, n))


_OF_ONLY_OUTPUTS: Final = [bytes((low, 0, 1)) for low in range(256)]
"""The last byte of an offset from 256 on, with ``i`` and ``n`` behind it."""


class Origins:
    """Header values of the only outputs (0 of 1) of one source partition's records: ``encode_provenance`` of offsets in
    rising order, in which all but the end is as it was in the one before, but for every 256th.
    """

    __slots__ = ("_block", "_head", "_partition", "_topic")

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._block, self._head = 0, b""

    def of(self, offset: int) -> bytes:
        """The header's value."""
        block = offset >> 8
        if block != self._block or not block:
            data = encode_provenance(self._topic, self._partition, offset, 0, 1)
            self._block, self._head = block, data[:-3]
            return data
        return self._head + _OF_ONLY_OUTPUTS[offset & 255]


def decode_provenance(data: bytes) -> Provenance:
    """The header's fields; raises ValueError for a damaged one or an unknown version."""
    unreadable: Exception | None = None
    try:
        provenance = _decoder.decode(data)
        if provenance.version == VERSION:
            return provenance
    except _UNREADABLE as error:
        unreadable = error
    raise ValueError(_explain(data, unreadable))


def _explain(data: bytes, error: Exception | None) -> str:
    """A later version may have another shape, so the version is looked at first."""
    try:
        untyped = _untyped.decode(data)
    except _UNREADABLE:
        untyped = None
    if isinstance(untyped, list) and untyped and type(untyped[0]) is int and untyped[0] != VERSION:
        return f"unknown version of the {HEADER!r} header: seen {untyped[0]}, known {VERSION}"
    return f"damaged {HEADER!r} header: {error}"


def place_seed(topic: str, partition: int) -> int:
    """The part of the digest that all outputs of one source partition share."""
    return hash_chain_int(partition, hash_chain_text(topic))


def output_digest(seed: int, offset: int, i: int, destination: str) -> int:
    """The digest of one output, from ``place_seed`` of its source partition."""
    return hash_chain_long_int_bytes(offset, i, destination.encode(), seed)
