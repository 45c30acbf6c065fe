r"""Counts of records by key. Every process of the application answers questions for a count over HTTP.

With a Kafka::

    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic words --partitions 4
    export BROKER=kafka://localhost:9092
    python counts.py 8001       # in one terminal
    python counts.py 8002       # in another one, in the same folder
    echo tea:1 | kafka-console-producer.sh --bootstrap-server localhost:9092 --topic words \
        --property parse.key=true --property key.separator=:
    curl -L localhost:8001/count/tea
    keylanes group --app counts --broker $BROKER

The owner of the key answers; every other process redirects to the owner.

- 200: the committed count. 404: the key was never counted.
- 307: another process owns the key, at the address in ``Location``.
- 503: no process owns the key at this moment, or the owner has no endpoint: ask again later. Or the writers of the
  topic use another partitioner than the application declares: ``App("counts", partitioners={"words": "crc32"}, …)``.
"""

import asyncio
import json
import os
import signal
import sys
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from keylanes import App, Elsewhere, Settings, State, StateNotReady

COUNT: Final = "/count/"


def make(port: int) -> App:
    """The application of a process that answers at ``port``."""
    # The processes of one state folder take a subfolder each. Other processes redirect to the endpoint of an owner.
    given = {"KEYLANES_STATE_FOLDER": "./counts-state", "KEYLANES_ENDPOINT": f"http://127.0.0.1:{port}", **os.environ}
    app = App("counts", broker=os.environ.get("BROKER"), settings=Settings.from_env(given))

    @app.handler("words")
    async def count(_: bytes, counted: State[int]) -> None:
        """Count one record of its key."""
        counted.put((counted.get() or 0) + 1)

    return app


def respond(app: App, path: str) -> tuple[str, dict[str, str], Any]:
    """Status, headers and answer of a request."""
    if not path.startswith(COUNT):
        return "404 Not Found", {}, {"error": f"nothing is at {path}"}
    key = unquote(path.removeprefix(COUNT))
    counts = app.store("counted", int)
    try:
        # The writers of the topic use the declared partitioner: a key is in this partition, or nowhere.
        counted = counts.get(key, partition=counts.partition_of(key))
    except Elsewhere as error:
        if error.endpoint:
            return "307 Temporary Redirect", {"Location": error.endpoint + path}, {"error": str(error)}
        return "503 Service Unavailable", {"Retry-After": "1"}, {"error": str(error)}
    except StateNotReady as error:
        return "503 Service Unavailable", {"Retry-After": "1"}, {"error": str(error)}
    if counted is None:
        return "404 Not Found", {}, {"error": f"{key!r} was never counted"}
    return "200 OK", {}, {"key": key, "count": counted}


async def serve(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the one request of a connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0]
        status, headers, answer = respond(app, path) if method == "GET" else ("405 Method Not Allowed", {}, {})
        body = json.dumps(answer).encode()
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        pass  # the client has gone, or speaks no HTTP
    finally:
        writer.close()


async def main(port: int) -> None:
    """Work and answer until SIGTERM or SIGINT."""
    app, stopping = make(port), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with await asyncio.start_server(partial(serve, app), "127.0.0.1", port), app:
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
