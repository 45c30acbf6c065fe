"""A broker to stand on, embedded or real, for tests that run an application as its users do: by ``app.run()``."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

from keylanes import App, Settings
from keylanes.runtime.brokers.protocol import Broker, Outgoing, Record, TopicPartition, TopicSpec
from keylanes.runtime.connect import connect

_numbers = itertools.count(1)


class Ground:
    """An address, names that nobody else uses, and plain reading and writing."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.source = f"src-{next(_numbers)}"
        self.name = f"app-{next(_numbers)}"
        self.late, self.dead = f"late-{next(_numbers)}", f"dead-{next(_numbers)}"

    def app(self, name: str | None = None, **settings: object) -> App:
        """An application with short limits."""
        values = {"commit_interval_ms": 50, "request_timeout_ms": 5_000, "broker_retry_ms": 10_000, **settings}
        return App(name or self.name, broker=self.address, settings=Settings.of(**values))

    def connect(self, compression_type: str | None = None) -> Broker:
        """A connection of one's own."""
        return connect(self.address, Settings(compression_type=compression_type), "ground")

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Make a topic; underscores in names of settings stand for dots."""

        async def create(broker: Broker) -> None:
            settings = {key.replace("_", "."): value for key, value in config.items()}
            await broker.create([TopicSpec(topic, partitions, settings)])

        self._with(create)

    def fill(
        self, records: Sequence[tuple[bytes | None, bytes | None]], topic: str = "", codec: str | None = None
    ) -> None:
        """Write (key, value) records to partition 0 of the source, made when it is missing."""
        topic = topic or self.source
        self.create(topic)

        async def fill(broker: Broker) -> None:
            await broker.append([Outgoing(topic, 0, key, value) for key, value in records])

        self._with(fill, codec)

    def read(self, topic: str, partition: int = 0) -> list[Record]:
        """What a committed reader sees of a partition."""
        found: list[Record] = []

        async def read(broker: Broker) -> None:
            place = TopicPartition(topic, partition)
            marks = (await broker.watermarks([place]))[place]
            reader = await broker.reader({place: marks.start})
            while reader.position(place) < marks.high:
                for batch in await reader.fetch([place], records_max=1_000, wait_ms=100):
                    found.extend(batch.records)
            await reader.close()

        self._with(read)
        return found

    def values(self, topic: str) -> list[bytes | None]:
        """The values in a partition 0."""
        return [record.value for record in self.read(topic)]

    def _with(self, work: Callable[[Broker], Awaitable[None]], codec: str | None = None) -> None:
        async def run() -> None:
            broker = self.connect(codec)
            await broker.open()
            try:
                await work(broker)
            finally:
                await broker.close()

        asyncio.run(run())
