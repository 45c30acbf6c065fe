"""What is known of the topics that are written to, and how it is looked up."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ...brokers.partitioner import PartitionOfKey
from ...brokers.protocol import Broker, NotAuthorized, TopicDescription
from ...brokers.rights import OUTPUT_OPERATIONS, Right
from ...brokers.waiting import Patience, until_answered
from ...errors import OutputRefused, SettingsError
from ..handlers.handler import check_topic_name
from ..handlers.outputs import Destination, destination_of
from ..settings import Settings

NO_PARTITIONERS: Final[Mapping[str, PartitionOfKey]] = MappingProxyType({})
MISSING_MS: Final = 5_000
"""So long a topic that is not there is asked for: one that was made just now may not be known to all brokers."""
ASK_AGAIN_MS: Final = 250


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
        self._sought: defaultdict[str, _Sought] = defaultdict(_Sought)

    def learn(self, description: TopicDescription) -> None:
        """Know a topic from here on, as the broker describes it."""
        partition_of = self.partitioners.get(description.name)
        self.known[description.name] = destination_of(description, self.settings.output_bytes_max, partition_of)

    async def look_up(self, topic: Any) -> None:
        """Learn what a topic takes. Raises OutputRefused; the topic is looked for again the next time a record names
        it. One record asks for all that name it meanwhile.
        """
        if topic in self.reserved:
            raise OutputRefused(f"topic {topic!r} is a log of this application")
        try:
            check_topic_name(topic, "output")
        except SettingsError as error:
            raise OutputRefused(str(error)) from None
        now_s = asyncio.get_running_loop().time
        since_s, sought = now_s(), self._sought[topic]
        sought.records += 1
        try:
            async with sought.turn:
                if topic in self.known:
                    return
                if sought.missing_s is None or sought.missing_s <= since_s:
                    patience = Patience(self.settings.broker_retry_ms, f"looking up {topic}")
                    found = await description_of(lambda: describe_output(self.broker, topic), topic, patience)
                    if found is not None:
                        self.learn(found)
                        return
                    sought.missing_s = now_s()
        finally:
            sought.records -= 1
            if not sought.records:
                del self._sought[topic]
        raise OutputRefused(
            f"topic {topic!r} does not exist; a handler makes no topic while it runs: declare it, as by "
            f"sends=({topic!r},), create it, or correct the name"
        )


@dataclass(eq=False, slots=True)
class _Sought:
    """A topic that is looked for. ``records``: those that wait for the answer; ``missing_s``: when it was found to be
    missing last.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    records: int = 0
    missing_s: float | None = None


async def description_of(
    ask: Callable[[], Awaitable[Mapping[str, TopicDescription]]], topic: str, patience: Patience
) -> TopicDescription | None:
    """What is said of a topic as soon as it is there; None: it was asked for for ``MISSING_MS``."""
    for left in reversed(range(MISSING_MS // ASK_AGAIN_MS + 1)):
        found = await until_answered(ask, patience)
        if topic in found:
            return found[topic]
        if left:
            await asyncio.sleep(ASK_AGAIN_MS / 1000)
    return None


async def describe_output(broker: Broker, topic: str) -> dict[str, TopicDescription]:
    """What a broker says of a topic that is to be written to; raises NotAuthorized with all that this needs."""
    try:
        return await broker.describe([topic])
    except NotAuthorized as error:
        needed = [Right("topic", topic, operation) for operation in OUTPUT_OPERATIONS]
        raise NotAuthorized(needed, error.principal) from error
