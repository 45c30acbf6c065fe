"""The work of each process of the demo: one run of the application until all records are done, with unrest and reports.

The *unrest* changes who works on what: it splits, merges, releases and takes back ranges, as an operator might. Outputs
and state must not show the unrest: the audit proves this. Splits and merges of the runtime's own come on top. Each of
several processes disturbs the ranges that it owns: a released range goes to another process, and is asked back.
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
    """The run of an application with unrest. ``seed``: of the unrest; ``is_quiet``: the unrest begins nothing now.

    ``on_told`` is called in intervals with the report of this process, ``on_step`` with the steps of the commit cycle.
    ``processes``: the number of processes that a service keeps. Each of them does the same; the service itself works on
    no record and reports nothing.
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
        """Work until all records are done or a signal comes; raises the error that ended the unrest."""
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
            self._app.stop()  # else the run would wait for ever for a range that the unrest has released


class Unrest:
    """The unrest of one process, until it is cancelled. While ``is_quiet`` the unrest begins nothing: near the end of
    the work no range shall stay released. ``moving``: the number of ranges on their way out or back.
    """

    def __init__(self, app: App, seed: int | str, is_quiet: Callable[[], bool]) -> None:
        self._app, self._seed, self._is_quiet = app, seed, is_quiet
        self.moving = 0

    async def run(self) -> None:
        """Disturb all source partitions side by side; in one partition one change follows the other."""
        async with asyncio.TaskGroup() as group:
            for topic, workers in CUTS.items():
                for partition in range(PARTITIONS):
                    chance = random.Random(f"{self._seed} {topic} {partition}")
                    group.create_task(self._disturb(topic, partition, even_bounds(workers), chance))

    async def _disturb(self, topic: str, partition: int, bounds: tuple[int, ...], chance: random.Random) -> None:
        """In each round release a range and take the range back, split a worker, and merge two workers."""
        last = len(bounds) - 2 - RELEASED_WORKERS
        while True:
            if not self._is_quiet() and self._is_here(topic, partition):
                i = chance.randrange(last)
                # From the middle of a worker to the middle of another: both workers have to be split for the release.
                await self._out_and_back(
                    topic, partition, KeyRange(_middle(bounds, i), _middle(bounds, i + RELEASED_WORKERS))
                )
                i = chance.randrange(last)
                await self._tried(self._app.split(topic, partition, _middle(bounds, i)))
                # The merge is of the two halves, or of the halves and their neighbour.
                within = KeyRange(bounds[i], bounds[i + chance.choice([1, 2])])
                await self._tried(self._app.merge(topic, partition, within))
            await asyncio.sleep(PAUSE_S * (1 + chance.random()))

    def _is_here(self, topic: str, partition: int) -> bool:
        """Whether this process owns some points of a source partition; one of several processes may own no points."""
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
        except ValueError as error:  # another process owns the range, the runtime was faster, or edges stayed unequal
            logger.info("a change was not possible: %s", error)
            return False
        return True


def _middle(bounds: tuple[int, ...], worker: int) -> int:
    return (bounds[worker] + bounds[worker + 1]) // 2
