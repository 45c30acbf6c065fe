"""State as records: stored values and beacons there and back, and the bytes that are neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.state.changelog import (
    BEACONS_END,
    CHANGELOG_CONFIG,
    Beacon,
    Stored,
    beacon_key,
    changelog_topic,
    decode_beacon,
    decode_stored,
    encode_beacon,
    encode_stored,
    incarnation_of,
    is_beacon_key,
)
from keylanes.state.keys import HEAD_BYTES, is_state_key, state_key

from ..tiers.marks import tier

pytestmark = tier("check")

UNSIGNED = st.integers(0, (1 << 64) - 1)


@given(st.binary(), st.none() | UNSIGNED)
def test_a_stored_value_comes_back(payload: bytes, deadline_ms: int | None) -> None:
    """Payload and deadline are read as written; an empty payload is one, and a deadline of 0 is not none."""
    assert decode_stored(encode_stored(payload, deadline_ms)) == Stored(payload, deadline_ms)


def test_the_bytes_of_a_stored_value() -> None:
    """One byte, then the deadline if it is 1, then the payload: the form in which changelogs lie on disks."""
    assert encode_stored(b"v") == b"\0v"
    assert encode_stored(b"v", 258) == b"\1\0\0\0\0\0\0\1\2v"
    assert encode_beacon(Beacon(1, 2)) == (b"\0" + b"\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\0\2")


@given(UNSIGNED, UNSIGNED)
def test_a_beacon_comes_back(incarnation: int, transaction: int) -> None:
    """Incarnation and transaction are read as written."""
    beacon = Beacon(incarnation, transaction)
    key, value = encode_beacon(beacon)
    assert decode_beacon(key, value) == beacon
    assert incarnation_of(key) == incarnation


@pytest.mark.parametrize("data", [b"", b"\2v", b"\1", b"\1" + bytes(7)])
def test_what_is_no_stored_value_is_refused(data: bytes) -> None:
    """An unknown first byte or half a deadline raises ValueError."""
    with pytest.raises(ValueError, match="no stored value"):
        decode_stored(data)


@pytest.mark.parametrize("data", [None, b"", bytes(7), bytes(9), bytes(16)])
def test_what_is_no_beacon_is_refused(data: bytes | None) -> None:
    """A deleted beacon, or one of another size, raises ValueError."""
    with pytest.raises(ValueError, match="a beacon has 8 bytes"):
        decode_beacon(beacon_key(1), data)


@pytest.mark.parametrize("key", [b"", b"\0", b"\1", bytes(8), b"\1" + bytes(8), bytes(10), state_key(0, 0, b"")])
def test_what_is_no_key_of_a_beacon(key: bytes) -> None:
    """Keys of another length or with another first byte; a state key is never one."""
    assert not is_beacon_key(key)
    assert is_beacon_key(beacon_key(7))


@given(st.integers(0, (1 << 40) - 1))
def test_beacons_stand_before_the_state(incarnation: int) -> None:
    """In order of keys all of them stand before the state of the second point, and none is a state key."""
    assert beacon_key(0) <= beacon_key(incarnation) < BEACONS_END <= state_key(1, 0, b"")
    assert not is_state_key(beacon_key(incarnation))


def test_the_changelog_never_expires() -> None:
    """It is compacted only, named after application and source, and a beacon's key is no state key's."""
    assert CHANGELOG_CONFIG["cleanup.policy"] == "compact"
    assert CHANGELOG_CONFIG["retention.ms"] == CHANGELOG_CONFIG["retention.bytes"] == "-1"
    assert changelog_topic("app", "source") == "app.changelog.source"
    assert len(beacon_key(1)) < HEAD_BYTES
