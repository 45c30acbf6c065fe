"""A broker for one benchmark: started, filled, and read back."""

import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence

from keylanes import Settings
from keylanes.brokers.protocol import Broker, Outgoing, Record, TopicPartition, TopicSpec
from keylanes.devkafka.server import KafkaServer
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Committed
from keylanes.runtime.connect import connect
from rig.child import run_coroutine
from rig.places import FOLDER
from rig.records import source_records

LOAD_RECORDS = 5_000
"""Records of one append while source records are written."""
BROKER_OPTIONS = (
    "-Xms3g", "-Xmx3g", "-Xmn2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip
"""As Apache Kafka's own script starts a broker, but for its heap: with 1 GiB it stands still for 20 to 30 ms
every eight seconds at W7's rate, which is what the last percentiles of every arm are then. So it is every two minutes.
"""


@contextlib.contextmanager
def running_broker(kind: str, name: str) -> Iterator[str]:
    """The address of a fresh, empty broker for one benchmark; it and its data are gone afterwards."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started ends too
    folder = FOLDER / f"{name}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        if kind == "embedded":
            yield f"embedded:{folder / 'topics'}"
        else:
            with KafkaServer(folder, java_options=BROKER_OPTIONS) as server:
                yield f"kafka://{server.bootstrap}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Broker]:
    """An open broker adapter."""
    broker = connect(address, Settings(), "keylanes-bench")
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def create(address: str, topic: str) -> None:
    """Make an empty topic of one partition."""

    async def work() -> None:
        async with connected(address) as broker:
            await broker.create([TopicSpec(topic, 1, {})])

    run_coroutine(work())


async def load(broker: Broker, topic: str, keys: Sequence[int]) -> None:
    """Create a topic of one partition and fill it."""
    await broker.create([TopicSpec(topic, 1, {})])
    waiting: list[Outgoing] = []
    appender = broker.appender()
    for record in source_records(topic, keys):
        waiting.append(record)
        if len(waiting) == LOAD_RECORDS:
            await appender.append(waiting)
            waiting = []
    await appender.append(waiting)
    await appender.close()


def fill(address: str, topic: str, keys: Sequence[int]) -> None:
    """``load``, from a process of its own."""

    async def work() -> None:
        async with connected(address) as broker:
            await load(broker, topic, keys)

    run_coroutine(work())


async def all_records(broker: Broker, topic: str) -> AsyncIterator[Record]:
    """The committed records of every partition of a topic, up to their ends as they are now."""
    found = (await broker.describe([topic]))[topic]
    sources = [TopicPartition(topic, p) for p in range(found.partitions)]
    marks = await broker.watermarks(sources)
    reader = await broker.reader({source: mark.start for source, mark in marks.items()})
    try:
        while any(reader.position(source) < mark.high for source, mark in marks.items()):
            for batch in await reader.fetch(sources, records_max=LOAD_RECORDS, wait_ms=100):
                for record in batch.records:
                    yield record
    finally:
        await reader.close()


async def committed_events(broker: Broker, app: str) -> list[tuple[int, Committed]]:
    """(bytes in the log, event) of each commit event of an application, in the order of the log."""
    events = []
    async for record in all_records(broker, f"{app}.offsets"):
        assert record.value is not None, "our logs hold events only"
        event = decode(record.value)
        if isinstance(event, Committed):
            events.append((len(record.value), event))
    return events
