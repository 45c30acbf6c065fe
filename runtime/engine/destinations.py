"""The topics that an application writes to, as described by the broker, and their look-up."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ...brokers.partitioner import PartitionOfKey
from ...brokers.patience import Patience, ask_until_answered
from ...brokers.protocol import Broker, NotAuthorized, TopicDescription
from ...brokers.rights import OUTPUT_OPERATIONS, Right
from ...errors import OutputRefused, SettingsError
from ..handlers.handler import check_topic_name
from ..handlers.outputs import Destination, destination_of
from ..settings import Settings

NO_PARTITIONERS: Final[Mapping[str, PartitionOfKey]] = MappingProxyType({})
MISSING_MS: Final = 5_000
"""How long a missing topic is looked up again: some brokers may not know a topic that was created just now."""
ASK_AGAIN_MS: Final = 250


class Destinations:
    """The topics that handlers write to. ``known``: by name. ``reserved``: keylanes' own logs, closed to handlers.

    ``partitioners``: the partition of a key, for topics with a declared partitioner.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        reserved: Collection[str] = (),
        partitioners: Mapping[str, PartitionOfKey] = NO_PARTITIONERS,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.reserved = frozenset(reserved)
        self.partitioners = partitioners
        self.known: dict[str, Destination] = {}
        self._sought: defaultdict[str, _Sought] = defaultdict(_Sought)

    def learn(self, description: TopicDescription) -> None:
        """Add a topic to ``known`` by the broker's description."""
        partition_of = self.partitioners.get(description.name)
        self.known[description.name] = destination_of(description, partition_of)

    async def look_up(self, topic: Any) -> None:
        """Look a topic up and add the topic to ``known``; raises OutputRefused. Records that name the same topic during
        a look-up share the look-up. A record that names a missing topic later starts a new one.
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
                # Else a look-up for another record found the topic missing while this record waited for its turn.
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
    """A topic under look-up. ``records``: how many records wait for the answer. ``missing_s``: when the last look-up
    found the topic missing.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    records: int = 0
    missing_s: float | None = None


async def description_of(
    ask: Callable[[], Awaitable[Mapping[str, TopicDescription]]], topic: str, patience: Patience
) -> TopicDescription | None:
    """The description of a topic as soon as the topic exists; None: missing for ``MISSING_MS``."""
    for left in reversed(range(MISSING_MS // ASK_AGAIN_MS + 1)):
        found = await ask_until_answered(ask, patience)
        if topic in found:
            return found[topic]
        if left:
            await asyncio.sleep(ASK_AGAIN_MS / 1000)
    return None


async def describe_output(broker: Broker, topic: str) -> dict[str, TopicDescription]:
    """A broker's description of a topic for outputs; raises NotAuthorized with all rights that outputs need."""
    try:
        return await broker.describe([topic])
    except NotAuthorized as error:
        needed = [Right("topic", topic, operation) for operation in OUTPUT_OPERATIONS]
        raise NotAuthorized(needed, error.principal) from error
