"""Changelogs that are missing, truncated, foreign, put back or compacted: an error in words, or the same state."""

import asyncio
import shutil
import threading
import time

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from keylanes import App, State
from keylanes.errors import SettingsError, SourceError, StateError
from keylanes.state.changelog import CHANGELOG_CONFIG, Beacon, beacon_key, encode_beacon, is_beacon_key

from ..stage.feeding import stops_with, trim
from ..stage.ground import Ground
from ..stage.stateful import (
    administer,
    all_at,
    append,
    changelog_of,
    configure,
    counting,
    counts,
    delete_topics,
    fill,
    make_changelog,
)


@pytest.mark.broker
@pytest.mark.parametrize("folder", ["kept", "deleted"])
def test_a_changelog_that_was_deleted(kafka: Ground, folder: str) -> None:
    """It is made anew, empty, and the start is refused: also with a folder that still has the state, which stays."""
    fill(kafka)
    counting(kafka).run(until="level")
    delete_topics(kafka, changelog_of(kafka))
    assert kafka.state_folder is not None
    if folder == "deleted":
        shutil.rmtree(kafka.state_folder)
    stops_with(
        SettingsError,
        counting(kafka, create_topics=False),
        f"topics are missing and create_topics is off: {changelog_of(kafka)}",
    )
    for _ in range(2):
        stops_with(
            StateError, counting(kafka), "it holds state up to no transaction of incarnation 1, and the offset log"
        )
    if folder == "kept":
        assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_changelog_put_back(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Part of it is refused. All of it, newest values only: a folder that is ahead of it is thrown away, said aloud."""
    fill(kafka)
    counting(kafka).run(until="level")
    early = kafka.read(changelog_of(kafka))
    fill(kafka)
    counting(kafka).run(until="level")
    newest = list({record.key: record for record in kafka.read(changelog_of(kafka))}.values())
    for records in (early, [record for record in newest if not is_beacon_key(record.key or b"")]):
        delete_topics(kafka, changelog_of(kafka))
        make_changelog(kafka, records)
        stops_with(StateError, counting(kafka), "it holds state up to")
        assert counts(kafka) == all_at(8)
    delete_topics(kafka, changelog_of(kafka))
    make_changelog(kafka, newest)
    fill(kafka, 1)
    counting(kafka).run(until="level")
    assert "is thrown away and made anew: it is at position" in caplog.text
    assert counts(kafka) == all_at(9)


@pytest.mark.broker
def test_a_changelog_that_may_lose_records(kafka: Ground) -> None:
    """One that is not only compacted is refused; so is one whose head was deleted, with or without a folder."""
    fill(kafka)
    counting(kafka).run(until="level")
    configure(kafka, changelog_of(kafka), {**CHANGELOG_CONFIG, "cleanup.policy": "compact,delete"})
    stops_with(SettingsError, counting(kafka), "must have cleanup.policy=compact and nothing else")

    trim(kafka, 2, changelog_of(kafka))
    configure(kafka, changelog_of(kafka), CHANGELOG_CONFIG)
    stops_with(StateError, counting(kafka), "it begins at position 2: records were deleted from its head")
    assert counts(kafka) == all_at(4)
    assert kafka.state_folder is not None
    shutil.rmtree(kafka.state_folder)
    stops_with(StateError, counting(kafka), "it begins at position 2: records were deleted from its head")


def test_a_changelog_with_other_partitions(either: Ground) -> None:
    """It is refused at the start: state is kept by partition and key."""
    fill(either)
    make_changelog(either, partitions=3)
    stops_with(SettingsError, counting(either), f"{changelog_of(either)} has 3 partitions, its source 1")


@pytest.mark.broker
def test_a_source_with_state_that_has_grown(kafka: Ground) -> None:
    """Its changelog shows it at the next start; when that has grown, too, the logs do. Nothing is read."""
    fill(kafka)
    counting(kafka).run(until="level")
    for topic, kind, says in (
        (kafka.source, SettingsError, "has 1 partitions, its source 2"),
        (changelog_of(kafka), SourceError, "has 2 partitions now; its state was begun with 1"),
    ):

        async def grow(admin: AIOKafkaAdminClient, topic: str = topic) -> None:
            await admin.create_partitions({topic: NewPartitions(2)})

        administer(kafka, grow)
        stops_with(kind, counting(kafka), says)
    assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_foreign_record_in_a_changelog(kafka: Ground) -> None:
    """Whoever reads it refuses it: the folder that has it to come, and a new one."""
    fill(kafka)
    counting(kafka).run(until="level")
    append(kafka, changelog_of(kafka), [(b"customer-7", b"hello")])
    assert kafka.state_folder is not None
    for _ in range(2):
        stops_with(StateError, counting(kafka), "is no state: it has a key of 10 bytes. Something else")
        shutil.rmtree(kafka.state_folder)
    fill(kafka)
    stops_with(StateError, counting(kafka), "is no state")


def forgetting(ground: Ground) -> App:
    """An application that counts the records of each key, and forgets it at every tenth value."""
    app = ground.app(commit_interval_ms=5, commit_lead_ms=1)

    @app.handler(ground.source, parallelising_factor=8)
    async def count(value: int, seen: State[int]) -> None:
        await asyncio.sleep(0.002)
        if value % 10 == 0:
            seen.delete()
        else:
            seen.put((seen.get() or 0) + 1)

    return app


def wait_for_cleaner(ground: Ground) -> None:
    """Wait until a committed reader sees less than a quarter of what was written to the changelog."""
    until = time.monotonic() + 90
    while len(left := ground.read(changelog_of(ground))) > left[-1].offset // 4:
        assert time.monotonic() < until, f"the cleaner did not run: {len(left)} records up to {left[-1].offset}"
        threading.Event().wait(0.5)  # it has no event for us


def test_a_changelog_of_something_else(either: Ground) -> None:
    """When it has the beacon of a writer that the logs do not know, or a damaged one, nothing is worked with it."""
    fill(either)
    counting(either).run(until="level")
    append(either, changelog_of(either), [encode_beacon(Beacon(9, 9))])
    stops_with(
        StateError, counting(either), "state up to transaction 9 of incarnation 9, and the control log says that only"
    )
    append(either, changelog_of(either), [(beacon_key(1), b"junk")])
    stops_with(StateError, counting(either), "a beacon has 8 bytes; seen 4")


@pytest.mark.broker
def test_a_compacted_changelog(kafka: Ground) -> None:
    """When Kafka's cleaner has taken most records what is restored is the same state, deleted keys among the rest."""
    config = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "50"}
    kafka.create(changelog_of(kafka), 1, **{**CHANGELOG_CONFIG, **config})
    values = [(i, b"k%d" % (i % 7)) for i in range(1_001)]
    kafka.fill([(key, b"%d" % i) for i, key in values])
    twin: dict[bytes, int] = {}
    for i, key in values:
        if i % 10 == 0:
            twin.pop(key, None)
        else:
            twin[key] = twin.get(key, 0) + 1
    assert len(twin) == 6
    forgetting(kafka).run(until="level")
    assert counts(kafka) == twin
    kafka.fill([(b"k1", b"1")])
    forgetting(kafka).run(until="level")  # so that the segment before it is closed
    twin[b"k1"] += 1
    wait_for_cleaner(kafka)
    assert kafka.state_folder is not None
    shutil.rmtree(kafka.state_folder)
    forgetting(kafka).run(until="level")
    assert counts(kafka) == twin
    assert kafka.logged(1) == kafka.kept(1)
