"""What is known of the topics that are written to, and how it is looked up."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from ...brokers.partitioner import PartitionOfKey
from ...brokers.protocol import Broker, NotAuthorized, TopicDescription, TopicSpec
from ...brokers.rights import OUTPUT_OPERATIONS, Operation, Right
from ...brokers.waiting import Patience, until_answered
from ...errors import OutputRefused, SettingsError
from ..handlers.handler import check_topic_name
from ..handlers.outputs import Destination, destination_of
from ..settings import Settings

NO_PARTITIONERS: Final[Mapping[str, PartitionOfKey]] = MappingProxyType({})


class Destinations:
    """The topics that are written to. ``known``: by name; ``reserved``: our own logs, where no handler writes to.

    ``partitioners``: where the keys of a topic go, for those of which it is said.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        reserved: Collection[str] = (),
        partitioners: Mapping[str, PartitionOfKey] = NO_PARTITIONERS,
    ) -> None:
        self.broker, self.settings, self.reserved = broker, settings, frozenset(reserved)
        self.partitioners = partitioners
        self.known: dict[str, Destination] = {}

    def learn(self, description: TopicDescription) -> None:
        """Know a topic from here on, as the broker describes it."""
        partition_of = self.partitioners.get(description.name)
        self.known[description.name] = destination_of(description, self.settings.output_bytes_max, partition_of)

    async def look_up(self, topic: Any, partitions: int) -> None:
        """Learn what a topic takes; one that is missing is made like a declared one, or refused (``create_topics``).

        ``partitions``: how many a missing topic is made with. Raises OutputRefused; the topic is looked for again the
        next time a record names it.
        """
        if topic in self.reserved:
            raise OutputRefused(f"topic {topic!r} is a log of this application")
        try:
            check_topic_name(topic, "output")
        except SettingsError as error:
            raise OutputRefused(str(error)) from None
        patience = Patience(self.settings.broker_retry_ms, f"looking up {topic}")
        found = await until_answered(lambda: self._described(topic, partitions), patience)
        if topic not in found:
            raise OutputRefused(f"topic {topic!r} does not exist and create_topics is off")
        self.learn(found[topic])

    async def _described(self, topic: str, partitions: int) -> dict[str, TopicDescription]:
        """What the broker says of a topic. One that is missing is made first, where that is allowed."""
        if not self.settings.create_topics:
            return await describe_output(self.broker, topic)
        with naming_all(topic, "CREATE"):
            found = await self.broker.describe([topic])
            if topic not in found:
                await self.broker.create([TopicSpec(topic, partitions, {})])
                found = await self.broker.describe([topic])
        return found


async def describe_output(broker: Broker, topic: str) -> dict[str, TopicDescription]:
    """What a broker says of a topic that is to be written to; raises NotAuthorized with all that this needs."""
    with naming_all(topic):
        return await broker.describe([topic])


@contextmanager
def naming_all(topic: str, *more: Operation) -> Iterator[None]:
    """A NotAuthorized names all that an output to a topic needs, and ``more``."""
    try:
        yield
    except NotAuthorized as error:
        needed = [Right("topic", topic, operation) for operation in (*OUTPUT_OPERATIONS, *more)]
        raise NotAuthorized(needed, error.principal) from error
