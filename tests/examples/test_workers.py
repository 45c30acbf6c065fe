"""examples/service.py with two workers of a real server: they share the partitions, with state, and replace each other.

What is handled is read by a client that is not ours.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from keylanes.state.subfolders import Lock

from ..stage.groups import group_of
from ..tiers.brokers import SharedKafka
from .test_examples import EXAMPLES

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

PARTITIONS = 4
CUSTOMERS = 24
BATCH = 240
WAIT_S = 90.0
"""For anything, at most."""
SESSION_MS = 5_000
WORKERS = {
    "KEYLANES_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "KEYLANES_HEARTBEAT_INTERVAL_MS": "500",
    "KEYLANES_COMMIT_INTERVAL_MS": "50",
}
ASKED_AT_ONCE = 12
"""Connections: the system gives each to one of the workers."""


class Sent(NamedTuple):
    """An order: each has an item of its own."""

    customer: str
    item: str
    pieces: int


def orders(first: int, count: int) -> list[Sent]:
    """Numbered ones, of all customers."""
    return [Sent(f"c{n % CUSTOMERS}", f"item-{n}", 1 + n % 3) for n in range(first, first + count)]


class Service:
    """uvicorn with workers, in a folder of its own."""

    def __init__(self, folder: Path, bootstrap: str, *, name: str = "service", workers: int = 2, **more: str) -> None:
        self.folder, self.said = folder, folder / "said"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-P", "-m", "uvicorn", f"{name}:service", "--workers", str(workers)]
        command += ["--app-dir", str(EXAMPLES), "--port", str(self.port), "--no-access-log"]
        command += ["--timeout-worker-healthcheck", "10"]  # seconds; a busy machine
        address = f"kafka://{bootstrap}"
        env = {**os.environ, **WORKERS, "BROKER": address, "KEYLANES_BROKER": address, **more}
        with self.said.open("wb") as said:
            self.parent = subprocess.Popen(
                command, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    def log(self) -> str:
        """What it has said so far."""
        return self.said.read_text()

    def workers(self) -> list[int]:
        """The process ids of all workers so far."""
        return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", self.log())]

    async def get(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Status and answer of a request on a connection of its own; 0: there was no answer."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        except OSError:
            return 0, None
        finally:
            if writer is not None:
                writer.close()
        return (int(head.split()[1]), json.loads(body)) if head else (0, None)  # a worker that was killed had it

    async def ask(self, path: str) -> list[tuple[int, Any]]:
        """The same on many connections at once."""
        return await asyncio.gather(*(self.get(path) for _ in range(ASKED_AT_ONCE)))

    async def statistics(self) -> dict[frozenset[int], dict[str, Any]]:
        """What the workers say, by the partitions that they have."""
        answers = [seen for status, seen in await self.ask("/statistics") if status == 200]
        return {frozenset(one["partition"] for one in seen["partitions"]): seen for seen in answers}

    async def shares(self) -> bool:
        """Whether two workers have half of the partitions each, and all is handled."""
        found = await self.statistics()
        is_shared = sorted(map(len, found)) == [2, 2] and len(frozenset().union(*found)) == PARTITIONS
        return is_shared and not any(seen["lag"] for seen in found.values())

    async def handled(self) -> int:
        """How many records two workers have handled together."""
        async with asyncio.timeout(WAIT_S):
            while len(found := await self.statistics()) < 2:
                pass
        return sum(int(seen["records_done"]) for seen in found.values())

    async def has_started(self, count: int) -> bool:
        """Whether it has had so many workers."""
        return len(self.workers()) == count

    async def answers(self, path: str) -> set[tuple[int, int]]:
        """What two workers answer to a question for pieces: each status, with the pieces (0: none are named)."""
        found: set[tuple[int, int]] = set()
        async with asyncio.timeout(WAIT_S):
            while len(found) < 2:  # the system chooses who of them is asked
                found |= {(status, (answer or {}).get("pieces", 0)) for status, answer in await self.ask(path)}
        return found

    async def stop(self) -> int:
        """As a supervisor does; its exit code."""
        self.parent.terminate()
        return await asyncio.to_thread(self.parent.wait, WAIT_S)

    def end(self) -> None:
        """Whatever still runs of it."""
        try:
            os.killpg(self.parent.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.parent.wait()


@asynccontextmanager
async def serving(
    folder: Path, server: SharedKafka, *, name: str = "service", workers: int = 2, **more: str
) -> AsyncIterator[Service]:
    """The service, while it is looked at."""
    service = Service(folder, server.bootstrap, name=name, workers=workers, **more)
    try:
        yield service
    except BaseException as error:
        error.add_note(service.log())
        raise
    finally:
        service.end()


async def until(is_reached: Callable[[], Awaitable[bool]], limit_s: float = WAIT_S) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(limit_s):
        while not await is_reached():  # noqa: ASYNC110  # other processes have no event for it
            await asyncio.sleep(0.2)


async def make_topics(bootstrap: str) -> None:
    """The source; the application makes the others."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    if "orders" not in await admin.list_topics():
        await admin.create_topics([NewTopic("orders", PARTITIONS, 1)])
    await admin.close()


async def send(bootstrap: str, sent: Iterable[Sent], *, gap_s: float = 0.0) -> None:
    """Write orders, with the customer as their key."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for one in sent:
            value = json.dumps({"item": one.item, "pieces": one.pieces}).encode()
            await producer.send_and_wait("orders", value, key=one.customer.encode())
            await asyncio.sleep(gap_s)


async def parcels(bootstrap: str, count: int) -> list[tuple[str, str, int]]:
    """So many parcels, as a committed reader sees them, and those that come within a second after. Other tests use the
    topic for customers of their own.
    """
    consumer = AIOKafkaConsumer(
        "parcels", bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    found: list[tuple[str, str, int]] = []
    async with consumer, asyncio.timeout(WAIT_S):
        while True:
            batches = await consumer.getmany(timeout_ms=1_000)
            for record in (one for batch in batches.values() for one in batch if one.key.startswith(b"c")):
                parcel = json.loads(record.value)
                found.append((record.key.decode(), parcel["item"], parcel["pieces"]))
            if not batches and len(found) >= count:
                return found


def in_use(folder: Path) -> list[str]:
    """The subfolders of the state folder that processes have."""
    found = []
    for one in sorted((folder / "orders-state" / "orders").iterdir()):
        lock = Lock(one)
        if not lock.take():
            found.append(one.name)
        lock.close()
    return found


async def test_workers_share_the_partitions_with_their_state(kafka_server: SharedKafka, tmp_path: Path) -> None:
    """Two processes from one command. Both are killed in turn, and replaced: nothing is lost or doubled, the state goes
    along, and each question is answered by the worker that has the customer; the other one says that it has not.
    """
    bootstrap = kafka_server.bootstrap
    await make_topics(bootstrap)
    sent = orders(0, BATCH)
    await send(bootstrap, sent)
    async with serving(tmp_path, kafka_server) as service:
        await until(service.shares)
        assert in_use(tmp_path) == ["0", "1"]
        assert sorted(await parcels(bootstrap, len(sent))) == sorted(sent)
        await check_pieces(service, sent)

        for killed in service.workers():  # one of these two coordinates
            sent += await kill(service, killed, bootstrap, orders(len(sent), BATCH))
            await until(service.shares)
            assert sorted(await parcels(bootstrap, len(sent))) == sorted(sent)
            await check_pieces(service, sent)
            assert in_use(tmp_path) == ["0", "1"]
        assert (await service.get("/health"))[0] == (await service.get("/ready"))[0] == 200

        assert await service.stop() == 0
    group = await asyncio.to_thread(group_of, "orders", f"kafka://{bootstrap}")
    assert group.state.value == "EMPTY"
    assert {member.standing for member in group.members} <= {"expelled: left"}
    assert in_use(tmp_path) == []


async def kill(service: Service, worker: int, bootstrap: str, more: list[Sent]) -> list[Sent]:
    """Kill a worker while more orders come; returns them when all are written and another worker was started."""
    workers, handled = len(service.workers()), await service.handled()
    sending = asyncio.create_task(send(bootstrap, more, gap_s=0.01))
    while await service.handled() < handled + 20:
        pass
    os.kill(worker, signal.SIGKILL)
    await sending
    await until(lambda: service.has_started(workers + 1))
    return more


async def check_pieces(service: Service, sent: Iterable[Sent]) -> None:
    """Of each customer one worker knows how many pieces that are; the other one says that it has not the customer."""
    ordered: Counter[str] = Counter()
    for one in sent:
        ordered[one.customer] += one.pieces
    for customer, pieces in ordered.items():
        assert await service.answers(f"/pieces/{customer}") == {(200, pieces), (421, 0)}
    status, answer = await service.get("/pieces/nobody")
    assert (status, "held here" in answer["error"]) == (421, True)


async def test_workers_of_one_server_can_not_have_a_name(kafka_server: SharedKafka, tmp_path: Path) -> None:
    """They have one environment, so a name in it is that of all: the second is refused and says why, and the server
    ends.
    """
    await make_topics(kafka_server.bootstrap)
    async with serving(tmp_path, kafka_server, KEYLANES_GROUP_INSTANCE_ID="one") as service:
        await asyncio.to_thread(service.parent.wait, WAIT_S)
        said = service.log()
        assert "which has the name 'one', too: give each process of application 'orders' a group_instance_id" in said
        assert "failed to start, stopping the parent process" in said
