"""The patience of a start with a cluster that does not answer: each step may use all the time of the start."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...brokers.patience import PATIENCE_STEP_MS, within_limit
from ...brokers.protocol import BrokerTimeout

T = TypeVar("T")

logger = logging.getLogger("keylanes")


class StartPatience:
    """Asks again until the start's own limit, ``start_timeout_ms``; remembers the last error."""

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._problem: BrokerTimeout | None = None

    async def within(self, starting: Awaitable[T]) -> T:
        """Await a part of the start within the limit; raises BrokerTimeout, which names the last problem."""
        try:
            return await within_limit(starting, self.limit_ms, "starting")
        except BrokerTimeout as error:
            if self._problem is None:
                raise
            raise BrokerTimeout(f"{error}: {self._problem}") from self._problem

    async def ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call, which must be safe to repeat, until it answers; returns the answer."""
        while True:
            try:
                answer = await ask()
            except BrokerTimeout as error:
                await self.wait(error)
            else:
                self._problem = None
                return answer

    async def wait(self, problem: BrokerTimeout) -> None:
        """Wait a moment before the next try; logs the first problem."""
        if self._problem is None:
            logger.warning("the broker does not answer; the start tries for %d ms: %s", self.limit_ms, problem)
        self._problem = problem
        await asyncio.sleep(PATIENCE_STEP_MS / 1000)
