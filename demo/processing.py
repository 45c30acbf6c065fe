"""One run of the application until it is level, with unrest, progress and whatever is to begin half way."""

import asyncio
import time
from collections.abc import Callable

from ..runtime.app import App
from ..runtime.watch.steps import Step
from .application import ARRIVALS, PARALLELISING_FACTOR, PARALLELISING_FACTOR_ARRIVALS
from .loader import SOURCE
from .unrest import Unrest

NEAR_END_SHARE = 0.8
SHOWN_EVERY_S = 0.25
CUTS = {SOURCE: PARALLELISING_FACTOR, ARRIVALS: PARALLELISING_FACTOR_ARRIVALS}


class Processing:
    """``before``: how many records were done earlier, of ``expected`` in both sources.

    ``on_step`` hears the steps of the commit cycle, ``on_progress`` now and then how many records are done,
    ``on_half`` that half of them are, more than once.
    """

    def __init__(
        self,
        app: App,
        before: int,
        expected: int,
        *,
        on_step: Callable[[Step], None],
        on_progress: Callable[[int], None],
        on_half: Callable[[], None],
    ) -> None:
        self._app, self._before, self._expected = app, before, expected
        self._on_step, self._on_progress, self._on_half = on_step, on_progress, on_half
        self._unrest = Unrest(app, CUTS, before, lambda: self.done > NEAR_END_SHARE * expected)
        self._disturbing: asyncio.Task[None] | None = None
        self._shown_s = 0.0

    @property
    def done(self) -> int:
        """How many records of both sources are done."""
        return self._before + self._app.statistics().records_done

    def run(self) -> None:
        """Work until all is level, or a signal comes; raises what ended the unrest."""
        self._app.run(until="level", on_step=self._hear)
        if self._disturbing is not None and self._disturbing.done() and not self._disturbing.cancelled():
            self._disturbing.result()

    def _hear(self, step: Step) -> None:
        self._on_step(step)
        state = self._app.health().state
        if step != "applied":
            return
        if self._disturbing is None and state == "running":
            self._disturbing = asyncio.get_running_loop().create_task(self._unrest.run())
            self._disturbing.add_done_callback(self._unrest_ended)
        now = time.monotonic()
        if now - self._shown_s >= SHOWN_EVERY_S:
            self._shown_s = now
            self._on_progress(self.done)
            if self.done > self._expected / 2:
                self._on_half()

    def _unrest_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._app.stop()  # what it released would be waited for for ever
