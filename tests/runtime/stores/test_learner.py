"""Copies that are followed beside the work: how they become ready, what they hold at each moment, and their end."""

import asyncio
import itertools
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from keylanes.brokers.protocol import TopicPartition
from keylanes.errors import StateError, StoreError
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.runtime.stores.changelogs import FETCH_RECORDS_MAX
from keylanes.runtime.stores.copy_pass import MARKS_EVERY_S
from keylanes.runtime.stores.learner import Learner
from keylanes.state.copies import open_copies
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.restore import Writers
from keylanes.state.tables import Change, Mark, Marker

from ...stage.virtual import virtual
from .learning import NEVER, PLACE, SOURCE, Beside, CheckedCopy, beside
from .test_restore import HOUR_MS, LOWER, TOPIC, UPPER, BrokenCopy, key_of, wrote

Story = Callable[[Beside], Coroutine[Any, Any, None]]
QUARTERS = [KeyRange(SPACE_END // 4 * i, SPACE_END // 4 * (i + 1)) for i in range(4)]


async def keep_writing(world: Beside, seconds: float, pause_s: float = 0.02) -> None:
    """Transactions over 200 keys, one after the other, deletes among them."""
    rng, loop = random.Random(5), asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        numbers = rng.sample(range(200), 10)
        await world.commit([(n, None if rng.random() < 0.2 else b"%d" % rng.randrange(1_000_000)) for n in numbers])
        await asyncio.sleep(pause_s)


def truth_of(world: Beside, within: KeyRange) -> dict[bytes, bytes]:
    """What the changelog says of a range."""
    return {key: value for key, value in world.truth[0].items() if within.contains(int.from_bytes(key[:4], "big"))}


# --- becoming ready ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["memory", "rocks"])
@virtual
async def test_copy_beside_a_writer(seed: int, kind: str, tmp_path: Path) -> None:
    """It becomes ready while others write, follows, and what its markers claim is there at each moment."""
    world = Beside()
    copies = open_copies(tmp_path / "state", app="app", birth="birth") if kind == "rocks" else None
    world.kept = copy = CheckedCopy(world) if copies is None else copies.copy(SOURCE, 0)
    await world.begin()
    await world.fill(100)
    writing = asyncio.ensure_future(keep_writing(world, 5.0))
    world.ask(1)
    assert await world.wait_ready(1) < 2.0
    assert not writing.done()
    await writing
    await asyncio.sleep(1.0)
    assert dict(copy.page(b"", None, 10_000)) == world.truth[0]
    assert copy.markers().is_constant(0, SPACE_END, Marker(world.high, world.now_ms))
    await world.stop()
    if copies is not None:
        copies.close()


@beside()
async def test_ready_is_told_at_once_and_else_in_each_interval(world: Beside) -> None:
    """Nobody waits for the next interval."""
    await world.fill(400)
    began_s = asyncio.get_running_loop().time()
    world.ask(1, bytes_per_s=200_000)
    took_s = await world.wait_ready(1)
    await asyncio.sleep(2.5)
    told = [(at_s - began_s, copies[0].is_ready) for at_s, copies in world.told]
    at_s = [at_s for at_s, is_ready in told if is_ready]
    assert at_s[0] <= took_s
    assert [round(b - a, 3) for a, b in itertools.pairwise(at_s)] == [1.0] * (len(at_s) - 1)
    assert not told[0][1]
    (first,) = world.told[0][1]
    assert (first.move, first.position) == (1, 0)
    (last,) = world.told[-1][1]
    assert (last.position, last.high) == (world.high, world.high)
    assert last.bytes_per_s > 0


@beside(3)
async def test_slow_copy(world: Beside) -> None:
    """It takes no more than it may in a second, over all of its passes; another one may be as fast as it goes. What was
    read last is not waited for.
    """
    for partition in range(3):
        await world.fill(120, 50, partition)
    size = [
        sum(len(r.key or b"") + len(r.value or b"") for r in world.cluster.committed_records(TOPIC) if r.partition == p)
        for p in range(3)
    ]
    for partition in range(2):
        world.ask(partition, bytes_per_s=10_000, partition=partition)
    world.ask(2, partition=2)
    assert await world.wait_ready(2) < 1.0
    took_s = await world.wait_ready(0, 1)
    fetch = size[0] * FETCH_RECORDS_MAX / Learner.fetch_share / (120 * 50)
    assert 0.9 < took_s * 10_000 / (size[0] + size[1] - fetch) < 1.3


@beside()
async def test_a_copy_that_has_all_is_ready_however_slow_it_has_to_be(world: Beside) -> None:
    """What it read at once it pays for afterwards: only then it goes on."""
    await world.fill(20, 50)
    world.ask(1, bytes_per_s=100)
    assert await world.wait_ready(1) < 1.0
    size = sum(len(r.key or b"") + len(r.value or b"") for r in world.cluster.committed_records(TOPIC))
    await world.commit([(1, b"new")], 0)
    await asyncio.sleep(0.9 * size / 100)
    assert world.entries() != world.truth[0]
    await asyncio.sleep(0.2 * size / 100)
    assert world.entries() == world.truth[0]


@beside(6, restore_partitions_max=2)
async def test_so_many_partitions_are_copied_at_once(world: Beside) -> None:
    """Those that are ready leave room for the next, and are followed on."""
    for partition in range(6):
        await world.fill(10, 20, partition)
    for partition in range(6):
        world.ask(partition, bytes_per_s=20_000, partition=partition)
    most = 0
    while not world.is_ready(*range(6)):
        reading = [p for p in world.learner._behind if p.plan is not None]
        most = max(most, len(reading))
        await asyncio.sleep(0.001)
    assert most == 2
    await world.commit([(1, b"new")], 0)
    await world.commit([(1, b"new")], 5)
    await asyncio.sleep(1.0)
    assert all(world.entries(partition) == world.truth[partition] for partition in range(6))


@beside(3, restore_partitions_max=1)
async def test_what_lacks_least_is_copied_first(world: Beside) -> None:
    """Of a partition that was followed before, only what is new is read, and it waits for no other one."""
    for partition in range(3):
        await world.fill(20, 20, partition)
    world.ask(2, partition=2)
    await world.wait_ready(2)
    world.end(2)
    await world.commit([(1, b"new")], 2)
    for partition in range(3):
        world.ask(partition, bytes_per_s=20_000, partition=partition)
    await world.wait_ready(2)
    assert not world.is_ready(0)
    assert not world.is_ready(1)
    await world.wait_ready(0, 1)


@beside()
async def test_compaction_and_tombstones_meanwhile(world: Beside) -> None:
    """What is deleted and compacted while it is read is not there in the end."""
    await world.fill(100)
    world.ask(1, bytes_per_s=50_000)
    writing = asyncio.ensure_future(keep_writing(world, 3.0))
    while not writing.done():
        world.cluster.compact(TopicPartition(TOPIC, 0), partly=True)
        await asyncio.sleep(0.2)
    await world.wait_ready(1)
    await asyncio.sleep(1.0)
    assert world.entries() == world.truth[0]


# --- killed and gone on with ------------------------------------------------------------------------------------------


@beside()
async def test_killed_in_the_middle(world: Beside) -> None:
    """It goes on from its markers, at each kill; with the folder lost it begins anew."""
    await world.fill(200)
    world.ask(1, bytes_per_s=60_000)
    copied = []
    for _ in range(3):
        await asyncio.sleep(0.7)
        copied.append(world.copied_bytes)
        await world.stop()
        await world.begin()
    await world.wait_ready(1)
    whole = sum(len(r.key or b"") + len(r.value or b"") for r in world.cluster.committed_records(TOPIC))
    assert all(copied)
    assert whole * 0.8 < sum(copied) + world.copied_bytes < whole * 1.1, "nothing was read twice but the last batches"
    assert world.entries() == world.truth[0]
    await world.stop()
    world.copies = MemoryCopies()
    await world.begin()
    await world.wait_ready(1)
    assert world.copied_bytes > whole * 0.8
    assert world.entries() == world.truth[0]


@beside()
async def test_old_copy_is_made_anew(world: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond half of delete.retention.ms a delete may have been missed; a warning says so."""
    await world.fill()
    world.ask(1)
    await world.wait_ready(1)
    await world.stop()
    await world.commit([(2, None)])
    world.cluster.compact(TopicPartition(TOPIC, 0), keep_tombstones=False)
    await world.commit([(1, b"new")])
    world.copy().write([(key_of(999), b"of a key whose delete is gone")])
    world.now_ms += 85 * HOUR_MS
    await world.begin()
    await world.wait_ready(1)
    assert world.entries() == world.truth[0]
    assert "it is 85.0 h old" in caplog.text


@beside()
async def test_a_copy_that_nothing_changes_does_not_get_old(world: Beside) -> None:
    """Its marker is renewed while it is followed."""
    await world.fill()
    world.ask(1)
    await world.wait_ready(1)
    world.now_ms += 100 * HOUR_MS
    await asyncio.sleep(MARKS_EVERY_S + 2)
    marker = world.copy().markers().at(0)
    assert marker is not None
    assert marker.time_ms == world.now_ms


@beside()
async def test_held_copy_is_not_thrown_away_for_another_changelog(world: Beside) -> None:
    """It may be all that is left of the state: the beacons are compared with the logs before."""

    async def writers(place: tuple[str, int]) -> Writers:
        return wrote({1: world.transaction})

    await world.fill()
    world.ask(1)
    await world.wait_ready(1)
    held = world.entries()
    await world.stop()
    world.cluster.recreate_topic(TOPIC)
    await world.begin()
    world.ask_writers = writers
    await world.fails(StateError, "transaction 20 was the last of that")
    assert world.entries() == held


# --- several bands ----------------------------------------------------------------------------------------------------


@beside()
async def test_band_that_comes_later(world: Beside) -> None:
    """It is read by itself from its start, and the one that is ready goes on meanwhile; then they are one pass."""
    await world.fill(100)
    world.ask(1, LOWER)
    await world.wait_ready(1)
    before = world.copied_bytes
    world.ask(2, UPPER, bytes_per_s=50_000)
    writing = asyncio.ensure_future(keep_writing(world, 1.5))
    await asyncio.sleep(1.0)
    assert (world.is_ready(1), world.is_ready(2)) == (True, False)
    assert len(world.learner._places[PLACE].passes) == 2
    assert world.stale_ms(LOWER.first) <= 1_300
    await writing
    await world.wait_ready(1, 2)
    await asyncio.sleep(1.5)
    assert len(world.learner._places[PLACE].passes) == 1
    assert world.entries() == world.truth[0]
    assert before < world.copied_bytes < 2.5 * before


@beside()
async def test_band_that_joins(world: Beside) -> None:
    """One that a pass has not gone by goes with it: what both need is read once."""
    await world.fill(100)
    world.ask(1, LOWER)
    world.ask(2, UPPER)
    assert len(world.learner._places[PLACE].passes) == 1
    await world.wait_ready(1, 2)
    assert world.entries() == world.truth[0]


@beside()
async def test_what_is_not_asked_for_any_more_stops_and_stays(world: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """The rest goes on; what is on the disk is gone on from when it is asked for again."""
    caplog.set_level(logging.INFO, "keylanes")
    await world.fill(100)
    world.ask(1, LOWER, role="learner")
    world.ask(2, UPPER, role="standby")
    await world.wait_ready(1, 2)
    before = world.learner.statistics()
    assert before[:2] == (2, 2)
    assert min(before[2:]) > 1_000
    world.end(1)
    held = truth_of(world, LOWER)
    marker = world.copy().markers().at(0)
    await world.commit([(n, b"new") for n in range(100)])
    await asyncio.sleep(1.5)
    assert dict(world.copy().page(b"", key_of(1), 10_000)) == held
    assert world.copy().markers().at(0) == marker
    after = world.learner.statistics()
    assert after.bytes_learner == before.bytes_learner
    assert after.bytes_standby > before.bytes_standby
    world.ask(3, LOWER)
    await world.wait_ready(3)
    assert world.learner.statistics().bytes_learner - before.bytes_learner < 5_000
    assert world.entries() == world.truth[0]
    said = [record.getMessage() for record in caplog.records]
    label = f"source[0] {LOWER} (move 1, learner)"
    assert f"copying the state of {label}, from position 0 of its changelog" in said
    assert any(line.startswith(f"the copy of {label} is ready: 0.") for line in said)
    assert f"the copy of {label} is not followed any more" in said


@beside()
async def test_copy_that_falls_far_behind(world: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """It is not ready until it is near again."""
    await world.fill(20)
    world.ask(1, bytes_per_s=10_000)
    await world.wait_ready(1)
    await world.fill(100)
    async with asyncio.timeout(10):
        while world.is_ready(1):  # noqa: ASYNC110  # nothing but virtual time passes
            await asyncio.sleep(0.01)
    await world.wait_ready(1)
    assert world.entries() == world.truth[0]


# --- faults -----------------------------------------------------------------------------------------------------------


@beside()
async def test_broker_that_is_away_for_long(world: Beside) -> None:
    """It is waited for, longer than anything else waits for it, and the copy gets older."""
    await world.fill(100)
    world.ask(1)
    await world.wait_ready(1)
    world.cluster.faults.away = True
    await asyncio.sleep(300)
    assert world.task is not None
    assert not world.task.done()
    assert 299_000 < world.stale_ms(0) < 302_000
    world.cluster.faults.away = False
    await world.commit([(1, b"new")])
    async with asyncio.timeout(60):
        while world.entries() != world.truth[0]:  # noqa: ASYNC110  # nothing but virtual time passes
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)
    assert world.stale_ms(0) < 1_300


@beside(kept=lambda: BrokenCopy(2))
async def test_copy_that_can_not_be_written(world: Beside) -> None:
    """A full disk ends the run, in words."""
    await world.fill(400)
    world.ask(1)
    await world.fails(StoreError, "is full")


@beside()
async def test_changelog_that_lost_its_head(world: Beside) -> None:
    """No copy can be made of it, which ends the run."""
    await world.fill()
    world.ask(1)
    await world.wait_ready(1)
    world.cluster.trim(TopicPartition(TOPIC, 0), 100)
    world.ask(2, role="standby")
    world.end(1)
    world.end(2)
    world.ask(3)
    await world.fails(StateError, "begins at position 100")


@beside()
async def test_how_old_a_copy_is(world: Beside) -> None:
    """None before it is whole and when it is no copy any more; else since the last look that it was level with."""
    await world.fill(100)
    assert world.stale_ms(0) == NEVER
    world.ask(1, LOWER, bytes_per_s=50_000)
    await asyncio.sleep(0.5)
    assert world.stale_ms(0) == NEVER
    await world.wait_ready(1)
    writing = asyncio.ensure_future(keep_writing(world, 3.0))
    while not writing.done():
        assert world.stale_ms(0) < 1_300
        await asyncio.sleep(0.05)
    assert world.stale_ms(UPPER.first) == NEVER
    world.end(1)
    assert world.stale_ms(0) == NEVER


# --- who writes -------------------------------------------------------------------------------------------------------


@beside()
async def test_own_commit_marks_what_is_held_alone(world: Beside) -> None:
    """A followed band is where its pass is, whatever this process commits of others of the partition."""
    await world.fill(100)
    follower = world.followers[PLACE]
    world.learner.owns(PLACE, [LOWER])
    follower.note_whole([LOWER])
    world.ask(1, bytes_per_s=20_000)
    await asyncio.sleep(1.0)
    marker = world.copy().markers().at(UPPER.first)
    follower._committed_to = world.high
    await follower.write(world.now_ms)
    assert world.copy().markers().at(LOWER.first) == Marker(world.high, world.now_ms)
    assert world.copy().markers().at(UPPER.first) == marker
    assert marker is not None
    assert marker.position < world.high


@beside()
async def test_what_is_owned_is_not_followed_until_it_is_released(world: Beside) -> None:
    """Bands that were asked for, too; from the release on they are, from their markers."""
    await world.fill(100)
    world.learner.owns(PLACE, [LOWER])
    world.ask(1)
    await world.wait_ready(1)
    assert world.entries() == truth_of(world, UPPER), "what is owned is written by its owner alone"
    world.copy().write([], [(LOWER.first, LOWER.end, Marker(world.high, world.now_ms))])
    world.learner.release(PLACE, LOWER)
    before = world.copied_bytes
    world.learner.follow(world.asked.values())
    assert not world.is_ready(1)
    await world.wait_ready(1)
    assert world.copied_bytes == before, "it was whole at its marker"
    await world.commit([(0, b"new")])
    await asyncio.sleep(1.0)
    assert world.copy().get(key_of(0)) == b"new"
    world.learner.owns(PLACE, [WHOLE])


@beside()
async def test_what_comes_to_be_owned_piece_by_piece_is_written_by_its_owner_alone(world: Beside) -> None:
    """From each moment on, and for good: a copy that is asked for stays asked for while ranges of it are granted."""
    await world.fill(200)
    world.ask(1)
    await world.wait_ready(1)
    for owned in (QUARTERS[:1], QUARTERS[:2]):
        world.learner.owns(PLACE, owned[-1:])
        of_owner = {key for key in world.truth[0] if any(q.contains(int.from_bytes(key[:4], "big")) for q in owned)}
        world.copy().write([(key, b"the owner's") for key in of_owner])
        for _ in range(2):
            await world.commit([(number, b"of before") for number in range(200)])
            await asyncio.sleep(1.0)
            assert {key for key, value in world.entries().items() if value == b"the owner's"} == of_owner
            world.learner.follow(world.asked.values())


@beside()
async def test_a_pass_stands_still_while_a_restore_writes_to_its_copy(world: Beside) -> None:
    """A copy has one writer at a time. The pass goes on from its marker, and reads nothing twice."""
    await world.fill(200)
    world.ask(1, UPPER, bytes_per_s=60_000)
    await asyncio.sleep(0.5)
    async with world.means.writes.take(TopicPartition(TOPIC, 0)):
        before = world.copied_bytes, world.copy().markers()
        await asyncio.sleep(5.0)
        assert (world.copied_bytes, world.copy().markers()) == before, "a restore writes to it"
    await world.wait_ready(1)
    assert world.entries() == truth_of(world, UPPER)
    whole = [record for record in world.cluster.committed_records(TOPIC) if (record.key or b"\x00") >= b"\x80"]
    assert world.copied_bytes == sum(len(record.key or b"") + len(record.value or b"") for record in whole)


@beside()
async def test_restore_of_a_followed_band_reads_the_tail(world: Beside) -> None:
    """It goes on from the marker, also where the copy was not ready."""
    await world.fill(400)
    world.ask(1, bytes_per_s=100_000)
    await asyncio.sleep(2.0)
    world.learner.owns(PLACE, [WHOLE])
    marker = world.copy().markers().at(0)
    assert marker is not None
    assert 0 < marker.position < world.high
    assert await world.restore(world.source()) <= world.high - marker.position
    assert world.entries() == world.truth[0]


async def restore_by_hand(world: Beside, copy: MemoryCopy) -> None:
    """Write what an owner writes, as a restore does."""
    async with world.means.writes.take(TopicPartition(TOPIC, 0)):
        copy.write([(key_of(0), b"the owner's")])


async def test_a_write_that_is_under_way_is_waited_for() -> None:
    """Who owns a range writes behind it: else an older value would come to lie over a newer one."""
    world, copy = Beside(), HeldCopy()
    world.kept = copy
    await world.fill(1)
    await world.begin()
    world.ask(1)
    await asyncio.to_thread(copy.begun.wait, 30)
    world.learner.owns(PLACE, [WHOLE])
    restoring = asyncio.ensure_future(restore_by_hand(world, copy))
    done, _ = await asyncio.wait([restoring], timeout=0.05)
    assert not [task.result() for task in done], "it is still being written"
    copy.released.set()
    await restoring
    await world.stop()
    assert copy.get(key_of(0)) == b"the owner's"


class HeldCopy(MemoryCopy):
    """A copy whose disk holds back the first write of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = threading.Event(), threading.Event()

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        if changes and not self.begun.is_set():
            self.begun.set()
            self.released.wait(30)
        super().write(changes, marks)
