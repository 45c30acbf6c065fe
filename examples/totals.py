"""Running totals of each customer: state beside the handler, exactly once with its outputs and its progress.

``python totals.py`` shows it across a crash, on a simulated broker. ``BROKER=kafka://localhost:9092 keylanes run
totals:app`` runs it on a Kafka that has a topic ``orders``; local copies of the state are in the folder ``totals``.
"""

import asyncio
import os
from typing import Annotated

import msgspec

from keylanes import App, MapState, Settings, State, Store

app = App(
    "totals",
    broker=os.environ.get("BROKER", "embedded:./data"),
    settings=Settings(state_folder="totals"),
)


class Order(msgspec.Struct):
    """What a customer, the record's key, buys."""

    item: str
    pieces: int


class Total(msgspec.Struct):
    """What a customer has bought so far."""

    orders: int = 0
    pieces: int = 0


@app.handler("orders", to="totals-by-order")
async def on_order(
    order: Order,
    total: State[Total],
    items: Annotated[MapState[str, int], Store(name="pieces-by-item")],
) -> Total:
    """One order; those of one customer come one after the other."""
    now = total.get() or Total()
    now = Total(now.orders + 1, now.pieces + order.pieces)
    total.put(now)
    items.put(order.item, (items.get(order.item) or 0) + order.pieces)
    return now


async def main() -> None:
    """Orders in, totals out."""
    async with app.test() as broker:
        await broker.send("orders", Order("tea", 2), key="ann")
        await broker.crash()
        await broker.restart()
        await broker.send("orders", Order("cups", 4), key="ann")
        print(await broker.read("totals-by-order", Total))


if __name__ == "__main__":
    asyncio.run(main())
