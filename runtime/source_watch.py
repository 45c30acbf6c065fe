"""What becomes of the source topics while the application runs: more partitions, another topic under the same name.

New partitions are read from their start. Their records do not wait for what their keys left behind in the old ones, nor
does anything else in Kafka: order per key begins anew there. With stores that would be wrong state, so it stops.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from ..brokers.protocol import (
    Broker,
    BrokerError,
    BrokerTimeout,
    TopicDescription,
    TopicPartition,
    UnknownTopic,
    Watermarks,
)
from ..brokers.waiting import bounded, fatal_of
from ..errors import SourceError
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .handlers.outputs import place_of
from .logs.office import Standing
from .membership.coordinator import Coordinator, check_identities
from .partition.dispatch import PartitionDispatch
from .partition.reshape import TakeUpWish
from .settings import Settings

logger = logging.getLogger("keylanes")

SOURCES_CHECK_MS = 30_000
"""How often it is looked whether a source has got more partitions, or is another topic."""


class SourceWatch:
    """``runs``: all partitions that are worked on; new ones are added here, and then given to ``begin_reading``.

    ``ends``: where each source partition has to be read to for the run to be level. ``stateful``: topics with stores.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        coordinator: Coordinator,
        standing: Standing,
        cycle: CommitCycle,
        runs: list[PartitionRun],
        ends: dict[TopicPartition, int],
        stateful: Collection[str],
        begin_reading: Callable[[PartitionRun], None],
    ) -> None:
        self.broker, self.settings, self.runs = broker, settings, runs
        self.coordinator, self.standing, self.cycle = coordinator, standing, cycle
        self.ends, self.stateful, self.begin_reading = ends, stateful, begin_reading

    async def run(self) -> None:
        """Look in intervals until cancelled. Raises SourceError."""
        while True:
            await asyncio.sleep(SOURCES_CHECK_MS / 1000)
            try:
                limit = self.settings.call_limit_ms
                topics = sorted({run.dispatch.topic for run in self.runs})
                found = await bounded(self.broker.describe(topics), limit, "describing the sources")
            except BrokerError:
                continue  # the readers say so
            for name in topics:
                if name in found:  # the readers say when it is gone
                    await self._look(found[name])

    async def _look(self, topic: TopicDescription) -> None:
        check_identities(self.standing.ledger.control.identities, {topic.name: topic.identity})
        runs = [run for run in self.runs if run.dispatch.topic == topic.name]
        if topic.partitions <= len(runs):
            return
        if topic.name in self.stateful:
            raise SourceError(
                f"{topic.name} has {topic.partitions} partitions now and had {len(runs)}: keys moved to other "
                "partitions, their state did not. Make a new source topic, or start under a new application name"
            )
        new = [TopicPartition(topic.name, index) for index in range(len(runs), topic.partitions)]
        try:
            limit = self.settings.call_limit_ms
            marks = await bounded(self.broker.watermarks(new), limit, "watermarks of new partitions")
        except (BrokerTimeout, UnknownTopic) as error:  # one that was made just now may have no leader yet
            logger.warning("new partitions of %s can't be read yet: %s", topic.name, error)
            return
        logger.warning(
            "%s has %d partitions now and had %d: the new ones are read from their start. Records of keys that moved "
            "there do not wait for those that their keys have in the old ones",
            topic.name,
            topic.partitions,
            len(runs),
        )
        try:
            await self._take_in(marks, runs[0], topic.partitions)
        except BrokerError as error:
            raise fatal_of(error) from error
        for run in self.runs:
            if run.dispatch.topic == topic.name:
                run.dispatch.partitions = topic.partitions

    async def _take_in(self, new: Mapping[TopicPartition, Watermarks], like: PartitionRun, partitions: int) -> None:
        """Work on partitions that were added, as on another one of their topic, which has so many now."""
        cycle, standing = self.cycle, self.standing
        for place in sorted(new):
            marks = new[place]
            epoch = await self.coordinator.start_partition(
                standing.ledger, place, standing.incarnation, marks, partitions
            )
            numbers, quota = like.dispatch.numbers, like.dispatch.quota_bytes
            # A process before this one may have worked on it: then its ranges go on where they were.
            front = standing.ledger.frontier(place) if place in standing.ledger.control.started else marks.start
            dispatch = PartitionDispatch(*place, front, quota, numbers)
            dispatch.incarnation, dispatch.app_id = standing.incarnation, like.dispatch.app_id
            dispatch.partitions = partitions
            run = PartitionRun(dispatch, like.handler, place_of(*place, dispatch.app_id))
            settled = cycle.reshape.ask(TakeUpWish(dispatch, epoch, run.cut))
            cycle.wake()
            await settled
            # Not before: without workers it would look released, and could be granted once more.
            self.ends.setdefault(place, front)  # found at the start, it had none
            self.runs.append(run)
            self.begin_reading(run)
