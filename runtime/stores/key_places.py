"""Samples that show whether the keys of a source with state lie where its partitioner puts them.

State belongs to a key of a partition. Two writers that choose the partitions of a topic by different hashes split the
state of a key in silence: half of the records lie in one partition, half in another. And a query by another partitioner
than the writers' looks in a wrong partition, and finds no state. A single record does not show the mistake, but many
keys of a partition show which partitioner placed them.

A sample takes the first records of a partition after the start. The sample also takes some keys of each table, once,
after the table was taken up or copied. A sample speaks against a partitioner only when the same sample speaks for
another partitioner: users may also place keys by hand, which is no mistake as long as each key stays in its partition.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...brokers.partitioner import BY_NAME, MURMUR2, Partitioner, check_partitioner, name_of
from ...brokers.protocol import ConsumerRecord, TopicPartition
from ...errors import OutputRefused, StateNotReady
from ...offsets.ledger import SourcePartition
from ...state.sampling import CHANCE_MAX, PARTITIONS_LOOKED_AT_MAX, SAMPLE_KEYS, sampled_keys
from .storage import StateThreads, Storage

logger = logging.getLogger("keylanes")


class KeyPlaces:
    """The samples of a process. ``stateful``: the sources to look at. ``partitioners``: the partitioner of each topic,
    as the application says. ``storages``: the storage of each source partition's state, once open.
    """

    def __init__(
        self,
        stateful: Collection[str],
        partitioners: Mapping[str, Partitioner],
        storages: Mapping[SourcePartition, Storage],
        threads: StateThreads,
    ) -> None:
        self._samples = {topic: _KeySample(topic, partitioners.get(topic, MURMUR2)) for topic in stateful}
        self._storages = storages
        self._threads = threads
        self._partitions: Counter[str] = Counter()
        """How many partitions each topic has."""
        self._compared: set[SourcePartition] = set()
        """The partitions with a table that was compared, or will be."""
        self._due: dict[SourcePartition, None] = {}
        """The partitions with a table to be compared, in order."""
        self._changed = asyncio.Event()

    # --- samples -----------------------------------------------------------------------------------------------------

    def look(self, place: TopicPartition, partitions: int, records: Sequence[ConsumerRecord]) -> None:
        """Look at records that a reader has read; warns once for each topic."""
        sample = self._samples.get(place.topic)
        if sample is not None and partitions > 1 and not sample.is_over(place.partition):
            sample.take_records(place.partition, partitions, records)

    def compare(self, place: SourcePartition) -> None:
        """Have the table of a partition looked at; later calls for the same partition do nothing."""
        if place not in self._compared:
            self._compared.add(place)
            if not self._partitions:
                self._partitions.update(topic for topic, _ in self._storages)
            if self._partitions[place[0]] > 1 and self._samples[place[0]].wants_table():
                self._due[place] = None
                self._changed.set()

    async def run(self) -> None:
        """Look at tables in turn until cancelled. Raises StoreError."""
        while True:
            self._changed.clear()
            while self._due:
                place = next(iter(self._due))
                topic, partition = place
                if self._samples[topic].wants_table():
                    keys = await self._threads.run(sampled_keys, self._storages[place].state.table, SAMPLE_KEYS)
                    self._samples[topic].take_table(partition, self._partitions[topic], keys)
                del self._due[place]
            await self._changed.wait()

    # --- answers -----------------------------------------------------------------------------------------------------

    def partition_of(self, topic: str, key: bytes, partitions: int) -> int:
        """The partition that the topic's partitioner gives a key. Raises OutputRefused when the partitioner fails,
        StateNotReady when another partitioner wrote the topic.
        """
        sample = self._samples[topic]
        if sample.finding is not None:
            raise StateNotReady(sample.finding)
        return sample.partition_of(key, partitions)

    def confirm(self, place: SourcePartition) -> None:
        """Check a partition before a query answers that the partition lacks a key. Raises StateNotReady when the query
        may have looked in a wrong partition.
        """
        topic, partition = place
        if (finding := self._samples[topic].finding) is not None:
            raise StateNotReady(finding)
        if place in self._due:
            raise StateNotReady(f"the keys of {topic}[{partition}] are being compared with its partitioner: ask again")


class _KeySample:
    """The keys of a topic that were looked at. A key counts once for each of its partitions. ``finding``: the text of
    the mistake that was found; None: no mistake was found yet.
    """

    def __init__(self, topic: str, partitioner: Partitioner) -> None:
        self.topic = topic
        self.name = name_of(partitioner)
        self.partition_of = check_partitioner(partitioner, topic)
        self.finding: str | None = None
        self._others = {name: function for name, function in BY_NAME.items() if name != partitioner}
        self._left: dict[int, int] = {}
        """How many keys of its records the sample still takes of each partition."""
        self._tables = 0
        """How many tables with keys were looked at."""
        self._seen: set[tuple[int, bytes]] = set()
        self._astray = 0
        """How many keys lie elsewhere than the application's partitioner puts them."""
        self._explained = dict.fromkeys(self._others, 0)
        """How many of the astray keys lie where another partitioner puts them, by its name."""

    def is_over(self, partition: int) -> bool:
        """Whether the sample has enough of a partition's records."""
        left = self._left.get(partition)
        is_enough = left == 0 or (left is None and len(self._left) >= PARTITIONS_LOOKED_AT_MAX)
        return is_enough or self.finding is not None

    def take_records(self, partition: int, partitions: int, records: Iterable[ConsumerRecord]) -> None:
        """Add the keys of a partition's records to the sample."""
        left = self._left.get(partition, SAMPLE_KEYS)
        keys = [record.key for record in records if record.key][:left]
        self._left[partition] = left - len(keys)
        self._take(partition, partitions, keys)

    def wants_table(self) -> bool:
        """Whether the sample still needs tables."""
        return self._tables < PARTITIONS_LOOKED_AT_MAX and self.finding is None

    def take_table(self, partition: int, partitions: int, keys: Sequence[bytes]) -> None:
        """Add keys with state in a partition to the sample."""
        self._tables += bool(keys)
        self._take(partition, partitions, keys)

    def _take(self, partition: int, partitions: int, keys: Iterable[bytes]) -> None:
        for key in keys:
            # Clients of librdkafka give an empty key no fixed partition.
            if key and (partition, key) not in self._seen:
                self._seen.add((partition, key))
                self._judge(partition, partitions, key)
        if self.finding is None and (name := self._writer(partitions)) is not None:
            self.finding = self._finding_text(name)
            logger.warning("%s", self.finding)

    def _judge(self, partition: int, partitions: int, key: bytes) -> None:
        try:
            if self.partition_of(key, partitions) == partition:
                return
        except OutputRefused:
            return  # the partitioner fails for outputs, too; the error is told there
        self._astray += 1
        for name, function in self._others.items():
            self._explained[name] += function(key, partitions) == partition

    def _writer(self, partitions: int) -> str | None:
        """The partitioner that placed all astray keys; None: no known partitioner did, or the keys are too few."""
        # A key placed by hand lies where a given partitioner puts the key with a chance of 1 / partitions. For n keys
        # the chance is partitions ** -n: below CHANCE_MAX it counts as no accident.
        if self._astray < -math.log(CHANCE_MAX) / math.log(partitions):
            return None
        return next((name for name, explained in self._explained.items() if explained == self._astray), None)

    def _finding_text(self, name: str) -> str:
        """The text of the mistake: the partitioner ``name`` placed the topic's keys."""
        return (
            f"{self.topic} is not written by {self.name}: of {len(self._seen)} keys that were looked at, "
            f"{self._astray} lie in the partition that {name} gives them and not where {self.name} does. "
            f"State is kept by partition and key: whoever writes to {self.topic} by another partitioner (a replay of "
            "dead letters, another application) splits the state of a key, and a query by another one, as with "
            "app.store(…).partition_of, misses it: it raises StateNotReady. Say by which one the topic is written, "
            f'App(partitioners={{"{self.topic}": "{name}"}}), and let all its writers use that one: '
            "docs/partitioners.md"
        )
