"""Trimming our own log: by the application alone, below the second-newest snapshot and behind ``history_ms``.

A trim deletes events before the position that an old enough snapshot covers: a reader of the rest (the next start, or
the audit) always finds the snapshot. Each call looks at a bounded part of the log's start.
"""

import asyncio
import logging
from collections.abc import Callable

from ...brokers.patience import within_limit
from ...brokers.protocol import BrokerError
from ...offsets.events import SnapshotTaken
from ..settings import Settings
from .reader import READ_RECORDS_MAX, HistoryTrimmed, LogReader

logger = logging.getLogger("keylanes")

LOOK_RECORDS = 100
"""How many records of the log's start show whether anything is old at all."""

TRIM_AGAIN_MS = 60_000
"""The pause after a failed trim, before the next try: a try may take long, and no transaction begins meanwhile."""


class HistoryTrimming:
    """Keeps ``history_ms`` of each partition of the offset log. ``wall_ms``: now, in ms since the epoch."""

    def __init__(self, logs: LogReader, settings: Settings, wall_ms: Callable[[], int]) -> None:
        self.logs = logs
        self.settings = settings
        self.wall_ms = wall_ms
        self._covered: dict[int, list[int]] = {}
        """By log partition, the positions that the last three snapshots of this process cover, in order. The last of
        these snapshots is about to be written.
        """
        self._looked: dict[int, int] = {}
        """By log partition, the position at which the next look begins; 0: at the start of the log."""
        self.failures = 0
        """How many trims of the log have failed."""
        self._failed_in_a_row = 0
        self._again_s = 0.0

    async def trim(self, log_partition: int, newest: int) -> None:
        """Delete the events that are older than the history, and lie below the snapshot before the newest snapshot.
        ``newest``: the position that the newest snapshot covers.

        A trim that the broker refuses, or does not answer, is tried again later: an untrimmed log is only longer.
        """
        covered = self._covered.setdefault(log_partition, [])
        covered.append(newest)
        del covered[:-3]
        now = asyncio.get_running_loop().time()
        if len(covered) < 3 or now < self._again_s:
            return
        try:
            has_trimmed = await self._trim(log_partition, covered[-2])
        except HistoryTrimmed:  # by a new coordinator: this process hears of the change at its next transaction
            return
        except BrokerError as error:
            self._again_s = now + TRIM_AGAIN_MS / 1000
            self._count_failure(error)
            return
        if has_trimmed and self._failed_in_a_row:
            logger.info("%s: the log is trimmed again, after %d tries", self.logs.app, self._failed_in_a_row)
            self._failed_in_a_row = 0

    async def _trim(self, log_partition: int, second_newest: int) -> bool:
        """Trim a partition of the offset log; False: nothing may be deleted yet."""
        before = await self._old_enough(log_partition, second_newest)
        if before is None:
            return False
        source = self.logs.offsets(log_partition)
        limit = self.settings.call_limit_ms
        await within_limit(self.logs.broker.trim({source: before}), limit, f"trimming {source.topic}")
        return True

    def _count_failure(self, error: BrokerError) -> None:
        """Count a failed trim, and log the first of several in a row."""
        self.failures += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row == 1:
            logger.warning(
                "%s: the offset log can't be trimmed, so it grows; snapshots are taken all the same, and the trim is "
                "tried again each %d s: %s",
                self.logs.app,
                TRIM_AGAIN_MS // 1000,
                error,
            )

    async def _old_enough(self, log_partition: int, below: int) -> int | None:
        """The position that the newest snapshot older than the history covers, up to ``below``; None: nothing may be
        deleted.
        """
        source = self.logs.offsets(log_partition)
        marks = (await self.logs.watermarks([source]))[source]
        limit = self.wall_ms() - self.settings.history_ms
        # The next snapshot may lie behind the part that a call reads: each call reads more than the log has grown since
        # the last call, and goes on at the end of a part with only old events.
        grown = self._covered[log_partition][-1] - self._covered[log_partition][-2]
        start = max(marks.start, self._looked.get(log_partition, 0))
        end = min(self._covered[log_partition][-1], start + max(READ_RECORDS_MAX, 2 * grown))
        found: int | None = None
        is_old = True
        middle = min(end, start + LOOK_RECORDS)
        for span in ((start, middle), (middle, end)):
            for _, timestamp, event in (await self.logs.read_spans({source: span}))[source]:
                is_old = is_old and timestamp < limit
                is_whole = isinstance(event, SnapshotTaken) and event.part + 1 == event.parts
                if not isinstance(event, SnapshotTaken) or not is_whole or timestamp >= limit:
                    continue
                if marks.start < event.position <= below:
                    found = event.position
            if not is_old:  # all later events are younger: do not read thousands of events that stay
                break
        self._looked[log_partition] = end if found is None and is_old else 0
        return found
