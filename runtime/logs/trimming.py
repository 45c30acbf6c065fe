"""Trimming our own log: only the app does it, below the second-newest snapshot and behind the history it keeps.

What is deleted stands before the position that an old enough snapshot covers, so a reader of what is left (the next
start, or the audit) always finds that snapshot. Each call looks at a bounded stretch of the log's start.
"""

from collections.abc import Callable

from ...brokers.waiting import bounded
from ...offsets.events import SnapshotTaken
from ..settings import Settings
from .reader import READ_RECORDS_MAX, HistoryTrimmed, LogReader

LOOK_RECORDS = 100
"""Of the log's start, to see whether anything of it is old at all."""


class History:
    """Keeps ``history_ms`` of each partition of the offset log. ``wall_ms``: now, in ms since the epoch."""

    def __init__(self, logs: LogReader, settings: Settings, wall_ms: Callable[[], int]) -> None:
        self.logs, self.settings, self.wall_ms = logs, settings, wall_ms
        self._covered: dict[int, list[int]] = {}
        self._looked: dict[int, int] = {}

    async def trim(self, log_partition: int, newest: int) -> None:
        """Delete what is older than the history, below the snapshot before the newest one (which covers ``newest``)."""
        covered = self._covered.setdefault(log_partition, [])
        covered.append(newest)
        del covered[:-3]
        if len(covered) < 3:
            return
        second_newest = covered[-2]
        try:
            before = await self._old_enough(log_partition, second_newest)
        except HistoryTrimmed:  # by a process that took over: this one learns of it at its next transaction
            return
        if before is not None:
            source = self.logs.offsets(log_partition)
            limit = self.settings.call_limit_ms
            await bounded(self.logs.broker.trim({source: before}), limit, f"trimming {source.topic}")

    async def _old_enough(self, log_partition: int, below: int) -> int | None:
        """The position covered by the newest snapshot that is older than the history, if all before may go."""
        source = self.logs.offsets(log_partition)
        marks = (await self.logs.watermarks([source]))[source]
        limit = self.wall_ms() - self.settings.history_ms
        # The next snapshot may lie further on than one stretch reaches: each call looks further than the log has grown
        # since the last one, and goes on where the last one found only what is old.
        grown = self._covered[log_partition][-1] - self._covered[log_partition][-2]
        start = max(marks.start, self._looked.get(log_partition, 0))
        end = min(self._covered[log_partition][-1], start + max(READ_RECORDS_MAX, 2 * grown))
        found: int | None = None
        is_old = True
        middle = min(end, start + LOOK_RECORDS)
        for span in ((start, middle), (middle, end)):
            for timestamp, event in (await self.logs.read_spans({source: span}))[source]:
                is_old = is_old and timestamp < limit
                is_whole = isinstance(event, SnapshotTaken) and event.part + 1 == event.parts
                if not isinstance(event, SnapshotTaken) or not is_whole or timestamp >= limit:
                    continue
                if marks.start < event.position <= below:
                    found = event.position
            if not is_old:  # what follows is younger: mostly all of the log is, and thousands of events are not read
                break
        self._looked[log_partition] = end if found is None and is_old else 0
        return found
