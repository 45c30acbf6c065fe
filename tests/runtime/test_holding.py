"""What a process holds and gives up, as the group asks it to."""

import asyncio
import logging

import pytest

from keylanes.keyrange.ranges import WHOLE

from ..stage.engine import SOURCE, Engine, application
from ..stage.virtual import virtual


@virtual
async def test_what_was_released_is_not_asked_of_the_workers_again(caplog: pytest.LogCaptureFixture) -> None:
    """The request stands in the log until the range is granted: nothing is tried, and said, meanwhile."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application(commit_interval_ms=20, commit_lead_ms=5)

    @app.handler(SOURCE, parallelising_factor=4)
    async def look(value: bytes) -> None:
        await asyncio.sleep(0.01)

    engine = Engine(app, seed=3)
    other = Engine(app, cluster=engine.cluster, name="other")
    member = await engine.start()
    await other.start()
    for n in range(200):
        engine.send(b"%d" % n, b"")
    for _ in range(2):
        for at in range(4):
            within = WHOLE.split(WHOLE.size // 4 * (at + 1))[0] if at < 3 else WHOLE
            await member.work.requests.grant((SOURCE, 0), within)
            await member.work.requests.release((SOURCE, 0), within)
    await engine.stop()
    await other.stop()
    assert "comes to nothing" not in caplog.text
    assert "a release that was asked for waits" not in caplog.text
