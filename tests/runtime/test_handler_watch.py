"""What ``app.test()`` says of handlers that make no error and still are wrong."""

import asyncio
import re
import time
from typing import Any

import pytest

from keylanes import App, Retry, Settings


def sleeping(*, is_async: bool, slept_s: float = 0.25, **options: Any) -> App:
    """An application whose handler sleeps behind a wait, in real time."""
    app = App("sleeping", broker="embedded:never-opened", settings=Settings.of(loop_lag_ms=200))

    async def sleeps(value: int) -> int:
        await asyncio.sleep(10)
        time.sleep(slept_s)  # noqa: ASYNC251  # what must not be done, and is noticed
        return value

    def waits(value: int) -> int:
        time.sleep(slept_s)
        return value

    app.handler("in", to="out", **options)(sleeps if is_async else waits)
    return app


@pytest.mark.parametrize("options", [{}, {"own_task": True}, {"retry": Retry(attempts=1), "max_in_flight": 1}])
async def test_an_async_handler_that_blocks_the_loop_is_named(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As in a run: by the setting ``loop_lag_ms``, in real time, though virtual time stands still; once for each
    handler. The health has the longest step.
    """
    app = sleeping(is_async=True, **options)
    async with app.test() as broker:
        for value in range(3):
            await broker.send("in", value, key="k")
        assert await broker.read("out", int) == [0, 1, 2]
        assert app.health().loop_lag_ms_max >= 250
    (said,) = [text for text in caplog.messages if "has not turned" in text]
    assert re.match(r"the event loop has not turned for \d+ ms, so .*: the async handler .*sleeps blocks it", said)


async def test_no_handler_is_named_that_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A plain function may block: it runs on a thread. A handler that waits, however long, blocks nobody."""
    for app in (sleeping(is_async=False), sleeping(is_async=True, slept_s=0.0)):
        async with app.test() as broker:
            await broker.send("in", 1, key="k")
            assert await broker.read("out", int) == [1]
    assert "has not turned" not in caplog.text
