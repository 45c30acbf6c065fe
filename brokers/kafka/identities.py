"""Whether topics are still the same: fetches go by name, and a topic created anew goes on being read at the old offset.

A single answer about a missing or a changed topic is not believed: a broker that has just started, or lags behind the
others, knows less than the others.
"""

import asyncio
import math
from collections.abc import Collection, Mapping

from ..protocol import TopicPartition, UnknownTopic
from .link import UNKNOWN_TOPIC_TRIES, KafkaLink
from .topics import AnsweredTopic


class TopicIdentities:
    """The identities of topics as a broker's readers came to know them, for longer than a single reader."""

    def __init__(self, link: KafkaLink) -> None:
        self._link = link
        self._known: dict[str, str] = {}
        self._seen_s: dict[TopicPartition, float] = {}
        """When each partition was seen last, by the loop's time."""

    def forget(self) -> None:
        """Forget all topics: nothing is read any more."""
        self._known.clear()
        self._seen_s.clear()

    def were_seen(self, sources: Collection[TopicPartition], within_s: float) -> bool:
        """Whether all partitions were there at the last look, at most ``within_s`` ago."""
        since_s = asyncio.get_running_loop().time() - within_s
        return all(self._seen_s.get(source, -math.inf) >= since_s for source in sources)

    async def check(self, sources: Collection[TopicPartition]) -> None:
        """Raises UnknownTopic when partitions are gone or belong to other topics of their names; BrokerTimeout."""
        if not sources:
            return
        now_s = asyncio.get_running_loop().time()
        deadline = self._link.deadline("asking for topics")
        names = {source.topic for source in sources}
        for left in reversed(range(UNKNOWN_TOPIC_TRIES)):
            found = await self._link.topics(names, deadline, "READ")
            problem = what_changed(sources, found, self._known)
            if problem is None:
                # Older brokers, which may be there during an upgrade, tell no identity.
                self._known.update({topic.name: topic.identity for topic in found.values() if topic.identity})
                self._seen_s.update(dict.fromkeys(sources, now_s))
                return
            if left:
                await deadline.pause(problem)
        raise UnknownTopic(problem)


def what_changed(
    sources: Collection[TopicPartition], found: Mapping[str, AnsweredTopic], known: Mapping[str, str]
) -> str | None:
    """The reason in an answer against reading on, given the identities known by name; None: no reason."""
    for source in sources:
        topic = found.get(source.topic)
        if topic is None or source.partition not in topic.partitions:
            return f"topic {source.topic!r} has no partition {source.partition}"
        if topic.identity and known.get(topic.name, topic.identity) != topic.identity:
            return (
                f"topic {topic.name!r} was deleted and created anew while it was read (it was {known[topic.name]}, it "
                f"is {topic.identity}): offsets of the one mean nothing in the other. Start under a new application "
                "name to process the new topic"
            )
    return None
