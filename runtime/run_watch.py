"""The watch over a run: overdue records, records that wait while nothing moves, a control log that can't be read."""

import logging

from .engine.slots import Slots
from .membership.control_tail import ControlTail
from .run_log import RunLog
from .settings import Settings
from .watch.watchdog import StallWatch
from .work import Work

logger = logging.getLogger("keylanes")


class RunWatch:
    """Looks at a run in intervals."""

    def __init__(self, slots: Slots, control_tail: ControlTail, run_log: RunLog, settings: Settings) -> None:
        self.slots = slots
        self.control_tail = control_tail
        self.run_log = run_log
        self.settings = settings
        self.stall = StallWatch(settings.stall_ms)
        self._is_log_lost = False

    def look(self, work: Work, now: float) -> None:
        """Look now, by the loop's time."""
        self.slots.end_overdue(now)
        self.run_log.look(work, now)
        progress = (self.slots.records_done, sum(r.dispatch.front for r in work.runs))
        has_waiting = any(w.is_loaded or w.dropped_from is not None for r in work.runs for w in r.dispatch.workers)
        if self.stall.look(now, progress, has_waiting):
            logger.error(
                "records wait and nothing has moved for %d ms; oldest running record: %s",
                self.settings.stall_ms,
                self.slots.oldest_running(now) or "none",
            )
        self._look_at_log()

    def _look_at_log(self) -> None:
        """Begin no record while the control log can't be read: after a session others may have the ranges."""
        is_lost = self.control_tail.is_lost()
        if is_lost != self._is_log_lost:
            self._is_log_lost = is_lost
            logger.warning(
                "the control log %s: records are %s",
                "can't be read for session_timeout_ms" if is_lost else "can be read again",
                "not begun until it can" if is_lost else "begun again",
            )
            self.slots.hold(is_held=is_lost)
