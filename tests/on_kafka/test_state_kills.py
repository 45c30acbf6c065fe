"""State through kill -9 at each step of the commit cycle and of a restore: it is the fold of what was committed."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from keylanes import App, Settings
from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.hashing import point_of_key
from keylanes.state.changelog import changelog_topic, encode_stored
from keylanes.state.copies import open_copies
from keylanes.state.keys import encode_map_key, state_key
from keylanes.state.restore import BEACON_STEP

from ..stage import dying
from ..stage.counting import Counting
from ..stage.ground import Ground

RECORDS, KEYS, PARTITIONS = 600, 31, 2
WAIT_S = 60.0
SMALL = {
    "commit_interval_ms": 5, "commit_lead_ms": 1, "fetch_records_max": 20, "buffer_bytes_max": 16 * 1_500,
    "state_write_interval_ms": 0,
}  # fmt: skip
"""Settings that make many transactions, each written to the copies."""
STORES = "keylanes.runtime.stores"
LIMITS = {f"{STORES}.storage:SLICE_CHANGES": 5, f"{STORES}.changelogs:FETCH_RECORDS_MAX": 20}
COPY = "keylanes.state.copies:RocksCopy"

Entry = tuple[str, int, bytes, int | None]
"""The place of a value: store, partition, key, key of the map."""


class Kill(NamedTuple):
    """Where a process dies, for the how manieth time it is there, and what becomes of the folder of the state.

    ``folder``: kept; older (as it was before the process began); deleted (behind it); cold (before it).
    """

    point: str
    nth: int
    folder: str = "kept"


def partition_of(key: bytes) -> int:
    """Where the source has a key."""
    return int(key[1:]) % PARTITIONS


def source_records() -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value), in the order of each partition."""
    keys = [b"k%d" % (i % KEYS) for i in range(RECORDS)]
    return [(partition_of(key), key, b"%d" % i) for i, key in enumerate(keys)]


class Twin:
    """What the handler does, on plain dictionaries."""

    def __init__(self) -> None:
        self.state: dict[Entry, int] = {}

    def add(self, key: bytes, value: int) -> int:
        """One record; the total that it publishes."""
        partition = partition_of(key)
        now = self.state.get(("total", partition, key, None), 0) + value
        if value % dying.RESET == 0:
            self.state.pop(("total", partition, key, None), None)
        else:
            self.state["total", partition, key, None] = now
        self.state["last", partition, key, value % dying.SLOTS] = now
        self.state.pop(("last", partition, key, (value + 2) % dying.SLOTS), None)
        return now

    def stored(self) -> dict[tuple[int, bytes], bytes]:
        """The state as bytes: (partition, state key) → stored value."""
        found = {}
        for (store, partition, key, map_key), value in self.state.items():
            at = state_key(point_of_key(key), ("total", "last").index(store), key)
            at += b"" if map_key is None else encode_map_key(map_key, "int")
            found[partition, at] = encode_stored(b"%d" % value)
        return found


def killed(ground: Ground, kill: Kill, older: Path) -> None:
    """Run the application in a process until it dies where it shall; then do to its folder what is told."""
    folder = ground.state_folder
    if folder is not None and kill.folder == "cold":
        shutil.rmtree(folder)
    if folder is not None and kill.folder == "older":
        shutil.copytree(folder, older)
    told = {
        "address": ground.address, "name": ground.name, "source": ground.source, "late": ground.late,
        "settings": ground.settings(**SMALL), "limits": LIMITS,
        "point": kill.point, "count": kill.nth,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, dying.__file__, json.dumps(told)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == -9, ended.stderr
    if folder is not None and kill.folder in ("older", "deleted"):
        shutil.rmtree(folder)
    if folder is not None and kill.folder == "older":
        older.rename(folder)


def committed(ground: Ground) -> Twin:
    """The fold of what was committed, by the outputs; fails when one is doubled, out of order or has a wrong total."""
    twin = Twin()
    seen: set[int] = set()
    for partition in range(PARTITIONS):  # of the outputs: each key's are in one, in their order
        for record in ground.read(ground.late, partition):
            told = json.loads(record.value or b"")
            assert told["value"] not in seen
            seen.add(told["value"])
            assert twin.add(record.key or b"", told["value"]) == told["total"], (record.key, told)
    return twin


async def started(ground: Ground) -> tuple[dict[Entry, int], Counting]:
    """The state of an application that has started and does not handle a record, and what it read to be there."""
    counting = Counting(ground.connect())
    settings = ground.settings(drain_timeout_ms=1, close_timeout_ms=1_000)
    app = App(ground.name, broker=counting.as_broker(), settings=Settings.of(**settings))
    dying.declare(app, ground.source, ground.late, asyncio.Event())
    async with app:
        found: dict[Entry, int] = {}
        for name in ("total", "last"):
            for entry in app.store(name).scan():
                map_key = entry.map_key
                assert map_key is None or isinstance(map_key, int)
                found[name, entry.partition, entry.key, map_key] = entry.value
    await counting.close()
    return found, counting


async def check_started(ground: Ground) -> Counting:
    """A start finds the fold of what was committed, whatever the folder holds; what it read for that."""
    found, counting = await started(ground)
    twin = await asyncio.to_thread(committed, ground)
    assert len(found) > 10
    assert found == twin.state
    return counting


def marked(ground: Ground) -> dict[int, int]:
    """The position of the marker of each partition in the folder; 0 where there is none."""
    copies = open_copies(ground.copies(), mode="beside")
    found = {}
    for partition in range(PARTITIONS):
        positions = {marker.position for _, _, marker in copies.copy(ground.source, partition).markers().pieces()}
        assert len(positions) <= 1
        found[partition] = max(positions, default=0)
    copies.close()
    return found


def first_read(ground: Ground, counting: Counting) -> dict[int, int]:
    """From where on each partition of the changelog was read; compaction may have left no record there."""
    changelog = changelog_topic(ground.name, ground.source)
    return {p: min(first for at, first in counting.began if at == TopicPartition(changelog, p)) for p in (0, 1)}


def check_goes_on(ground: Ground, counting: Counting, markers: dict[int, int]) -> None:
    """What was in the folder was not read again, but for the last of it, in which beacons are looked for."""
    assert max(markers.values()) > BEACON_STEP, "it tells a start from the marker from one that begins anew"
    for partition, first in first_read(ground, counting).items():
        marker = markers[partition]
        assert max(0, marker - BEACON_STEP) <= first <= marker


async def check_end(ground: Ground) -> None:
    """Run to the end: state, copies and changelog are the fold of the source, and every output is there once."""
    app = ground.app()
    dying.declare(app, ground.source, ground.late)
    await asyncio.to_thread(app.run, until="level")
    twin = Twin()
    for _, key, value in source_records():
        twin.add(key, int(value))
    assert (await asyncio.to_thread(committed, ground)).state == twin.state
    assert await asyncio.to_thread(ground.kept, PARTITIONS) == twin.stored()
    if not ground.is_embedded:
        assert await asyncio.to_thread(ground.logged, PARTITIONS) == twin.stored()


async def check_kills(ground: Ground, kills: Sequence[Kill], older: Path) -> None:
    """One kill after the other; each time a start finds the fold of what was committed, and in the end all is there."""
    await asyncio.to_thread(ground.scatter, source_records(), PARTITIONS)
    for kill in kills:
        await asyncio.to_thread(killed, ground, kill, older)
        await check_started(ground)
    await check_end(ground)


COMMIT = "keylanes.brokers.producer:TransactionalProducer._commit"
IN_THE_CYCLE = {
    "before the append": [Kill("step transact", 8), Kill("step transact", 5, "older")],
    "between append and commit": [Kill(f"before {COMMIT}", 8), Kill(f"before {COMMIT}", 5, "deleted")],
    "behind the commit": [Kill(f"after {COMMIT}", 8), Kill(f"after {COMMIT}", 5, "older")],
    "between slices": [Kill(f"after {COPY}.write", 19), Kill(f"after {COPY}.write", 12, "deleted")],
}


@pytest.mark.broker
@pytest.mark.parametrize("where", IN_THE_CYCLE)
async def test_killed_in_the_cycle(kafka: Ground, tmp_path: Path, where: str) -> None:
    """At each step on a real Kafka, with the folder kept, deleted, or put back as it was before the process began."""
    await check_kills(kafka, IN_THE_CYCLE[where], tmp_path / "older")


TRANSACT = "keylanes.brokers.embedded:EmbeddedProducer.transact"


async def test_killed_in_the_cycle_of_the_embedded_broker(tmp_path: Path) -> None:
    """Before the one write that a transaction is there, before its answer, and when it is told."""
    kills = [Kill("step transact", 9), Kill(f"after {TRANSACT}", 5), Kill("step committed", 4), Kill("step applied", 3)]
    await check_kills(Ground(f"embedded:{tmp_path / 'data'}"), kills, tmp_path / "older")


@pytest.mark.broker
async def test_killed_in_a_restore(kafka: Ground, tmp_path: Path) -> None:
    """A restore goes on behind the batches that were written; one that had written none begins anew; from an older
    folder the tail alone is read.
    """
    await asyncio.to_thread(kafka.scatter, source_records(), PARTITIONS)
    for kill in (Kill("step transact", 18), Kill(f"after {COPY}.write", 12, "cold")):
        await asyncio.to_thread(killed, kafka, kill, tmp_path / "older")
        markers = await asyncio.to_thread(marked, kafka)
        counting = await check_started(kafka)
    check_goes_on(kafka, counting, markers)
    await asyncio.to_thread(killed, kafka, Kill(f"before {COPY}.write", 1, "cold"), tmp_path / "older")
    assert first_read(kafka, await check_started(kafka)) == {0: 0, 1: 0}
    await asyncio.to_thread(killed, kafka, Kill("step applied", 4, "older"), tmp_path / "older")
    markers = await asyncio.to_thread(marked, kafka)
    check_goes_on(kafka, await check_started(kafka), markers)
    await check_end(kafka)
