"""The loops that anyone writes on aiokafka, and the raw limits: three arms.

aiokafka-serial     each record is handled before the next one; offsets are committed every 5 s
getmany             the records are counted as fast as the client gives them; nothing is committed
bare-lanes          a deque for each of 1,000 hash lanes, one task for a lane that has work; nothing is committed
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition
from xxhash import xxh64_intdigest

from _driver import Spec, Tally, read_spec, say, spin, versions

FETCH_RECORDS = 2_000
PARTITION_BYTES, ALL_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
"""Prefetched of a partition, and of all together: as much as keylanes asks for."""
COMMIT_MS = 5_000
"""aiokafka's default."""
QUEUED_PER_LANE = 50
"""Records that wait for each lane, on average, before the next fetch."""


async def batches(consumer: AIOKafkaConsumer, wait_ms: int = 100) -> AsyncGenerator[list[bytes], None]:
    """Values of one partition, fetch after fetch."""
    while True:
        for records in (await consumer.getmany(timeout_ms=wait_ms, max_records=FETCH_RECORDS)).values():
            yield [record.value for record in records]


@contextlib.asynccontextmanager
async def consuming(spec: Spec, *, group: str | None) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer of the whole topic, from its beginning."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=group is not None,
        auto_commit_interval_ms=COMMIT_MS,
        max_partition_fetch_bytes=min(PARTITION_BYTES, ALL_BYTES // spec.partitions),
    )
    await consumer.start()
    try:
        if group is None:
            places = [TopicPartition(spec.topic, p) for p in range(spec.partitions)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
        else:
            consumer.subscribe([spec.topic])
        say({"event": "ready"})
        yield consumer
    finally:
        await consumer.stop()


async def serial(spec: Spec) -> None:
    """One record at a time."""
    is_done = asyncio.Event()
    tally = Tally(spec, is_done.set)
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000
    async with consuming(spec, group=spec.group) as consumer, contextlib.aclosing(batches(consumer)) as source:
        async for values in source:
            for value in values:
                if not tally.wants(value):
                    continue
                token = begin(value)
                if seconds:
                    await asyncio.sleep(seconds)
                if spec.spin_us:
                    spin(spec.spin_us)
                end(token)
                if is_done.is_set():
                    finish(tally)
                    return


async def getmany(spec: Spec) -> None:
    """As fast as the client gives records."""
    is_done = asyncio.Event()
    tally = Tally(spec, is_done.set)
    begin, end = tally.begin, tally.end
    async with consuming(spec, group=None) as consumer, contextlib.aclosing(batches(consumer)) as source:
        async for values in source:
            for value in values:
                end(begin(value))
            if is_done.is_set():
                break
    finish(tally)


class Lanes:
    """A deque for each lane; a task works on a lane as long as it has records."""

    def __init__(self, count: int, handle: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self.handle = handle
        self.waiting: list[deque[bytes]] = [deque() for _ in range(count)]
        self.tasks: list[asyncio.Task[None] | None] = [None] * count
        self.queued = 0

    def put(self, records: Sequence[Any]) -> None:
        """Hand records to their lanes, by the hash of the key."""
        create_task, count = asyncio.get_running_loop().create_task, len(self.waiting)
        waiting, tasks, work = self.waiting, self.tasks, self._work
        for record in records:
            lane = xxh64_intdigest(record.key) % count
            waiting[lane].append(record.value)
            if tasks[lane] is None:
                tasks[lane] = create_task(work(lane))
        self.queued += len(records)

    async def _work(self, lane: int) -> None:
        values, handle = self.waiting[lane], self.handle
        while values:
            await handle(values.popleft())
            self.queued -= 1
        self.tasks[lane] = None


async def bare_lanes(spec: Spec) -> None:
    """Lanes without any promise: nothing is committed, and memory is all that keeps the fetching back."""
    is_done = asyncio.Event()
    tally = Tally(spec, is_done.set)
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000

    async def handle(value: bytes) -> None:
        token = begin(value)
        if seconds:
            await asyncio.sleep(seconds)
        end(token)

    lanes = Lanes(spec.in_flight, handle)
    async with consuming(spec, group=None) as consumer:
        while not is_done.is_set():
            for records in (await consumer.getmany(timeout_ms=100, max_records=FETCH_RECORDS)).values():
                lanes.put(records)
            while lanes.queued > QUEUED_PER_LANE * spec.in_flight and not is_done.is_set():  # noqa: ASYNC110 as bare as it gets
                await asyncio.sleep(0.001)
    finish(tally)


def finish(tally: Tally) -> None:
    """Tell the harness what was seen."""
    say({**tally.result(), "versions": versions("aiokafka", "uvloop")})


ARMS = {
    "aiokafka-serial": serial,
    "getmany": getmany,
    "bare-lanes": bare_lanes,
}

if __name__ == "__main__":
    order = read_spec()
    uvloop.run(ARMS[order.arm](order))
