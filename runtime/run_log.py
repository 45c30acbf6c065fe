"""Logs the story of a run at INFO: the start, the work, the moment of having caught up, the progress, the end.

watch/story.py makes the text. Time is the loop's: a simulated run tells the same story each time.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from .build_info import IS_COMPILED, VERSION
from .engine.partition_run import PartitionRun
from .settings import Settings
from .watch import story
from .watch.failures import foreign_in
from .watch.statistics import Statistics
from .watch.story import Figures
from .work import Work

logger = logging.getLogger("keylanes")

LEVEL_LOOK_S: Final = 1.0
"""The time between two looks whether the run has caught up: a look takes time for each worker."""


class RunLog:
    """The log lines of a run. ``broker``: the address. ``statistics`` returns the present state for a line."""

    def __init__(self, app: str, broker: str, settings: Settings, statistics: Callable[[], Statistics]) -> None:
        self.app = app
        self.broker = broker
        self.settings = settings
        self._statistics = statistics
        self._began_s = 0.0
        self._work: Work | None = None
        """None: the run does not work yet."""
        self._interval = story.Interval(0.0)
        self._is_catch_up_logged = False
        self.cut_off = 0
        """How many running records were dropped at the end."""
        self._next_look_s = 0.0

    def log_start(self, now_s: float) -> None:
        """Log the start, before anything is connected."""
        self._began_s = now_s
        for line in story.start_text(VERSION, self.broker, is_compiled=IS_COMPILED):
            self._say(line)

    def note_work(self, work: Work, now_s: float) -> None:
        """Note the work, when the process has joined."""
        self._work, self._interval = work, story.Interval(now_s)

    def log_new_partitions(self, runs: Sequence[PartitionRun]) -> None:
        """Log new partitions, once their ranges are cut into workers, and before the first record is read."""
        partitions, places = self._statistics().partitions, {run.dispatch.place for run in runs}
        for topic in dict.fromkeys(run.dispatch.topic for run in runs):
            own = [one for one in partitions if one.topic == topic and (topic, one.partition) in places]
            offsets = {one.partition: one.offset_least for one in own}
            self._say(story.work_text(topic, offsets, sum(one.workers for one in own), sum(one.lag for one in own)))

    def look(self, work: Work, now_s: float) -> None:
        """Log the lines that are due. The run calls this function in short intervals."""
        if not self._is_catch_up_logged and now_s >= self._next_look_s:
            self._next_look_s = now_s + LEVEL_LOOK_S
            if self._is_caught_up(work):
                self._is_catch_up_logged = True
                self._say(story.level(self._statistics().records_done, now_s - self._began_s))
        if self._interval.is_due(now_s):
            line = self._interval.look(now_s, self._figures(work, now_s))
            if line is not None:
                self._say(line)

    def log_leaving(self, leave_ms: int) -> None:
        """Log that the process works on while others copy its state."""
        self._say(story.leave_text(leave_ms))

    def log_early_leave(self, leave_ms: int) -> None:
        """Log that the process no longer waits for others to copy its state."""
        logger.warning("%s: %s", self.app, story.left_early(leave_ms))

    def log_stop(self, why: str, running: int) -> None:
        """Log that the process reads no more, and that running handlers come to their end."""
        self._say(story.stop_text(why, running, self.settings.drain_timeout_ms))

    def log_dropped(self, running: int, *, at_once: bool) -> None:
        """Log how many running records were dropped at the end of the drain, or of a stop without a drain."""
        self.cut_off = max(0, running)
        if self.cut_off:
            limit_ms = None if at_once else self.settings.drain_timeout_ms
            logger.warning("%s: %s", self.app, story.cut_off(self.cut_off, limit_ms))

    def log_unclosed(self, unclosed: int) -> None:
        """Log how many parts had no time left to close."""
        if unclosed:
            logger.warning("%s: %s", self.app, story.cut_short(unclosed, self.settings.close_timeout_ms))

    def log_end(self, how: str, now_s: float) -> None:
        """Log the end; ``how`` says how the run ended."""
        if self._work is None:
            self._say(story.stopped_early(how))
        else:
            self._say(story.end_text(how, self._figures(self._work, now_s), now_s - self._began_s))

    def _is_caught_up(self, work: Work) -> bool:
        ends = work.ends
        # Fronts first: the edges of all workers cost more time.
        is_handed_out = bool(work.runs) and all(
            run.dispatch.place in ends and run.dispatch.front >= ends[run.dispatch.place] for run in work.runs
        )
        return is_handed_out and work.ends_watch.has_caught_up(ends)

    def _figures(self, work: Work, now_s: float) -> Figures:
        """The numbers of a line. Ages are by the loop's time, also where the statistics have another clock."""
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


def log_fatal(app: str, error: Exception, on_fatal: Callable[[BaseException], None] | None) -> None:
    """Log the error that ended a run, and call ``on_fatal`` with the error."""
    logger.critical("%s stops: %s", app, error, exc_info=foreign_in(error))
    if on_fatal is not None:
        try:
            on_fatal(error)
        except Exception:
            logger.exception("on_fatal failed")  # the caller has to get the error that ended the run
