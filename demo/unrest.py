"""Changes who works on what while the demo runs: splits, merges, releases and grants of ranges, as an operator might.

None of it may be seen in outputs or state: the audit proves that.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ..keyrange.ranges import KeyRange, even_bounds
from ..runtime.app import App
from .flights import PARTITIONS

logger = logging.getLogger("keylanes")

PAUSE_S = 0.1
RELEASED_WORKERS = 4


class Unrest:
    """Goes on until it is cancelled. ``is_near_end``: from then on it lets things be, so that nothing stays released.

    ``cuts`` names topics and into how many workers each of their partitions is cut.
    """

    def __init__(self, app: App, cuts: dict[str, int], chance: random.Random, is_near_end: Callable[[], bool]) -> None:
        self._app, self._chance, self._is_near_end = app, chance, is_near_end
        self._cuts = sorted(cuts.items())

    async def run(self) -> None:
        """Round after round: one split, one merge, one range that is given up and taken up again."""
        while not self._is_near_end():
            topic, workers = self._chance.choice(self._cuts)
            partition = self._chance.randrange(PARTITIONS)
            bounds = even_bounds(workers)
            i = self._chance.randrange(workers - RELEASED_WORKERS - 1)
            own = KeyRange(bounds[i], bounds[i + 1])
            await self._tried(self._app.split(topic, partition, _middle(own)))
            await self._tried(
                self._app.merge(topic, partition, self._chance.choice([own, KeyRange(*bounds[i : i + 3 : 2])]))
            )
            i = self._chance.randrange(workers - RELEASED_WORKERS - 1)
            # Through the middle of workers: they have to be split at both borders.
            middles = [_middle(KeyRange(bounds[j], bounds[j + 1])) for j in (i, i + RELEASED_WORKERS)]
            given_up = KeyRange(*middles)
            if await self._tried(self._app.release(topic, partition, given_up)):
                await self._tried(self._app.grant(topic, partition, given_up))
            await asyncio.sleep(PAUSE_S)

    async def _tried(self, change: Awaitable[None]) -> bool:
        try:
            await change
        except ValueError as error:  # merged before, or not level in time: then it is something else's turn
            logger.info("a change was not possible: %s", error)
            return False
        return True


def _middle(within: KeyRange) -> int:
    return (within.first + within.end) // 2
