"""Waiting with a limit, and the meaning of a broker's errors for the application."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from ..errors import AccessRefused, BrokerUnavailable, FatalError, FencedError, MachineError, SourceError
from .protocol import (
    AuthenticationRefused,
    BrokerError,
    BrokerTimeout,
    CorruptRecord,
    NotAuthorized,
    OffsetOutOfRange,
    ProducerFenced,
    TransactionRefused,
    UnknownTopic,
)

T = TypeVar("T")

logger = logging.getLogger("keylanes")

PATIENCE_STEP_MS: Final = 200
CLOCK: Final = "%Y-%m-%d %H:%M:%S"
SETTLED_MS: Final = 2_000
"""An answer so soon after a refusal may belong to an earlier request: requests are answered in their order."""


async def within_limit(work: Awaitable[T], limit_ms: int, what: str) -> T:
    """The result of the work; raises BrokerTimeout with the name ``what`` when the work takes longer than the limit."""
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await work
    except TimeoutError:
        raise BrokerTimeout(f"{what} took longer than {limit_ms} ms") from None


async def rest(seconds: float, news: asyncio.Event | None = None) -> None:
    """Let time pass until the next round of repeated work: beats, polls, looks. Ends at once with ``news``; the end of
    the time sets ``news``, too.

    A simulation may leave out rounds of an application at rest, and knows a rest by the callback ``end_rest``.
    """
    news = news or asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, end_rest, news)
    try:
        await news.wait()
    finally:
        timer.cancel()


def end_rest(news: "asyncio.Event | asyncio.Future[None]") -> None:
    """End a rest."""
    if isinstance(news, asyncio.Event):
        news.set()
    elif not news.done():
        news.set_result(None)


class Patience:
    """How long a caller waits for a broker that does not answer, or refuses a right. An answer starts the time anew."""

    def __init__(self, limit_ms: int, what: str) -> None:
        self.limit_ms = limit_ms
        self.what = what
        self._since_s: float | None = None
        self._refused_s = 0.0
        self._refusals = 0

    def note_answer(self) -> None:
        """The broker answered."""
        if self._since_s is None:
            return
        if self._refusals:
            if (asyncio.get_running_loop().time() - self._refused_s) * 1000 < SETTLED_MS:
                return
            logger.info("%s goes on: it was refused %d times", self.what, self._refusals)
            self._refusals = 0
        self._since_s = None

    async def wait(self, error: "BrokerTimeout | NotAuthorized") -> None:
        """Wait a moment before the next try; raises the error again when the limit is spent."""
        now = asyncio.get_running_loop().time()
        is_refused = isinstance(error, NotAuthorized)
        if self._since_s is None:
            self._since_s = now
            how = "a right is missing" if is_refused else "the broker does not answer"
            logger.warning("%s: %s, trying for %d ms: %s", self.what, how, self.limit_ms, error)
        if is_refused:
            self._refused_s, self._refusals = now, self._refusals + 1
        if now - self._since_s >= self.limit_ms / 1000:
            raise error
        await asyncio.sleep(PATIENCE_STEP_MS / 1000)


async def ask_until_answered(ask: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Ask until the broker answers. A broker that does not answer is asked again; so is a broker that refuses a right,
    because the right may be given back. Other errors are raised at once.

    Raises BrokerTimeout, NotAuthorized when the patience is spent.
    """
    while True:
        try:
            answer = await ask()
        except (BrokerTimeout, NotAuthorized) as error:
            await patience.wait(error)
        else:
            patience.note_answer()
            return answer


async def close_within(
    limit_ms: int,
    closing: Awaitable[object],
    what: str,
    *,
    excused: type[Exception] | tuple[type[Exception], ...] = Exception,
    level: int = logging.DEBUG,
) -> None:
    """Close something within the limit. An error is logged: nothing depends on the end of a close.

    A passed limit is a BrokerTimeout. Errors of kinds that are not ``excused`` are raised; a cancellation, too.
    """
    try:
        await within_limit(closing, limit_ms, what)
    except excused as error:
        logger.log(level, "%s: %s", what, error)


def abandon(task: "asyncio.Task[Any]") -> None:
    """End a task that ignores cancellation: the coroutine is closed, and Python says nothing more of the task."""
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    work: Any = task.get_coro()
    with contextlib.suppress(Exception):  # the coroutine may ignore the close, too
        work.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio says of its own tasks


def fatal_of(error: BrokerError) -> FatalError:
    """The application's error for an adapter's error when nothing can be done about the error."""
    match error:
        case ProducerFenced():
            return FencedError(f"another process of this application took over: {error}")
        case NotAuthorized() | AuthenticationRefused():
            return AccessRefused(str(error))
        case TransactionRefused(is_untimely=True):  # of our own records: the clock of this machine stamped them
            now = time.strftime(CLOCK, time.gmtime())
            return MachineError(
                f"the clocks of this machine and of the broker differ: here it is {now} UTC, and {error}. A broker "
                "takes no record whose time is further ahead of its own clock than message.timestamp.after.max.ms, an "
                "hour by default, or further behind than .before.max.ms. Set the clock right and start again"
            )
        case OffsetOutOfRange():
            return SourceError(
                f"records that were not processed yet are gone: {error}. Retention or deletion passed them; nothing "
                "was skipped. Restore the records, or start a new application name."
            )
        case UnknownTopic() | CorruptRecord():
            return SourceError(str(error))
        case BrokerTimeout():
            return BrokerUnavailable(str(error))
        case _:
            return BrokerUnavailable(f"{type(error).__name__}: {error}")


def refusal_in(error: BaseException | None) -> NotAuthorized | AuthenticationRefused | None:
    """The refused right, or log-in, behind an error; None: the error has another cause."""
    while error is not None:
        if isinstance(error, NotAuthorized | AuthenticationRefused):
            return error
        error = error.__cause__
    return None


def give_up_error(what: str, error: BrokerError) -> FatalError:
    """The error that ends the application after tries for as long as the settings say; ``what``: the work tried."""
    refusal = refusal_in(error)
    return BrokerUnavailable(f"{what}: {error}") if refusal is None else AccessRefused(f"{what}: {refusal}")
