"""Who is blamed for an event loop that does not turn."""

import asyncio
import logging
import time
from types import CodeType

import pytest

from keylanes.runtime.watch.watchdog import LoopWatch

from ...tiers.marks import tier

pytestmark = tier("check")

SAID_S_MAX = 10.0


def hold(caplog: pytest.LogCaptureFixture) -> None:
    """Keep the loop until something is said of it, without a call of another Python function."""
    until, records = time.monotonic() + SAID_S_MAX, caplog.handler.records
    while not records and time.monotonic() < until:
        pass


async def handle(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that computes."""
    hold(caplog)


async def said(handlers: dict[CodeType, str], caplog: pytest.LogCaptureFixture) -> str:
    """The first line that is logged while ``handle`` keeps the loop."""
    watching = asyncio.create_task(LoopWatch(20, handlers).run())
    await asyncio.sleep(0)
    with caplog.at_level(logging.ERROR):
        await handle(caplog)
    watching.cancel()
    await asyncio.wait([watching], timeout=SAID_S_MAX)
    return caplog.messages[0].splitlines()[0]


async def test_the_handler_that_blocks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It is the one on the stack, whatever else runs."""
    told = await said({handle.__code__: "shop.handle", _other.__code__: "other"}, caplog)
    assert "the async handler shop.handle blocks it. Make it a plain def" in told


async def test_no_handler_is_blamed_where_none_runs(caplog: pytest.LogCaptureFixture) -> None:
    """The function that keeps the loop is named in its place."""
    told = await said({_other.__code__: "other"}, caplog)
    assert told.endswith("function hold blocks it.")
    assert "handler" not in told


def _other() -> None:
    """A handler that does not run."""
