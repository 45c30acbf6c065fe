"""What ``brokers/protocol.py`` promises, checked on every adapter by the same cases.

A case is a coroutine over a ``World``; ``test_conformance`` runs each of them on each adapter: on the simulated one in
virtual time under several seeds, on the others in real time.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keylanes import App, OutputRefused, Settings
from keylanes import Record as KeylanesRecord
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.protocol import (
    Appender,
    Batch,
    Broker,
    BrokerError,
    BrokerProducer,
    ConsumerRecord,
    OffsetOutOfRange,
    Outgoing,
    ProducerFenced,
    Reader,
    TopicPartition,
    TopicSpec,
    TransactionRefused,
    UnknownTopic,
)
from keylanes.brokers.simulated.broker import SimulatedBroker, SimulatedReader
from keylanes.brokers.simulated.cluster import Cluster
from keylanes.brokers.simulated.connection import SimulatedConnection
from keylanes.brokers.simulated.log import ClusterState, PartitionLog, SimulatedRecord
from keylanes.brokers.simulated.network import Fault, RequestKind
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.appending import append
from ..stage.fencing import fence
from ..tiers.names import fresh

SEEDS = range(6)
PATIENCE_S = 30.0
TIMEOUT_MS = 10_000
AT_ONCE_S = 1.5
OVERSIZE = random.Random(1).randbytes(5000)  # Kafka's limit is on what compression leaves: zeros would pass


Join = Callable[[str, Mapping[TopicPartition, int]], AbstractAsyncContextManager[None]]
"""A consumer group of that name has a member, which has committed these offsets; it leaves at the end."""


Stuck = Callable[[Coroutine[Any, Any, object]], AbstractAsyncContextManager["asyncio.Task[object]"]]
"""Inside, an append is under way that is not answered before the end."""


class World:
    """A broker, topics of one's own on it, and whatever a case opened, closed at the end. ``join`` None: the broker has
    no consumer groups. ``stuck`` None: it answers always, and at once.
    """

    def __init__(self, connect: Callable[[], Broker], join: "Join | None" = None, stuck: "Stuck | None" = None) -> None:
        self._connect = connect
        self.join, self.stuck = join, stuck
        self._brokers: list[Broker] = []
        self._broker: Broker | None = None
        self._readers: list[Reader] = []

    async def another(self) -> Broker:
        """A connection of its own, as a second process or a second app would have."""
        broker = self._connect()
        await broker.open()
        self._brokers.append(broker)
        return broker

    async def broker(self) -> Broker:
        """The connection that most cases need."""
        if self._broker is None:
            self._broker = await self.another()
        return self._broker

    def unique(self, name: str) -> str:
        """A name that no other case uses."""
        return fresh(name)

    async def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic; underscores in names of settings stand for dots."""
        name = self.unique("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await (await self.broker()).create([TopicSpec(name, partitions, settings)])
        return name

    async def producer(self, transactional_id: str, broker: Broker | None = None) -> BrokerProducer:
        """A new producer of an id."""
        return await (broker or await self.broker()).producer(transactional_id, transaction_timeout_ms=TIMEOUT_MS)

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader, closed at the end."""
        reader = await (await self.broker()).reader(positions)
        self._readers.append(reader)
        return reader

    async def read(self, source: TopicPartition, start: int = 0) -> list[ConsumerRecord]:
        """All that a reader sees up to the high watermark as it is now."""
        reader = await self.reader({source: start})
        return await self.read_to(reader, await self.high(source), source)

    async def read_to(
        self, reader: Reader, high: int, source: TopicPartition, records_max: int = 1000
    ) -> list[ConsumerRecord]:
        """Fetch one partition until the reader's position reaches ``high``."""
        records: list[ConsumerRecord] = []
        async with asyncio.timeout(PATIENCE_S):
            while reader.position(source) < high:
                for batch in await reader.fetch([source], records_max=records_max, wait_ms=1000):
                    records.extend(batch.records)
        return records

    async def high(self, source: TopicPartition) -> int:
        """The high watermark."""
        return (await (await self.broker()).watermarks([source]))[source].high

    async def close(self) -> None:
        """Close all that is open."""
        for reader in self._readers:
            await reader.close()
        for broker in self._brokers:
            await broker.close()


Case = Callable[[World], Awaitable[None]]
CASES: list[Case] = []


def case(function: Case) -> Case:
    """Register a case; its docstring states the behaviour."""
    CASES.append(function)
    return function


def at(topic: str, partition: int = 0) -> TopicPartition:
    """A partition of a topic."""
    return TopicPartition(topic, partition)


def values(records: Sequence[ConsumerRecord]) -> list[bytes | None]:
    """What the records hold."""
    return [record.value for record in records]


def numbered(topic: str, count: int, partition: int = 0, first: int = 0) -> list[Outgoing]:
    """Records whose values count up from ``first``."""
    return [Outgoing(topic, partition, b"k", b"%d" % number) for number in range(first, first + count)]


@case
async def records_come_back_whole_and_in_order(world: World) -> None:
    """Key, value, headers and timestamp are read as written, null and empty kept apart, at increasing offsets."""
    topic = await world.topic()
    sent = [
        Outgoing(topic, 0, b"key", b"value", (("a", b"1"), ("a", b""), ("ä", b"\xff")), 1_234_567_890_123),
        Outgoing(topic, 0, None, None, (), 1_234_567_890_124),
        Outgoing(topic, 0, b"", b"", (), 1_234_567_890_125),
    ]
    await append(await world.broker(), sent)
    found = await world.read(at(topic))
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in found] == [
        (s.key, s.value, tuple(s.headers), s.timestamp) for s in sent
    ]
    assert [r.offset for r in found] == [0, 1, 2]


@case
async def a_record_without_a_timestamp_is_stamped(world: World) -> None:
    """Timestamp None becomes a time in milliseconds of this century, in appends and in transactions."""
    topic = await world.topic()
    await append(await world.broker(), numbered(topic, 1))
    await (await world.producer(world.unique("id"))).transact(numbered(topic, 1))
    for record in await world.read(at(topic)):
        assert 1_500_000_000_000 < record.timestamp < 4_000_000_000_000


@case
async def partitions_are_apart(world: World) -> None:
    """Each partition counts its own offsets from 0 on, has its own watermarks and hands out its own records."""
    topic, broker = await world.topic(partitions=3), await world.broker()
    sources = [at(topic, partition) for partition in range(3)]
    assert [tuple(w) for w in (await broker.watermarks(sources)).values()] == [(0, 0)] * 3
    await append(broker, numbered(topic, 3, 2) + numbered(topic, 2, 0))
    assert await broker.watermarks(sources) == dict(zip(sources, [(0, 2), (0, 0), (0, 3)], strict=True))
    assert [len(await world.read(source)) for source in sources] == [2, 0, 3]


@case
async def a_fetch_is_bounded_and_the_next_goes_on(world: World) -> None:
    """No fetch exceeds ``records_max`` over all partitions, and together they give every record once, in order."""
    topic = await world.topic(partitions=2)
    await append(await world.broker(), numbered(topic, 250, 0) + numbered(topic, 130, 1))
    sources = [at(topic, 0), at(topic, 1)]
    reader = await world.reader(dict.fromkeys(sources, 0))
    found: dict[TopicPartition, list[bytes | None]] = {source: [] for source in sources}
    async with asyncio.timeout(PATIENCE_S):
        while reader.position(sources[0]) < 250 or reader.position(sources[1]) < 130:
            batches = await reader.fetch(sources, records_max=37, wait_ms=1000)
            assert sum(len(batch.records) for batch in batches) <= 37
            for batch in batches:
                found[batch.source].extend(values(batch.records))
                assert batch.offset_next == reader.position(batch.source)
    assert found[sources[0]] == [b"%d" % number for number in range(250)]
    assert found[sources[1]] == [b"%d" % number for number in range(130)]


@case
async def many_records_at_once(world: World) -> None:
    """An append of thousands of records is read back complete and in order."""
    topic = await world.topic(partitions=2)
    await append(await world.broker(), [r for n in range(3000) for r in numbered(topic, 1, n % 2, n)])
    for partition in range(2):
        found = await world.read(at(topic, partition))
        assert values(found) == [b"%d" % number for number in range(partition, 3000, 2)]
        assert [record.offset for record in found] == list(range(1500))


@case
async def a_fetch_of_nothing_waits_and_ends(world: World) -> None:
    """With nothing to read a fetch lasts about ``wait_ms``, returns nothing and leaves the position."""
    source = at(await world.topic())
    reader = await world.reader({source: 0})
    loop = asyncio.get_running_loop()
    await reader.fetch([source], records_max=10, wait_ms=0)
    begin = loop.time()
    assert await reader.fetch([source], records_max=10, wait_ms=200) == []
    assert 0.15 <= loop.time() - begin < PATIENCE_S
    assert reader.position(source) == 0


@case
async def a_waiting_fetch_wakes_for_a_record(world: World) -> None:
    """A fetch that waits returns soon after a record has come, long before its time is over."""
    source = at(await world.topic())
    reader = await world.reader({source: 0})
    waiting = asyncio.create_task(reader.fetch([source], records_max=10, wait_ms=60_000))
    await asyncio.sleep(0)
    await append(await world.broker(), numbered(source.topic, 1))
    async with asyncio.timeout(PATIENCE_S):
        batches: list[Batch] = await waiting
    assert [values(batch.records) for batch in batches] == [[b"0"]]


@case
async def a_waiting_fetch_wakes_for_a_transaction(world: World) -> None:
    """The commit of a transaction wakes a fetch, and the fetch brings its records."""
    source = at(await world.topic())
    reader = await world.reader({source: 0})
    waiting = asyncio.create_task(world.read_to(reader, 2, source))
    producer = await world.producer(world.unique("id"))
    await producer.transact(numbered(source.topic, 2))
    async with asyncio.timeout(PATIENCE_S):
        assert values(await waiting) == [b"0", b"1"]


@case
async def only_named_partitions_are_fetched(world: World) -> None:
    """A fetch hands out named partitions only; the others stay where they are and lose nothing."""
    topic = await world.topic(partitions=2)
    await append(await world.broker(), numbered(topic, 20, 0) + numbered(topic, 20, 1))
    reader = await world.reader({at(topic, 0): 0, at(topic, 1): 0})
    first = await world.read_to(reader, 20, at(topic, 0), records_max=3)
    assert reader.position(at(topic, 1)) == 0
    second = await world.read_to(reader, 20, at(topic, 1), records_max=3)
    assert values(first) == values(second) == [b"%d" % number for number in range(20)]


@case
async def an_assignment_replaces_the_one_before(world: World) -> None:
    """After ``assign`` reading goes on at the new place, backwards too; what was prefetched elsewhere is dropped."""
    topic = await world.topic(partitions=2)
    await append(await world.broker(), numbered(topic, 50, 0) + numbered(topic, 50, 1))
    reader = await world.reader({at(topic, 0): 0})
    await world.read_to(reader, 30, at(topic, 0), records_max=10)
    reader.assign({at(topic, 0): 7, at(topic, 1): 48})
    assert reader.position(at(topic, 0)) == 7
    assert (await world.read_to(reader, 50, at(topic, 0)))[0].offset == 7
    assert [record.offset for record in await world.read_to(reader, 50, at(topic, 1))] == [48, 49]


@case
async def an_assignment_during_a_fetch_drops_what_it_brings(world: World) -> None:
    """A fetch that was under way hands out nothing of the old place: the next record is that of the new place."""
    topic = await world.topic()
    await append(await world.broker(), numbered(topic, 50))
    reader = await world.reader({at(topic): 0})
    under_way = asyncio.create_task(reader.fetch([at(topic)], records_max=5, wait_ms=1000))
    await asyncio.sleep(0)
    reader.assign({at(topic): 40})
    records = [record for batch in await under_way for record in batch.records]
    records += await world.read_to(reader, 50, at(topic))
    assert [record.offset for record in records] == list(range(40, 50))


@case
async def a_cancelled_fetch_loses_nothing(world: World) -> None:
    """Fetches that are cancelled at any moment neither skip nor repeat a record."""
    topic = await world.topic()
    await append(await world.broker(), numbered(topic, 100))
    reader = await world.reader({at(topic): 0})
    records: list[ConsumerRecord] = []
    for passes in range(20):
        fetch = asyncio.create_task(reader.fetch([at(topic)], records_max=4, wait_ms=1000))
        for _ in range(passes):
            await asyncio.sleep(0.0002)
        fetch.cancel()
        try:
            records.extend(record for batch in await fetch for record in batch.records)
        except asyncio.CancelledError:
            continue
    records += await world.read_to(reader, 100, at(topic))
    assert [record.offset for record in records] == list(range(100))


@case
async def readers_do_not_disturb_each_other(world: World) -> None:
    """Two readers of one partition each get everything, from where they started."""
    topic = await world.topic()
    await append(await world.broker(), numbered(topic, 60))
    first, second = await world.reader({at(topic): 0}), await world.reader({at(topic): 30})
    found = await asyncio.gather(world.read_to(first, 60, at(topic), 7), world.read_to(second, 60, at(topic), 11))
    assert [len(records) for records in found] == [60, 30]


async def _fetch_until_it_raises(reader: Reader, source: TopicPartition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await reader.fetch([source], records_max=10, wait_ms=100)


@case
async def reading_outside_the_log_is_an_error(world: World) -> None:
    """Below the start and above the high watermark a fetch raises OffsetOutOfRange with the watermarks."""
    topic = await world.topic()
    broker = await world.broker()
    await append(broker, numbered(topic, 10))
    await broker.trim({at(topic): 4})
    for wrong in (3, 11):
        reader = await world.reader({at(topic): wrong})
        with pytest.raises(OffsetOutOfRange) as caught:
            await _fetch_until_it_raises(reader, at(topic))
        assert (caught.value.source, caught.value.offset, tuple(caught.value.watermarks)) == (at(topic), wrong, (4, 10))


@case
async def an_error_of_before_is_not_told_of_what_is_read_next(world: World) -> None:
    """A reader that has fetched ahead outside the log, and is assigned inside of it then, hands out what lies there."""
    topic = await world.topic()
    broker = await world.broker()
    await append(broker, numbered(topic, 10))
    reader = await world.reader({at(topic): 100})
    await reader.fetch((), records_max=1, wait_ms=1_200)  # nobody asks for what it has got
    reader.assign({at(topic): 4})
    async with asyncio.timeout(PATIENCE_S):
        while not (batches := await reader.fetch([at(topic)], records_max=100, wait_ms=100)):
            pass
    assert next(record.offset for batch in batches for record in batch.records) == 4


@case
async def a_trim_moves_the_start(world: World) -> None:
    """After a trim the start watermark has moved, records above are there, and a trim to the high leaves none."""
    topic = await world.topic()
    broker = await world.broker()
    await append(broker, numbered(topic, 10))
    await broker.trim({at(topic): 4})
    assert tuple((await broker.watermarks([at(topic)]))[at(topic)]) == (4, 10)
    assert [record.offset for record in await world.read(at(topic), 4)] == list(range(4, 10))
    await broker.trim({at(topic): 10})
    assert tuple((await broker.watermarks([at(topic)]))[at(topic)]) == (10, 10)
    await append(broker, numbered(topic, 1))
    assert [record.offset for record in await world.read(at(topic), 10)] == [10]


@case
async def what_does_not_exist_is_named(world: World) -> None:
    """Watermarks and fetches of unknown topics and partitions raise UnknownTopic; descriptions and counts omit them."""
    topic, missing = await world.topic(), world.unique("missing")
    broker = await world.broker()
    assert list(await broker.describe([missing, topic])) == [topic]
    assert await broker.partitions([missing, topic]) == {topic: 1}
    for unknown in (at(missing), at(topic, 1)):
        with pytest.raises(UnknownTopic):
            await broker.watermarks([unknown])
        reader = await world.reader({unknown: 0})
        with pytest.raises(UnknownTopic):
            await _fetch_until_it_raises(reader, unknown)


@case
async def topics_are_described_as_created(world: World) -> None:
    """Partitions and settings are those asked for, the three settings are always there, and a topic is made once."""
    topic = await world.topic(3, cleanup_policy="compact", retention_ms="-1")
    broker = await world.broker()
    await broker.create([TopicSpec(topic, 5, {"retention.ms": "1000"})])
    found = (await broker.describe([topic]))[topic]
    assert (found.name, found.partitions) == (topic, 3)
    assert (found.config["cleanup.policy"], found.config["retention.ms"]) == ("compact", "-1")
    assert int(found.config["max.message.bytes"]) > 100_000


@case
async def impossible_topics_are_refused(world: World) -> None:
    """A name that Kafka doesn't allow and a topic without partitions raise BrokerError."""
    broker = await world.broker()
    for name, partitions in (("no spaces", 1), ("", 1), ("..", 1), (world.unique("none"), 0)):
        with pytest.raises(BrokerError):
            await broker.create([TopicSpec(name, partitions, {})])


@case
async def offsets_are_found_by_time(world: World) -> None:
    """The first record that is not older, whatever stands behind it; none where all are older, or there is nothing."""
    topic = await world.topic(partitions=3)
    broker = await world.broker()
    times = (1_700_000_001_000, 1_700_000_004_000, 1_700_000_002_000, 1_700_000_003_000)
    for time in times:
        await append(broker, [Outgoing(topic, 1, b"k", b"v", (), time)])
    await append(broker, [Outgoing(topic, 2, b"k", b"v", (), times[1])])

    async def found(time: int) -> list[int | None]:
        asked = {at(topic, partition): time for partition in range(3)}
        told = await broker.offsets_at(asked)
        return [told[source] for source in asked]

    assert await found(0) == [None, 0, 0]
    assert await found(times[0]) == [None, 0, 0]
    assert await found(times[0] + 1) == [None, 1, 0]
    assert await found(times[2] + 500) == [None, 1, 0], "an older one behind it does not matter"
    assert await found(times[1]) == [None, 1, 0]
    assert await found(times[1] + 1) == [None, None, None]
    await broker.trim({at(topic, 1): 3})
    assert await found(times[0]) == [None, 3, 0], "what was deleted is not found"
    with pytest.raises(UnknownTopic):
        await broker.offsets_at({at(world.unique("nowhere")): 0})


@case
async def a_group_is_read_without_joining_it(world: World) -> None:
    """What it has committed of the partitions that are asked for, and whether it has members; of no group nothing."""
    topic, other = await world.topic(partitions=3), await world.topic()
    broker, group = await world.broker(), world.unique("group")
    nothing = await broker.group_offsets(group, [at(topic)])
    assert (nothing.is_live, nothing.offsets) == (False, {})
    if world.join is None:
        return
    await append(broker, [*numbered(topic, 9), *numbered(topic, 9, 1)])
    async with world.join(group, {at(topic): 4, at(topic, 1): 0}):
        assert (await broker.group_offsets(group, [at(topic)])).is_live
    told = await broker.group_offsets(group, [at(topic, p) for p in range(3)])
    assert (told.is_live, told.offsets) == (False, {at(topic): 4, at(topic, 1): 0})
    assert (await broker.group_offsets(group, [at(topic, 1), at(other)])).offsets == {at(topic, 1): 0}
    assert (await broker.group_offsets(group, [at(topic)])).offsets == {at(topic): 4}, "it did not move"


@case
async def appends_keep_their_order(world: World) -> None:
    """Appends that follow each other are read in that order, and an acknowledged one is visible at once, below the
    offset that ``append`` returns.
    """
    topic, appender = await world.topic(), (await world.broker()).appender()
    for number in range(20):
        ends = await appender.append(numbered(topic, 2, first=2 * number))
        assert ends == {at(topic): 2 * number + 2}
        assert await world.high(at(topic)) == 2 * number + 2
    assert values(await world.read(at(topic))) == [b"%d" % number for number in range(40)]


@case
async def appends_that_wait_for_each_other_keep_their_order(world: World) -> None:
    """Those of one appender are written in the order in which they were called, large and small ones."""
    topic, appender = await world.topic(partitions=2), (await world.broker()).appender()
    called: list[bytes] = []

    async def write(name: bytes, count: int) -> None:
        called.extend([name] * count)
        await appender.append([Outgoing(topic, p, None, name) for p in range(2) for _ in range(count)])

    await asyncio.gather(*(write(b"%d" % number, count) for number, count in enumerate((1, 2000, 1, 3, 1000, 1))))
    for partition in range(2):
        assert values(await world.read(at(topic, partition))) == called


@case
async def no_appender_waits_for_another(world: World) -> None:
    """While one gets no answer, others of its connection write, and what it sent is written all the same."""
    if world.stuck is None:
        return
    topic, broker = await world.topic(partitions=2), await world.broker()
    one, other = broker.appender(), broker.appender()
    for number in range(2):
        await asyncio.gather(*(by.append(numbered(topic, 1, p, number)) for p, by in enumerate((one, other))))
    async with world.stuck(one.append(numbered(topic, 1, 0, 2))) as running:
        beside = asyncio.create_task(other.append(numbered(topic, 1, 1, 2)))
        done, _ = await asyncio.wait({beside}, timeout=AT_ONCE_S)
        assert done, "it waits for another appender"
        assert not running.done()
        assert await world.high(at(topic)) == 2
    await running
    for partition in range(2):
        assert values(await world.read(at(topic, partition))) == [b"0", b"1", b"2"]


@case
async def an_appender_goes_on_after_a_refusal(world: World) -> None:
    """What is refused is the error of the one who sent it; the same appender writes what comes behind it."""
    topic = await world.topic(max_message_bytes="2000")
    appender = (await world.broker()).appender()
    await appender.append(numbered(topic, 1))
    with pytest.raises(TransactionRefused):
        await appender.append([Outgoing(topic, 0, b"k", OVERSIZE)])
    await appender.append(numbered(topic, 1, first=1))
    assert values(await world.read(at(topic))) == [b"0", b"1"]


@case
async def a_refused_append_says_what_was_written(world: World) -> None:
    """All in front of the culprits, and nothing else; so whoever sent them can send the others apart."""
    topic = await world.topic(max_message_bytes="2000")
    records = [*numbered(topic, 30), Outgoing(topic, 0, b"k", OVERSIZE), *numbered(topic, 5, first=30)]
    with pytest.raises(TransactionRefused) as refused:
        await (await world.broker()).appender().append(records)
    assert 30 in refused.value.culprits
    assert values(await world.read(at(topic))) == [b"%d" % number for number in range(min(refused.value.culprits))]


@case
async def what_an_application_sends_side_by_side_keeps_its_order(world: World) -> None:
    """In each partition, with calls that wait for room, that are refused and that leave; what has left is not sent."""
    topic, called, all_called = await world.topic(partitions=3), list[int](), asyncio.Event()
    app = App(world.unique("app"), broker=await world.broker(), settings=Settings(send_bytes_max=5_000))

    async def send(number: int) -> None:
        called.append(number)
        if len(called) == 300:
            all_called.set()
        key, bad = b"%d" % (number % 7), number % 50 == 3
        await app.send(topic, object() if bad else number, key=key)

    tasks = {number: asyncio.create_task(send(number)) for number in range(300)}
    await all_called.wait()
    for number in called[-100::2]:
        tasks[number].cancel()
    outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    refused = [number for number, outcome in zip(tasks, outcomes, strict=True) if isinstance(outcome, OutputRefused)]
    assert set(refused) == set(range(3, 300, 50)) - set(called[-100::2])
    await app.send_many(topic, (KeylanesRecord(number, key=b"%d" % (number % 7)) for number in range(300, 400)))
    await app.close()
    kept = [number for number in called if outcomes[number] is None] + list(range(300, 400))
    for partition in range(3):
        here = [n for n in kept if partition_of_key(b"%d" % (n % 7), 3) == partition]
        assert values(await world.read(at(topic, partition))) == [b"%d" % number for number in here]


@case
async def a_transaction_spans_topics(world: World) -> None:
    """Once ``transact`` has returned, and the watermarks taken then are reached, all its records have been read."""
    one, other = await world.topic(2), await world.topic()
    producer = await world.producer(world.unique("id"))
    for number in range(3):
        await producer.transact([*numbered(one, 2, 1, 2 * number), *numbered(other, 1, 0, number), *numbered(one, 1)])
    assert values(await world.read(at(one, 1))) == [b"%d" % number for number in range(6)]
    assert values(await world.read(at(other))) == [b"0", b"1", b"2"]
    assert values(await world.read(at(one, 0))) == [b"0"] * 3


@case
async def a_transaction_tells_where_it_ended(world: World) -> None:
    """``transact`` returns for each partition it wrote the offset behind its last record there, whatever its size."""
    one, other = await world.topic(2), await world.topic()
    producer = await world.producer(world.unique("id"))
    large = [Outgoing(one, 0, b"k", random.Random(number).randbytes(400_000)) for number in range(6)]
    for records in (
        numbered(one, 2, 1),
        [*numbered(one, 3, 1), *numbered(other, 1), *numbered(one, 1, 1)],
        [*large, *numbered(other, 1500), *numbered(one, 1)],
    ):
        await append(await world.broker(), numbered(other, 1, first=7))
        begin = {source: await world.high(source) for source in {at(r.topic, r.partition) for r in records}}
        ends = await producer.transact(records)
        assert dict(ends) == {
            source: (await world.read(source, first))[-1].offset + 1 for source, first in begin.items()
        }


@case
async def a_table_is_asked_for_by_a_setting(world: World) -> None:
    """A topic asked for as a table keeps the newest value of each key, or is a log where the broker knows logs only."""
    topic = await world.topic(2, cleanup_policy="compact", keylanes_storage="table")
    broker, producer = await world.broker(), await world.producer(world.unique("id"))
    await producer.transact([Outgoing(topic, 0, key, b"1") for key in (b"a", b"c", b"b")])
    ends = await producer.transact([Outgoing(topic, 0, b"a", b"2"), Outgoing(topic, 0, b"b", None)])
    assert await world.high(at(topic)) >= ends[at(topic)] >= 5
    assert list(await broker.describe([topic])) == [topic]
    for other in (await world.topic(), await world.topic(cleanup_policy="compact")):
        assert broker.table(other, 0) is None, "it was not asked for"
    table = broker.table(topic, 0)
    if table is None:
        assert values(await world.read(at(topic))) == [b"1", b"1", b"1", b"2", None]
        return
    assert ends == {at(topic): 5}
    assert tuple((await broker.watermarks([at(topic)]))[at(topic)]) == (0, 5)
    assert [table.get(key) for key in (b"a", b"b", b"c")] == [b"2", None, b"1"]
    assert table.get_many([b"c", b"b", b"c", b"a", b""]) == [b"1", None, b"1", b"2", None]
    assert table.page(b"", None, 10) == [(b"a", b"2"), (b"c", b"1")]
    assert (table.page(b"", None, 1), table.page(b"a", b"c", 10)) == ([(b"a", b"2")], [(b"a", b"2")])
    beside = broker.table(topic, 1)
    assert beside is not None
    assert beside.page(b"", None, 10) == []
    reader = await world.reader({at(topic): 0})
    with pytest.raises(BrokerError, match="by key"):
        await reader.fetch([at(topic)], records_max=10, wait_ms=1000)


@case
async def a_table_needs_keys(world: World) -> None:
    """A record without a key is refused by a topic asked for as a table, with its whole transaction."""
    topic, beside = await world.topic(cleanup_policy="compact", keylanes_storage="table"), await world.topic()
    producer = await world.producer(world.unique("id"))
    with pytest.raises(TransactionRefused) as caught:
        await producer.transact([*numbered(beside, 1), *numbered(topic, 1), Outgoing(topic, 0, None, b"v")])
    assert 2 in caught.value.culprits
    await producer.close()
    assert await world.read(at(beside)) == []
    table = (await world.broker()).table(topic, 0)
    assert (await world.read(at(topic)) if table is None else table.page(b"", None, 10)) == []


@case
async def a_reader_never_sees_half_a_transaction(world: World) -> None:
    """While transactions go on, the records seen of a partition are always whole transactions, in order."""
    topic = await world.topic()
    producer, reader = await world.producer(world.unique("id")), await world.reader({at(topic): 0})
    writing = asyncio.create_task(_transact_in_turn(producer, topic, 8))
    found: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 40:
            for batch in await reader.fetch([at(topic)], records_max=1000, wait_ms=1000):
                if len(batch.records) % 5 and batch.offset_next == await world.high(at(topic)):
                    raise AssertionError(f"half a transaction was seen: {values(batch.records)}")
                found.extend(values(batch.records))
    await writing
    assert found == [b"%d" % number for number in range(40)]


async def _transact_in_turn(producer: BrokerProducer, topic: str, count: int) -> None:
    for number in range(count):
        await producer.transact(numbered(topic, 5, first=5 * number))


@case
async def an_empty_transaction_writes_nothing(world: World) -> None:
    """``transact([])`` and ``append([])`` succeed, take no offset and leave the producer usable."""
    topic = await world.topic()
    producer = await world.producer(world.unique("id"))
    await producer.transact([])
    await append(await world.broker(), [])
    assert await world.high(at(topic)) == 0
    await producer.transact(numbered(topic, 1))
    assert len(await world.read(at(topic))) == 1


@case
async def a_new_producer_fences_the_older_ones(world: World) -> None:
    """The older producer of an id, of another connection too, gets ProducerFenced and writes nothing visible."""
    topic, name = await world.topic(), world.unique("id")
    old = await world.producer(name)
    await old.transact(numbered(topic, 1, first=1))
    new = await world.producer(name, await world.another())
    with pytest.raises(ProducerFenced):
        await old.transact(numbered(topic, 1, first=666))
    await new.transact(numbered(topic, 1, first=2))
    with pytest.raises(BrokerError):
        await old.transact(numbered(topic, 1, first=667))
    await old.close()
    assert values(await world.read(at(topic))) == [b"1", b"2"]


@case
async def an_append_behind_a_fence_bounds_what_the_id_has_committed(world: World) -> None:
    """Whatever older producers of an id committed lies below its offset, and readers come to it."""
    topic, name = await world.topic(), world.unique("id")
    old = await world.producer(name)
    ends = await old.transact(numbered(topic, 3))
    await world.producer(name, await world.another())
    appended = await (await world.broker()).appender().append(numbered(topic, 1, first=666))
    assert appended.keys() == ends.keys()
    assert all(appended[source] > ends[source] for source in ends)
    with pytest.raises(ProducerFenced):
        await old.transact(numbered(topic, 1, first=667))
    for source, end in appended.items():
        await world.read_to(await world.reader({source: 0}), end, source)
    assert values(await world.read(at(topic))) == [b"0", b"1", b"2", b"666"]


@case
async def producers_of_other_ids_are_not_fenced(world: World) -> None:
    """Two ids write side by side, and each keeps its own order."""
    topic = await world.topic()
    producers = [await world.producer(world.unique("id")) for _ in range(2)]
    await asyncio.gather(*(_transact_in_turn(producer, topic, 4) for producer in producers))
    found = [int(value or b"") for value in values(await world.read(at(topic)))]
    assert sorted(found) == sorted(2 * list(range(20)))


@case
async def what_an_older_producer_was_at_is_decided_when_the_new_one_is_there(world: World) -> None:
    """A transaction cut off at any moment is visible whole or not at all, once and for all, after the next producer."""
    topic, other, name = await world.topic(), await world.topic(), world.unique("id")
    for cut in range(12):
        begin = [await world.high(at(topic)), await world.high(at(other))]
        producer = await world.producer(name)
        running = asyncio.create_task(producer.transact([*numbered(topic, 3), *numbered(other, 2)]))
        for _ in range(cut):
            await asyncio.sleep(0.0015)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await producer.close()
        if cut % 2:
            await fence(await world.broker(), name)
        else:
            await world.producer(name)
        seen = len(await world.read(at(topic), begin[0])), len(await world.read(at(other), begin[1]))
        assert seen in {(0, 0), (3, 2)}
        assert seen == (len(await world.read(at(topic), begin[0])), len(await world.read(at(other), begin[1])))


@case
async def an_oversize_record_refuses_its_transaction(world: World) -> None:
    """TransactionRefused names the culprit's index; nothing is visible in any topic; a new producer sends the rest."""
    topic, other, name = await world.topic(max_message_bytes="2000"), await world.topic(), world.unique("id")
    producer = await world.producer(name)
    records = [*numbered(topic, 2), Outgoing(topic, 0, b"k", OVERSIZE), *numbered(topic, 2, first=2)]
    with pytest.raises(TransactionRefused) as caught:
        await producer.transact([*records, *numbered(other, 3, first=666)])
    assert 2 in caught.value.culprits
    assert set(caught.value.culprits) <= set(range(8))
    await producer.close()
    producer = await world.producer(name)
    assert await world.read(at(topic)) == await world.read(at(other)) == []
    await producer.transact([*records[:2], *records[3:], *numbered(other, 3)])
    assert values(await world.read(at(topic))) == [b"0", b"1", b"2", b"3"]
    assert values(await world.read(at(other))) == [b"0", b"1", b"2"]


@case
async def impossible_destinations_refuse_their_transaction(world: World) -> None:
    """An unknown topic, a partition that isn't there and a null key on a compacted topic are refused for good."""
    topic, compacted = await world.topic(), await world.topic(cleanup_policy="compact")
    for wrong in (
        Outgoing(world.unique("missing"), 0, b"k", b"v"),
        Outgoing(topic, 7, b"k", b"v"),
        Outgoing(compacted, 0, None, b"v"),
    ):
        producer = await world.producer(world.unique("id"))
        with pytest.raises(TransactionRefused) as caught:
            await producer.transact([*numbered(topic, 1), wrong])
        assert 1 in caught.value.culprits
        await producer.close()
        await world.producer(world.unique("id"))
    await asyncio.gather(*(world.read(at(name)) for name in (topic, compacted)))
    assert [record for name in (topic, compacted) for record in await world.read(at(name))] == []


@case
async def closed_things_stay_closed(world: World) -> None:
    """After ``close``, twice without harm, producers, readers and brokers raise BrokerError; others go on."""
    topic = await world.topic()
    broker = await world.another()
    producer, reader = await world.producer(world.unique("id"), broker), await broker.reader({at(topic): 0})
    appender, left_open = broker.appender(), broker.appender()
    for used in (appender, left_open):
        await used.append(numbered(topic, 1))
    await appender.close()
    with pytest.raises(BrokerError):
        await appender.append(numbered(topic, 1, first=666))
    await left_open.append(numbered(topic, 1))
    for closing in (producer, reader, appender, broker):
        await closing.close()
        await closing.close()
    with pytest.raises(BrokerError):
        await producer.transact(numbered(topic, 1))
    with pytest.raises(BrokerError):
        await reader.fetch([at(topic)], records_max=1, wait_ms=10)
    with pytest.raises(BrokerError):
        await broker.watermarks([at(topic)])
    for appending in (appender, left_open, broker.appender()):  # nobody would close what it opened
        with pytest.raises(BrokerError):
            await appending.append(numbered(topic, 1, first=666))
    with pytest.raises(BrokerError):
        await world.producer(world.unique("id"), broker)
    await append(await world.broker(), numbered(topic, 1))
    assert values(await world.read(at(topic))) == [b"0"] * 4


Run = Callable[[Case], None]


async def _run(case: Case, connect: Callable[[], Broker], join: Join | None = None, stuck: Stuck | None = None) -> None:
    world = World(connect, join, stuck)
    try:
        await case(world)
    finally:
        await world.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Run:
    """Runs a case on a folder of its own, in real time."""
    return lambda case: asyncio.run(_run(case, lambda: EmbeddedBroker(tmp_path / "data")))


@pytest.fixture
def simulated() -> Run:
    """Runs a case on a new cluster in virtual time, once per seed."""

    def run(case: Case) -> None:
        for seed in SEEDS:
            cluster = SimulatedBroker(seed)
            names = itertools.count(1)
            connect = lambda: cluster.connect(f"client-{next(names)}")  # noqa: B023, E731  # at once
            run_virtual(_run(case, connect, _simulated_join(cluster), _simulated_stuck(cluster)), seed=seed)

    return run


def _simulated_join(cluster: SimulatedBroker) -> Join:
    @asynccontextmanager
    async def join(group: str, offsets: Mapping[TopicPartition, int]) -> AsyncIterator[None]:
        cluster.set_group(group, offsets, members=True)
        yield
        cluster.set_group(group, offsets)

    return join


def _simulated_stuck(cluster: SimulatedBroker) -> Stuck:
    @asynccontextmanager
    async def stuck(appending: Coroutine[Any, Any, object]) -> "AsyncIterator[asyncio.Task[object]]":
        cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
        running = asyncio.get_running_loop().create_task(appending)
        await cluster.network.caught()
        yield running
        cluster.network.release()

    return stuck


def _kafka_join(bootstrap: str) -> Join:
    @asynccontextmanager
    async def join(group: str, offsets: Mapping[TopicPartition, int]) -> AsyncIterator[None]:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.structs import TopicPartition as Theirs

        topics = {source.topic for source in offsets}
        consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        await consumer.commit({Theirs(*source): offset for source, offset in offsets.items()})
        yield
        await consumer.stop()

    return join


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Run:
    """Runs a case on a real Kafka."""
    from keylanes.brokers.kafka.broker import KafkaBroker

    server: Any = request.getfixturevalue("kafka_server")
    join = _kafka_join(server.bootstrap)
    return lambda case: asyncio.run(_run(case, lambda: KafkaBroker(server.bootstrap), join))


@pytest.mark.parametrize("adapter", ["embedded", "simulated", pytest.param("kafka", marks=pytest.mark.broker)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(adapter: str, case: Case, request: pytest.FixtureRequest) -> None:
    """Every adapter keeps every promise of the protocol: see the docstring of the case."""
    request.getfixturevalue(adapter)(case)


def _stable_is_high(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "stable", PartitionLog.high)


def _aborted_is_visible(patch: pytest.MonkeyPatch) -> None:
    def read(log: PartitionLog, position: int, records_max: int) -> tuple[list[SimulatedRecord], int]:
        entries = log.entries[position - log.start : log.stable - log.start][:records_max]
        return [entry.record for entry in entries if entry.record is not None], position + len(entries)

    patch.setattr(PartitionLog, "read", read)


def _positions_stop_at_holes(patch: pytest.MonkeyPatch) -> None:
    whole = PartitionLog.read

    def read(log: PartitionLog, position: int, records_max: int) -> tuple[list[SimulatedRecord], int]:
        records, _ = whole(log, position, records_max)
        return records, records[-1].offset + 1 if records else position

    patch.setattr(PartitionLog, "read", read)


def _nobody_is_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterState, "_current", lambda state, transactional_id, epoch: state.ids[transactional_id])
    patch.setattr(PartitionLog, "admit", lambda log, *arguments: True)


def _initialising_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    whole = ClusterState.initialise

    def initialise(state: ClusterState, transactional_id: str, timeout_ms: int) -> int:
        whole(state, transactional_id, timeout_ms)
        known = state.ids[transactional_id]
        known.transaction = None
        return known.epoch

    patch.setattr(ClusterState, "initialise", initialise)


def _nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cluster, "wake", lambda cluster, source: None)


def _trim_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "trim", lambda log, before: None)


def _any_size_will_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterState, "check", lambda state, records: None)


def _transactions_end_too_far(patch: pytest.MonkeyPatch) -> None:
    whole = ClusterState.produce

    def produce(state: ClusterState, *arguments: Any) -> int:
        return whole(state, *arguments) + 1

    patch.setattr(ClusterState, "produce", produce)


def _assignments_come_late(patch: pytest.MonkeyPatch) -> None:
    def assign(reader: SimulatedReader, positions: Mapping[TopicPartition, int]) -> None:
        for source, offset in positions.items():
            reader._positions.setdefault(source, offset)

    patch.setattr(SimulatedReader, "assign", assign)


def _times_are_sorted(patch: pytest.MonkeyPatch) -> None:
    def offset_at(state: ClusterState, source: TopicPartition, timestamp: int) -> int | None:
        entries = [entry.record for entry in state.log(source).entries if entry.record is not None]
        older = sum(record.timestamp < timestamp for record in entries)
        return None if older == len(entries) else entries[older].offset

    patch.setattr(ClusterState, "offset_at", offset_at)


def _appenders_share_a_session(patch: pytest.MonkeyPatch) -> None:
    whole = SimulatedConnection.appender
    shared: dict[SimulatedConnection, Appender] = {}
    patch.setattr(SimulatedConnection, "appender", lambda connection: shared.setdefault(connection, whole(connection)))


def _groups_are_always_empty(patch: pytest.MonkeyPatch) -> None:
    whole = ClusterState.group_offsets
    patch.setattr(ClusterState, "group_offsets", lambda *asked: whole(*asked)._replace(is_live=False))


@pytest.mark.parametrize(
    "plant",
    [
        _times_are_sorted,
        _groups_are_always_empty,
        _appenders_share_a_session,
        _stable_is_high,
        _aborted_is_visible,
        _positions_stop_at_holes,
        _nobody_is_fenced,
        _initialising_does_not_wait,
        _nobody_is_woken,
        _trim_does_nothing,
        _any_size_will_do,
        _transactions_end_too_far,
        _assignments_come_late,
    ],
)
def test_the_suite_finds_planted_bugs(plant: Callable[[pytest.MonkeyPatch], None], simulated: Run) -> None:
    """With any of these bugs in the simulated broker at least one case fails."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for case in CASES:
            try:
                simulated(case)
            except (AssertionError, BrokerError, TimeoutError, pytest.fail.Exception):
                return
    raise AssertionError(f"no case has noticed: {plant.__name__}")
