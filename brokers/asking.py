"""One question to a broker: until when it is asked again, and what is known when no answer came."""

import asyncio
from collections.abc import Iterator

from .protocol import BrokerTimeout


class NotSent(BrokerTimeout):
    """There was no connection: the request did not leave."""


class ReplyLost(BrokerTimeout):
    """The request may have been carried out, or may still be; no answer came."""


class Deadline:
    """A point in the loop's time up to which something is tried again. ``pauses``: seconds before each next try."""

    def __init__(self, timeout_ms: float, what: str, pauses: Iterator[float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeout_ms / 1000
        self._what, self._timeout_ms, self._pauses = what, timeout_ms, pauses

    @property
    def left(self) -> float:
        """Seconds; never below 1 ms, so that it can bound a request."""
        return max(self._at - self._loop.time(), 0.001)

    async def pause(self, problem: object) -> None:
        """Wait before the next try; raises BrokerTimeout, which names the problem, when there is no time for one."""
        pause = next(self._pauses)
        if self._loop.time() + pause >= self._at:
            said = str(problem) or repr(problem)
            raise BrokerTimeout(f"{self._what}: not done within {self._timeout_ms:.0f} ms ({said})")
        await asyncio.sleep(pause)
