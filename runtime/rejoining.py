"""A process that was expelled without cause of its own comes back: under a new birth, with nothing in memory of before.

Who was silent for a session, say because its machine stood still, has lost its ranges to others and nothing else: it
asks to join again. Who was superseded by another process of its name, or left, does not.
"""

import asyncio
import logging
from collections.abc import Callable

from .logs.office import Expelled
from .member import AppRun
from .settings import Settings
from .stopping import StopBudget

logger = logging.getLogger("keylanes")

BACK_OFF_S = 1.0
BACK_OFF_S_MAX = 30.0
"""The wait before it asks to join again; it doubles while that leads to no longer life than the longest wait."""


class Rejoining:
    """The runs of one process, one after the other. ``make`` makes the member of the next, ``adopt`` hears of it."""

    def __init__(self, make: Callable[[], AppRun], adopt: Callable[[AppRun], None], settings: Settings) -> None:
        self.make, self.adopt, self.settings = make, adopt, settings
        self.loop = asyncio.get_running_loop()
        self._stop, self._next = asyncio.Event(), asyncio.Event()
        self.is_coming_back = False
        """It was expelled, and is about to ask to join again."""
        self._ended_between = False
        """It ended between two runs."""
        self.member = make()
        adopt(self.member)

    @property
    def budget(self) -> StopBudget:
        """The time that the end has."""
        return StopBudget(self.settings) if self._ended_between else self.member.stopping.budget

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order, also between two runs; ``at_once``: see Member."""
        self._stop.set()
        self.member.stop(at_once=at_once)

    async def started(self, running: "asyncio.Task[None]") -> None:
        """Wait until one of its runs works on what it was granted first. Raises what ended the task of ``run`` before
        that.
        """
        while True:
            self._next.clear()
            tasks = [self.loop.create_task(self.member.started(running)), self.loop.create_task(self._next.wait())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
            if tasks[0].done():
                await tasks[0]
                return

    async def run(self, *, until_level: bool = False) -> None:
        """Until it is stopped, or ends for a cause that coming back would not mend."""
        back_off_s = BACK_OFF_S
        while True:
            began_s = self.loop.time()
            try:
                await self.member.run(until_level=until_level)
            except Expelled as out:
                if self.settings.exit_on_expulsion or not out.comes_back:
                    raise
                if self._stop.is_set():
                    logger.warning("%s; it was told to stop, and does", out)
                    return
                if self.loop.time() - began_s > BACK_OFF_S_MAX:
                    back_off_s = BACK_OFF_S
                logger.warning("%s; it joins again in %.0f s", out, back_off_s)
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
            if self._stop.is_set():  # also in the very moment in which the time was over
                self._ended_between = True
                return
            self.member = self.make()
            self.adopt(self.member)
            self._next.set()
