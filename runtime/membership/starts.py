"""The offsets from which source partitions start for the first time, and the questions to the broker for the offsets.

The questions come before anything is written: a refused start leaves nothing behind.
"""

import logging
from collections.abc import Mapping, Sequence

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, TopicPartition, Watermarks
from ...errors import SettingsError, SourceError
from ...group.view import Begun
from ...offsets.control import Control
from ...offsets.starts import ADDED, LATEST, StartChanged, check_starts, is_added
from ..handlers.start import FROM_EARLIEST, Start
from ..settings import Settings
from ..watch.story import places

logger = logging.getLogger("keylanes")


class Starts:
    """The first starts of topics. ``starts`` is by topic; an unnamed topic starts from its first record. ``is_trial``:
    nothing starts yet, and nothing is logged.
    """

    def __init__(
        self, broker: Broker, settings: Settings, starts: Mapping[str, Start], *, is_trial: bool = False
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.starts = starts
        self.is_trial = is_trial

    def check(self, control: Control) -> None:
        """Raises SettingsError when a topic was started with another ``start``."""
        try:
            check_starts(control, {topic: start.text for topic, start in self.starts.items()})
        except StartChanged as error:
            raise SettingsError(str(error)) from error

    async def decide(
        self, control: Control, sources: Mapping[TopicPartition, Watermarks]
    ) -> dict[TopicPartition, Begun]:
        """The starts of the partitions that were not started yet. A partition that was added to a started topic starts
        from its first record; the declared start counts for the others. Raises SettingsError, SourceError, BrokerError.
        """
        decided: dict[TopicPartition, Begun] = {}
        for topic in sorted({place.topic for place in sources}):
            own = sorted(place for place in sources if place.topic == topic)
            new = [place for place in own if place not in control.started]
            added = [place for place in new if is_added(control, *place)]
            original = [place for place in new if place not in added]
            decided |= {place: Begun(sources[place].start, ADDED, len(own)) for place in added}
            if original:
                start = self.starts.get(topic, FROM_EARLIEST)
                offsets = await self._offsets(start, topic, original, sources)
                decided |= {place: Begun(offsets[place], start.text, len(own)) for place in original}
        return decided

    async def _offsets(
        self, start: Start, topic: str, places: Sequence[TopicPartition], marks: Mapping[TopicPartition, Watermarks]
    ) -> Mapping[TopicPartition, int]:
        """The offsets at which new partitions of a topic start, by the declared start."""
        limit = self.settings.call_limit_ms
        if start.group is not None:
            return await self._of_group(start.group, topic, places, marks)
        if start.timestamp_ms is not None:
            times = dict.fromkeys(places, start.timestamp_ms)
            found = await within_limit(self.broker.offsets_at(times), limit, f"offsets of {topic} by time")
            offsets: dict[TopicPartition, int] = {}
            for place in places:
                offset = found[place]
                offsets[place] = marks[place].high if offset is None else offset  # None: all records are older
            return offsets
        return {place: marks[place].high if start.text == LATEST else marks[place].start for place in places}

    async def _of_group(
        self, group: str, topic: str, places: Sequence[TopicPartition], marks: Mapping[TopicPartition, Watermarks]
    ) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group; a partition without an offset starts from its first record."""
        limit = self.settings.call_limit_ms
        found = await within_limit(self.broker.group_offsets(group, places), limit, f"offsets of group {group}")
        where = f"start='group:{group}' of topic {topic!r}"
        if found.is_live:
            raise SettingsError(
                f"{where}: the group has members (it is {found.state}), so its offsets move on, and records would be "
                "handled there and here. Nothing was started. Stop all consumers of the group; when `kafka-consumer-"
                f"groups.sh --describe --group {group} --state` says that it is Empty, start this application again"
            )
        if not found.offsets:
            raise SettingsError(
                f"{where}: the group has committed no offset for this topic. Nothing was started. See which groups "
                'there are with `kafka-consumer-groups.sh --list`, or write start="earliest" or "latest"'
            )
        for place, offset in sorted(found.offsets.items()):
            start, high = marks[place]
            if not start <= offset <= high:
                raise SourceError(
                    f"{where}: the group stands at offset {offset} of partition {place.partition}, which holds offsets "
                    f"{start} to {high}: retention passed it, or the topic was created anew. Nothing was started or "
                    'skipped. Write start="earliest" to take what there is'
                )
        for place in places:
            if place not in found.offsets and not self.is_trial:
                logger.warning(
                    "%s: the group has committed nothing for partition %d, which is read from its first record (%d)",
                    where,
                    place.partition,
                    marks[place].start,
                )
        return {place: found.offsets.get(place, marks[place].start) for place in places}


def log_starts(begun: Mapping[TopicPartition, Begun]) -> None:
    """Log the offsets from which partitions are started, topic by topic."""
    for topic in sorted({place.topic for place in begun}):
        own = {place.partition: one for place, one in sorted(begun.items()) if place.topic == topic}
        for start in dict.fromkeys(one.start for one in own.values()):
            offsets = {number: one.offset for number, one in own.items() if one.start == start}
            logger.info("%s is started from %s: %s", topic, start, places(offsets))
