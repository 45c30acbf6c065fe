"""Running totals of each customer: the state of a handler, exactly once together with its outputs and its progress.

``python totals.py`` shows that the totals survive a crash, on a simulated broker. ``BROKER=kafka://localhost:9092
keylanes run totals:app`` runs the application on a Kafka with a topic ``orders``; local copies of the state are in the
folder ``totals``.
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
    """A purchase of a customer. The customer is the key of the record."""

    item: str
    pieces: int


class Total(msgspec.Struct):
    """The totals of a customer so far."""

    orders: int = 0
    pieces: int = 0


@app.handler("orders", to="totals-by-order")
async def on_order(
    order: Order,
    total: State[Total],
    items: Annotated[MapState[str, int], Store(name="pieces-by-item")],
) -> Total:
    """Add one order to the totals. Orders of one customer come one after the other."""
    now = total.get() or Total()
    now = Total(now.orders + 1, now.pieces + order.pieces)
    total.put(now)
    items.put(order.item, (items.get(order.item) or 0) + order.pieces)
    return now


async def main() -> None:
    """Send orders, with a crash in between, and print the totals."""
    async with app.test() as broker:
        await broker.send("orders", Order("tea", 2), key="ann")
        await broker.crash()
        await broker.restart()
        await broker.send("orders", Order("cups", 4), key="ann")
        print(await broker.read("totals-by-order", Total))


if __name__ == "__main__":
    asyncio.run(main())
