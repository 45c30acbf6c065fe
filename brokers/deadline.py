"""One question to a broker: the time for repeating, the limit of one attempt, the meaning of a missing answer."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from .protocol import BrokerTimeout

T = TypeVar("T")


class NotSent(BrokerTimeout):
    """There was no connection: the request did not leave."""


class ReplyLost(BrokerTimeout):
    """No answer came: the request may have been carried out, or may still be."""


class Deadline:
    """The point in the loop's time up to which a question is repeated. ``pauses``: seconds before each next try.

    ``attempt_ms``: the limit of one attempt, so an attempt without an answer leaves time for more attempts.
    """

    def __init__(self, timeout_ms: float, what: str, pauses: Iterator[float], attempt_ms: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeout_ms / 1000
        self._what = what
        self._timeout_ms = timeout_ms
        self._pauses = pauses
        self._attempt_s = attempt_ms / 1000

    @property
    def remaining_s(self) -> float:
        """Seconds that are left; never below 1 ms, as a bound for a request."""
        return max(self._at - self._loop.time(), 0.001)

    @property
    def attempt(self) -> float:
        """Seconds that an attempt may take if begun now."""
        return min(self.remaining_s, self._attempt_s)

    def extend(self, seconds: float) -> None:
        """Make the deadline later by the seconds for which a broker throttled and nothing could be asked."""
        self._at += seconds

    async def pause(self, problem: object) -> None:
        """Wait before the next try; raises BrokerTimeout with the problem when no time is left for a try."""
        pause = next(self._pauses)
        self.check(problem, pause)
        await asyncio.sleep(pause)

    def check(self, problem: object, needed_s: float = 0.0) -> None:
        """Raises BrokerTimeout with the problem when less than ``needed_s`` is left."""
        if self._loop.time() + needed_s >= self._at:
            said = str(problem) or repr(problem)
            raise BrokerTimeout(f"{self._what}: not done within {self._timeout_ms:.0f} ms ({said})")


async def first_of(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    stagger_s: float,
    is_retried: Callable[[BaseException], bool],
    discard: Callable[[T], None],
) -> T:
    """The result of the first attempt that succeeds; the other attempts are cancelled.

    Attempts run side by side: each begins ``stagger_s`` after the last, or as soon as an attempt has failed (RFC 8305,
    "Happy Eyeballs"). An error that ``is_retried`` refuses ends all attempts and is raised. When all attempts fail, the
    last error is raised. ``discard`` gets the result of another attempt that succeeds at the same moment.
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
