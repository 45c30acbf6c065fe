"""Restores: the copies of granted ranges are brought to the ends of their changelogs before anybody works with them.

The watermark of a restore counts only when it is taken after the fence of everybody who wrote the state of the ranges
before; ``run`` takes the watermarks. Others may go on writing other ranges of the partition. Near copies come first and
wait for no other copy. Of the far ones some are restored at a time. A restore that was broken off goes on from its
markers.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...state.copy_readiness import least_position
from ...state.restore import BEACON_STEP
from ..watch.statistics import Progress
from .changelogs import label_of
from .copy_pass import CopyMeans, CopyPass, CopyReading, PassHost, plan_passes

logger = logging.getLogger("keylanes")

LOGGED_FROM_OFFSETS: Final = 10_000
"""A restore of fewer is over before anybody could read about it."""
LOGGED_EVERY_S: Final = 5.0
NEAR_OFFSETS: Final = 131_072
"""A copy that lacks so many or fewer waits for no lane: it is restored within about a second, and a range waits for it.
A learner may call a copy ready that lacks some ten thousands.
"""


class Restore(PassHost):
    """One restore: ``open`` may be called for its passes, then ``run`` once, then ``close``.

    ``lanes``: shared with restores beside this one; a far copy takes one. ``on_whole`` is called on the loop for each
    copy that has become whole.
    """

    def __init__(
        self,
        means: CopyMeans,
        lanes: asyncio.Semaphore,
        on_progress: Callable[[Progress], None],
        on_whole: Callable[[CopyPass], None],
    ) -> None:
        self.means = means
        self.on_progress = on_progress
        self.on_whole = on_whole
        self._lanes = lanes
        self._readings: dict[CopyPass, CopyReading] = {}
        self._log = _RestoreLog(())

    async def open(self, one: CopyPass) -> None:
        """Have the reader of a copy made that will be restored, unless the copy is read from the start. The learner may
        still follow the copy. Raises StateError, StoreError.
        """
        if len(self._readings) < self.means.settings.limits.restore_partitions_max:
            markers = await self.means.writes.run(one.changelog, one.copy.markers)
            if position := least_position(one.points, markers):
                self._reading_of(one).open(max(0, position - BEACON_STEP))

    def _reading_of(self, one: CopyPass) -> CopyReading:
        if one not in self._readings:
            what = f"restoring from {label_of(one.changelog)}"
            self._readings[one] = CopyReading(self.means, self, what, [one])
        return self._readings[one]

    async def close(self) -> None:
        """Let go of the readers; a second call does nothing."""
        readings, self._readings = self._readings, {}
        await asyncio.gather(*[reading.close() for reading in readings.values()], return_exceptions=True)

    async def run(self, passes: Sequence[CopyPass]) -> None:
        """Make the copies whole.

        Raises StateError (a changelog is missing, lost its head, holds what is no state, or has other beacons than the
        offset log names), StoreError (the copy can't be written), BrokerError.
        """
        await plan_passes(self.means, passes)
        self._log = _RestoreLog(passes)
        left = deque(sorted(passes, key=lambda one: (_is_far(one), one not in self._readings, _offsets_of(one))))
        count = min(len(passes), self.means.settings.limits.restore_partitions_max)
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(count):
                    workers.create_task(self._restore_each(left))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        self._log.log_end()

    async def _restore_each(self, left: "deque[CopyPass]") -> None:
        """Restore one copy after the other, as long as there are some."""
        while left:
            one = left.popleft()
            lane = self._lanes if _is_far(one) else contextlib.nullcontext()
            async with lane, self.means.writes.take(one.changelog):
                await self._reading_of(one).run()
            self._log.partitions_done += 1
            self._tell()
            self.on_whole(one)

    def _tell(self) -> None:
        progress = self._log.progress()
        self._log.log(progress)
        self.on_progress(progress)

    def note_written(self, one: CopyPass, read: int, written: Mapping[str, int]) -> None:  # noqa: ARG002  # it has counted
        """See ``PassHost``."""
        self._tell()


def _offsets_of(one: CopyPass) -> int:
    """An upper bound for the number of records that a copy lacks."""
    return 0 if one.plan is None else max(0, one.plan.high - one.position)


def _is_far(one: CopyPass) -> bool:
    return _offsets_of(one) > NEAR_OFFSETS


class _RestoreLog:
    """The progress of a restore, for the log: a line at the end, and before when there is much to do."""

    def __init__(self, passes: Sequence[CopyPass]) -> None:
        self.partitions_done = 0
        self._passes = passes
        self._began_s = self._logged_s = asyncio.get_running_loop().time()
        offsets = sum(map(_offsets_of, passes))
        self._is_long = offsets >= LOGGED_FROM_OFFSETS
        if self._is_long:
            count = sum(1 for one in passes if _offsets_of(one))
            logger.info("restoring state: at most %s records of %s", f"{offsets:,}", _partitions(count))

    def progress(self) -> Progress:
        """The progress as numbers."""
        done, left = sum(one.offsets for one in self._passes), sum(map(_offsets_of, self._passes))
        elapsed_s = asyncio.get_running_loop().time() - self._began_s
        return Progress(
            partitions_done=self.partitions_done,
            partitions=len(self._passes),
            records=sum(one.records for one in self._passes),
            records_total=done + left,
            bytes=sum(one.bytes for one in self._passes),
            seconds_left=0.0 if not left else elapsed_s * left / done if done else None,
        )

    def log(self, now: Progress) -> None:
        """Log a line, if the last one is some time ago."""
        now_s = asyncio.get_running_loop().time()
        if self._is_long and now_s - self._logged_s >= LOGGED_EVERY_S:
            self._logged_s = now_s
            of = f"{now.records:,} of at most {now.records_total:,} records"
            done, left_s = f"{now.partitions_done} of {_partitions(now.partitions)} done", now.seconds_left or 0.0
            logger.info("restoring state: %s, %s, about %.0f s left", of, done, left_s)

    def log_end(self) -> None:
        """Log the last line."""
        seconds, now = asyncio.get_running_loop().time() - self._began_s, self.progress()
        logger.log(
            logging.INFO if now.records else logging.DEBUG,
            "restored the state of %s: %s records, %.1f MB in %.1f s (%s records/s)",
            _partitions(now.partitions),
            f"{now.records:,}",
            now.bytes / 1e6,
            seconds,
            f"{now.records / max(seconds, 1e-3):,.0f}",
        )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
