"""Making copies whole from the simulated cluster's changelogs, in virtual time."""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from keylanes.brokers.protocol import BrokerError, BrokerTimeout, Outgoing, Reader, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedBroker, SimulatedConnection
from keylanes.errors import StateError, StoreError
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.runtime.stores.copy_pass import CopyMeans, CopyPass
from keylanes.runtime.stores.copy_writes import CopyWrites
from keylanes.runtime.stores.restore import Restore
from keylanes.runtime.stores.storage import StateThreads
from keylanes.runtime.watch.statistics import Progress
from keylanes.state.changelog import CHANGELOG_CONFIG, Beacon, beacon_key, decode_beacon, encode_beacon
from keylanes.state.copy_readiness import points_of
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.restore import Writers
from keylanes.state.rocks import RocksError
from keylanes.state.tables import Change, Mark, Marker

from ...stage.appending import append
from ...stage.limited import settings_of
from ...stage.virtual import Decorator, virtual, virtual_with
from ...tiers.marks import tier

pytestmark = tier("check")

TOPIC = "app.changelog.source"
HOUR_MS = 3_600_000
LOWER, UPPER = WHOLE.split(SPACE_END // 2)


def key_of(number: int) -> bytes:
    """A state key; even numbers lie in the lower half of the points."""
    return state_key((number % 2) * (SPACE_END // 2) + number, 0, b"k")


class World:
    """A cluster with one changelog, a folder with copies, a clock; what transactions wrote."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.cluster = SimulatedBroker(seed=1)
        self.cluster.create_topic(TOPIC, partitions, CHANGELOG_CONFIG)
        self.copies = MemoryCopies()
        self.settings = settings_of(**settings)
        self.now_ms = 1_000_000 * HOUR_MS
        self.truth: dict[int, dict[bytes, bytes]] = {p: {} for p in range(partitions)}
        self.transaction = 0
        self.progress: list[Progress] = []
        self.ready: list[int] = []

    async def commit(self, changes: Iterable[tuple[int, bytes | None]], partition: int = 0) -> None:
        """A transaction of incarnation 1."""
        self.transaction += 1
        connection = self.cluster.connect("writer")
        await connection.open()
        producer = await connection.producer("app", transaction_timeout_ms=10_000)
        records = [Outgoing(TOPIC, partition, key_of(number), value) for number, value in changes]
        beacon = encode_beacon(Beacon(1, self.transaction))
        await producer.transact([*records, Outgoing(TOPIC, partition, *beacon)])
        for record in records:
            assert record.key is not None
            if record.value is None:
                self.truth[partition].pop(record.key, None)
            else:
                self.truth[partition][record.key] = record.value

    async def fill(self, transactions: int = 20, changes: int = 50, partition: int = 0) -> None:
        """Transactions over 200 keys."""
        for i in range(transactions):
            await self.commit([((i * changes + j) % 200, b"%d-%d" % (i, j)) for j in range(changes)], partition)

    def copy(self, partition: int = 0) -> MemoryCopy:
        """The copy of a partition."""
        return self.copies.copy("source", partition)

    def source(
        self,
        partition: int = 0,
        held: Sequence[KeyRange] = (WHOLE,),
        copy: MemoryCopy | None = None,
        writers: Writers | None = None,
    ) -> CopyPass:
        """What is restored; incarnation 1 wrote all transactions, and is fenced."""
        changelog = TopicPartition(TOPIC, partition)
        copy = self.copy(partition) if copy is None else copy
        one = CopyPass(("source", partition), changelog, copy, points_of(held), has_end=True)
        one.writers = writers or wrote({1: self.transaction} if self.transaction else {})
        return one

    def restoring(self, connection: SimulatedConnection, lanes: asyncio.Semaphore | None = None) -> Restore:
        """A restore of this process."""
        means = CopyMeans(connection, self.settings, lambda: self.now_ms, CopyWrites(self.settings, StateThreads()))
        lanes = lanes or asyncio.Semaphore(self.settings.limits.restore_partitions_max)
        return Restore(means, lanes, self.progress.append, lambda one: self.ready.append(one.place[1]))

    async def restore(self, *sources: CopyPass, connection: SimulatedConnection | None = None) -> int:
        """Restore; how many records were read for it."""
        connection = self.cluster.connect("reader") if connection is None else connection
        await connection.open()
        self.progress.clear()
        await self.restoring(connection).run(sources)
        assert self.progress[-1].partitions_done == self.progress[-1].partitions == len(sources)
        assert self.progress[-1].seconds_left == 0
        return self.progress[-1].records

    def entries(self, partition: int = 0) -> dict[bytes, bytes]:
        """All that a copy holds."""
        return dict(self.copy(partition).page(b"", None, 1_000_000))


class BrokenCopy(MemoryCopy):
    """A copy on a disk that is full after some writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise RocksError("the disk that holds it is full")
        super().write(changes, marks)


class SlowCopy(MemoryCopy):
    """A copy whose disk waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released, self.written = threading.Event(), threading.Event(), False

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        self.begun.set()
        self.released.wait(30)
        super().write(changes, marks)
        self.written = True


class Readers(SimulatedConnection):
    """A connection that remembers which readers were made."""

    def __init__(self, world: World) -> None:
        super().__init__(world.cluster.cluster, "reader")
        self.made: list[Reader] = []

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader."""
        self.made.append(reader := await super().reader(positions))
        return reader


def wrote(changed: dict[int, int]) -> Writers:
    """These incarnations changed the state, with these transactions last, and are fenced."""
    return Writers(changed, frozenset(changed), incarnation_max=1)


def in_world(partitions: int = 1, **settings: Any) -> Decorator:
    """Run a test in virtual time, with a world."""
    return virtual_with(lambda: World(partitions, **settings))


@pytest.mark.parametrize("seed", range(5))
@in_world()
async def test_cold_restore(world: World, seed: int) -> None:
    """An empty copy becomes what all transactions wrote, with one marker at the end; deletes too, aborts not."""
    await world.fill()
    await world.commit([(number, None) for number in range(0, 100, 3)])
    assert await world.restore(world.source()) == 20 * 51 + 35
    assert world.entries() == world.truth[0]
    high = world.cluster.watermarks(TopicPartition(TOPIC, 0)).high
    assert world.copy().markers().is_constant(0, SPACE_END, Marker(high, world.now_ms))
    assert world.ready == [0]


@in_world()
async def test_nothing_was_ever_written(world: World) -> None:
    """With an empty changelog, and no transaction known, a copy is whole at once and marked."""
    assert await world.restore(world.source()) == 0
    assert world.copy().markers().is_constant(0, SPACE_END, Marker(0, world.now_ms))
    assert world.ready == [0]


@in_world()
async def test_warm_restart_reads_the_tail_only(world: World) -> None:
    """A copy with a marker goes on from there; one that lacks nothing reads nothing."""
    await world.fill()
    await world.restore(world.source())
    assert await world.restore(world.source()) == 0
    await world.commit([(1, b"new"), (2, None)])
    assert await world.restore(world.source()) == 3
    assert world.entries() == world.truth[0]


@in_world()
async def test_range_that_arrives(world: World) -> None:
    """What is held already is read from its marker; the range that is new, and it alone, from the start."""
    await world.fill(4)
    await world.restore(world.source(held=[LOWER]))
    assert world.entries() == {k: v for k, v in world.truth[0].items() if k < state_key(UPPER.first, 0, b"")}
    await world.fill(2)
    world.copy().write([(key_of(4), b"not in the changelog")])
    await world.restore(world.source(held=[LOWER, UPPER]))
    assert world.entries() == {**world.truth[0], key_of(4): world.truth[0][key_of(4)]}


@in_world()
async def test_compacted_changelog(world: World) -> None:
    """Holes are passed, also a compaction in the middle of the reading."""
    await world.fill(40)
    changelog = TopicPartition(TOPIC, 0)
    world.cluster.compact(changelog, partly=True)
    reading = asyncio.ensure_future(world.restore(world.source()))
    while not world.progress:  # noqa: ASYNC110  # nothing but virtual time passes
        await asyncio.sleep(0.001)
    world.cluster.compact(changelog)
    assert await reading < 40 * 51
    assert world.entries() == world.truth[0]


@in_world()
async def test_broken_off_and_gone_on_with(world: World) -> None:
    """A restore that ended in the middle goes on where it was: together they read little more than once."""
    await world.fill(400, 50)
    total, first = 400 * 51, 0
    reading = asyncio.ensure_future(world.restore(world.source()))
    while not world.progress or world.progress[-1].records < total / 2:  # noqa: ASYNC110  # nothing but virtual time passes
        await asyncio.sleep(0.0001)
    first = world.progress[-1].records
    assert first < total
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    marker = world.copy().markers().at(0)
    assert marker is not None
    assert marker.position > 0
    assert not world.ready
    second = await world.restore(world.source())
    assert total <= first + second < total * 1.3
    assert world.entries() == world.truth[0]


@in_world()
async def test_broker_away_in_the_middle(world: World) -> None:
    """A broker that is away is waited for, and the reading goes on where it was."""
    await world.fill(400, 50)
    reading = asyncio.ensure_future(world.restore(world.source()))
    while not world.progress:  # noqa: ASYNC110  # nothing but virtual time passes
        await asyncio.sleep(0.0001)
    world.cluster.faults.away = True
    await asyncio.sleep(30)
    assert not reading.done()
    world.cluster.faults.away = False
    assert await reading == 400 * 51
    assert world.entries() == world.truth[0]


@in_world()
async def test_a_tail_is_read_with_its_beacons(world: World) -> None:
    """Who takes over a copy that is near waits for one reader's connection, not for two, one after the other."""
    await world.fill()
    await world.restore(world.source())
    await world.commit([(1, b"new")])
    connection = Readers(world)
    assert await world.restore(world.source(), connection=connection) == 2
    assert len(connection.made) == 1
    assert world.entries() == world.truth[0]


@in_world()
async def test_no_reader_is_left_open(world: World) -> None:
    """Whenever a restore is cancelled, and at its own end, all its readers are closed."""
    await world.fill()
    ended, after_ms = False, 0.0
    while not ended:
        connection = Readers(world)
        reading = asyncio.ensure_future(world.restore(world.source(copy=MemoryCopy()), connection=connection))
        ended = bool((await asyncio.wait([reading], timeout=after_ms / 1000))[0])
        reading.cancel()
        await asyncio.wait([reading])
        await asyncio.sleep(1)  # what was forgotten while it was being made would be there by then
        for reader in connection.made:
            with pytest.raises(BrokerError):
                await reader.fetch([], records_max=1, wait_ms=0)
        after_ms += 0.1
    assert len(connection.made) == 1


@in_world(broker_retry_ms=1000, default_api_timeout_ms=1000, request_timeout_ms=1000)
async def test_broker_that_stays_away(world: World) -> None:
    """Beyond the limit the restore ends with the broker's error."""
    connection = world.cluster.connect("reader")
    await connection.open()
    world.cluster.faults.away = True
    with pytest.raises(BrokerTimeout):
        await world.restoring(connection).run([world.source()])


@in_world()
async def test_marker_ahead_is_rebuilt_aloud(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that claims more than the changelog holds is thrown away and made anew; a warning says so."""
    await world.fill()
    world.copy().write([(key_of(999), b"of another life")], [(0, SPACE_END, Marker(100_000, world.now_ms))])
    await world.restore(world.source())
    assert world.entries() == world.truth[0]
    assert (
        f"{TOPIC}[0]: the local copy of {WHOLE} is thrown away and made anew: it is at position 100000" in caplog.text
    )


@in_world()
async def test_old_copy_is_rebuilt_aloud(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that is older than half of delete.retention.ms may have missed a delete; a younger one is gone on from."""
    await world.fill()
    await world.restore(world.source())
    await world.commit([(1, None)])
    world.now_ms += 83 * HOUR_MS  # of 168
    assert await world.restore(world.source()) == 2
    assert "thrown away" not in caplog.text
    await world.commit([(2, None)])
    world.cluster.compact(TopicPartition(TOPIC, 0), keep_tombstones=False)
    world.now_ms += 85 * HOUR_MS
    assert await world.restore(world.source()) > 100
    assert world.entries() == world.truth[0]
    assert "it is 85.0 h old" in caplog.text


async def refused(world: World, copy_is_kept: bool, *words: str) -> None:
    """A restore is refused in these words; what the copy held stays, and nobody is told that it is ready."""
    before = world.entries()
    with pytest.raises(StateError) as caught:
        await world.restore(world.source())
    for word in (f"{TOPIC}", "Restore the topic from a copy, or start under a new application name", *words):
        assert word in str(caught.value)
    assert not world.ready
    assert world.entries() == before
    assert bool(before) == copy_is_kept


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("left", "has"), [(-40, "transaction 19"), (None, "no transaction")], ids=["cut off", "made anew"]
)
@in_world()
async def test_changelog_that_lost_its_end(world: World, left: int | None, has: str, warm: bool) -> None:
    """A changelog that lost its last transaction, or all, is refused when transactions have changed state, and what the
    copy knows of it is kept.
    """
    await world.fill()
    if warm:
        await world.restore(world.source())
        world.ready.clear()
    source = TopicPartition(TOPIC, 0)
    if left is None:
        world.cluster.recreate_topic(TOPIC)
    else:
        world.cluster.truncate(source, world.cluster.watermarks(source).high + left)
    await refused(world, warm, f"up to {has} of incarnation 1", "transaction 20 was the last of that")


@in_world()
async def test_changelog_that_nobody_knows_of(world: World) -> None:
    """State that the offset log knows nothing of is refused."""
    await world.fill(1)
    with pytest.raises(StateError, match=r"up to transaction 1 of incarnation 1.*it has changed nothing"):
        await world.restore(world.source(writers=wrote({})))


@in_world()
async def test_missing_changelog(world: World) -> None:
    """A partition that does not exist is named."""
    with pytest.raises(StateError, match=f"a changelog is missing.*{TOPIC}"):
        await world.restore(world.source(partition=3))


@in_world()
async def test_changelog_without_its_head(world: World) -> None:
    """Records deleted from the head are state that is lost: refused, whatever the copy holds."""
    await world.fill()
    await world.restore(world.source())
    world.ready.clear()
    world.cluster.trim(TopicPartition(TOPIC, 0), 100)
    await refused(world, True, "begins at position 100")


@in_world()
async def test_record_that_is_no_state(world: World) -> None:
    """A foreign record is refused with its position."""
    await world.fill(2, 5)
    connection = world.cluster.connect("stranger")
    await connection.open()
    await append(connection, [Outgoing(TOPIC, 0, b"user-7", b"{}")])
    position = next(record.offset for record in world.cluster.committed_records(TOPIC) if record.key == b"user-7")
    with pytest.raises(StateError, match=f"record at position {position} is no state: it has a key of 6 bytes"):
        await world.restore(world.source())


@pytest.mark.parametrize("at_once", [1, 4, 32])
@virtual
async def test_many_partitions(at_once: int) -> None:
    """All become whole, some at a time, each told when it is; the shortest first when it is one at a time."""
    world = World(8, restore_partitions_max=at_once)
    for partition in range(8):
        await world.fill(1 + (3 * partition) % 8, 20, partition)
    sources = []
    for partition in range(8):
        found = [
            r for r in world.cluster.committed_records(TOPIC) if r.partition == partition and r.key == beacon_key(1)
        ]
        number = decode_beacon(beacon_key(1), found[-1].value).transaction
        sources.append(world.source(partition, writers=wrote({1: number})))
    assert await world.restore(*sources) == 36 * 21
    assert sorted(world.ready) == list(range(8))
    if at_once == 1:
        assert world.ready == sorted(range(8), key=lambda partition: (3 * partition) % 8)
    assert all(world.entries(partition) == world.truth[partition] for partition in range(8))


@in_world()
async def test_copy_that_can_not_be_written(world: World) -> None:
    """A full disk ends the restore in words, and no other partition is told to be ready after it."""
    await world.fill(400)
    with pytest.raises(StoreError, match="is full"):
        await world.restore(world.source(copy=BrokenCopy(2)))
    assert not world.ready


async def test_cancelled_while_a_thread_writes() -> None:
    """Who is cancelled waits for the write that is going on in its thread: the copy may be closed next. The loop is
    free meanwhile.
    """
    world, copy = World(), SlowCopy()
    await world.fill(1)
    reading = asyncio.ensure_future(world.restore(world.source(copy=copy)))
    await asyncio.to_thread(copy.begun.wait, 30)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=0.05)
    assert not done
    copy.released.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert copy.written


@in_world()
async def test_what_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A long restore says at its begin how much there is, now and then what is left, and at its end how fast it was; a
    short one says its end only, and one that has nothing to read says nothing.
    """
    caplog.set_level(logging.INFO, "keylanes")
    await world.fill(2, 10)
    await world.restore(world.source())
    (said,) = [record.getMessage() for record in caplog.records if "restor" in record.getMessage()]
    assert said.startswith("restored the state of 1 partition: 22 records, ")
    caplog.clear()
    await world.restore(world.source())
    assert "restor" not in caplog.text
    await world.fill(400, 50)
    world.cluster.faults.reply_slow = 1.0
    world.cluster.faults.reply_slow_ms = 2_000
    await world.restore(world.source())
    left = [told.seconds_left for told in world.progress]
    assert len(left) > 3
    assert None not in left
    begin, *between, end = [record.getMessage() for record in caplog.records if "restor" in record.getMessage()]
    assert begin == "restoring state: at most 20,800 records of 1 partition"
    assert between
    assert all("s left" in line for line in between)
    assert end.startswith("restored the state of 1 partition: 20,400 records, ")
