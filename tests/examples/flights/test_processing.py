"""The demo's run of the application, when something fails in what goes on beside it."""

import asyncio
from pathlib import Path

import pytest

from flights import PARTITIONS
from keylanes import App
from keylanes.keyrange.ranges import KeyRange
from keylanes.runtime.settings import Settings
from loader import SOURCE
from processing import Processing

from ...stage.ground import Ground
from ...tiers.marks import tier

pytestmark = tier("check")


class Disturbed(App):
    """An application whose ranges can't be released, for a reason nobody thought of."""

    async def release(self, topic: str, partition: int, within: KeyRange) -> None:
        """Fail."""
        raise RuntimeError("nobody thought of this")


def test_unrest_that_fails_ends_the_run(tmp_path: Path) -> None:
    """The application stops in order and the failure comes out: what was released would be waited for for ever."""
    ground = Ground(f"embedded:{tmp_path}")
    ground.source = SOURCE
    ground.scatter([(n % PARTITIONS, b"%d" % n, b"") for n in range(200)], PARTITIONS)
    app = Disturbed(
        "demo",
        broker=ground.address,
        settings=Settings(commit_interval_ms=20, drain_timeout_ms=100, handler_timeout_ms=10_000),
    )
    handled: list[bytes] = []

    @app.handler(SOURCE, parallelising_factor=4)
    async def handle(value: bytes) -> None:
        handled.append(value)
        if len(handled) > 10:
            await asyncio.Event().wait()  # cancelled after a while, which ends the run, too, as another error

    processing = Processing(app, 0, lambda: False, on_told=lambda _: None)
    with pytest.raises(ExceptionGroup) as failed:
        processing.run()
    assert failed.group_contains(RuntimeError, match="nobody thought of this")
    assert len(handled) < 200
