"""Keys of a source with state that lie where another partitioner put them are noticed, once, and nothing else is."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from keylanes import StateNotReady
from keylanes.brokers.partitioner import BY_NAME, Partitioner, partition_by_crc32, partition_of_key
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.log import SimulatedRecord
from keylanes.keyrange.hashing import point_of_key
from keylanes.offsets.ledger import SourcePartition
from keylanes.runtime.handlers.partition_state import PartitionState
from keylanes.runtime.stores.key_places import KeyPlaces
from keylanes.runtime.stores.storage import BrokerTable, StateThreads, Storage
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopy
from keylanes.state.sampling import PARTITIONS_LOOKED_AT_MAX, SAMPLE_KEYS

from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

KEYS = [b"customer %d" % i for i in range(200)]
PARTITIONS = 4


def places(partitioners: dict[str, Partitioner], storages: dict[SourcePartition, Storage] | None = None) -> KeyPlaces:
    """Those of a topic whose state lies there."""
    return KeyPlaces(["orders"], partitioners, storages or {}, StateThreads())


def kept(by_partition: Iterable[Iterable[bytes]]) -> dict[SourcePartition, Storage]:
    """State of the keys in each partition."""
    storages: dict[SourcePartition, Storage] = {}
    for partition, keys in enumerate(by_partition):
        table = MemoryCopy()
        table.write((state_key(point_of_key(key), 1, key), b"v") for key in keys)
        state = PartitionState(f"orders[{partition}]", table, entry_bytes_max=1_000, ahead_bytes_max=1_000)
        storages["orders", partition] = BrokerTable(TopicPartition("changelog", partition), state, StateThreads())
    return storages


def looked_at(
    place: Callable[[bytes, int], int],
    caplog: pytest.LogCaptureFixture,
    partitioners: dict[str, Partitioner] | None = None,
    keys: list[bytes] = KEYS,
    partitions: int = PARTITIONS,
) -> list[str]:
    """What is said of a topic whose keys were placed so."""
    caplog.clear()
    seen = places(partitioners or {})
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
    others = [SimulatedRecord(0, 0, key, b"", ()) for key in KEYS]
    places({}).look(TopicPartition("others", 0), PARTITIONS, others)


@pytest.mark.parametrize("partitions", [2, 3, 12, 64])
def test_keys_that_are_placed_by_hand_are_no_finding(partitions: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever they are: no partitioner explains them. Tried with many topics and many numbers of keys."""
    for seed in range(200):
        rng = random.Random(seed)
        keys = [b"%d" % rng.getrandbits(64) for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 40)))]
        assert looked_at(lambda key, n, rng=rng: rng.randrange(n), caplog, keys=keys, partitions=partitions) == []  # type: ignore[misc]  # bound now


def test_a_sample_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Of each partition the first records with a key are looked at, and then no more."""
    seen = places({})
    right = next(key for key in KEYS if partition_of_key(key, 4) == 0)
    seen.look(TopicPartition("orders", 0), 4, [SimulatedRecord(0, 0, right, b"", ())] * SAMPLE_KEYS)
    with caplog.at_level(logging.WARNING, "keylanes"):
        for key in KEYS:
            if partition_by_crc32(key, 4) == 0:
                seen.look(TopicPartition("orders", 0), 4, [SimulatedRecord(0, 0, key, b"", ())])
    assert caplog.records == []


@virtual
async def test_the_state_of_a_partition_is_compared_once() -> None:
    """Until then it is not said that it has nothing of a key; what was found is said from then on."""
    wrong = kept([key for key in KEYS if partition_by_crc32(key, PARTITIONS) == n] for n in range(PARTITIONS))
    seen = places({}, wrong)
    seen.confirm(("orders", 2))  # whether anybody has it here is not asked
    seen.compare(("orders", 2))
    with pytest.raises(StateNotReady, match=r"the keys of orders\[2\] are being compared with its partitioner"):
        seen.confirm(("orders", 2))
    seen.confirm(("orders", 1))
    assert seen.partition_of("orders", KEYS[0], PARTITIONS) == partition_of_key(KEYS[0], PARTITIONS)
    task = asyncio.ensure_future(seen.run())
    await asyncio.sleep(0.01)
    for ask in (lambda: seen.confirm(("orders", 1)), lambda: seen.partition_of("orders", KEYS[0], PARTITIONS)):
        with pytest.raises(StateNotReady, match=r'App\(partitioners={"orders": "crc32"}\)'):
            ask()
    task.cancel()


@virtual
async def test_state_and_records_are_one_sample(caplog: pytest.LogCaptureFixture) -> None:
    """Keys of a table and of records count together, one that is in both once."""
    few = [key for key in KEYS if (partition_by_crc32(key, PARTITIONS), partition_of_key(key, PARTITIONS)) == (1, 3)]
    seen = places({}, kept([[], few[:6], [], []]))
    task = asyncio.ensure_future(seen.run())
    seen.compare(("orders", 1))
    await asyncio.sleep(0.01)
    for keys, count in ((few[:6], 0), (few[6:9], 0), (few[9:10], 1)):
        seen.look(TopicPartition("orders", 1), PARTITIONS, [SimulatedRecord(0, 0, key, b"", ()) for key in keys])
        assert len(caplog.records) == count
    task.cancel()


@virtual
async def test_empty_tables_are_no_part_of_a_sample(caplog: pytest.LogCaptureFixture) -> None:
    """However many there are: it is the last one that has keys."""
    count = 2 * PARTITIONS_LOOKED_AT_MAX
    last = [key for key in (b"%d" % n for n in range(1_000)) if partition_by_crc32(key, count) == count - 1]
    seen = places({}, kept([*[[] for _ in range(count - 1)], last]))
    for partition in range(count):
        seen.compare(("orders", partition))
    task = asyncio.ensure_future(seen.run())
    await asyncio.sleep(0.01)
    assert len(caplog.records) == 1
    task.cancel()
