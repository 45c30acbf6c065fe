"""The broker's view of source topics, compared with the logs: started topics and their offsets, topics that have grown,
and topics that were made anew.

New partitions are read from their start. A record there does not wait for older records of its key in an old partition;
nothing else in Kafka waits either: order per key begins anew. With stores the state would be wrong: the application
stops.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, BrokerTimeout, TopicPartition, UnknownTopic, Watermarks
from ...errors import LogError, SettingsError, SourceError
from ...group.view import Begun, SourceFound
from ...keyrange.ranges import KeyRange
from ...offsets.control import Control, Member
from ...offsets.decide import StoreSpec, Turn, decide_stores
from ...offsets.ledger import Ledger, SourcePartition
from ...offsets.starts import EARLIEST, LATEST
from ..handlers.start import FROM_EARLIEST, Start
from ..logs.topics import NEW_TOPIC
from ..settings import Settings
from .starts import Starts, log_starts

logger = logging.getLogger("keylanes")

GROUP = "group:"


class StateTopicGrown(SourceError):
    """A topic with state has more partitions than at the beginning of its state."""


class Sources:
    """The source topics of an application, in the view of its coordinator."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker = broker
        self.settings = settings

    async def look(self, control: Control, topics: Iterable[str]) -> dict[str, SourceFound]:
        """Look at ``topics``; omits missing topics. Raises SourceError, SettingsError, BrokerError."""
        limit = self.settings.call_limit_ms
        described = await within_limit(self.broker.describe(sorted(topics)), limit, "describing the sources")
        check_identities(control.identities, {name: one.identity for name, one in described.items()})
        found: dict[str, SourceFound] = {}
        for name, one in sorted(described.items()):
            places = [TopicPartition(name, partition) for partition in range(one.partitions)]
            check_growth(control, places, stateful_in(control.members.values()))
            begun: tuple[tuple[int, Begun], ...] = ()
            if any(place not in control.started for place in places):
                marks = await within_limit(self.broker.watermarks(places), limit, f"watermarks of {name}")
                starts = Starts(self.broker, self.settings, {name: start_in(control, name)})
                decided = await starts.decide(control, marks)
                begun = tuple((place.partition, start) for place, start in sorted(decided.items()))
            found[name] = SourceFound(one.identity, one.partitions, begun)
        return found

    async def look_again(self, control: Control, known: Mapping[str, SourceFound]) -> dict[str, SourceFound]:
        """The known topics with more partitions than before. Raises SourceError."""
        limit = self.settings.call_limit_ms
        described = await within_limit(self.broker.describe(sorted(known)), limit, "describing the sources")
        check_identities(control.identities, {name: one.identity for name, one in described.items()})
        grown = [name for name, one in described.items() if one.partitions > known[name].partitions]
        for name in grown:
            now, before = described[name].partitions, known[name].partitions
            if name in stateful_in(control.members.values()):
                raise SourceError(
                    f"{name} has {now} partitions now and had {before}: keys moved to other partitions, their state "
                    f"did not. {NEW_TOPIC}"
                )
            logger.warning(
                "%s has %d partitions now and had %d: the new ones are read from their start. Records of keys that "
                "moved there do not wait for those that their keys have in the old ones",
                name,
                now,
                before,
            )
        try:
            return await self.look(control, grown) if grown else {}
        except (BrokerTimeout, UnknownTopic) as error:  # a partition made just now may have no leader yet
            logger.warning("new partitions of %s can't be read yet: %s", ", ".join(grown), error)
            return {}

    async def check_held(
        self, ledger: Ledger, held: Mapping[SourcePartition, Sequence[KeyRange]]
    ) -> Mapping[TopicPartition, Watermarks]:
        """The present watermarks of the partitions with ranges in this process (``held``). Raises SourceError when a
        partition no longer contains the records to be read next.
        """
        limit, sources = self.settings.call_limit_ms, [TopicPartition(*place) for place in held]
        # The edges may move while the broker answers. The end is newer than the edges before the question; the start is
        # older than the edges after the answer.
        edges_before = {source: edges_of(ledger, source, held[source]) for source in sources}
        marks = await within_limit(self.broker.watermarks(sources), limit, "watermarks of sources")
        for source in sources:
            edges_after = edges_of(ledger, source, held[source])
            check_end(source, marks[source], max(edges_before[source]))
            check_begin(source, marks[source], min(edges_after))
        return marks


def stateful_in(members: Iterable[Member]) -> set[str]:
    """The topics with stores of a member that is not expelled."""
    living = [member for member in members if not member.expelled]
    return {source.topic for member in living for source in member.joined.topics if source.stores_hash}


def start_in(control: Control, topic: str) -> Start:
    """The start of a topic, as the oldest member with the topic declares the start."""
    for _, member in sorted(control.members.items()):
        for source in member.joined.topics if not member.expelled else ():
            if source.topic == topic:
                return start_of_text(source.start)
    return FROM_EARLIEST


def start_of_text(text: str) -> Start:
    """The start of a topic from its text in the log; raises LogError."""
    if text in (EARLIEST, LATEST):
        return Start(text)
    if text.startswith(GROUP):
        return Start(text, group=text.removeprefix(GROUP))
    try:
        return Start(text, timestamp_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise LogError(f"a member joined with start {text!r}, which this version does not know") from None


def check_stores(control: Control, sources: Iterable[SourcePartition], stores: Sequence[StoreSpec]) -> None:
    """Raises SettingsError when the stores in the log do not fit ``stores``; SourceError when a topic with state has
    partitions in ``sources`` that were not started.
    """
    check_growth(control, sources, {store.topic for store in stores})
    try:
        decide_stores(control, Turn(0), stores)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_growth(control: Control, sources: Iterable[SourcePartition], stateful: Collection[str]) -> None:
    """Raises SourceError when a topic of ``stateful`` whose state has begun has a partition that was not started."""
    started, declared = control.started, {store.topic for store in control.stores.values()}
    places = list(sources)
    for topic in sorted(declared & set(stateful)):
        if any(place not in started for place in places if place[0] == topic):
            now, before = (sum(place[0] == topic for place in of) for of in (places, started))
            raise StateTopicGrown(
                f"{topic} has {now} partitions now; its state was begun with {before}. State is kept by partition and "
                "key, and with more partitions a key's records go to another one, where its state is not. Nothing was "
                f"read. {NEW_TOPIC}"
            )


def check_identities(known: Mapping[str, str], identities: Mapping[str, str]) -> None:
    """Raises SourceError for a topic with another identity than the known identity; "": the broker does not tell."""
    for name, identity in sorted(identities.items()):
        if identity and known.get(name, identity) != identity:
            raise SourceError(
                f"{name} was deleted and created anew, or this is another cluster: it was {known[name]}, it is "
                f"{identity}. Offsets of the one mean nothing in the other, so nothing of it was read. Start under a "
                "new application name to process it"
            )


def edges_of(ledger: Ledger, place: SourcePartition, within: Sequence[KeyRange]) -> list[int]:
    """The edges in the ranges ``within`` of a source partition that was started."""
    steps = ledger.partition(place).edges(ledger.control.started[place])
    return [edge for one in within for _, _, edge in steps.pieces(one.first, one.end)]


def check_end(source: TopicPartition, marks: Watermarks, edge: int) -> None:
    """Raises SourceError when the partition ends below the edge; the records up to the edge were processed *before* the
    question for the watermarks.
    """
    if edge > marks.high:
        raise SourceError(
            f"{source.topic}[{source.partition}] ends at offset {marks.high}, but records up to {edge} were processed: "
            "the topic was truncated or created anew. Start under a new application name to process the new topic."
        )


def check_begin(source: TopicPartition, marks: Watermarks, edge: int) -> None:
    """Raises SourceError when the partition starts above the edge; the records from the edge on are still to be read
    *after* the question for the watermarks.
    """
    if edge < marks.start:
        raise SourceError(
            f"{source.topic}[{source.partition}] starts at offset {marks.start}, but records from {edge} on were not "
            "processed yet: retention or deletion passed them. Nothing was skipped; restore them, or start a new "
            "application."
        )


def log_found_starts(found: Mapping[str, SourceFound]) -> None:
    """Log the offsets from which new partitions of ``found`` are started."""
    log_starts({TopicPartition(name, at): begun for name, one in found.items() for at, begun in one.begun})
