"""How far the source partitions are committed, their distance to the ends, and whether a run has reached the ends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..brokers.patience import rest, within_limit
from ..brokers.protocol import Broker, BrokerError, TopicPartition
from ..group.unowned_points import Unowned
from ..keyrange.hashing import SPACE_END
from .holding import Holding
from .settings import Settings
from .watch.statistics import PartitionStatistics, ToLevel, UnownedPartition

ENDS_INTERVAL_MS: Final = 10_000


class EndsWatch:
    """The ends of the source partitions with ranges in this process; on the coordinator, of ranges without an owner,
    too (``unowned_ranges``). ``seen_s``: when the last answered question for the ends was sent, by the loop's time.
    Until the first answer the ends from the take-up of the ranges count (``Holding.found``).
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        holding: Holding,
        unowned: Callable[[], Sequence[Unowned]],
        seen_s: float,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.holding = holding
        self.seen_s = seen_s
        self._unowned = unowned
        self._seen: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Ask for the ends of the source partitions in intervals, until cancelled."""
        while True:
            await rest(ENDS_INTERVAL_MS / 1000)
            try:
                await self._ask()
            except BrokerError:
                continue  # the readers log the error, and the statistics show the age of the ends

    async def _ask(self) -> None:
        """Ask the broker for the ends. Raises BrokerError."""
        question_s = asyncio.get_running_loop().time()
        sources = [*(self.holding.edges() | {TopicPartition(*one.place): one.edge for one in self._unowned()})]
        limit = self.settings.call_limit_ms
        marks = await within_limit(self.broker.watermarks(sources), limit, "watermarks of the sources")
        self._seen = {source: mark.high for source, mark in marks.items()}
        self.seen_s = question_s  # the ends are at least as new as the question

    def end_of(self, source: TopicPartition, front: int) -> int:
        """The end of a source partition as last seen, but at least the partition's front."""
        return max(self._seen.get(source, 0), self.holding.found.get(source, 0), front)

    def partitions(self) -> tuple[PartitionStatistics, ...]:
        """The statistics of each partition with ranges in this process, also during the restore of the state."""
        runs, found = {run.dispatch.place: run.dispatch for run in self.holding.runs}, list[PartitionStatistics]()
        for source, edge in self.holding.edges().items():
            if (dispatch := runs.get(source)) is not None:
                found.append(dispatch.statistics(edge, self.end_of(source, dispatch.front)))
            else:
                end = self.end_of(source, edge)
                found.append(PartitionStatistics(*source, edge, edge, end=end, lag=end - edge))
        return tuple(found)

    def unowned_ranges(self) -> tuple[UnownedPartition, ...]:
        """The ranges without an owner; empty unless this process coordinates."""
        return tuple(
            UnownedPartition(*one.place, one.share, self.end_of(TopicPartition(*one.place), one.edge) - one.edge)
            for one in self._unowned()
        )

    def has_caught_up(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether all own ranges are committed up to ``ends``; False for a partition without an end."""
        return all(source in ends and edge >= ends[source] for source, edge in self.holding.edges().items())

    def offsets_left(self, ends: Mapping[TopicPartition, int]) -> int:
        """How many offsets are left up to ``ends``, rounded up; a key range counts in proportion to its width."""
        bands = self.holding.points()
        area = sum(max(0, ends.get(source, 0) - edge) * (end - first) for source, first, end, edge in bands)
        return -(-area // SPACE_END)


class CatchUpProgress:
    """How far the own ranges are from the ends pinned in the control log, for a group with ``until="level"``. The way
    grows by ranges taken up later. Any other run has no way.
    """

    def __init__(self, watch: EndsWatch) -> None:
        self._watch = watch
        self._total = 0
        self._left = 0
        self._ends: dict[TopicPartition, int] | None = None

    def take_pinned(self) -> None:
        """Take the pinned ends from the control log, before the first records are read."""
        own_ledger = self._watch.holding.own_ledger
        control = own_ledger.ledger.control
        own = control.members.get(own_ledger.incarnation)
        if control.pinned is None or own is None or not own.joined.until_level:
            return
        self._ends = {TopicPartition(end.topic, end.partition): end.offset for end in control.pinned}
        self.progress()

    def progress(self) -> ToLevel | None:
        """How much of the way is done; None without a way."""
        if self._ends is None:
            return None
        before, self._left = self._left, self._watch.offsets_left(self._ends)
        self._total += max(0, self._left - before)
        return ToLevel(self._total - self._left, self._total)
