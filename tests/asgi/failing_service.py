"""A service whose application fails for each number below 0, for a real server. The environment says how it ends."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from keylanes import App, Retry, Settings
from keylanes.asgi import lifespan

kept = MemoryHandler(1_000, flushLevel=logging.CRITICAL + 1, target=logging.StreamHandler())
logging.getLogger("kept").addHandler(kept)
failed, is_open = asyncio.Event(), asyncio.Event()
app = App("shop", settings=Settings(commit_interval_ms=50), on_fatal=lambda _: failed.set())


@app.handler("orders", retry=Retry(attempts=1))
def count(value: int) -> None:
    """Fails until somebody says that it is mended."""
    if value < 0 and not Path("mended").exists():
        raise ValueError(f"{value} is too few")


@asynccontextmanager
async def own(_: Any) -> AsyncIterator[None]:
    """What it says at its end waits in buffers: those of the standard output, which is a file, and of a log handler."""
    is_open.set()
    yield
    is_open.clear()
    sys.stdout.write("then ends\n")
    logging.getLogger("kept").error("then has ended")


service = FastAPI(lifespan=lifespan(app, own, exits="LEFT" not in os.environ))


@service.post("/orders/{value}")
async def order(value: int) -> tuple[str, bool]:
    """The state of the application, and whether the service's own lifespan is there. An order that makes the
    application fail is answered some time later.
    """
    await app.send("orders", value)
    if value < 0:
        await failed.wait()
        await asyncio.sleep(0.5)  # a slow answer
    return app.health().state, is_open.is_set()
