"""Who is expelled comes back, unless it was told to stop meanwhile."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from keylanes import Settings
from keylanes.runtime.app_runs import BACK_OFF_S, AppRuns
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.member import AppRun

from ..stage.virtual import virtual


class Short:
    """Stands for a member: its run ends as expelled for silence, when it is ``over``."""

    def __init__(self, over: Callable[[], bool], *, is_ready: bool = True) -> None:
        self.over, self.is_ready = over, is_ready
        self.stops = 0

    async def wait_until_started(self, running: "asyncio.Task[None]") -> None:
        """At once, or when all is over."""
        if not self.is_ready:
            await asyncio.wait([running])

    async def run(self, **_: Any) -> None:
        """Until it is over."""
        while not self.over():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.1)
        raise Expelled("app", 1, "silent")

    def stop(self, **_: Any) -> None:
        """Noted."""
        self.stops += 1


def rejoining(made: list[Short], *, first_is_ready: bool = True) -> AppRuns:
    """Runs, the first of which is over at once, and the next when it is told to stop."""

    def make() -> AppRun:
        is_first = not made
        made.append(Short(lambda: is_first or made[-1].stops > 0, is_ready=first_is_ready or not is_first))
        return cast(AppRun, made[-1])

    return AppRuns(make, lambda member: None, Settings())


@virtual
async def test_one_that_is_told_to_stop_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    """Expelled twice, it joins again the first time; the second time it was told to stop before."""
    caplog.set_level(logging.INFO, "keylanes")
    made: list[Short] = []
    runs = rejoining(made)
    running = asyncio.get_running_loop().create_task(runs.run())
    await asyncio.sleep(10)
    assert len(made) == 2
    runs.stop()
    await running
    assert len(made) == 2
    assert [caplog.text.count(words) for words in ("it joins again in", "it was told to stop, and does")] == [1, 1]


@virtual
async def test_one_that_is_told_to_stop_as_its_wait_ends_does_not_come_back() -> None:
    """In the very turn of the loop in which it would have joined again."""
    made: list[Short] = []
    loop = asyncio.get_running_loop()
    runs = rejoining(made)
    running = loop.create_task(runs.run())
    await asyncio.sleep(0)
    loop.call_at(loop.time() + BACK_OFF_S, runs.stop)
    async with asyncio.timeout(10 * BACK_OFF_S):
        await running
    assert len(made) == 1


@virtual
async def test_who_waits_for_the_start_gets_the_run_that_comes_to_work() -> None:
    """The first is expelled before it works on anything; what counts is that the second does."""
    made: list[Short] = []
    runs = rejoining(made, first_is_ready=False)
    running = asyncio.get_running_loop().create_task(runs.run())
    async with asyncio.timeout(10):
        await runs.wait_until_started(running)
    assert len(made) == 2
    runs.stop()
    await running
