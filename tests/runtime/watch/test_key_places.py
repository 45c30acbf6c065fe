"""Keys of a source with state that lie where another partitioner put them are noticed, once, and nothing else is."""

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from keylanes.brokers.partitioner import BY_NAME, Partitioner, partition_by_crc32, partition_of_key
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.log import SimulatedRecord
from keylanes.runtime.watch.key_places import SAMPLE_RECORDS, KeyPlaces

from ...tiers.marks import tier

pytestmark = tier("check")

KEYS = [b"customer %d" % i for i in range(200)]
PARTITIONS = 4


def looked_at(
    place: Callable[[bytes, int], int],
    caplog: pytest.LogCaptureFixture,
    partitioners: dict[str, Partitioner] | None = None,
    keys: list[bytes] = KEYS,
    partitions: int = PARTITIONS,
) -> list[str]:
    """What is said of a topic whose keys were placed so."""
    caplog.clear()
    seen = KeyPlaces(["orders"], partitioners or {})
    for key in keys:
        where = TopicPartition("orders", place(key, partitions))
        with caplog.at_level(logging.WARNING, "keylanes"):
            seen.look(where, partitions, [SimulatedRecord(0, 0, key, b"", ())])
    return [record.getMessage() for record in caplog.records]


def test_another_partitioner_is_named_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    """One warning: both partitioners, and what to write."""
    (said,) = looked_at(partition_by_crc32, caplog)
    assert "orders is not written by murmur2" in said
    assert 'App(partitioners={"orders": "crc32"})' in said
    (said,) = looked_at(partition_of_key, caplog, {"orders": "crc32"})
    assert "orders is not written by crc32" in said
    assert '{"orders": "murmur2"}' in said


def test_two_writers_with_two_partitioners_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Half of the keys lie where the application expects them: the other half says by whom it was written."""
    (said,) = looked_at(lambda key, n: BY_NAME["crc32" if key[-1] % 2 else "murmur2"](key, n), caplog)
    assert "crc32" in said


@pytest.mark.parametrize("name", ["murmur2", "crc32"])
def test_the_partitioner_that_was_named_is_no_finding(name: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is a topic of one partition, nor one that is not looked at."""
    assert looked_at(BY_NAME[name], caplog, {"orders": name}) == []
    assert looked_at(BY_NAME[name], caplog, {}, partitions=1) == []
    KeyPlaces([], {}).look(TopicPartition("orders", 0), 4, [SimulatedRecord(0, 0, key, b"", ()) for key in KEYS])


@pytest.mark.parametrize("partitions", [2, 3, 12, 64])
def test_keys_that_are_placed_by_hand_are_no_finding(partitions: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever they are: no partitioner explains them. Tried with many topics and many numbers of keys."""
    for seed in range(200):
        rng = random.Random(seed)
        keys = [b"%d" % rng.getrandbits(64) for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 40)))]
        assert looked_at(lambda key, n, rng=rng: rng.randrange(n), caplog, keys=keys, partitions=partitions) == []  # type: ignore[misc]  # bound now


def test_a_sample_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Of each partition the first records with a key are looked at, and then no more."""
    seen = KeyPlaces(["orders"], {})
    right = next(key for key in KEYS if partition_of_key(key, 4) == 0)
    seen.look(TopicPartition("orders", 0), 4, [SimulatedRecord(0, 0, right, b"", ())] * SAMPLE_RECORDS)
    with caplog.at_level(logging.WARNING, "keylanes"):
        for key in KEYS:
            if partition_by_crc32(key, 4) == 0:
                seen.look(TopicPartition("orders", 0), 4, [SimulatedRecord(0, 0, key, b"", ())])
    assert caplog.records == []
