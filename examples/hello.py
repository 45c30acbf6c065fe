"""Keylanes says hello: the real engine on a simulated broker, without Kafka and without Java."""

import asyncio

from keylanes import App

app = App("hello", broker="embedded:./data")


@app.handler("names", to="greetings")
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app.test() as broker:
        await broker.send("names", "world", key="w")
        print(await broker.read("greetings", str))


asyncio.run(main())
