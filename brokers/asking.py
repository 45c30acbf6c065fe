"""One question to a broker: until when it is asked again, how long one attempt may take, and what is known when no
answer came.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from .protocol import BrokerTimeout

T = TypeVar("T")


class NotSent(BrokerTimeout):
    """There was no connection: the request did not leave."""


class ReplyLost(BrokerTimeout):
    """The request may have been carried out, or may still be; no answer came."""


class Deadline:
    """A point in the loop's time up to which something is tried again. ``pauses``: seconds before each next try.

    ``attempt_ms``: so long one attempt may take, so that one that gets no answer leaves time for others.
    """

    def __init__(self, timeout_ms: float, what: str, pauses: Iterator[float], attempt_ms: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeout_ms / 1000
        self._what, self._timeout_ms, self._pauses = what, timeout_ms, pauses
        self._attempt_s = attempt_ms / 1000

    @property
    def left(self) -> float:
        """Seconds; never below 1 ms, so that it can bound a request."""
        return max(self._at - self._loop.time(), 0.001)

    @property
    def attempt(self) -> float:
        """Seconds for one attempt now."""
        return min(self.left, self._attempt_s)

    def extend(self, seconds: float) -> None:
        """For so long nothing could be asked: a broker throttles."""
        self._at += seconds

    async def pause(self, problem: object) -> None:
        """Wait before the next try; raises BrokerTimeout, which names the problem, when there is no time for one."""
        pause = next(self._pauses)
        self.check(problem, pause)
        await asyncio.sleep(pause)

    def check(self, problem: object, needed_s: float = 0.0) -> None:
        """Raises BrokerTimeout, which names the problem, when less than that is left."""
        if self._loop.time() + needed_s >= self._at:
            said = str(problem) or repr(problem)
            raise BrokerTimeout(f"{self._what}: not done within {self._timeout_ms:.0f} ms ({said})")


async def first_of(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    stagger_s: float,
    is_retried: Callable[[BaseException], bool],
    discard: Callable[[T], None],
) -> T:
    """What the attempt returned that was done first; the others are cancelled.

    They run side by side: each begins ``stagger_s`` after the one before, or as soon as one has failed (RFC 8305,
    "Happy Eyeballs"). An error that is not retried ends all and is raised; when all failed, the last error is.
    ``discard``: gets what another one returned at the same moment.
    """
    waiting = list(attempts)
    running: set[asyncio.Task[T]] = set()
    error: BaseException | None = None
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(waiting.pop(0)()))
            done, running = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            errors = [failed for task in done if (failed := task.exception()) is not None]
            results = [task.result() for task in done if task.exception() is None]
            if results:
                for result in results[1:]:
                    discard(result)
                return results[0]
            for error in errors:
                if not is_retried(error):
                    raise error
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
            for task in running:
                if not task.cancelled() and task.exception() is None:
                    discard(task.result())
    assert error is not None, "there is at least one attempt"
    raise error
