"""Waiting with a limit, and what a broker's errors mean for the application."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from .brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    CorruptRecord,
    OffsetOutOfRange,
    ProducerFenced,
    UnknownTopic,
)
from .errors import BrokerUnavailable, FatalError, FencedError, SourceError

T = TypeVar("T")


async def bounded(work: Awaitable[T], limit_ms: int, what: str) -> T:
    """The result of the work; raises BrokerTimeout that names it when it takes longer than the limit."""
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await work
    except TimeoutError:
        raise BrokerTimeout(f"{what} took longer than {limit_ms} ms") from None


def fatal_of(error: BrokerError) -> FatalError:
    """What an adapter's error is to the application when nothing can be done about it."""
    match error:
        case ProducerFenced():
            return FencedError(f"another process of this application took over: {error}")
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
