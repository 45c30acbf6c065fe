"""A real Kafka for one benchmark, and a connection to it."""

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator

from keylanes import Settings
from keylanes.brokers.protocol import Broker
from keylanes.devkafka.server import KafkaServer
from keylanes.runtime.connect import connect
from rig.places import FOLDER

KNOWN_S_MAX, LOOK_S = 30.0, 0.05
BROKER_OPTIONS = (
    "-Xms3g", "-Xmx3g", "-Xmn2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip
"""As Apache Kafka's own script starts a broker, but for its heap: with 1 GiB the broker stands still for 20 to 30 ms
every eight seconds at W7's rate, and these stops are the last percentiles of every arm. With 3 GiB a stop comes every
two minutes.
"""


@contextlib.contextmanager
def running_broker(name: str) -> Iterator[str]:
    """The bootstrap server of a fresh, empty Kafka for one benchmark; the broker and its data are gone afterwards."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started ends too
    folder = FOLDER / f"{name}-kafka"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with KafkaServer(folder, java_options=BROKER_OPTIONS) as server:
            yield server.bootstrap
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def connected(bootstrap: str) -> AsyncIterator[Broker]:
    """An open broker adapter."""
    broker = connect(f"kafka://{bootstrap}", Settings(), "keylanes-bench")
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def known(bootstrap: str, topic: str) -> None:
    """Wait until the broker has heard from its controller of a topic that was made. Raises TimeoutError."""
    async with connected(bootstrap) as broker, asyncio.timeout(KNOWN_S_MAX):
        while topic not in await broker.describe([topic]):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(LOOK_S)
