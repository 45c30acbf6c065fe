"""What each process of the demo does: one run of the application until it is level, with unrest and progress.

The unrest changes who works on what: splits, merges, releases and grants of ranges, as an operator might. None of it
may be seen in outputs or state: the audit proves that. What the runtime splits and merges by itself comes on top. With
several processes each disturbs what it owns: a released range goes to another one, and is asked back.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from application import ARRIVALS, PARALLELISING_FACTOR, PARALLELISING_FACTOR_ARRIVALS
from course import Told
from flights import PARTITIONS
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.runtime.app import App
from keylanes.runtime.watch.steps import Step
from loader import SOURCE

logger = logging.getLogger("keylanes")

TOLD_EVERY_S = 0.25
PAUSE_S = 2.0
RELEASED_WORKERS = 4
CUTS = {SOURCE: PARALLELISING_FACTOR, ARRIVALS: PARALLELISING_FACTOR_ARRIVALS}


class Processing:
    """``seed`` of the unrest, which lets things be while ``is_quiet``.

    ``on_told`` hears now and then how far this process is, ``on_step`` the steps of the commit cycle. ``processes``: so
    many share the work, each of which does this; the service that keeps them hears nothing of it.
    """

    def __init__(
        self,
        app: App,
        seed: int | str,
        is_quiet: Callable[[], bool],
        *,
        on_told: Callable[[Told], None],
        on_step: Callable[[Step], None] = lambda _: None,
        processes: int = 1,
    ) -> None:
        self._app, self._processes = app, processes
        self._on_step, self._on_told = on_step, on_told
        self._unrest = Unrest(app, seed, is_quiet)
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
        self._on_told(Told(seen.records_done, workers, self._unrest.moving > 0))

    def _unrest_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._app.stop()  # what it released would be waited for for ever


class Unrest:
    """Goes on until it is cancelled. While ``is_quiet`` nothing is begun: near the end, so that nothing stays released.
    ``moving``: so many ranges are on their way out or back.
    """

    def __init__(self, app: App, seed: int | str, is_quiet: Callable[[], bool]) -> None:
        self._app, self._seed, self._is_quiet = app, seed, is_quiet
        self.moving = 0

    async def run(self) -> None:
        """All source partitions side by side; in each one after the other."""
        async with asyncio.TaskGroup() as group:
            for topic, workers in CUTS.items():
                for partition in range(PARTITIONS):
                    chance = random.Random(f"{self._seed} {topic} {partition}")
                    group.create_task(self._disturb(topic, partition, even_bounds(workers), chance))

    async def _disturb(self, topic: str, partition: int, bounds: tuple[int, ...], chance: random.Random) -> None:
        """Round after round: a range is given up and taken up again, a worker split, and two made one."""
        last = len(bounds) - 2 - RELEASED_WORKERS
        while True:
            if not self._is_quiet() and self._is_here(topic, partition):
                i = chance.randrange(last)
                # Through the middle of workers: they have to be split at both borders.
                await self._out_and_back(
                    topic, partition, KeyRange(_middle(bounds, i), _middle(bounds, i + RELEASED_WORKERS))
                )
                i = chance.randrange(last)
                await self._tried(self._app.split(topic, partition, _middle(bounds, i)))
                within = KeyRange(bounds[i], bounds[i + chance.choice([1, 2])])  # the halves again, or with a neighbour
                await self._tried(self._app.merge(topic, partition, within))
            await asyncio.sleep(PAUSE_S * (1 + chance.random()))

    def _is_here(self, topic: str, partition: int) -> bool:
        """Whether this process works on some of a source partition; of several processes it may not."""
        return self._app.health().state == "running" and any(
            (one.topic, one.partition) == (topic, partition) for one in self._app.statistics().partitions
        )

    async def _out_and_back(self, topic: str, partition: int, given_up: KeyRange) -> None:
        self.moving += 1
        try:
            if await self._tried(self._app.release(topic, partition, given_up)):
                await self._tried(self._app.grant(topic, partition, given_up))
        finally:
            self.moving -= 1

    async def _tried(self, change: Awaitable[None]) -> bool:
        try:
            await change
        except ValueError as error:  # it is not held here, the runtime was faster, or they were not level in time
            logger.info("a change was not possible: %s", error)
            return False
        return True


def _middle(bounds: tuple[int, ...], worker: int) -> int:
    return (bounds[worker] + bounds[worker + 1]) // 2
