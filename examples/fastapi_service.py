"""A service made with FastAPI and an application in its lifespan: ``uvicorn fastapi_service:service``.

The broker comes from the environment, ``KEYLANES_BROKER=kafka://localhost:9092``, and a name for the application,
``SHOP=shop``. With a Kafka, ``--workers 2`` runs two processes, which share the partitions. A fatal error of the
application ends the server with the exit code of the error, or the worker. A lifespan of the service's own goes inside:
``lifespan(app, then=…)``.
"""

import os
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Response

from keylanes import App, DeadLetter, Elsewhere, OutputRefused, SendUnknown, Settings, State, StateNotReady
from keylanes.asgi import lifespan


class Order(msgspec.Struct):
    """What customers ask for."""

    item: str
    pieces: int


# The workers of a server have one environment, and each takes a subfolder of this folder for itself.
app = App(
    os.environ.get("SHOP", "shop"), settings=Settings.from_env({"KEYLANES_STATE_FOLDER": "./shop-state", **os.environ})
)
service = FastAPI(lifespan=lifespan(app))


@app.handler("orders", on_failure=DeadLetter("orders.dead"))
async def count(order: Order, total: State[int]) -> None:
    """Add up what a customer, who is the key, has ordered."""
    total.put((total.get() or 0) + order.pieces)


@service.post("/orders/{customer}", status_code=202)
async def order(customer: str, item: str, pieces: int) -> None:
    """Take an order: it is written when this is answered, and counted later, by whichever worker has the customer."""
    try:
        await app.send("orders", Order(item, pieces), key=customer)
    except OutputRefused as error:
        raise HTTPException(400, str(error)) from error
    except SendUnknown as error:
        raise HTTPException(503, str(error)) from error


@service.get("/orders/{customer}")
async def pieces_of(customer: str) -> int:
    """How many pieces a customer has ordered. 421: another worker has the customer. 503: no worker has, at this moment,
    or the orders are written by another partitioner than ``app`` says.
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
    """Where the application stands."""
    return app.statistics().to_dict()
