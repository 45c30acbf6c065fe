"""PURE. State as records: the content of the changelog of a source topic, and the bytes of a stored value.

The changelog is compacted and has one partition for each source partition. A transaction writes the last value of
each key that it changed, None for a deleted key, and the *beacon* of its writer: a record whose key names the
incarnation, and whose value names the transaction. The offset log names, for each writer, the last transaction that
changed the state of a partition. A changelog whose beacons do not agree with the offset log was truncated, or made
anew, or belongs to another application. Each writer has its own beacon because the transactions of two writers may
stand in one order in the changelog, and in the other order in the offset log.

A stored value begins with one byte, 0 or 1. After 1 comes the deadline in ms since the epoch (8 bytes). The rest is the
value as the store's codec wrote it. A record with a timestamp below the deadline sees the value: the same in every
replay.
"""

from struct import Struct
from typing import Final, NamedTuple

CHANGELOG_CONFIG: Final = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "delete.retention.ms": "604800000",
    "min.cleanable.dirty.ratio": "0.3",
}
STAYS: Final = b"\x00"
"""The first byte of a stored value without a deadline; the rest is the payload."""
BEACONS_END: Final = b"\x00\x00\x00\x01"
"""In the order of keys, before this key come the beacons of incarnations below 2**40, and of state keys only those of
point 0.
"""
_BEACON_KEY: Final = Struct(">BQ")
_BEACON: Final = Struct(">Q")
_DEADLINE: Final = Struct(">BQ")


class Beacon(NamedTuple):
    """The last transaction of an incarnation that changed a partition's state."""

    incarnation: int
    transaction: int


class Stored(NamedTuple):
    """A stored value; ``deadline_ms`` None: without a deadline."""

    payload: bytes
    deadline_ms: int | None


def changelog_topic(app: str, source: str) -> str:
    """The changelog of a source topic."""
    return f"{app}.changelog.{source}"


def beacon_key(incarnation: int) -> bytes:
    """The key of a writer's beacon: a byte 0 and the incarnation; shorter than every state key."""
    return _BEACON_KEY.pack(0, incarnation)


def incarnation_of(key: bytes) -> int:
    """Back from ``beacon_key``."""
    incarnation: int = _BEACON_KEY.unpack(key)[1]
    return incarnation


def is_beacon_key(key: bytes) -> bool:
    """Whether a record with this key is a beacon."""
    return len(key) == _BEACON_KEY.size and key[0] == 0


def encode_beacon(beacon: Beacon) -> tuple[bytes, bytes]:
    """Key and value of a beacon's record."""
    return beacon_key(beacon.incarnation), _BEACON.pack(beacon.transaction)


def decode_beacon(key: bytes, value: bytes | None) -> Beacon:
    """Back from ``encode_beacon``, for a key with ``is_beacon_key``; raises ValueError."""
    if value is None or len(value) != _BEACON.size:
        raise ValueError(f"a beacon has {_BEACON.size} bytes; seen {None if value is None else len(value)}")
    return Beacon(incarnation_of(key), _BEACON.unpack(value)[0])


def encode_stored(payload: bytes, deadline_ms: int | None = None) -> bytes:
    """The bytes of a stored value."""
    return STAYS + payload if deadline_ms is None else _DEADLINE.pack(1, deadline_ms) + payload


def decode_stored(data: bytes) -> Stored:
    """Back from ``encode_stored``; raises ValueError."""
    if data[:1] == STAYS:
        return Stored(data[1:], None)
    if data[:1] == b"\x01" and len(data) >= _DEADLINE.size:
        return Stored(data[_DEADLINE.size :], _DEADLINE.unpack_from(data)[1])
    raise ValueError(f"{len(data)} bytes are no stored value: it begins with 0, or with 1 and a deadline")
