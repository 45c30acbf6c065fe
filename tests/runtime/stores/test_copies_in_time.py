"""Copies, and what happens between two of their steps: commits, points that join, and a machine that stood still."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.errors import StateError
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.ledger import SourcePartition
from keylanes.runtime.stores import changelogs, restore
from keylanes.runtime.watch.statistics import Progress
from keylanes.state.memory import MemoryCopy
from keylanes.state.restore import Writers
from keylanes.state.tables import Mark, Marker

from ...stage.virtual import virtual
from ...tiers.marks import tier
from .learning import PLACE, Beside, beside
from .test_restore import HOUR_MS, LOWER, TOPIC, UPPER, World, key_of, wrote

pytestmark = tier("check")

CHANGELOG = TopicPartition(TOPIC, 0)


def describes_late(world: Beside, seconds: float) -> None:
    """The broker takes so long to say how topics are set up."""
    broker: Any = world.means.broker
    describe = broker.describe

    async def late(topics: Collection[str]) -> Any:
        found = await describe(topics)
        await asyncio.sleep(seconds)
        return found

    broker.describe = late


@beside()
async def test_the_owner_commits_while_an_old_copy_is_thrown_away(world: Beside) -> None:
    """Before that the beacons are compared with the logs. These are read behind the watermark: the newest beacon lies
    above it.
    """
    await world.fill()
    world.ask(1)
    await world.wait_ready(1)
    await world.stop()
    await world.commit([(1, b"x")])
    world.now_ms += 85 * HOUR_MS

    done = world.transaction

    async def commit_on() -> None:
        nonlocal done
        while True:
            await world.commit([(1, b"y")])
            done = world.transaction
            await asyncio.sleep(0.01)

    async def writers(_: SourcePartition) -> Writers:
        before = done
        while done < before + 2:  # noqa: ASYNC110  # both logs are read to their ends, and the owner works
            await asyncio.sleep(0.005)
        return Writers({1: done}, frozenset({1}), frozenset({1}), incarnation_max=2, own=2)

    committing = asyncio.ensure_future(commit_on())
    await world.begin()
    world.ask_writers = writers
    await world.wait_ready(1)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    await asyncio.sleep(1)
    assert world.entries() == world.truth[0]


@beside()
async def test_what_joins_a_pass_while_it_is_planned_waits_for_the_next_plan(world: Beside) -> None:
    """It was written by this process itself, and is farther than the watermark that was asked for before."""
    await world.fill()

    async def writers(_: SourcePartition) -> Writers:
        return Writers({1: world.transaction}, frozenset({1}), frozenset({1}), incarnation_max=2, own=1)

    describes_late(world, 0.05)
    world.ask_writers = writers

    def mark() -> list[Mark]:
        return [(UPPER.first, UPPER.end, Marker(world.high, world.now_ms))]

    world.learner.owns(PLACE, [UPPER])
    world.copy().write([], mark())
    world.ask(1, LOWER)
    await asyncio.sleep(0.02)  # the watermark is there, the topic's settings are not
    await world.commit([(1, b"z")])
    world.copy().write([*world.truth[0].items()], mark())
    world.learner.release(PLACE, UPPER)
    world.ask(2, UPPER, role="standby")
    await world.wait_ready(1, 2)
    assert world.entries() == world.truth[0]


@beside()
async def test_what_is_asked_once_more_does_not_hold_up_a_plan(world: Beside) -> None:
    """Whoever holds ranges says so at each event of the control log; the broker may take longer to answer than that."""
    await world.fill()
    describes_late(world, 0.5)
    world.ask(1)

    async def say_again() -> None:
        while True:
            world.learner.follow(world.asked.values())
            await asyncio.sleep(0.02)

    saying = asyncio.ensure_future(say_again())
    assert await world.wait_ready(1, limit_s=5) < 1
    saying.cancel()
    assert world.entries() == world.truth[0]


@pytest.mark.parametrize("is_followed", [False, True], ids=["in the middle", "at the end"])
@beside()
async def test_who_stood_still_for_days_begins_anew(
    world: Beside, is_followed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The deletes of that time may be gone from the changelog, and nobody looks who starts again. Until the copy is
    whole again it answers nothing, and is not ready.
    """
    await world.fill(400 if is_followed else 200)
    world.ask(1, bytes_per_s=0 if is_followed else 60_000)
    if is_followed:
        await world.wait_ready(1)
        await asyncio.sleep(2)
    else:
        await asyncio.sleep(0.7)
        told = world.told_of(1)
        assert told is not None
        assert 0 < told.position < world.high
    for number, value in ((2, None), (1, b"new")):  # all of it while nothing of the process runs
        world.cluster.cluster.append([Outgoing(TOPIC, 0, key_of(number), value)])
        if value is None:
            world.truth[0].pop(key_of(number), None)
            world.cluster.compact(CHANGELOG, keep_tombstones=False)
            world.now_ms += 200 * HOUR_MS
        else:
            world.truth[0][key_of(number)] = value
    lost = 0
    while not (world.is_ready(1) and world.entries() == world.truth[0]):
        if world.entries() != world.truth[0]:
            stale_ms = world.learner.stale_ms(PLACE, 0)
            assert stale_ms is None or stale_ms >= 199 * HOUR_MS
            lost += not world.is_ready(1)
        await asyncio.sleep(0.001)
    assert lost
    await asyncio.sleep(1)
    assert world.entries() == world.truth[0]
    assert "is thrown away and made anew: it is 200.0 h old" in caplog.text


@virtual
async def test_restores_beside_each_other_read_no_more_partitions_at_once_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was granted a moment later waits for those before it; a copy that is near waits for none of them."""
    monkeypatch.setattr(restore, "NEAR_OFFSETS", 1_000)
    world = World(2)
    for partition in (0, 1):
        await world.fill(400, partition=partition)
    writers = [wrote({1: 400}), wrote({1: 800})]
    await world.restore(world.source(0, writers=writers[0]))
    lanes = asyncio.Semaphore(1)
    await lanes.acquire()

    async def restored(partition: int) -> None:
        connection = world.cluster.connect(f"reader {partition}")
        await connection.open()
        await world.restoring(connection, lanes).run([world.source(partition, writers=writers[partition])])

    world.ready.clear()
    near, cold = (asyncio.ensure_future(restored(partition)) for partition in (0, 1))
    await asyncio.sleep(600)
    assert (near.done(), cold.done(), world.ready) == (True, False, [0])
    lanes.release()
    await asyncio.gather(near, cold)
    assert world.ready == [0, 1]
    assert world.entries(1) == world.truth[1]


class Suspended(MemoryCopy):
    """The machine sleeps behind each write of these numbers, for longer than the changelog keeps its deletes."""

    def __init__(self, world: World, *sleeps: int) -> None:
        super().__init__()
        self.world, self.sleeps, self.writes = world, sleeps, 0

    def write(self, changes: Any, marks: Any = ()) -> None:
        super().write(changes, marks)
        self.writes += 1
        if self.writes in self.sleeps:
            self.world.now_ms += 200 * HOUR_MS
            self.world.cluster.compact(CHANGELOG, keep_tombstones=False)


async def restored_anew(world: World, copy: Suspended) -> list[Progress]:
    """Restore it; what was told of it."""
    await world.fill(100)
    await world.commit([(2, None)])
    await world.commit([(1, b"new")])
    connection = world.cluster.connect("reader")
    await connection.open()
    world.progress.clear()
    await world.restoring(connection).run([world.source(copy=copy)])
    return world.progress


@virtual
async def test_a_restore_that_stood_still_for_days_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has written may hold what was deleted meanwhile."""
    monkeypatch.setattr(changelogs, "FETCH_RECORDS_MAX", 500)
    world = World(1)
    copy = Suspended(world, 3)
    told = await restored_anew(world, copy)
    assert copy.writes > 3
    assert dict(copy.page(b"", None, 1_000_000)) == world.truth[0]
    assert world.ready == [0]
    assert copy.markers().at(WHOLE.first) == Marker(world.cluster.watermarks(CHANGELOG).high, world.now_ms)
    assert told[-1].seconds_left == 0.0


@virtual
async def test_a_restore_that_is_too_slow_for_its_changelog_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin anew for ever, and its ranges would stand still."""
    monkeypatch.setattr(changelogs, "FETCH_RECORDS_MAX", 20)
    world = World(1)
    with pytest.raises(StateError) as caught:
        await restored_anew(world, Suspended(world, 3, 6))
    for words in (f"{TOPIC}[0]", "delete.retention.ms=604800000", "twice", "Let delete.retention.ms of this topic"):
        assert words in str(caught.value)
    assert not world.ready


@beside()
async def test_a_changelog_that_keeps_its_deletes_for_too_short_a_time_is_refused(world: Beside) -> None:
    """Whoever reads it for longer than half of that begins anew."""
    await world.fill()
    world.cluster.configure_topic(TOPIC, {"delete.retention.ms": "59999"})
    world.ask(1)
    with pytest.raises(StateError) as caught:
        await world.wait_ready(1)
    for words in (TOPIC, "delete.retention.ms=59999", "at least 60000", "Raise delete.retention.ms"):
        assert words in str(caught.value)
    world.cluster.configure_topic(TOPIC, {"delete.retention.ms": "60000"})
    await world.begin()
    await world.wait_ready(1)
