"""PURE. State as records: what the changelog of a source topic holds, and the bytes of a stored value.

The changelog is compacted and has one partition for each source partition. A transaction writes the last value of
each key that it changed, None for a deleted one, and one *beacon*: a record with a key of its own that names the
incarnation and the transaction. The offset log names the last transaction that changed a partition's state; a changelog
whose beacon is another one was truncated, or made anew, or is not of this application.

A stored value is one byte, 0 or 1; with 1 follows its deadline in ms since the epoch (8 bytes); then the value as the
store's codec wrote it. It is visible to a record whose timestamp is below the deadline: the same in every replay.
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
BEACON_KEY: Final = b"\x00"
"""Shorter than every state key."""
STAYS: Final = b"\x00"
"""What a stored value without a deadline begins with; the rest is its payload."""
_BEACON: Final = Struct(">QQ")
_DEADLINE: Final = Struct(">BQ")


class Beacon(NamedTuple):
    """The transaction that changed a partition's state last."""

    incarnation: int
    transaction: int


class Stored(NamedTuple):
    """A stored value; ``deadline_ms`` None: it stays."""

    payload: bytes
    deadline_ms: int | None


def changelog_topic(app: str, source: str) -> str:
    """The changelog of a source topic."""
    return f"{app}.changelog.{source}"


def encode_beacon(beacon: Beacon) -> bytes:
    """The value of the beacon's record."""
    return _BEACON.pack(*beacon)


def decode_beacon(data: bytes | None) -> Beacon:
    """Back from ``encode_beacon``; raises ValueError."""
    if data is None or len(data) != _BEACON.size:
        raise ValueError(f"a beacon has {_BEACON.size} bytes; seen {None if data is None else len(data)}")
    return Beacon(*_BEACON.unpack(data))


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
