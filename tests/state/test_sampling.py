"""How large the state of a range is, about, from a few of its entries; and some keys that have state."""

import random

from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.state.changelog import beacon_key
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopies
from keylanes.state.sampling import ENTRIES, PAGE, PAGES_BYTES_MAX, PLACES, sampled_bytes, sampled_keys
from keylanes.state.tables import LocalCopy

from ..tiers.marks import tier

pytestmark = tier("check")


def table(entries: dict[bytes, bytes]) -> LocalCopy:
    """One that holds these."""
    copy = MemoryCopies().copy("t", 0)
    copy.write(entries.items())
    return copy


@given(st.dictionaries(st.integers(0, SPACE_END - 1), st.binary(max_size=9), max_size=ENTRIES - 1), st.integers(0, 31))
def test_little_state_is_known_exactly(values: dict[int, bytes], shift: int) -> None:
    """Whatever part of the points is asked for."""
    entries = {state_key(point, 1, b"k"): value for point, value in values.items()}
    within = KeyRange(0, SPACE_END >> shift)
    wanted = [len(key) + len(value) for (key, value), p in zip(entries.items(), values, strict=True) if p < within.end]
    assert sampled_bytes(table(entries), within) == sum(wanted)


def test_much_state_is_known_about() -> None:
    """Up to a quarter, from few of its entries."""
    chance = random.Random(3)
    keys = [b"%d" % n for n in range(50_000)]
    entries = {state_key(point_of_key(key), 1, key): bytes(chance.randrange(200)) for key in keys}
    assert len(entries) > 10 * PLACES * ENTRIES
    size = sum(len(key) + len(value) for key, value in entries.items())
    for within, part in ((WHOLE, 1), (KeyRange(0, SPACE_END // 4), 4)):
        assert 0.75 < sampled_bytes(table(entries), within) * part / size < 1.25


def test_a_large_map_does_not_count_for_all_points() -> None:
    """All its entries lie at one point."""
    large = {state_key(0, 1, b"k", b"%d" % n): bytes(100) for n in range(10 * ENTRIES)}
    small = {state_key(SPACE_END * n // 40, 2, b"x"): bytes(100) for n in range(1, 40)}
    size = sum(len(key) + len(value) for key, value in (large | small).items())
    assert sampled_bytes(table(large | small), WHOLE) <= size


def test_beacons_are_no_state() -> None:
    """They stand among the keys of the first points."""
    entries = {beacon_key(n): bytes(8) for n in range(20)}
    assert sampled_bytes(table(entries), WHOLE) == 0


def test_the_keys_of_a_sample_are_those_of_records_each_once() -> None:
    """In order of points, whatever stores have values of them, behind beacons and large maps."""
    keys = sorted((b"%d" % n for n in range(500)), key=point_of_key)
    entries = {state_key(point_of_key(key), store, key): b"v" for key in keys for store in (1, 2)}
    entries |= {state_key(point_of_key(keys[0]), 3, keys[0], b"%d" % n): b"v" for n in range(10 * PAGE)}
    entries |= {beacon_key(n): bytes(8) for n in range(2 * PAGE)}
    assert sampled_keys(table(entries), 256) == keys[:256]
    assert sampled_keys(table(entries), 1_000) == keys
    assert sampled_keys(table({}), 256) == []
    assert sampled_keys(table({state_key(SPACE_END - 1, 1, b"%d" % n): b"" for n in range(PAGE)}), 256) != []


def test_a_sample_of_large_values_ends_early() -> None:
    """No page is read behind those that are large together."""
    entries = {state_key(n, 1, b"%d" % n): bytes(PAGES_BYTES_MAX // 20) for n in range(5 * PAGE)}
    assert len(sampled_keys(table(entries), 256)) == 2 * PAGE
