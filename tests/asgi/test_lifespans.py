"""An application in the lifespan of a service: what begins and ends when, and what is said of it."""

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keylanes import App, HandlerFailed, Health, HotKey, KeylanesError, Retry, Settings, Statistics
from keylanes.asgi import lifespan

from ..stage.ground import Ground

pytestmark = pytest.mark.usefixtures("unheard")


def failing(ground: Ground, topic: str = "orders") -> App:
    """Its handler fails for each number below 0."""
    app = App("shop", broker=ground.address, settings=Settings(commit_interval_ms=50))

    @app.handler(topic, retry=Retry(attempts=1))
    async def handle(value: int) -> None:
        if value < 0:
            raise ValueError(f"{value} is too few")

    return app


@pytest.fixture
def ground(tmp_path: Any) -> Ground:
    """An embedded broker with orders."""
    ground = Ground(f"embedded:{tmp_path / 'data'}")
    ground.create("orders", 1)
    return ground


@pytest.fixture
def heard(unheard: None) -> list[int]:
    """The signals that a server hears."""
    found: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    return found


@pytest.mark.parametrize("ends_by", ["the server", "an error, unheard", "the lifespan inside"])
async def test_what_is_inside_begins_and_ends_while_the_application_works(
    ground: Ground, ends_by: str, heard: list[int]
) -> None:
    """No end of these asks the server for its own. Where nobody listens for signals a fatal error is raised."""
    app, said = failing(ground), list[str]()
    if ends_by == "an error, unheard":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @asynccontextmanager
    async def own(service: str) -> AsyncIterator[dict[str, str]]:
        said.append(app.health().state)
        try:
            yield {"of": service}
        finally:
            said.append("ended")
        if ends_by == "the lifespan inside":
            raise OSError("its own")

    async def serve() -> None:
        async with lifespan(app, then=own)("service") as state:
            assert state == {"of": "service"}
            if "error" in ends_by:
                await app.send("orders", -1)
                await asyncio.Event().wait()

    match ends_by:
        case "the server":
            await serve()
        case "the lifespan inside":
            with pytest.raises(OSError, match="its own"):
                await serve()
        case _:
            with pytest.raises(HandlerFailed, match="-1 is too few"):
                await serve()
    assert said == ["running", "ended"]
    assert app.health().state == ("failed" if "error" in ends_by else "stopped")
    assert heard == []


@pytest.mark.parametrize(
    ("why", "says"), [("topic", "'none' of handler"), ("declared", "no handler"), ("then", "then is a func")]
)
async def test_a_start_that_fails_is_said_in_one_line(
    ground: Ground, caplog: pytest.LogCaptureFixture, why: str, says: str
) -> None:
    """Once, also where the run has not begun; nothing inside begins."""
    app = (
        App("shop", broker=ground.address)
        if why == "declared"
        else failing(ground, "none" if why == "topic" else "orders")
    )
    begun = list[str]()

    @asynccontextmanager
    async def own(service: str) -> AsyncIterator[None]:
        begun.append(service)
        yield

    def bare(service: str) -> str:
        return service

    around: Any = lifespan(app, then=bare if why == "then" else own)  # type: ignore[arg-type]  # that is what is wrong
    with caplog.at_level(logging.CRITICAL), pytest.raises(KeylanesError, match=says):
        async with around("service"):
            begun.append("it serves")
    assert begun == []
    (line,) = [record.message for record in caplog.records]
    assert says in line


def test_what_is_told_of_a_run_is_json_in_plain_types() -> None:
    """By the names of its fields; the key of a record is text."""
    assert Health("running", True, None, 1.5).to_dict() == {
        "state": "running",
        "is_good": True,
        "cause": None,
        "loop_lag_ms_max": 1.5,
    }
    told = Statistics(hot_keys=(HotKey("orders", 1, 7, 0.5, b"a\xff"),), rates={"orders": 2.0}).to_dict()
    assert told["hot_keys"] == [{"topic": "orders", "partition": 1, "point": 7, "share": 0.5, "key": "a\\xff"}]
    assert told["copying"] == {"copies": 0, "ready": 0, "bytes_learner": 0, "bytes_standby": 0}
    assert (told["rates"], told["partitions"]) == ({"orders": 2.0}, [])
    assert json.loads(json.dumps(told)) == told
