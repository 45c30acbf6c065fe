"""Changes who works on what while the demo runs: splits, merges, releases and grants of ranges, as an operator might.

None of it may be seen in outputs or state: the audit proves that. What the runtime splits and merges by itself comes on
top.
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
    """Goes on until it is cancelled. ``is_near_end``: from then on it lets things be, so that nothing stays released.

    ``cuts`` names topics and into how many workers each of their partitions is cut.
    """

    def __init__(self, app: App, cuts: dict[str, int], seed: int, is_near_end: Callable[[], bool]) -> None:
        self._app, self._is_near_end = app, is_near_end
        self._cuts, self._seed = cuts, seed

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
        while not self._is_near_end():
            i = chance.randrange(last)
            # Through the middle of workers: they have to be split at both borders.
            given_up = KeyRange(_middle(bounds, i), _middle(bounds, i + RELEASED_WORKERS))
            if await self._tried(self._app.release(topic, partition, given_up)):
                await self._tried(self._app.grant(topic, partition, given_up))
            i = chance.randrange(last)
            await self._tried(self._app.split(topic, partition, _middle(bounds, i)))
            within = KeyRange(bounds[i], bounds[i + chance.choice([1, 2])])  # the halves again, or with a neighbour
            await self._tried(self._app.merge(topic, partition, within))
            await asyncio.sleep(PAUSE_S * (1 + chance.random()))

    async def _tried(self, change: Awaitable[None]) -> bool:
        try:
            await change
        except ValueError as error:  # the runtime was faster, or they were not level in time
            logger.info("a change was not possible: %s", error)
            return False
        return True


def _middle(bounds: tuple[int, ...], worker: int) -> int:
    return (bounds[worker] + bounds[worker + 1]) // 2
