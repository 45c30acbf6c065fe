"""Watches for slowness that raises no error: a blocked event loop, and records that wait while nothing moves."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Final

logger = logging.getLogger("keylanes")


NOT_TURNED: Final = "the event loop has not turned for %d ms, so nothing else runs: %s"


class LoopWatch:
    """Notices when the event loop does not turn for ``lag_ms``, and logs the function that blocks the loop, once for
    each block.

    A task of the loop sets an event four times in ``lag_ms``, and a thread waits for the event, ``lag_ms`` at most.
    ``handlers``: the names of async handlers by their code. For real loops only: in virtual time no other thread runs
    meanwhile.
    """

    def __init__(self, lag_ms: int, handlers: Mapping[CodeType, str]) -> None:
        self.lag_ms = lag_ms
        self.handlers = handlers
        self.lag_max_s = 0.0
        self._turned = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0

    async def run(self) -> None:
        """Show the thread that the loop turns, until cancelled."""
        loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="keylanes-watch", daemon=True)
        self._thread.start()
        step = self.lag_ms / 4000
        try:
            while True:
                before = loop.time()
                self._turned.set()
                await asyncio.sleep(step)
                self.lag_max_s = max(self.lag_max_s, loop.time() - before - step)
        finally:
            self._stopped.set()
            self._turned.set()

    def _watch(self) -> None:
        is_logged = False
        while not self._stopped.is_set():
            if self._turned.wait(self.lag_ms / 1000):
                self._turned.clear()
                is_logged = False
                self._stopped.wait(self.lag_ms / 8000)  # the thread needs the lock of Python no more often than this
            elif not is_logged:
                is_logged = True
                if (frame := sys._current_frames().get(self._loop_thread)) is not None:
                    self._log_block(frame)

    def _log_block(self, frame: FrameType) -> None:
        names = [self.handlers[each.f_code] for each, _ in traceback.walk_stack(frame) if each.f_code in self.handlers]
        what = blocked_by(names[0]) if names else f"function {frame.f_code.co_qualname} blocks it."
        logger.error(NOT_TURNED, self.lag_ms, "\n".join([what, *traceback.format_stack(frame)[-4:]]))


def blocked_by(handler: str) -> str:
    """The text about an async handler that blocks the loop."""
    return f"the async handler {handler} blocks it. Make it a plain def: then it runs on a thread."


class StallWatch:
    """Notices that records wait and nothing has moved for ``stall_ms``."""

    def __init__(self, stall_ms: int) -> None:
        self.stall_ms = stall_ms
        self._progress: object = None
        self._since_s = 0.0
        self._said = False

    def look(self, now_s: float, progress: object, has_waiting: bool) -> bool:
        """Whether to log a stall now: once per stall. ``progress`` is any value that changes when something moves;
        ``has_waiting``: whether records wait.
        """
        if progress != self._progress or not has_waiting:
            self._progress, self._since_s, self._said = progress, now_s, False
            return False
        if self._said or now_s - self._since_s < self.stall_ms / 1000:
            return False
        self._said = True
        return True

    @property
    def is_stalled(self) -> bool:
        """Whether a stall is present and was logged."""
        return self._said
