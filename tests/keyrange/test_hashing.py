"""The hash against vectors that Spark computed (make_golden.py writes them)."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange import hashing

from ..tiers.marks import tier

pytestmark = tier("check")

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_xxhash64.json").read_text(encoding="utf-8"))


def test_the_golden_file_holds_vectors_of_every_kind() -> None:
    """An emptied file must not pass for an agreement with Spark."""
    assert {name: len(rows) for name, rows in GOLDEN.items() if name != "spark"} == {
        "keys": 14,
        "ints": 8,
        "longs": 8,
        "places": 8,
        "outputs": 4,
    }


def test_points_of_keys_are_those_of_spark() -> None:
    """Every key has the point that Spark's shiftrightunsigned(xxhash64(key), 32) gives it, the empty key too."""
    for row in GOLDEN["keys"]:
        key = bytes.fromhex(row["key"])
        assert hashing.point_of_key(key) == row["point"]
        assert hashing.point_of(key, 3, 4) == row["point"]


def test_points_of_places_are_those_of_spark() -> None:
    """A record without a key has the point of xxhash64(int partition, long offset)."""
    for row in GOLDEN["places"]:
        assert hashing.point_without_key(row["partition"], row["offset"]) == row["point"]
        assert hashing.point_of(None, row["partition"], row["offset"]) == row["point"]


def test_ints_and_longs_are_hashed_at_the_width_spark_uses() -> None:
    """An int is hashed as 4 bytes and a long as 8, so the same number differs."""
    for row in GOLDEN["ints"]:
        assert hashing.hash_chain_int(row["value"], hashing.SEED) == row["hash"]
    for row in GOLDEN["longs"]:
        assert hashing.hash_chain_long(row["value"], hashing.SEED) == row["hash"]


@given(key=st.none() | st.binary(max_size=64), partition=st.integers(0, 2**31 - 1), offset=st.integers(0, 2**63 - 1))
def test_every_record_has_a_point_in_the_space(key: bytes | None, partition: int, offset: int) -> None:
    """Points lie in [0, 2**32), and a key decides alone when there is one."""
    point = hashing.point_of(key, partition, offset)
    assert 0 <= point < hashing.SPACE_END
    if key is not None:
        assert point == hashing.point_of(key, 0, 0)


def test_records_without_a_key_spread() -> None:
    """4,096 keyless records of one partition fall into all 64 parts of the space."""
    assert len({hashing.point_of(None, 0, offset) >> 26 for offset in range(4096)}) == 64
