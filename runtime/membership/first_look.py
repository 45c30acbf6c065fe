"""What a process looks at of topics that were never started, before it joins: both ends of what it would read.

A topic may be refused here, and then nothing was written. Each process that starts looks for itself: it knows by which
partitioners its topics are written and what its user accepts, while whoever coordinates may be of an older version.
"""

from collections.abc import Mapping, Sequence

from ...brokers.partitioner import PartitionOfKey, partition_of_key
from ...brokers.protocol import Broker, TopicDescription, TopicPartition, Watermarks
from ...errors import SettingsError
from ..handlers.accepted import Accepted
from ..handlers.handler import Handler
from ..logs.topics import NEW_TOPIC
from ..settings import Settings
from .ends_read import Found, both_ends, lowest
from .moved_keys import moved


class FirstLook:
    """Of one process. ``partitioners``: those of topics that have another one than murmur2."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        handlers: Sequence[Handler],
        partitioners: Mapping[str, PartitionOfKey],
        accepts: Accepted,
    ) -> None:
        self.broker, self.settings, self.partitioners = broker, settings, partitioners
        self.stateful = {handler.topic for handler in handlers if handler.stores} - accepts.moved_keys

    async def check(self, unread: Mapping[TopicPartition, Watermarks], topics: Mapping[str, TopicDescription]) -> None:
        """``unread``: what would be read of partitions that were never started. Raises SettingsError, BrokerError."""
        spans = {
            place: span
            for place, span in lowest(unread).items()
            if place.topic in self.stateful and topics[place.topic].partitions > 1
        }
        if spans:
            self._check_keys(await both_ends(self.broker, self.settings, spans), topics)

    def _check_keys(self, found: Found, topics: Mapping[str, TopicDescription]) -> None:
        for topic in sorted({place.topic for place in found}):
            keys = {
                place.partition: {record.key for record in records if record.key}
                for place, records in found.items()
                if place.topic == topic
            }
            partitions = topics[topic].partitions
            seen = moved(keys, partitions, self.partitioners.get(topic, partition_of_key))
            if seen is not None:
                raise SettingsError(
                    f"{topic} has {partitions} partitions and had {seen.before}: of {seen.seen} keys that were looked "
                    f"at in its first and last records, {seen.astray} lie where {seen.before} partitions put them and "
                    f"not where {partitions} do. State is kept by partition and key, so such a key would have a state "
                    f"for its old records and another one for its new ones. Nothing was started. {NEW_TOPIC}. Or "
                    f'accept states in several partitions: App(accept_moved_keys=("{topic}",))'
                )
