"""The check of topics that were never started, before a process joins: records from both ends of the unread offsets.

The check may refuse a topic, and then nothing was written. Each starting process checks for itself: the process knows
the partitioners of its topics and what its user accepts, while the coordinator may be of an older version.
"""

from collections.abc import Mapping, Sequence

from ...brokers.partitioner import PartitionOfKey, partition_of_key
from ...brokers.protocol import TopicDescription, TopicPartition, Watermarks
from ...errors import SettingsError
from ..handlers.acceptances import Accepted, topics_in_loop
from ..handlers.handler import Handler
from ..logs.own_ledger import OwnLedger
from ..logs.topics import NEW_TOPIC
from ..watch.foreign_outputs import source_of_other
from .ends_read import Found, both_ends, lowest
from .moved_keys import find_moved_keys


class FirstLook:
    """The check of a starting process. ``partitioners``: by topic, where the partitioner is not murmur2.

    ``stateful``: the topics with stores whose keys are checked; ``looped``: the topics both written and read by the
    application, to be checked for outputs of another application.
    """

    def __init__(
        self,
        app: str,
        own_ledger: OwnLedger,
        handlers: Sequence[Handler],
        partitioners: Mapping[str, PartitionOfKey],
        accepts: Accepted,
    ) -> None:
        self.app = app
        self.own_ledger = own_ledger
        self.partitioners = partitioners
        self.handled = {handler.topic for handler in handlers}
        self.stateful = {handler.topic for handler in handlers if handler.stores} - accepts.moved_keys
        self.looped = topics_in_loop(handlers, accepts)

    async def check(self, unread: Mapping[TopicPartition, Watermarks], topics: Mapping[str, TopicDescription]) -> None:
        """Check the ``unread`` offsets of partitions that were never started. Raises SettingsError, BrokerError."""
        # All keys of a topic with a single partition lie where they belong.
        partitioned = {topic for topic in self.stateful if topics[topic].partitions > 1}
        spans = {place: span for place, span in lowest(unread).items() if place.topic in partitioned | self.looped}
        if not spans:
            return
        found = await both_ends(self.own_ledger.identity.broker, self.own_ledger.identity.settings, spans)
        await self._check_outputs({place: records for place, records in found.items() if place.topic in self.looped})
        self._check_keys({place: records for place, records in found.items() if place.topic in partitioned}, topics)

    async def _check_outputs(self, found: Found) -> None:
        """Refuse a topic with outputs of another application. An application without an id was never started: each
        output is foreign.
        """
        if not any(source_of_other(records, b"", self.handled) for records in found.values()):
            return
        # Another process of this application may have started the application meanwhile: some outputs may be our own.
        await self.own_ledger.read_control()
        own = self.own_ledger.app_id if self.own_ledger.ledger.control.app_birth else b""
        for place, records in sorted(found.items()):
            source = source_of_other(records, own, self.handled)
            if source is not None:
                raise SettingsError(
                    f"{place.topic} is written and read by {self.app!r}, and holds outputs that another application "
                    f"made of records of {source}, which this one handles, too. Its handler would be given these and "
                    "its own, so what it does would be done twice. Nothing was started. Give the topic another name, "
                    f"where it is written and where it is read: docs/process-again.md. Or accept both: "
                    f'App(accept_outputs_of_others=("{place.topic}",))'
                )

    def _check_keys(self, found: Found, topics: Mapping[str, TopicDescription]) -> None:
        """Refuse a topic with keys that lie where fewer partitions put them."""
        for topic in sorted({place.topic for place in found}):
            keys = {
                place.partition: {record.key for record in records if record.key}
                for place, records in found.items()
                if place.topic == topic
            }
            partitions = topics[topic].partitions
            seen = find_moved_keys(keys, partitions, self.partitioners.get(topic, partition_of_key))
            if seen is not None:
                raise SettingsError(
                    f"{topic} has {partitions} partitions and had {seen.before}: of {seen.seen} keys that were looked "
                    f"at in its first and last records, {seen.astray} lie where {seen.before} partitions put them and "
                    f"not where {partitions} do. State is kept by partition and key, so such a key would have a state "
                    f"for its old records and another one for its new ones. Nothing was started. {NEW_TOPIC}. Or "
                    f'accept states in several partitions: App(accept_moved_keys=("{topic}",))'
                )
