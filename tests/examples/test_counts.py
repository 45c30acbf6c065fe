"""examples/counts.py with two processes on a real Kafka: whichever is asked, the answer is that of the one that has the
key.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from ..tiers.brokers import SharedKafka
from .test_examples import EXAMPLES

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

PARTITIONS, WORDS, TIMES = 4, 24, 3
WAIT_S = 60.0


class Answer(NamedTuple):
    """Of a request."""

    status: int
    location: str
    body: Any


class Process:
    """One that listens on a port of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.said = folder / f"said-{self.port}"
        settings = {"KEYLANES_COMMIT_INTERVAL_MS": "50", "KEYLANES_HEARTBEAT_INTERVAL_MS": "500"}
        with self.said.open("wb") as said:
            self.running = subprocess.Popen(
                [sys.executable, "-P", str(EXAMPLES / "counts.py"), str(self.port)],
                cwd=folder,
                env={**os.environ, **settings, "BROKER": f"kafka://{bootstrap}"},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def endpoint(self) -> str:
        """As it is told."""
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str) -> Answer:
        """What it says; status 0: it does not listen."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return Answer(0, "", None)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), headers.get("Location", ""), json.loads(body))

    async def stop(self) -> int:
        """In order; its exit code."""
        self.running.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.running.wait, WAIT_S)


@asynccontextmanager
async def running(folder: Path, bootstrap: str, count: int) -> AsyncIterator[list[Process]]:
    """So many, while they are looked at."""
    processes = [Process(folder, bootstrap) for _ in range(count)]
    try:
        yield processes
    except BaseException as error:
        for process in processes:
            error.add_note(process.said.read_text())
        raise
    finally:
        for process in processes:
            process.running.kill()
            process.running.wait()


async def until(is_reached: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(WAIT_S):
        while not await is_reached():  # noqa: ASYNC110  # other processes have no event for it
            await asyncio.sleep(0.2)


async def write(bootstrap: str, words: list[str]) -> None:
    """Records with these keys, in a topic with several partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    if "words" not in await admin.list_topics():
        await admin.create_topics([NewTopic("words", PARTITIONS, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for word in words:
            await producer.send_and_wait("words", b"", key=word.encode())


async def test_any_process_leads_to_the_answer(kafka_server: SharedKafka, tmp_path: Path) -> None:
    """One of two answers for a key, the other one redirects to it; a key that was never counted is 404 there, too. When
    one has stopped, the other one answers for all.
    """
    bootstrap = kafka_server.bootstrap
    words = [f"w{n}" for n in range(WORDS)] * TIMES
    await write(bootstrap, words)
    async with running(tmp_path, bootstrap, 2) as (first, second):

        async def asked(word: str) -> tuple[Answer, Answer]:
            return await first.get(f"/count/{word}"), await second.get(f"/count/{word}")

        async def are_shared() -> bool:
            answers = [answer for n in range(WORDS) for answer in await asked(f"w{n}")]
            by_first = sum(answer.status == 200 for answer in answers[::2])
            counts = [answer.body["count"] for answer in answers if answer.status == 200]
            return 0 < by_first < WORDS and counts == [TIMES] * WORDS

        await until(are_shared)
        seen: Counter[int] = Counter()
        for n in range(WORDS):
            answers = await asked(f"w{n}")
            assert sorted(answer.status for answer in answers) == [200, 307]
            for answer, other in zip(answers, (second, first), strict=True):
                seen[answer.status] += 1
                if answer.status == 307:
                    assert answer.location == f"{other.endpoint}/count/w{n}"
                    assert (await other.get(f"/count/w{n}")).body == {"key": f"w{n}", "count": TIMES}
        assert seen == {200: WORDS, 307: WORDS}
        assert sorted(answer.status for answer in await asked("nobody%20wrote%20it")) == [307, 404]
        assert (await first.get("/")).status == 404

        assert await second.stop() == 0

        async def has_all() -> bool:
            answers = [await first.get(f"/count/w{n}") for n in range(WORDS)]
            return [answer.status for answer in answers] == [200] * WORDS

        await until(has_all)
        assert await first.stop() == 0
