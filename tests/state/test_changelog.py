"""State as records: stored values and beacons there and back, and the bytes that are neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.state.changelog import (
    BEACON_KEY,
    CHANGELOG_CONFIG,
    Beacon,
    Stored,
    changelog_topic,
    decode_beacon,
    decode_stored,
    encode_beacon,
    encode_stored,
)
from keylanes.state.keys import HEAD_BYTES

UNSIGNED = st.integers(0, (1 << 64) - 1)


@given(st.binary(), st.none() | UNSIGNED)
def test_a_stored_value_comes_back(payload: bytes, deadline_ms: int | None) -> None:
    """Payload and deadline are read as written; an empty payload is one, and a deadline of 0 is not none."""
    assert decode_stored(encode_stored(payload, deadline_ms)) == Stored(payload, deadline_ms)


def test_the_bytes_of_a_stored_value() -> None:
    """One byte, then the deadline if it is 1, then the payload: the form in which changelogs lie on disks."""
    assert encode_stored(b"v") == b"\0v"
    assert encode_stored(b"v", 258) == b"\1\0\0\0\0\0\0\1\2v"
    assert encode_beacon(Beacon(1, 2)) == b"\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2"


@given(UNSIGNED, UNSIGNED)
def test_a_beacon_comes_back(incarnation: int, transaction: int) -> None:
    """Incarnation and transaction are read as written."""
    beacon = Beacon(incarnation, transaction)
    assert decode_beacon(encode_beacon(beacon)) == beacon


@pytest.mark.parametrize("data", [b"", b"\2v", b"\1", b"\1" + bytes(7)])
def test_what_is_no_stored_value_is_refused(data: bytes) -> None:
    """An unknown first byte or half a deadline raises ValueError."""
    with pytest.raises(ValueError, match="no stored value"):
        decode_stored(data)


@pytest.mark.parametrize("data", [None, b"", bytes(15), bytes(17)])
def test_what_is_no_beacon_is_refused(data: bytes | None) -> None:
    """A deleted beacon, or one of another size, raises ValueError."""
    with pytest.raises(ValueError, match="a beacon has 16 bytes"):
        decode_beacon(data)


def test_the_changelog_never_expires() -> None:
    """It is compacted only, named after application and source, and its beacon's key is no state key's."""
    assert CHANGELOG_CONFIG["cleanup.policy"] == "compact"
    assert CHANGELOG_CONFIG["retention.ms"] == CHANGELOG_CONFIG["retention.bytes"] == "-1"
    assert changelog_topic("app", "source") == "app.changelog.source"
    assert len(BEACON_KEY) < HEAD_BYTES
