"""State keys: their order is the order of points, ranges are scans, and every key can be read back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.state.changelog import beacon_key
from keylanes.state.keys import (
    HEAD_BYTES,
    MAP_KEY_TYPES,
    MapKey,
    StateKeyParts,
    bounds_of,
    decode_map_key,
    encode_map_key,
    is_map_key,
    is_state_key,
    map_prefix,
    parse_key,
    point_in,
    prefix_end,
    state_key,
)

from ..tiers.marks import tier

pytestmark = tier("check")

BYTES = st.binary(max_size=6) | st.text("\x00\xff", max_size=3).map(lambda text: text.encode("latin-1"))
POINTS = st.integers(0, SPACE_END - 1) | st.sampled_from([0, 1, 255, 256, SPACE_END - 256, SPACE_END - 1])
STORES = st.integers(0, 65535)
PLACES = st.builds(StateKeyParts, POINTS, STORES, BYTES, BYTES)
RANGES = st.tuples(POINTS, POINTS).map(lambda pair: KeyRange(min(pair), max(pair) + 1))
INTS = st.integers(-(1 << 63), (1 << 63) - 1)


def inside(data: bytes, first: bytes, end: bytes | None) -> bool:
    """Whether a key lies in ``[first, end)``, as bytes compare."""
    return first <= data and (end is None or data < end)


@given(PLACES)
def test_a_key_is_read_back(place: StateKeyParts) -> None:
    """The parts come back as they went in, the point alone too; a beacon's key is shorter than every state key."""
    data = state_key(*place)
    assert parse_key(data) == place
    assert is_state_key(data)
    assert is_map_key(data) == bool(place.map_key)
    assert map_prefix(data) == state_key(*place[:3])
    assert point_in(data) == place.point
    assert len(beacon_key(1)) < HEAD_BYTES <= len(data)


@given(PLACES, PLACES)
def test_keys_sort_by_point_then_store(one: StateKeyParts, other: StateKeyParts) -> None:
    """Of two keys the lower point is first, then the lower store; different places have different keys."""
    a, b = state_key(*one), state_key(*other)
    assert (a == b) == (one == other)
    if one[:2] != other[:2]:
        assert (a < b) == (one[:2] < other[:2])


@given(PLACES, RANGES)
@example(StateKeyParts(SPACE_END - 1, 0, b"k", b""), WHOLE)
def test_a_key_range_is_one_scan(place: StateKeyParts, within: KeyRange) -> None:
    """The keys between a range's bounds are those whose points it has."""
    assert inside(state_key(*place), *bounds_of(within)) == within.contains(place.point)


def test_the_last_range_has_no_upper_bound() -> None:
    """A range that ends where the points end goes to the last key; neighbours share their bound."""
    assert bounds_of(WHOLE) == (bytes(4), None)
    left, right = WHOLE.split(1 << 31)
    assert bounds_of(left)[1] == bounds_of(right)[0] == b"\x80\0\0\0"
    assert bounds_of(right)[1] is None


@given(BYTES, BYTES)
def test_a_prefix_is_a_scan(prefix: bytes, data: bytes) -> None:
    """The keys from a prefix to its end are those that begin with it."""
    for candidate in (data, prefix + data, prefix[:-1] + data):
        assert inside(candidate, prefix, prefix_end(prefix)) == candidate.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"", None), (b"\xff\xff", None), (b"a\xff", b"b"), (b"a\0", b"a\1"), (b"\xfe\xff\xff", b"\xff")],
)
def test_where_a_prefix_ends(prefix: bytes, end: bytes | None) -> None:
    """The last byte below 255 counts up; without one there is no end."""
    assert prefix_end(prefix) == end


@given(PLACES, PLACES)
def test_a_map_is_a_scan(one: StateKeyParts, other: StateKeyParts) -> None:
    """The key without a map key is the prefix of the entries of one key in one store, and of no others."""
    prefix = state_key(*one[:3])
    assert inside(state_key(*other), prefix, prefix_end(prefix)) == (one[:3] == other[:3])
    assert inside(state_key(*one), prefix, prefix_end(prefix))


@given(st.text(), st.text(), BYTES, BYTES, INTS, INTS)
def test_map_keys_sort_as_their_bytes(t: str, u: str, a: bytes, b: bytes, i: int, j: int) -> None:
    """Each kind of map key comes back from its bytes; bytes and ints sort as they do, text as its code points."""
    pairs: list[tuple[str, MapKey, MapKey, bool]] = [("str", t, u, t < u), ("bytes", a, b, a < b), ("int", i, j, i < j)]
    for kind, one, other, before in pairs:
        assert decode_map_key(encode_map_key(one, kind), kind) == one
        assert (encode_map_key(one, kind) < encode_map_key(other, kind)) == before
    assert {kind for kind, *_ in pairs} == set(MAP_KEY_TYPES)


@pytest.mark.parametrize(
    ("key", "kind", "error", "says"),
    [
        (1, "str", TypeError, "the map's keys are str; seen int"),
        (True, "int", TypeError, "the map's keys are int; seen bool"),
        (None, "bytes", TypeError, "the map's keys are bytes; seen NoneType"),
        (1 << 63, "int", ValueError, "fits 64 bits; seen one of 64"),
        (-(1 << 63) - 1, "int", ValueError, "fits 64 bits; seen one of 64"),
        ("\ud800", "str", ValueError, "surrogates not allowed"),
    ],
)
def test_a_wrong_map_key_is_refused(key: MapKey, kind: str, error: type[Exception], says: str) -> None:
    """Another type, an int beyond 64 bits and text that has no bytes raise, and say what was seen."""
    with pytest.raises(error, match=says):
        encode_map_key(key, kind)


def test_bytes_that_are_no_key_are_refused() -> None:
    """A key too short for its parts raises ValueError, and so do a map key's bytes of the wrong size or kind."""
    data = state_key(7, 3, b"key")
    assert is_state_key(data)
    assert not is_state_key(beacon_key(1))
    for length in range(len(data)):
        assert not is_state_key(data[:length])
        with pytest.raises(ValueError, match="a state key"):
            parse_key(data[:length])
    with pytest.raises(ValueError, match="8 bytes; seen 7"):
        decode_map_key(bytes(7), "int")
    with pytest.raises(ValueError, match="decode"):
        decode_map_key(b"\xff", "str")
