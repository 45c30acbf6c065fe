"""Tells a run at INFO: that it starts, what it works on, that it is level, how it goes, that it stops, how it ended.

The text is made in watch/story.py. Time is the loop's, so a simulated run tells the same story each time.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from .compiled import IS_COMPILED, VERSION
from .engine.partition_run import PartitionRun
from .settings import Settings
from .watch import story
from .watch.statistics import Statistics
from .watch.story import Figures
from .work import Work

logger = logging.getLogger("keylanes")

LEVEL_LOOK_S: Final = 1.0
"""So often it looks whether the run is level: it goes through all workers."""


class Telling:
    """Of one run. ``broker``: its address. ``statistics``: where the run stands; asked for when a line is due."""

    def __init__(self, app: str, broker: str, settings: Settings, statistics: Callable[[], Statistics]) -> None:
        self.app, self.broker, self.settings, self._statistics = app, broker, settings, statistics
        self._began_s = 0.0
        self._work: Work | None = None
        """None: it does not work yet."""
        self._interval = story.Interval(settings.report_interval_ms, 0.0)
        self._was_level = False
        self.cut_off = 0
        self._look_at_s = 0.0

    def starts(self, now_s: float) -> None:
        """Before anything is connected."""
        self._began_s = now_s
        for line in story.start_text(VERSION, self.broker, is_compiled=IS_COMPILED):
            self._say(line)

    def works(self, work: Work, now_s: float) -> None:
        """When it has joined."""
        self._work, self._interval = work, story.Interval(self.settings.report_interval_ms, now_s)

    def holds(self, runs: Sequence[PartitionRun]) -> None:
        """When the ranges of these were cut into workers, before the first record."""
        partitions, places = self._statistics().partitions, {run.dispatch.place for run in runs}
        for topic in dict.fromkeys(run.dispatch.topic for run in runs):
            own = [one for one in partitions if one.topic == topic and (topic, one.partition) in places]
            offsets = {one.partition: one.offset_least for one in own}
            self._say(story.work_text(topic, offsets, sum(one.workers for one in own), sum(one.lag for one in own)))

    def look(self, work: Work, now_s: float) -> None:
        """While it works, as often as one likes: says what is due."""
        if not self._was_level and now_s >= self._look_at_s:
            self._look_at_s = now_s + LEVEL_LOOK_S
            if self._is_level(work):
                self._was_level = True
                self._say(story.level(self._statistics().records_done, now_s - self._began_s))
        if self._interval.is_due(now_s):
            line = self._interval.look(now_s, self._figures(work, now_s))
            if line is not None:
                self._say(line)

    def leaves(self, leave_ms: int) -> None:
        """When it works on while others copy its state."""
        self._say(story.leave_text(leave_ms))

    def left_early(self, leave_ms: int) -> None:
        """When it does not wait any longer for that."""
        logger.warning("%s: %s", self.app, story.left_early(leave_ms))

    def stops(self, why: str, running: int) -> None:
        """When no more is read, and what runs comes to its end."""
        self._say(story.stop_text(why, running, self.settings.drain_timeout_ms))

    def cut(self, running: int, *, at_once: bool) -> None:
        """When the time to drain is over, or none is given: so many records were still running, and were dropped."""
        self.cut_off = max(0, running)
        if self.cut_off:
            limit_ms = None if at_once else self.settings.drain_timeout_ms
            logger.warning("%s: %s", self.app, story.cut_off(self.cut_off, limit_ms))

    def cut_short(self, unclosed: int) -> None:
        """So many parts had no time left to close."""
        if unclosed:
            logger.warning("%s: %s", self.app, story.cut_short(unclosed, self.settings.close_timeout_ms))

    def stopped(self, how: str, now_s: float) -> None:
        """At the end, however it ended."""
        if self._work is None:
            self._say(story.stopped_early(how))
        else:
            self._say(story.end_text(how, self._figures(self._work, now_s), now_s - self._began_s))

    def _is_level(self, work: Work) -> bool:
        ends = work.ends
        is_read = bool(work.runs) and all(
            run.dispatch.place in ends and run.dispatch.front >= ends[run.dispatch.place] for run in work.runs
        )  # cheap, and first
        return is_read and work.ends_watch.is_level(ends)

    def _figures(self, work: Work, now_s: float) -> Figures:
        """What the lines show. By the time of the loop, also where the statistics have another clock."""
        statistics = self._statistics()
        return Figures(
            records=statistics.records_done,
            commits=statistics.commits,
            failures=statistics.failures,
            retries=statistics.retries,
            dead_letters=statistics.dead_letters,
            splits=statistics.splits,
            merges=statistics.merges,
            lag=statistics.lag,
            ends_age_s=now_s - work.ends_watch.seen_s,
        )

    def _say(self, line: str) -> None:
        logger.info("%s: %s", self.app, line)
