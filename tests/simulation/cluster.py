"""A simulated cluster that forgets nothing, and writers of its source topics."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keylanes.runtime.brokers.protocol import Outgoing, TopicPartition
from keylanes.runtime.brokers.simulated import Entry, Faults, Latency, SimulatedBroker

WRITER_TIMEOUT_MS = 60_000


class Row(NamedTuple):
    """One committed record of a log, also when it was trimmed. ``transaction`` tells which records came together."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    transaction: int | None


class Cluster(SimulatedBroker):
    """A simulated broker whose trimmed and compacted records the checker still sees."""

    def __init__(self, seed: int, latency: Latency) -> None:
        super().__init__(seed, latency=latency, faults=Faults())
        self.trims = 0
        self._trimmed: dict[TopicPartition, list[Entry]] = {}
        self._compacted: dict[tuple[TopicPartition, int], Entry] = {}

    def _trim(self, before: Mapping[TopicPartition, int]) -> None:
        for source, offset in before.items():
            start = self._state.watermarks(source).start
            gone = self.everything(source)[: max(0, offset - start)]
            self._trimmed.setdefault(source, []).extend(gone)
            self.trims += bool(gone)
        super()._trim(before)

    def compact(self, source: TopicPartition, *, keep_tombstones: bool = True, partly: bool = False) -> None:
        """As the broker does it."""
        earlier = self.everything(source)
        super().compact(source, keep_tombstones=keep_tombstones, partly=partly)
        for entry, now in zip(earlier, self.everything(source), strict=True):
            if entry.record is not None and now.record is None:
                self._compacted[source, entry.record.offset] = entry

    def places(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return [TopicPartition(topic, p) for p in range(self.topics()[topic].partitions)]

    def entries(self, source: TopicPartition) -> list[Entry]:
        """Every offset from 0 to the high watermark."""
        left = [*self._trimmed.get(source, ()), *self.everything(source)]
        return [
            self._compacted.get((source, offset), entry) if entry.record is None else entry
            for offset, entry in enumerate(left)
        ]

    def rows(self, source: TopicPartition) -> list[Row]:
        """The committed records of a partition from 0 on, in order."""
        return [
            Row(*entry.record, id(entry.transaction) if entry.transaction else None)
            for entry in self.entries(source)
            if entry.record is not None and (entry.transaction is None or entry.transaction.committed)
        ]

    def write(self, records: Sequence[Outgoing], holes: Sequence[int]) -> None:
        """Append at once, outside a transaction; those at ``holes`` are compacted away before anybody reads them."""
        for index, record in enumerate(records):
            source = TopicPartition(record.topic, record.partition)
            offset = self.watermarks(source).high
            self._append([record])
            if index in holes:
                self.make_hole(source, [offset])

    async def write_together(self, name: str, records: Sequence[Outgoing], *, commit: bool, rng: random.Random) -> None:
        """Append in a transaction of a writer of this name, with pauses; committed or aborted."""
        epoch = self._initialise(name, WRITER_TIMEOUT_MS)
        assert epoch is not None, "nobody had this name before"
        self._add_partitions(name, epoch, list(dict.fromkeys(TopicPartition(r.topic, r.partition) for r in records)))
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            answers = self._produce(name, epoch, {place: ([record], None)})
            assert isinstance(answers[place], int), answers[place]
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.03)))
        self._end(name, epoch, commit)

    def limit(self, topic: str, bytes_max: int | None) -> None:
        """Set what a topic takes; None: the default."""
        known = self._state.topics[topic]
        config = dict(known.description.config)
        config["max.message.bytes"] = str(1_048_588 if bytes_max is None else bytes_max)
        self._state.topics[topic] = known._replace(description=known.description._replace(config=config))
