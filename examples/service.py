"""A web service with the application in its lifespan: plain ASGI, for any server, e.g. ``uvicorn service:service``.

A service chooses its broker as it likes; here the broker comes from the environment: ``BROKER=kafka://localhost:9092``.
With a Kafka, ``uvicorn service:service --workers 2`` runs two processes that share the partitions and their state.

- ``GET /health`` answers 200 while the application may stay in service, else 503.
- ``GET /ready`` answers 200 while the application may stay in service and works, else 503.
- ``GET /statistics`` answers with the statistics of the application.
- ``GET /pieces/CUSTOMER`` answers with the committed number of pieces that a customer has ordered. 404: the customer
  has ordered nothing. 421: this worker does not own the customer; another worker may, on another connection (without
  an owner all workers answer 421). 503: the application does not work yet, or does not work any more.
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from keylanes import App, Context, DeadLetter, KeylanesError, Settings, State, StateNotReady
from keylanes.asgi import lifespan

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Order(msgspec.Struct):
    """An order of a customer."""

    item: str
    pieces: int


class Parcel(msgspec.Struct):
    """The parcel for an order. ``order``: the offset of the order."""

    item: str
    pieces: int
    order: int


PIECES: Final = "/pieces/"

# All workers of a server have the same environment. Each worker takes a subfolder of this folder for itself.
settings = Settings.from_env({"KEYLANES_STATE_FOLDER": "./orders-state", **os.environ})
app = App("orders", broker=os.environ.get("BROKER", "embedded:./data"), settings=settings)


@app.handler("orders", to="parcels", on_failure=DeadLetter("orders.dead"))
async def pack(order: Order, ctx: Context, pieces: State[int]) -> Parcel:
    """Pack one order. Orders of one customer (the key) come one after the other, orders of others at the same time."""
    if order.pieces < 1:
        raise ValueError(f"{order.pieces} pieces can't be packed")
    pieces.put((pieces.get() or 0) + order.pieces)
    return Parcel(order.item, order.pieces, ctx.offset)


async def service(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        await live(receive, send)
    elif scope["type"] == "http":
        status, answer = respond(scope["path"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})


async def live(receive: Receive, send: Send) -> None:
    """Start the application before the first request, and stop it in order after the last request. A fatal error ends
    the server, or this worker.
    """
    await receive()
    phase = "startup"
    try:
        async with lifespan(app)(service):
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
    if path == "/ready":
        health = app.health()
        return (200 if health.is_good and health.state == "running" else 503), health
    if path == "/statistics":
        return 200, app.statistics()
    if path.startswith(PIECES):
        return pieces_of(path.removeprefix(PIECES))
    return 404, {"error": f"nothing is at {path}"}


def pieces_of(customer: str) -> tuple[int, Any]:
    """Status and answer of a request for a customer's pieces."""
    try:
        pieces = app.store("pieces", int).get(customer)
    except StateNotReady as error:
        return (421 if app.health().state == "running" else 503), {"error": str(error)}
    if pieces is None:
        return 404, {"error": f"customer {customer!r} has ordered nothing"}
    return 200, {"customer": customer, "pieces": pieces}
