"""The return of a process that was expelled without a fault of its own, under a new birth, with empty memory.

A process that was silent for a session, say on a paused machine, has lost its ranges to others and nothing else. The
process asks to join again. A process that has left the group, or was superseded by another process of its name, does
not join again.
"""

import asyncio
import logging
from collections.abc import Callable

from .logs.own_ledger import Expelled
from .member import AppRun
from .settings import Settings
from .shutdown import StopBudget

logger = logging.getLogger("keylanes")

BACK_OFF_S = 1.0
BACK_OFF_S_MAX = 30.0
"""The wait before joining again, in seconds; doubled each time until a run lives longer than the longest wait."""


class AppRuns:
    """The runs of a process, in turn. ``make`` makes the next member; ``adopt`` is called with the new member."""

    def __init__(self, make: Callable[[], AppRun], adopt: Callable[[AppRun], None], settings: Settings) -> None:
        self.make = make
        self.adopt = adopt
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        """Set when the process is told to stop."""
        self._next = asyncio.Event()
        """Set when a further run has taken the place of an expelled run."""
        self.is_coming_back = False
        """The process was expelled, and is about to ask to join again."""
        self._ended_between = False
        """The process was told to stop between two runs, and no run begins any more."""
        self.member = make()
        adopt(self.member)

    @property
    def budget(self) -> StopBudget:
        """The time limits of the end."""
        return StopBudget(self.settings) if self._ended_between else self.member.shutdown.budget

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order, also between two runs; ``at_once``: see ``Shutdown.order_stop``."""
        self._stop.set()
        self.member.stop(at_once=at_once)

    async def wait_until_started(self, running: "asyncio.Task[None]") -> None:
        """Wait until a run works on its first grants; ``running``: the task of ``run``. Raises the error of the task
        when the task ends before.
        """
        while True:
            self._next.clear()
            started = self.loop.create_task(self.member.wait_until_started(running))
            tasks = [started, self.loop.create_task(self._next.wait())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
            if started.done():
                await started
                return

    async def run(self, *, until_level: bool = False) -> None:
        """Run until the process is told to stop, or ends for a cause that another run would meet again."""
        back_off_s = BACK_OFF_S
        while True:
            began_s = self.loop.time()
            try:
                await self.member.run(until_level=until_level)
            except Expelled as expelled:
                if self.settings.exit_on_expulsion or not expelled.comes_back:
                    raise
                if self._stop.is_set():
                    logger.warning("%s; it was told to stop, and does", expelled)
                    return
                if self.loop.time() - began_s > BACK_OFF_S_MAX:
                    back_off_s = BACK_OFF_S
                logger.warning("%s; it joins again in %.0f s", expelled, back_off_s)
            else:
                return
            self.is_coming_back = True
            try:
                async with asyncio.timeout(back_off_s):
                    await self._stop.wait()
            except TimeoutError:
                back_off_s = min(2 * back_off_s, BACK_OFF_S_MAX)
            finally:
                self.is_coming_back = False
            if self._stop.is_set():  # also when the stop and the timeout came at the same moment
                self._ended_between = True
                return
            self.member = self.make()
            self.adopt(self.member)
            self._next.set()
