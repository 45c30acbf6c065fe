"""What each process of the demo does: one run of the application until it is level, with unrest and progress."""

import asyncio
import time
from collections.abc import Callable

from ..runtime.app import App
from ..runtime.watch.steps import Step
from .application import ARRIVALS, PARALLELISING_FACTOR, PARALLELISING_FACTOR_ARRIVALS
from .course import Told
from .loader import SOURCE
from .unrest import Unrest

TOLD_EVERY_S = 0.25
CUTS = {SOURCE: PARALLELISING_FACTOR, ARRIVALS: PARALLELISING_FACTOR_ARRIVALS}


class Processing:
    """``seed`` of the unrest, which lets things be while ``is_quiet``.

    ``on_step`` hears the steps of the commit cycle, ``on_told`` now and then how far this process is. ``processes``: so
    many share the work, each of which does this; the service that keeps them hears nothing of it.
    """

    def __init__(
        self,
        app: App,
        seed: int | str,
        *,
        is_quiet: Callable[[], bool],
        on_step: Callable[[Step], None],
        on_told: Callable[[Told], None],
        processes: int = 1,
    ) -> None:
        self._app, self._processes = app, processes
        self._on_step, self._on_told = on_step, on_told
        self._unrest = Unrest(app, CUTS, seed, is_quiet)
        self._disturbing: asyncio.Task[None] | None = None
        self._told_s = 0.0

    def run(self) -> None:
        """Work until all is level, or a signal comes; raises what ended the unrest."""
        self._app.run(until="level", processes=self._processes, on_step=self._hear)
        if self._told_s:
            self._tell()
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
        if now - self._told_s >= TOLD_EVERY_S:
            self._told_s = now
            self._tell()

    def _tell(self) -> None:
        seen = self._app.statistics()
        workers = sum(partition.workers for partition in seen.partitions)
        self._on_told(Told(seen.records_done, workers, self._unrest.is_moving))

    def _unrest_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._app.stop()  # what it released would be waited for for ever
