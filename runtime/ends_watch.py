"""How far the source partitions are committed, how far they are from their ends, and whether a run is there."""

import asyncio
from collections.abc import Mapping, Sequence

from ..brokers.protocol import Broker, BrokerError, TopicPartition
from ..brokers.waiting import bounded
from ..keyrange.hashing import SPACE_END
from .engine.partition_run import PartitionRun
from .logs.office import Standing
from .settings import Settings
from .watch.statistics import ToLevel


class EndsWatch:
    """``runs``: all partitions that are worked on; they come and go. ``ends``: where each ended when it was taken up;
    what was asked for at ``seen_s`` of the loop's time, and since, is newer.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        runs: Sequence[PartitionRun],
        standing: Standing,
        ends: Mapping[TopicPartition, int],
        seen_s: float,
    ) -> None:
        self.broker, self.settings, self.runs, self.standing = broker, settings, runs, standing
        self.seen_s = seen_s
        """When the broker was asked for the ends that are known; it has answered."""
        self._found = ends
        self._seen: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Ask for the ends of all source partitions in intervals, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.ends_interval_ms / 1000)
            try:
                await self._ask([run.dispatch.place for run in self.runs])
            except BrokerError:
                continue  # the readers say so, and the age of what is known

    def end_and_lag(self, run: PartitionRun) -> tuple[int, int]:
        """The end of a source partition as it was last seen, and how far its least edge is from there."""
        place = run.dispatch.place
        end = max(self._seen.get(place, 0), self._found.get(place, 0), run.dispatch.front)
        return end, end - self._edge(run)

    async def _ask(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of these now; raises BrokerError."""
        asked_s = asyncio.get_running_loop().time()
        limit = self.settings.call_limit_ms
        marks = await bounded(self.broker.watermarks(sources), limit, "watermarks of the sources")
        ends = {source: m.high for source, m in marks.items()}
        self._seen.update(ends)
        if len(sources) == len(self.runs):
            self.seen_s = asked_s
        return ends

    def is_level(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything up to these ends of all source partitions is committed."""
        return all(edge >= ends[source] for source, edge in self.edges().items())

    def edges(self) -> dict[TopicPartition, int]:
        """The least edge of each source partition, of what was released and waits for its grant too."""
        return {run.dispatch.place: self._edge(run) for run in self.runs}

    def _edge(self, run: PartitionRun) -> int:
        workers = run.dispatch.workers
        if sum(worker.end - worker.first for worker in workers) == SPACE_END:
            return min(worker.edge for worker in workers)
        return self.standing.ledger.frontier(run.dispatch.place)

    def remaining(self, ends: Mapping[TopicPartition, int], runs: Sequence[PartitionRun]) -> int:
        """How many offsets are left up to these ends, those of a worker in proportion to its key range."""
        area = 0
        for run in runs:
            source, workers = run.dispatch.place, run.dispatch.workers
            end = ends.get(source, 0)
            if sum(worker.end - worker.first for worker in workers) == SPACE_END:
                area += sum(max(0, end - worker.edge) * (worker.end - worker.first) for worker in workers)
            else:
                area += max(0, end - self.standing.ledger.frontier(source)) * SPACE_END
        return -(-area // SPACE_END)


class WayToLevel:
    """The way to the ends that are pinned, of what this process works on: each partition's is as long as it was before
    its first record, whatever comes later. There is none for who does not run to the level.
    """

    def __init__(self, watch: EndsWatch) -> None:
        self._watch, self._total = watch, 0
        self._ends: dict[TopicPartition, int] | None = None

    def begins(self, runs: Sequence[PartitionRun]) -> None:
        """These are about to be read."""
        standing = self._watch.standing
        control = standing.ledger.control
        own = control.members.get(standing.incarnation)
        if control.pinned is None or own is None or not own.joined.until_level:
            return
        self._ends = {TopicPartition(end.topic, end.partition): end.offset for end in control.pinned}
        self._total += self._watch.remaining(self._ends, runs)

    def gone(self) -> ToLevel | None:
        """How much of it is done."""
        if self._ends is None:
            return None
        return ToLevel(max(0, self._total - self._watch.remaining(self._ends, self._watch.runs)), self._total)
