"""Changes who works on what while the demo runs: splits, merges, releases and grants of ranges, as an operator might.

None of it may be seen in outputs or state: the audit proves that. What the runtime splits and merges by itself comes on
top. With several processes each disturbs what it owns: a released range goes to another one, and is asked back.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ..keyrange.ranges import KeyRange, even_bounds
from ..runtime.app import App
from .flights import PARTITIONS

logger = logging.getLogger("keylanes")

PAUSE_S = 2.0
RELEASED_WORKERS = 4


class Unrest:
    """Goes on until it is cancelled. While ``is_quiet`` nothing is begun: near the end, so that nothing stays released.

    ``cuts`` names topics and into how many workers each of their partitions is cut.
    """

    def __init__(self, app: App, cuts: dict[str, int], seed: int | str, is_quiet: Callable[[], bool]) -> None:
        self._app, self._is_quiet = app, is_quiet
        self._cuts, self._seed = cuts, seed
        self._moving = 0

    @property
    def is_moving(self) -> bool:
        """Whether a range is on its way out or back."""
        return self._moving > 0

    async def run(self) -> None:
        """All source partitions side by side; in each one after the other."""
        async with asyncio.TaskGroup() as group:
            for topic, workers in self._cuts.items():
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
        self._moving += 1
        try:
            if await self._tried(self._app.release(topic, partition, given_up)):
                await self._tried(self._app.grant(topic, partition, given_up))
        finally:
            self._moving -= 1

    async def _tried(self, change: Awaitable[None]) -> bool:
        try:
            await change
        except ValueError as error:  # it is not held here, the runtime was faster, or they were not level in time
            logger.info("a change was not possible: %s", error)
            return False
        return True


def _middle(bounds: tuple[int, ...], worker: int) -> int:
    return (bounds[worker] + bounds[worker + 1]) // 2
