"""A web service with the application in its lifespan: plain ASGI, for any server, e.g. ``uvicorn service:service``.

The topics and the broker are the service's own business; here they come from the environment:
``BROKER=kafka://localhost:9092``. ``GET /health`` answers 200 while the application may stay in service, else 503;
``GET /statistics`` says where it stands.
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from keylanes import App, Context, DeadLetter, KeylanesError, Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Order(msgspec.Struct):
    """What customers ask for."""

    item: str
    pieces: int


class Parcel(msgspec.Struct):
    """What is sent out for it."""

    item: str
    pieces: int
    order: int


app = App("orders", broker=os.environ.get("BROKER", "embedded:./data"), settings=Settings.from_env())


@app.handler("orders", to="parcels", on_failure=DeadLetter("orders.dead"))
async def pack(order: Order, ctx: Context) -> Parcel:
    """Pack one order; those of one customer (the key) one after the other, all others at the same time."""
    if order.pieces < 1:
        raise ValueError(f"{order.pieces} pieces can't be packed")
    return Parcel(order.item, order.pieces, ctx.offset)


async def service(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "http":
        status, answer = respond(scope["path"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})


async def lifespan(receive: Receive, send: Send) -> None:
    """Start before the first request, stop in order after the last; a fatal error is told to the server."""
    await receive()
    phase = "startup"
    try:
        async with app:
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
    except KeylanesError as error:
        await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
    else:
        await send({"type": "lifespan.shutdown.complete"})


def respond(path: str) -> tuple[int, Any]:
    """Status and answer of a request."""
    if path == "/health":
        health = app.health()
        return (200 if health.is_good else 503), health
    if path == "/statistics":
        return 200, app.statistics()
    return 404, {"error": f"nothing is at {path}"}
