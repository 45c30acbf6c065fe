"""Whether the keys of a source with state lie where its partitioner puts them: looked at in a sample, after the start.

State belongs to a key of a partition. Two writers of a topic that choose its partitions by different hashes split the
state of a key in silence: half of its records lie in one partition, half in another. Nothing in a single record shows
that, but many keys of a partition show by which partitioner they were placed.

A sample speaks against a partitioner only when it speaks for another one: keys may also be placed by hand, which is
nobody's mistake as long as each stays in its partition.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence

from ...brokers.partitioner import BY_NAME, MURMUR2, Partitioner, checked, name_of
from ...brokers.protocol import Record, TopicPartition
from ...errors import OutputRefused

logger = logging.getLogger("keylanes")

SAMPLE_RECORDS = 256
"""So many records with a key are looked at in each partition; 2 ms of work."""

PARTITIONS_LOOKED_AT_MAX = 16
"""Of each topic: the keys of more partitions would say the same."""

CHANCE_MAX = 1e-6
"""A finding that this likely comes about when keys are placed by hand is none."""


class KeyPlaces:
    """``stateful``: the sources to look at. ``partitioners``: what the application says of topics, by name."""

    def __init__(self, stateful: Collection[str], partitioners: Mapping[str, Partitioner]) -> None:
        self._samples = {topic: _Sample(topic, partitioners.get(topic, MURMUR2)) for topic in stateful}

    def look(self, place: TopicPartition, partitions: int, records: Sequence[Record]) -> None:
        """Look at records that were read; warns once for each topic."""
        sample = self._samples.get(place.topic)
        if sample is None:
            return
        if partitions == 1 or sample.is_over(place.partition):
            return
        finding = sample.take(place.partition, partitions, records)
        if finding:
            del self._samples[place.topic]
            logger.warning("%s", finding)


class _Sample:
    """What was seen of one topic. A key counts once for each partition that it was seen in."""

    def __init__(self, topic: str, partitioner: Partitioner) -> None:
        self.topic, self.name = topic, name_of(partitioner)
        self._partition_of = checked(partitioner, topic)
        self._others = {name: function for name, function in BY_NAME.items() if name != partitioner}
        self._left: dict[int, int] = {}
        self._seen: set[tuple[int, bytes]] = set()
        self._astray = 0
        """Keys that do not lie where the application's partitioner puts them."""
        self._explained = dict.fromkeys(self._others, 0)
        """How many of these lie where another one puts them."""

    def is_over(self, partition: int) -> bool:
        """Whether enough was seen of a partition."""
        left = self._left.get(partition)
        return left == 0 or (left is None and len(self._left) >= PARTITIONS_LOOKED_AT_MAX)

    def take(self, partition: int, partitions: int, records: Sequence[Record]) -> str | None:
        """Look at records of a partition; what is to be said, if anything is."""
        left = self._left.get(partition, SAMPLE_RECORDS)
        for record in records:
            if left == 0:
                break
            key = record.key
            if not key:  # an empty one has no place for clients of librdkafka
                continue
            left -= 1
            if (partition, key) not in self._seen:
                self._seen.add((partition, key))
                self._judge(partition, partitions, key)
        self._left[partition] = left
        return self._finding(partitions)

    def _judge(self, partition: int, partitions: int, key: bytes) -> None:
        try:
            if self._partition_of(key, partitions) == partition:
                return
        except OutputRefused:
            return  # it fails for outputs, where that is said
        self._astray += 1
        for name, function in self._others.items():
            self._explained[name] += function(key, partitions) == partition

    def _finding(self, partitions: int) -> str | None:
        # Keys that are placed by hand lie where a given partitioner puts them with a chance of 1 / partitions each.
        if self._astray < -math.log(CHANCE_MAX) / math.log(partitions):
            return None
        for name, explained in self._explained.items():
            if explained == self._astray:
                return (
                    f"{self.topic} is not written by {self.name}: of {len(self._seen)} keys that were looked at, "
                    f"{self._astray} lie in the partition that {name} gives them and not where {self.name} does. "
                    f"State is kept by partition and key: whoever writes to {self.topic} by another partitioner (a "
                    "replay of dead letters, another application) splits the state of a key. Say by which one it is "
                    f'written, App(partitioners={{"{self.topic}": "{name}"}}), and let all its writers use that one: '
                    "docs/partitioners.md"
                )
        return None
