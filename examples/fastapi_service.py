"""A service made with FastAPI and an application in its lifespan: ``uvicorn fastapi_service:service``.

The environment names the broker, ``KEYLANES_BROKER=kafka://localhost:9092``, and the application, ``SHOP=shop``. With a
Kafka, ``--workers 2`` runs two processes that share the partitions. A fatal error of the application ends the server
with the exit code of the error; of several workers the error ends its own worker. A lifespan of the service's own goes
inside: ``lifespan(app, then=…)``.
"""

import os
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Response

from keylanes import App, DeadLetter, Elsewhere, OutputRefused, SendUnknown, Settings, State, StateNotReady
from keylanes.asgi import lifespan


class Order(msgspec.Struct):
    """An order of a customer."""

    item: str
    pieces: int


# All workers of a server have the same environment. Each worker takes a subfolder of this folder for itself.
app = App(
    os.environ.get("SHOP", "shop"), settings=Settings.from_env({"KEYLANES_STATE_FOLDER": "./shop-state", **os.environ})
)
service = FastAPI(lifespan=lifespan(app))


@app.handler("orders", on_failure=DeadLetter("orders.dead"))
async def count(order: Order, total: State[int]) -> None:
    """Add up the pieces that a customer, the key of the record, has ordered."""
    total.put((total.get() or 0) + order.pieces)


@service.post("/orders/{customer}", status_code=202)
async def order(customer: str, item: str, pieces: int) -> None:
    """Take an order. The answer comes when the order is written. The worker that owns the customer counts it later."""
    try:
        await app.send("orders", Order(item, pieces), key=customer)
    except OutputRefused as error:
        raise HTTPException(400, str(error)) from error
    except SendUnknown as error:
        raise HTTPException(503, str(error)) from error


@service.get("/orders/{customer}")
async def pieces_of(customer: str) -> int:
    """The number of pieces that a customer has ordered. 421: another worker owns the customer. 503: no worker owns the
    customer at this moment, or the writers of the orders use another partitioner than ``app`` declares.
    """
    total = app.store("total", int)
    try:
        return total.get(customer, partition=total.partition_of(customer)) or 0
    except StateNotReady as error:
        raise HTTPException(421 if isinstance(error, Elsewhere) else 503, str(error)) from error


@service.get("/health")
async def health(response: Response) -> dict[str, Any]:
    """200 while the application may stay in service, else 503."""
    found = app.health()
    response.status_code = 200 if found.is_good else 503
    return found.to_dict()


@service.get("/statistics")
async def statistics() -> dict[str, Any]:
    """The statistics of the application."""
    return app.statistics().to_dict()
