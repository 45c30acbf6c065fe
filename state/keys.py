"""PURE. The key of a value of state: the order of keys is the order of points, so a key range is one contiguous scan.

    point (4) · store (2) · length of the record's key (4) · the record's key · the map's key (maps only)

Integers are big-endian. The same bytes are the key of the changelog's record; a local copy and the embedded broker put
the number of a table and the source partition in front. All values of a record's key, and all values of a key range,
lie together: a split of the range changes no key, and the range is read, restored or dropped in one step.
"""

from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange

_HEAD: Final = Struct(">IHI")
_POINT: Final = Struct(">I")
_LENGTH: Final = _POINT
_LENGTH_AT: Final = 6
"""The place of the length in a state key: behind the point and the store."""
STORES_MAX: Final = 1 << 16
HEAD_BYTES: Final = _HEAD.size
MapKey: TypeAlias = str | bytes | int
MAP_KEY_TYPES: Final[dict[str, type]] = {"str": str, "bytes": bytes, "int": int}
_SIGN: Final = 1 << 63


class StateKeyParts(NamedTuple):
    """The parts of a state key. ``map_key``: the map's key as bytes; empty for a value store."""

    point: int
    store: int
    key: bytes
    map_key: bytes


def state_key(point: int, store: int, key: bytes, map_key: bytes = b"") -> bytes:
    """The key of a value; with ``map_key`` left empty also the prefix of all entries of a record's key in a map."""
    return _HEAD.pack(point, store, len(key)) + key + map_key


def parse_key(data: bytes) -> StateKeyParts:
    """The parts of a state key; raises ValueError for other bytes."""
    if len(data) < HEAD_BYTES:
        raise ValueError(f"a state key has at least {HEAD_BYTES} bytes; seen {len(data)}")
    point, store, length = _HEAD.unpack_from(data)
    if len(data) < HEAD_BYTES + length:
        raise ValueError(f"a state key of {len(data)} bytes can't hold a record's key of {length}")
    return StateKeyParts(point, store, data[HEAD_BYTES : HEAD_BYTES + length], data[HEAD_BYTES + length :])


def is_map_key(data: bytes) -> bool:
    """Whether a state key belongs to an entry of a map."""
    return len(data) > _end_of_key(data)


def map_prefix(data: bytes) -> bytes:
    """The common prefix of the state keys of one record's map; ``data``: any of these state keys."""
    return data[: _end_of_key(data)]


def is_state_key(data: bytes) -> bool:
    """Whether ``parse_key`` accepts these bytes."""
    return len(data) >= HEAD_BYTES and len(data) >= _end_of_key(data)


def _end_of_key(data: bytes) -> int:
    """Where the record's key ends, and the map's begins."""
    return HEAD_BYTES + int(_LENGTH.unpack_from(data, _LENGTH_AT)[0])


def point_in(data: bytes) -> int:
    """The point of a state key."""
    point: int = _POINT.unpack_from(data)[0]
    return point


def bounds_of(within: KeyRange) -> tuple[bytes, bytes | None]:
    """The state keys of a key range: ``[first, end)``; None: to the last one."""
    return _POINT.pack(within.first), None if within.end == SPACE_END else _POINT.pack(within.end)


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all keys with a prefix; None: no key lies behind them."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def encode_map_key(key: object, kind: str) -> bytes:
    """A map's key as bytes that sort as the keys do; raises TypeError or ValueError. ``kind``: of ``MAP_KEY_TYPES``."""
    if type(key) is not MAP_KEY_TYPES[kind]:
        raise TypeError(f"the map's keys are {kind}; seen {type(key).__name__}")
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    assert isinstance(key, int), "it is of one of the three types"
    if not -_SIGN <= key < _SIGN:
        raise ValueError(f"a map's int key fits 64 bits; seen one of {key.bit_length()} without its sign")
    return (key + _SIGN).to_bytes(8, "big")


def decode_map_key(data: bytes, kind: str) -> MapKey:
    """Back from ``encode_map_key``; raises ValueError."""
    if kind == "bytes":
        return data
    if kind == "str":
        return data.decode()
    if len(data) != 8:
        raise ValueError(f"a map's int key has 8 bytes; seen {len(data)}")
    return int.from_bytes(data, "big") - _SIGN
