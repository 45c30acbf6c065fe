"""The examples do what they say."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi import HTTPException

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.partitioner import partition_by_crc32
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec

from ..stage.appending import append
from ..tiers.marks import tier

pytestmark = [tier("check"), pytest.mark.usefixtures("unheard")]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_hello_world_says_hello(tmp_path: Path) -> None:
    """The first program prints its greeting, and leaves nothing in its folder."""
    answer = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / "hello.py")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "['Hello, world!']\n"
    assert list(tmp_path.iterdir()) == []


def test_hello_world_is_short() -> None:
    """It has at most twelve lines, blank ones not counted."""
    lines = [line for line in (EXAMPLES / "hello.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 12


class Server:
    """What an ASGI server does with an application, by hand."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._lifespan: asyncio.Task[None] | None = None

    async def start(self) -> dict[str, Any]:
        """Begin the lifespan; what the application answers to its startup."""
        self._lifespan = asyncio.create_task(self.application({"type": "lifespan"}, self.inbox.get, self.outbox.put))
        await self.inbox.put({"type": "lifespan.startup"})
        return await self.outbox.get()

    async def stop(self) -> dict[str, Any]:
        """End the lifespan; what the application answers to its shutdown."""
        assert self._lifespan is not None
        await self.inbox.put({"type": "lifespan.shutdown"})
        answer = await self.outbox.get()
        await self._lifespan
        return answer

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a request."""
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        await self.application({"type": "http", "path": path}, self.inbox.get, sent.put)
        start, body = sent.get_nowait(), sent.get_nowait()
        return start["status"], json.loads(body["body"])


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, on an embedded broker in a folder of its own."""
    monkeypatch.setenv("BROKER", f"embedded:{tmp_path}/data")
    return loaded("service", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example."""
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


async def test_the_service_processes_in_its_lifespan(service: ModuleType, tmp_path: Path) -> None:
    """Between startup and shutdown it packs orders, exactly once, knows what was ordered, and says that it is well."""
    broker = EmbeddedBroker(tmp_path / "data")
    await broker.open()
    await broker.create([TopicSpec("orders", 1, {})])
    server = Server(service.service)
    assert [(await server.get(path))[0] for path in ("/health", "/ready", "/pieces/ann")] == [503, 503, 503]
    assert await server.start() == {"type": "lifespan.startup.complete"}
    orders = [b'{"item": "tea", "pieces": 2}', b'{"item": "air", "pieces": 0}']
    await append(broker, [Outgoing("orders", 0, b"ann", order) for order in orders])
    reader = await broker.reader({TopicPartition("parcels", 0): 0, TopicPartition("orders.dead", 0): 0})
    parcels = await reader.fetch([TopicPartition("parcels", 0)], records_max=10, wait_ms=20_000)
    dead = await reader.fetch([TopicPartition("orders.dead", 0)], records_max=10, wait_ms=20_000)
    assert [record.value for batch in parcels for record in batch.records] == [b'{"item":"tea","pieces":2,"order":0}']
    assert [record.value for batch in dead for record in batch.records] == [orders[1]]
    status, health = await server.get("/health")
    assert (status, health["state"]) == (200, "running")
    assert (await server.get("/ready"))[0] == 200
    assert await server.get("/pieces/ann") == (200, {"customer": "ann", "pieces": 2})
    assert await server.get("/pieces/bob") == (404, {"error": "customer 'bob' has ordered nothing"})
    status, statistics = await server.get("/statistics")
    assert (status, statistics["records_done"]) == (200, 2)
    assert (await server.get("/nowhere"))[0] == 404
    assert await server.stop() == {"type": "lifespan.shutdown.complete"}
    assert (await server.get("/health"))[0] == 503
    await reader.close()
    await broker.close()


async def test_the_service_says_why_it_can_not_start(service: ModuleType) -> None:
    """Without its source topic the startup fails with the reason, and the health is bad."""
    server = Server(service.service)
    answer = await server.start()
    assert answer["type"] == "lifespan.startup.failed"
    assert "'orders'" in answer["message"]
    assert (await server.get("/health"))[0] == 503


async def test_a_server_without_signals_hears_why_its_service_fails(service: ModuleType, tmp_path: Path) -> None:
    """Its lifespan ends with the reason. One that listens for signals is ended."""
    broker = EmbeddedBroker(tmp_path / "data")
    await broker.open()
    await broker.create([TopicSpec("orders", 1, {})])
    server = Server(service.service)
    await server.start()
    await append(broker, [Outgoing("orders.control", 0, None, b"of somebody else")])
    async with asyncio.timeout(20):
        answer = await server.outbox.get()
    assert answer["type"] == "lifespan.shutdown.failed"
    assert "orders.control" in answer["message"]
    assert [(await server.get(path))[0] for path in ("/health", "/ready", "/pieces/ann")] == [503, 503, 503]
    await broker.close()


async def test_answers_of_a_topic_that_another_partitioner_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with the setting, also for a key that has state; before that is noticed each key has its answer."""
    counts, shop, partitions = loaded("counts", monkeypatch), loaded("fastapi_service", monkeypatch), 4
    keys = [f"k{n}" for n in range(40)]
    app = counts.make(1)
    async with app.test(partitions=partitions) as broker:
        await broker.send("words", b"", key=keys[0])
        await broker.advance(1)
        assert counts.respond(app, f"/count/{keys[0]}")[0] == "200 OK"
        assert counts.respond(app, "/count/nothing")[0] == "404 Not Found"
        for key in keys:
            await broker.send("words", b"", key=key, partition=partition_by_crc32(key.encode(), partitions))
        await broker.advance(1)
        for key in (*keys, "nothing"):
            status, _, answer = counts.respond(app, f"/count/{key}")
            assert (status, '{"words": "crc32"}' in answer["error"]) == ("503 Service Unavailable", True)
    async with shop.app.test(partitions=partitions) as broker:
        await broker.send("orders", shop.Order("tea", 2), key=keys[0])
        await broker.advance(1)
        assert (await shop.pieces_of(keys[0]), await shop.pieces_of("nobody")) == (2, 0)
        for key in keys:
            place = partition_by_crc32(key.encode(), partitions)
            await broker.send("orders", shop.Order("tea", 2), key=key, partition=place)
        await broker.advance(1)
        for key in (*keys, "nobody"):
            with pytest.raises(HTTPException, match=r'{"orders": "crc32"}') as told:
                await shop.pieces_of(key)
            assert told.value.status_code == 503
