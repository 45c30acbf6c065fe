"""The origin of an output: one compact header on each output and dead letter, and the hash for the sum in commits.

The header ``kl`` holds a msgpack array ``[2, app_id, source topic, source partition, source offset, i, n]``: the output
is the i-th (from 0) of the n outputs of that record, and an application with that id made the output. The digest of an
output is, in Spark's terms, ``xxhash64(string topic, int partition, bigint offset, int i, string destination)``, read
as an unsigned 64-bit integer; a commit event carries the sum of digests mod 2**64. The ``app_id`` in the header does
not enter the digest.

A dead letter has three headers more; other outputs do not have these.
"""

from typing import Final, NamedTuple

import msgspec

from ..keyrange.hashing import hash_chain_int, hash_chain_long_int_bytes, hash_chain_text

HEADER: Final = "kl"
ERROR_HEADER: Final = "kl-error"
ATTEMPTS_HEADER: Final = "kl-attempts"
TIMESTAMP_HEADER: Final = "kl-timestamp"
VERSION: Final = 2
APP_ID_BYTES: Final = 8
DIGEST_MASK: Final = (1 << 64) - 1


class Provenance(NamedTuple):
    """The decoded header. ``app_id``: of the application that wrote the header. ``i`` counts from 0 to ``n - 1``."""

    version: int
    app_id: bytes
    topic: str
    partition: int
    offset: int
    i: int
    n: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Provenance)
_untyped = msgspec.msgpack.Decoder()
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def app_id_of(birth: str) -> bytes:
    """The id of an application in headers, from the text that no other application's logs have: in Spark,
    ``xxhash64(birth)``, its highest byte first.
    """
    return hash_chain_text(birth).to_bytes(APP_ID_BYTES, "big")


def encode_provenance(app_id: bytes, topic: str, partition: int, offset: int, i: int, n: int) -> bytes:
    """The header's value; raises ValueError for an ``app_id`` of another length."""
    if len(app_id) != APP_ID_BYTES:
        raise ValueError(f"an app_id has {APP_ID_BYTES} bytes; seen {len(app_id)}: {app_id!r}")
    return _encoder.encode((VERSION, app_id, topic, partition, offset, i, n))


_OF_ONLY_OUTPUTS: Final = [bytes((low, 0, 1)) for low in range(256)]
"""The last three bytes of the header of an only output, by the lowest byte of the offset: this byte, ``i`` and ``n``.

The offset is 256 or more: msgpack writes a smaller offset in another way.
"""


class Origins:
    """Header values of one source partition's records: as ``encode_provenance``, but cheaper for records in order."""

    __slots__ = ("_app_id", "_block", "_head", "_partition", "_topic")

    def __init__(self, app_id: bytes, topic: str, partition: int) -> None:
        encode_provenance(app_id, topic, partition, 0, 0, 1)  # a wrong app_id raises now
        self._app_id = app_id
        self._topic = topic
        self._partition = partition
        self._block = 0
        self._head = b""

    def each(self, offset: int, i: int, n: int) -> bytes:
        """The header's value of output ``i`` of ``n``."""
        return _encoder.encode((VERSION, self._app_id, self._topic, self._partition, offset, i, n))

    def of(self, offset: int) -> bytes:
        """The header's value of the only output (0 of 1). Offsets mostly rise: the head stays the same for 256 offsets,
        and only the last three bytes differ.
        """
        block = offset >> 8
        if block != self._block or not block:
            data = self.each(offset, 0, 1)
            self._block, self._head = block, data[:-3]
            return data
        return self._head + _OF_ONLY_OUTPUTS[offset & 255]


def decode_provenance(data: bytes) -> Provenance:
    """The header's fields; raises ValueError for a damaged header or an unknown version."""
    unreadable: Exception | None = None
    try:
        provenance = _decoder.decode(data)
        if provenance.version == VERSION:
            if len(provenance.app_id) == APP_ID_BYTES:  # not in its type: the compiler keeps no annotations
                return provenance
            unreadable = ValueError(f"an app_id has {APP_ID_BYTES} bytes; seen {len(provenance.app_id)}")
    except _UNREADABLE as error:
        unreadable = error
    raise ValueError(_explain(data, unreadable))


def _explain(data: bytes, error: Exception | None) -> str:
    """The reason why a header is refused. The version comes first: a later version may have another shape."""
    try:
        untyped = _untyped.decode(data)
    except _UNREADABLE:
        untyped = None
    if isinstance(untyped, list) and untyped and type(untyped[0]) is int and untyped[0] != VERSION:
        return f"unknown version of the {HEADER!r} header: seen {untyped[0]}, known is {VERSION}"
    return f"damaged {HEADER!r} header: {error}"


def place_seed(topic: str, partition: int) -> int:
    """The part of the digest that all outputs of one source partition share."""
    return hash_chain_int(partition, hash_chain_text(topic))


def output_digest(seed: int, offset: int, i: int, destination: str) -> int:
    """The digest of one output, from ``place_seed`` of its source partition."""
    return hash_chain_long_int_bytes(offset, i, destination.encode(), seed)
