"""Handlers as ``app.test()`` calls them: one that would block the event loop of a run is named there, too.

Time is virtual in a test, and no loop is late there. A run has its ``LoopWatch``, which costs a record nothing.
"""

import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from msgspec.structs import replace

from .engine.awaited import awaited
from .handlers.handler import Handler
from .watch.watchdog import NOT_TURNED, blocked_by

logger = logging.getLogger("keylanes")


class HandlerWatch:
    """Measures in real time each step of async handlers. A step of ``lag_ms`` is logged, once for each handler."""

    def __init__(self, lag_ms: int) -> None:
        self.lag_ms = lag_ms
        self.lag_max_s = 0.0
        self._said: set[str] = set()

    def over(self, handler: Handler) -> Handler:
        """The handler, watched."""
        if not handler.is_async:  # it runs on a thread
            return handler
        function = awaited(replace(handler, own_task=False))

        async def call(*arguments: Any) -> Any:
            return await _measured(function(*arguments), lambda seconds: self._look(handler.name, seconds))

        return replace(handler, function=call, is_decorated=False)

    def _look(self, handler: str, seconds: float) -> None:
        self.lag_max_s = max(self.lag_max_s, seconds)
        if seconds * 1000 >= self.lag_ms and handler not in self._said:
            self._said.add(handler)
            logger.error(NOT_TURNED, seconds * 1000, blocked_by(handler))


@types.coroutine
def _measured(work: Coroutine[Any, Any, Any], took: Callable[[float], None]) -> Generator[Any, None, Any]:
    """Await the work, and tell of each step how many seconds it took."""
    raised: BaseException | None = None
    while True:
        began_s = time.perf_counter()
        try:
            waits_for = work.send(None) if raised is None else work.throw(raised)
        except StopIteration as ended:
            return ended.value
        finally:
            took(time.perf_counter() - began_s)
        raised = None
        try:
            yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001  # it is the work's
            raised = error
