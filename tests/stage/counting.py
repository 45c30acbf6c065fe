"""A broker that counts what is read through it, and otherwise is the one it stands before."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, cast

from keylanes.brokers.protocol import Batch, Broker, Reader, TopicPartition


class Counting:
    """Passes every call on. ``read``: records delivered, by partition; ``spans``: (partition, from, to) of batches;
    ``began``: (partition, position) of readers, also of those that go on elsewhere.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.read: Counter[TopicPartition] = Counter()
        self.spans: list[tuple[TopicPartition, int, int]] = []
        self.began: list[tuple[TopicPartition, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def as_broker(self) -> Broker:
        """Itself: by what it passes on it is a broker."""
        return cast(Broker, self)

    async def reader(self, positions: Mapping[TopicPartition, int]) -> "CountingReader":
        """A reader that counts."""
        self.began.extend(positions.items())
        return CountingReader(await self.broker.reader(positions), self)


class CountingReader:
    """A reader of a ``Counting`` broker."""

    def __init__(self, reader: Reader, counts: Counting) -> None:
        self._reader, self._counts = reader, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See the protocol."""
        self._counts.began.extend(positions.items())
        self._reader.assign(positions)

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See the protocol."""
        batches = await self._reader.fetch(sources, records_max=records_max, wait_ms=wait_ms)
        for batch in batches:
            self._counts.read[batch.source] += len(batch.records)
            if batch.records:
                self._counts.spans.append((batch.source, batch.records[0].offset, batch.offset_next))
        return batches
