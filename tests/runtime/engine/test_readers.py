"""The main reader, whose partitions come and go while it waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Broker, ConsumerRecord, Outgoing, Reader, TopicPartition, TopicSpec
from keylanes.brokers.throttling import Throttling
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.engine.commit_alarm import CommitAlarm, Releases
from keylanes.runtime.engine.destinations import Destinations
from keylanes.runtime.engine.old_records import OldRecords
from keylanes.runtime.engine.partition_run import PartitionRun
from keylanes.runtime.engine.readers import MainReader
from keylanes.runtime.engine.slots import Slots
from keylanes.runtime.handlers.handler import declare
from keylanes.runtime.handlers.outputs import place_of
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.worker import WorkerNumbers
from keylanes.runtime.settings import Settings
from keylanes.state.overlay import OverlayEntry

from ...stage.appending import append
from ...stage.passing import Passing

RECORDS = 10
WAIT_S = 30.0


class Announced(Passing):
    """A broker whose readers tell when they are assigned their partitions: a step of the main reader has begun."""

    def __init__(self, broker: Broker, on_assigned: Callable[[], None]) -> None:
        super().__init__(broker)
        self.on_assigned = on_assigned

    async def reader(self, positions: Mapping[TopicPartition, int]) -> "AnnouncedReader":
        """One that tells."""
        return AnnouncedReader(await self.real.reader(positions), self.on_assigned)


class AnnouncedReader(Passing):
    """A reader of such a broker."""

    def __init__(self, reader: Reader, on_assigned: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_assigned = on_assigned

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See the protocol."""
        self.real.assign(positions)
        self._on_assigned()


class Reading:
    """A main reader of two partitions, the first of which changes in its first step, while it waits for workers."""

    def __init__(self, broker: Broker) -> None:
        self.handled: list[tuple[int, int]] = []
        self.settings = Settings()
        now_s = asyncio.get_running_loop().time
        destinations = Destinations(broker, self.settings)
        alarm = CommitAlarm(Releases(self.settings.limits.merge_hold_ms), Throttling().writing)
        self.slots = Slots(destinations, self.settings, self._fail, alarm, cpu_s=lambda: 0.0, now_s=now_s)
        announced = cast(Broker, Announced(broker, self._begun))
        self.reader = MainReader(
            announced, self.slots, self.settings, self._read_ahead, OldRecords(destinations.known, lambda: 0)
        )
        self.changes: list[Callable[[], None]] = []
        self.failures: list[BaseException] = []

    def run_of(self, partition: int, front: int) -> PartitionRun:
        """A partition of two workers that goes on at ``front``."""
        dispatch = PartitionDispatch("in", partition, front, 1 << 20, WorkerNumbers())
        dispatch.add_workers(even_bounds(2), lambda first: front)

        async def handle(value: int) -> None:
            self.handled.append((partition, value))

        return PartitionRun(dispatch, declare(handle, "in"), place_of("in", partition, b"test app"))

    async def until(self, count: int) -> None:
        """Read until so many records were handled, and some more if there are."""
        running = asyncio.create_task(self.reader.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while len(self.handled) < count and not running.done():  # noqa: ASYNC110  # has no event
                    await asyncio.sleep(0.001)
        finally:
            self.reader.stop()
            await running
            await self.slots.close(1.0)
        assert not self.failures

    def _begun(self) -> None:
        """The step waits until a worker of another partition has begun: the changes come before the worker's turn."""
        loop = asyncio.get_running_loop()
        for change in self.changes:
            loop.call_soon(change)
        self.changes.clear()
        other = self.run_of(2, 0)
        self.slots.activate(other, other.dispatch.workers)

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)

    async def _read_ahead(
        self, _run: PartitionRun, _records: Sequence[ConsumerRecord]
    ) -> Sequence[OverlayEntry | None]:
        return ()


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    """Two partitions with some records each."""
    broker = EmbeddedBroker(tmp_path / "data")
    await broker.open()
    await broker.create([TopicSpec("in", 2, {})])
    await append(broker, [Outgoing("in", p, b"k%d" % i, b"%d" % i) for p in range(2) for i in range(RECORDS)])
    yield Reading(broker)
    await broker.close()


async def test_a_partition_that_goes_while_the_reader_waits_is_not_handed_out(reading: Reading) -> None:
    """What is fetched of it then belongs to nobody here; the others are read on."""
    gone, kept = reading.run_of(0, 0), reading.run_of(1, 0)
    reading.reader.add(gone)
    reading.reader.add(kept)
    reading.changes.append(lambda: reading.reader.remove(gone))
    await reading.until(RECORDS)
    assert sorted(reading.handled) == [(1, value) for value in range(RECORDS)]


async def test_a_partition_that_comes_again_while_the_reader_waits_begins_where_it_ended(reading: Reading) -> None:
    """What is fetched behind its old place is not taken for what follows its new one: records would be passed over."""
    before, after = reading.run_of(0, RECORDS // 2), reading.run_of(0, 0)
    reading.reader.add(before)
    reading.changes += [lambda: reading.reader.remove(before), lambda: reading.reader.add(after)]
    await reading.until(RECORDS)
    assert sorted(reading.handled) == [(0, value) for value in range(RECORDS)]
