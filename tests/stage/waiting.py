"""Waiting for what has no event."""

import asyncio
from collections.abc import Callable


async def reached(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait until it is so; TimeoutError when it takes too long."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)
