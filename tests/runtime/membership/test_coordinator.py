"""Taking office while another process does the same: whoever was overtaken writes nothing that counts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keylanes.brokers.protocol import Appender, BrokerError, BrokerTimeout, Outgoing, TopicPartition, Watermarks
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.errors import FencedError, SettingsError, SourceError
from keylanes.keyrange.hashing import HASH_NAME
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated, ControlEvent
from keylanes.offsets.decide import CommitKey, Move, StoreSpec, decide_commits
from keylanes.offsets.ledger import Ledger
from keylanes.runtime.logs.office import Identity, Office
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.membership.coordinator import Coordinator
from keylanes.runtime.settings import Settings

from ...stage.appending import append
from ...stage.log_events import coordinator_elected, member_joined, partition_started

SOURCES = {TopicPartition("src", 0): Watermarks(0, 10)}
STORES = [StoreSpec("seen", "src", "map", "str", "int", "json"), StoreSpec("sums", "src", "value", "", "int", "json")]
TOLD = {"src": "one"}
APPENDS = 8
"""One more than a first start appends: created, elected, joined, identified, started, stores, granted."""


class Pausing:
    """A connection whose n-th append, before it is sent, lets something else happen first."""

    def __init__(self, broker: Any, pause_at: int) -> None:
        self.broker, self.pause_at = broker, pause_at
        self.appends = 0
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def appender(self) -> Appender:
        """One that waits before it appends, when it is the one."""
        return PausingAppender(self, self.broker.appender())

    async def before_append(self) -> None:
        """An append begins."""
        self.appends += 1
        if self.appends == self.pause_at:
            self.arrived.set()
            await self.go_on.wait()


class PausingAppender:
    """An appender of such a connection."""

    def __init__(self, connection: Pausing, appender: Appender) -> None:
        self.connection, self.appender = connection, appender

    async def append(self, records: Sequence[Outgoing]) -> None:
        """See the protocol."""
        await self.connection.before_append()
        await self.appender.append(records)

    async def close(self) -> None:
        """See the protocol."""
        await self.appender.close()


async def coordinator(broker: Any, name: str) -> Coordinator:
    """A process on its way to office."""
    logs = LogReader("x", broker, Settings(), 1)
    return Coordinator(Identity("x", name, broker, logs, Settings()))


async def work(office: Office) -> None:
    """Commit offsets 0 to 5 of the whole space."""
    epoch = max(office.ledger.partition(("src", 0)).parts)
    key = CommitKey(office.incarnation, office.transaction + 1, epoch, "src", 0)
    events = decide_commits([(key, [Move(0, 0, 1 << 32, 0, 5)])])
    await office.producer.transact([Outgoing("x.offsets", 0, None, encode(event)) for event in events])


@pytest.mark.parametrize("pause_at", range(1, APPENDS))
def test_a_process_that_was_overtaken_writes_nothing_that_counts(pause_at: int) -> None:
    """P pauses before an append, Q takes office and commits, P wakes and stops; the next start finds a clean ledger."""

    async def story() -> None:
        cluster = SimulatedBroker(pause_at)
        for topic in ("src", "x.control", "x.offsets"):
            cluster.create_topic(topic, 1)
        await append(cluster.connect("source"), [Outgoing("src", 0, None, b"") for _ in range(10)])
        slow = Pausing(cluster.connect("P"), pause_at)
        first = asyncio.get_running_loop().create_task(
            (await coordinator(slow, "P")).take_office(SOURCES, STORES, TOLD)
        )
        await slow.arrived.wait()
        second = await (await coordinator(cluster.connect("Q"), "Q")).take_office(SOURCES, STORES, TOLD)
        await work(second)
        slow.go_on.set()
        with pytest.raises(FencedError):
            await first
        third = await (await coordinator(cluster.connect("R"), "R")).take_office(SOURCES, STORES, TOLD)
        assert third.ledger.violations() == []
        assert third.ledger.frontier(("src", 0)) == 5
        assert {s.name: s.store for s in third.ledger.control.stores.values()} == {"seen": 0, "sums": 1}

    run_virtual(story(), seed=pause_at)


class Slow:
    """A connection whose appends take their time, and of which those in ``fails`` have no answer. ``sent``: all."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.fails: set[int] = set()
        self.sent: list[Sequence[Outgoing]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def appender(self) -> Appender:
        """One that is slow."""
        return SlowAppender(self, self.broker.appender())


class SlowAppender:
    """An appender of such a connection."""

    def __init__(self, connection: Slow, appender: Appender) -> None:
        self.connection, self.appender = connection, appender

    async def append(self, records: Sequence[Outgoing]) -> None:
        """See the protocol."""
        self.connection.sent.append(records)
        number = len(self.connection.sent)
        await asyncio.sleep(0.1)
        if number in self.connection.fails:
            raise BrokerTimeout("no answer on demand")
        await self.appender.append(records)

    async def close(self) -> None:
        """See the protocol."""
        await self.appender.close()


@pytest.mark.parametrize("fails", [(), (1,), (2,), (3,), (1, 2, 3)])
def test_grants_at_the_same_time_are_decided_one_after_the_other(fails: tuple[int, ...]) -> None:
    """Each is settled before the next one is decided, however many appends have no answer; each epoch is granted."""

    async def story() -> None:
        cluster = made(partitions=3)
        slow = Slow(cluster.connect("P"))
        deciding = await coordinator(slow, "P")
        office = await deciding.take_office({TopicPartition("src", p): Watermarks(0, 0) for p in range(3)})
        slow.fails = {len(slow.sent) + number for number in fails}
        grants = (deciding.grant(office.ledger, ("src", p), office.incarnation, WHOLE) for p in range(3))
        epochs = await asyncio.gather(*grants)
        logs = LogReader("x", cluster.connect("Q"), Settings(), 1)
        ledger = await logs.begin_offsets(await logs.read_control(Ledger()))
        for partition, epoch in enumerate(epochs):
            newest = ledger.partition(("src", partition)).epoch_newest
            assert newest == epoch, f"epoch {epoch} of partition {partition} was never granted: {newest}"

    run_virtual(story(), seed=1)


# --- stores -----------------------------------------------------------------------------------------------------------


def made(partitions: int = 1) -> SimulatedBroker:
    """A cluster with the topics of the application."""
    cluster = SimulatedBroker(1)
    cluster.create_topic("src", partitions)
    for topic in ("x.control", "x.offsets"):
        cluster.create_topic(topic, 1)
    return cluster


async def fill(cluster: SimulatedBroker) -> None:
    """Ten records of the source's first partition."""
    await append(cluster.connect("source"), [Outgoing("src", 0, None, b"") for _ in range(10)])


async def started(cluster: SimulatedBroker, name: str, stores: Sequence[StoreSpec], partitions: int = 1) -> Office:
    """A process in office, with so many partitions of the source."""
    sources = {TopicPartition("src", p): Watermarks(0, 0) for p in range(partitions)}
    return await (await coordinator(cluster.connect(name), name)).take_office(sources, stores)


def test_stores_keep_their_numbers_from_start_to_start() -> None:
    """A further store gets the next number; one that is not asked for any more is still there when it comes back."""

    async def story() -> None:
        cluster = made()
        await started(cluster, "P", STORES[1:])
        await started(cluster, "Q", STORES[:1])
        office = await started(cluster, "R", STORES)
        assert {s.name: s.store for s in office.ledger.control.stores.values()} == {"sums": 0, "seen": 1}

    run_virtual(story())


def test_another_store_under_an_old_name_is_refused() -> None:
    """The start ends with SettingsError and disturbs nobody who works; with the store of before it goes on."""

    async def story() -> None:
        cluster = made()
        await fill(cluster)
        working = await started(cluster, "P", STORES)
        with pytest.raises(SettingsError, match=r"store 'sums' was a value of int .* it is a value of str"):
            await started(cluster, "Q", [STORES[1]._replace(value_type="str")])
        await work(working)
        office = await started(cluster, "R", STORES)
        assert office.ledger.partition(("src", 0)).epoch_newest == 2

    run_virtual(story())


def test_more_partitions_than_the_state_was_begun_with_are_refused() -> None:
    """SourceError, also at the next try; an application without a store reads the new partitions."""

    async def story() -> None:
        cluster = made(4)
        await started(cluster, "P", STORES, 2)
        for name in "QR":
            with pytest.raises(SourceError, match="src has 3 partitions now; its state was begun with 2"):
                await started(cluster, name, STORES, 3)
        await started(cluster, "S", [], 3)

    run_virtual(story())


def test_state_may_begin_on_a_topic_that_has_grown() -> None:
    """While there was no store the number of partitions bound nothing."""

    async def story() -> None:
        cluster = made(4)
        await started(cluster, "P", [], 1)
        await started(cluster, "Q", STORES, 2)
        await started(cluster, "R", STORES, 2)

    run_virtual(story())


def test_a_start_that_ended_between_two_partitions_stands_in_nobodys_way() -> None:
    """Partitions half of which were started, and no store declared yet, are no growth."""

    async def story() -> None:
        cluster = made(2)
        log: list[ControlEvent] = [
            AppCreated("x", HASH_NAME, 1),
            coordinator_elected(1, "P"),
            partition_started(1, "src", 0, 0, "earliest", 1),
        ]
        await append(cluster.connect("P"), [Outgoing("x.control", 0, None, encode(event)) for event in log])
        office = await started(cluster, "Q", STORES, 2)
        assert set(office.ledger.control.started) == {("src", 0), ("src", 1)}

    run_virtual(story())


def test_logs_are_told_apart_by_their_birth() -> None:
    """The same from start to start; other logs of the same name have another one."""

    async def story() -> None:
        cluster, other = made(), made()
        born = {(await started(cluster, name, STORES)).app_id for name in "PQ"}
        assert len(born) == 1
        assert (await started(other, "R", STORES)).app_id not in born

    run_virtual(story())


def test_another_topic_under_the_name_of_a_source_is_refused() -> None:
    """Before it disturbs a running process, whatever is in it; one whose identity is not told is taken as it is."""

    async def story() -> None:
        cluster = made()
        await fill(cluster)
        first = await (await coordinator(cluster.connect("P"), "P")).take_office(SOURCES, (), {"src": "one"})
        assert dict(first.ledger.control.identities) == {"src": "one"}
        second = await coordinator(cluster.connect("Q"), "Q")
        with pytest.raises(SourceError, match=r"src was .*, or this is another cluster: it was one, it is two"):
            await second.take_office(SOURCES, (), {"src": "two"})
        await work(first)
        third = await (await coordinator(cluster.connect("R"), "R")).take_office(SOURCES, (), {"src": ""})
        assert third.ledger.frontier(("src", 0)) == 5

    run_virtual(story())


class OneFenceFails:
    """A connection on which the fence of Q is refused, and each other one is still under way by then."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.under_way: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    async def fence(self, transactional_id: str) -> None:
        """Fence."""
        if transactional_id == "x.Q":
            await asyncio.sleep(0.1)
            raise BrokerError("refused")
        self.under_way.add(transactional_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.under_way.remove(transactional_id)


def test_a_fence_that_fails_leaves_no_other_behind() -> None:
    """The start ends with that error itself, and by then none of the fences beside it goes on."""

    async def story() -> None:
        cluster = made()
        log: list[ControlEvent] = [AppCreated("x", HASH_NAME, 1)]
        for term, name in enumerate("PQ", 1):
            log += [coordinator_elected(term, name), member_joined(term, term, name, f"x.{name}")]
        await append(cluster.connect("P"), [Outgoing("x.control", 0, None, encode(event)) for event in log])
        broker = OneFenceFails(cluster.connect("R"))
        with pytest.raises(BrokerError, match="refused"):
            await (await coordinator(broker, "R")).take_office(SOURCES)
        assert broker.under_way == set()

    run_virtual(story())
