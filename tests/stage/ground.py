"""A broker to stand on, embedded or real, for tests that run an application as its users do: by ``app.run()``."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keylanes import App, Settings
from keylanes.brokers.protocol import Broker, ConsumerRecord, Outgoing, TopicPartition, TopicSpec
from keylanes.runtime.connect import connect
from keylanes.state.changelog import changelog_topic, is_beacon_key
from keylanes.state.copies import open_copies
from keylanes.state.topics import TopicStore

from ..tiers.names import fresh
from .appending import append
from .limited import settings_of

BEAT_MS = 200
READ_SECONDS_MAX = 60
"""For all of a partition. Far more than a transaction stays open that nobody ends."""


class Ground:
    """An address, names that nobody else uses, and plain reading and writing. ``state_folder``: where state is copied
    to; the embedded broker keeps it itself. ``instance``: the name of its process, one after the other: so the next one
    waits but two short beats for one that was killed.
    """

    def __init__(self, address: str, state_folder: Path | None = None, instance: str | None = None) -> None:
        self.address, self.instance = address, instance
        self.is_embedded = address.startswith("embedded:")
        self.state_folder = None if self.is_embedded else state_folder
        self.source, self.name = fresh("src"), fresh("app")
        self.late, self.dead = fresh("late"), fresh("dead")

    @property
    def servers(self) -> str:
        """Where clients that are not ours find a real broker."""
        return self.address.removeprefix("kafka://")

    def app(self, name: str | None = None, /, **settings: object) -> App:
        """An application with short limits."""
        return App(name or self.name, broker=self.address, settings=settings_of(**self.settings(**settings)))

    def settings(self, **settings: object) -> dict[str, object]:
        """Settings with short limits."""
        values: dict[str, object] = {
            "commit_interval_ms": 50,
            "default_api_timeout_ms": 5_000,
            "broker_retry_ms": 10_000,
        }
        if self.state_folder is not None:
            values["state_folder"] = str(self.state_folder)
        if self.instance is not None:
            values |= {"group_instance_id": self.instance, "heartbeat_interval_ms": BEAT_MS}
        return {**values, **settings}

    def connect(self, compression_type: str | None = None) -> Broker:
        """A connection of one's own."""
        return connect(self.address, Settings(compression_type=compression_type), "ground")

    def create(self, topic: str, partitions: int = 1, /, **config: str) -> None:
        """Make a topic; underscores in names of settings stand for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._with(lambda broker: broker.create([TopicSpec(topic, partitions, settings)]))

    def fill(
        self, records: Sequence[tuple[bytes | None, bytes | None]], topic: str = "", codec: str | None = None
    ) -> None:
        """Write (key, value) records to partition 0 of the source, made when it is missing."""
        topic = topic or self.source
        self.create(topic)
        outgoing = [Outgoing(topic, 0, key, value) for key, value in records]
        self._with(lambda broker: append(broker, outgoing), codec)

    def read(self, topic: str, partition: int = 0) -> list[ConsumerRecord]:
        """What a committed reader sees of a partition."""
        found: list[ConsumerRecord] = []

        async def read(broker: Broker) -> None:
            place = TopicPartition(topic, partition)
            marks = (await broker.watermarks([place]))[place]
            reader = await broker.reader({place: marks.start})
            try:
                async with asyncio.timeout(READ_SECONDS_MAX):
                    while reader.position(place) < marks.high:
                        for batch in await reader.fetch([place], records_max=1_000, wait_ms=100):
                            found.extend(batch.records)
            except TimeoutError:
                at, now = reader.position(place), (await broker.watermarks([place]))[place]
                pytest.fail(f"{place} can't be read beyond {at}: is a transaction open there? {marks}, {now}")
            await reader.close()

        self._with(read)
        return found

    def scatter(self, records: Sequence[tuple[int, bytes, bytes]], partitions: int) -> None:
        """Write (partition, key, value) records to the source, made when it is missing."""
        self.create(self.source, partitions)
        outgoing = [Outgoing(self.source, partition, key, value) for partition, key, value in records]
        self._with(lambda broker: append(broker, outgoing))

    def kept(self, partitions: int, subfolder: str | None = None) -> dict[tuple[int, bytes], bytes]:
        """What is kept of the state while nobody works, as bytes: (partition, state key) → stored value."""
        kept: dict[tuple[int, bytes], bytes] = {}
        if self.is_embedded:
            store = TopicStore.open_read_only(self.address.removeprefix("embedded:"))
            for partition in range(partitions):
                table = store.table(changelog_topic(self.name, self.source), partition)
                assert table is not None, "the embedded broker keeps changelogs by key"
                kept |= {(partition, k): v for k, v in table.page(b"", None, 1 << 30) if not is_beacon_key(k)}
            store.close()
            return kept
        copies = open_copies(self.copies(subfolder), app=self.name, mode="beside")
        for partition in range(partitions):
            page = copies.copy(self.source, partition).page(b"", None, 1 << 30)
            kept |= {(partition, key): value for key, value in page}
        copies.close()
        return kept

    def copies(self, subfolder: str | None = None) -> Path:
        """Where the copies of a process are; first of all of this one, or of one that was alone and had no name."""
        assert self.state_folder is not None, "the application has a folder for its state"
        return self.state_folder / self.name / (subfolder or self.instance or "0")

    def logged(self, partitions: int) -> dict[tuple[int, bytes], bytes]:
        """The same, from the changelog; of a broker that keeps it as a log."""
        kept: dict[tuple[int, bytes], bytes | None] = {}
        for partition in range(partitions):
            for record in self.read(changelog_topic(self.name, self.source), partition):
                key = record.key or b""
                if not is_beacon_key(key):
                    kept[partition, key] = record.value
        return {place: value for place, value in kept.items() if value is not None}

    def values(self, topic: str) -> list[bytes | None]:
        """The values in a partition 0."""
        return [record.value for record in self.read(topic)]

    def _with(self, work: Callable[[Broker], Awaitable[Any]], codec: str | None = None) -> Any:
        async def run() -> Any:
            broker = self.connect(codec)
            await broker.open()
            try:
                return await work(broker)
            finally:
                await broker.close()

        return asyncio.run(run())
