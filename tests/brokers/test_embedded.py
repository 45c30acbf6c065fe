"""What only the embedded broker has: a folder, its lock, sharing inside a process, and kills it survives."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keylanes.brokers.embedded import INLINE_RECORDS_MAX, EmbeddedBroker
from keylanes.brokers.protocol import BrokerError, Outgoing, ProducerFenced, TopicPartition, TopicSpec
from keylanes.errors import StoreError
from keylanes.state.tables import TABLE_CONFIG, Table

from ..stage.appending import append
from ..stage.fencing import fence
from ..tiers.marks import tier

pytestmark = tier("check")

SOURCE = TopicPartition("a", 0)
OTHER = TopicPartition("b", 0)
PATIENCE_S = 30.0

OPEN_AND_SAY = """
import asyncio, sys
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.errors import StoreError
async def main():
    broker = EmbeddedBroker(sys.argv[1])
    try:
        await broker.open()
    except StoreError as error:
        print(f"refused with {error.exit_code}:", error)
    else:
        print("opened")
        await broker.close()
asyncio.run(main())
"""


def elsewhere(folder: Path) -> str:
    """What another process that opens the folder says."""
    command = [sys.executable, "-c", OPEN_AND_SAY, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def numbered(topic: str, count: int, first: int = 0) -> list[Outgoing]:
    """Records whose values count up from ``first``."""
    return [Outgoing(topic, 0, b"k", b"%d" % number) for number in range(first, first + count)]


async def opened(folder: Path) -> EmbeddedBroker:
    """An open broker with the topics a and b."""
    broker = EmbeddedBroker(folder, clock_ms=lambda: 1_600_000_000_000)
    await broker.open()
    await broker.create([TopicSpec("a", 1, {}), TopicSpec("b", 1, {})])
    return broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """One on the folder ``data``."""
    broker = await opened(tmp_path / "data")
    yield broker
    await broker.close()


async def values_of(broker: EmbeddedBroker, source: TopicPartition) -> list[bytes | None]:
    """All that is in a partition."""
    reader = await broker.reader({source: 0})
    values: list[bytes | None] = []
    while batches := await reader.fetch([source], records_max=10_000, wait_ms=0):
        values += [record.value for batch in batches for record in batch.records]
    return values


async def test_a_folder_of_another_process_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A second process gets EmbeddedInUse: the folder, who has it, what the broker is for, and what more need. After
    close it may have the folder.
    """
    answer = await asyncio.to_thread(elsewhere, tmp_path / "data")
    assert answer.startswith(f"refused with 2: {tmp_path / 'data'} is in use by another process (pid {os.getpid()}). ")
    assert "The embedded broker is for one process: stop that one, or give this one a folder of its own." in answer
    assert "Several processes of an application need a Kafka: `keylanes broker` starts one" in answer
    await broker.close()
    assert await asyncio.to_thread(elsewhere, tmp_path / "data") == "opened"


OPEN_WHEN_TOLD = """
import asyncio, sys
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.errors import EmbeddedInUse
async def main():
    broker = EmbeddedBroker(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        await broker.open()
    except EmbeddedInUse as error:
        print(error.exit_code, flush=True)
    else:
        print("opened", flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


def test_of_processes_that_race_for_a_new_folder_one_has_it(tmp_path: Path) -> None:
    """The others are refused as by one that has had it for long."""
    command = [sys.executable, "-c", OPEN_WHEN_TOLD, str(tmp_path / "data")]
    racing = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(4)
    ]
    try:
        for one in racing:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in racing:
            assert one.stdin is not None
            one.stdin.write("go\n")
        answers = [one.stdout.readline() for one in racing if one.stdout is not None]
    finally:
        for one in racing:
            one.kill()
            one.communicate()
    assert sorted(answers) == ["2\n", "2\n", "2\n", "opened\n"]


async def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """StoreError, and the folder is left as it was."""
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(StoreError, match="was not made by keylanes"):
        await EmbeddedBroker(tmp_path).open()
    assert os.listdir(tmp_path) == ["letter"]


async def test_a_process_shares_its_folder(tmp_path: Path) -> None:
    """Brokers on one folder see each other's records at once; the last to close, each at most once, lets go."""
    one, two = await opened(tmp_path / "data"), await opened(tmp_path / "x" / ".." / "data")
    await append(one, numbered("a", 2))
    assert await values_of(two, SOURCE) == [b"0", b"1"]
    await one.close()
    await one.close()
    await append(two, numbered("a", 1, 2))
    assert await values_of(two, SOURCE) == [b"0", b"1", b"2"]
    await two.close()
    assert await asyncio.to_thread(elsewhere, tmp_path / "data") == "opened"


async def test_a_broker_may_be_opened_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """After close everything raises; after another ``open`` everything is there: records, which the given clock has
    stamped, and epochs, by which a producer from before is fenced by its successor.
    """
    old = await broker.producer("id", transaction_timeout_ms=1000)
    await old.transact(numbered("a", 1))
    await broker.close()
    with pytest.raises(BrokerError, match="is not open"):
        await append(broker, numbered("a", 1))
    with pytest.raises(BrokerError, match="is not open"):
        broker.table("t", 0)
    await broker.open()
    await broker.open()
    reader = await broker.reader({SOURCE: 0})
    (batch,) = await reader.fetch([SOURCE], records_max=10, wait_ms=0)
    assert [(record.value, record.timestamp) for record in batch.records] == [(b"0", 1_600_000_000_000)]
    new = await broker.producer("id", transaction_timeout_ms=1000)
    with pytest.raises(ProducerFenced):
        await old.transact(numbered("a", 1, 666))
    await new.transact(numbered("a", 1, 1))
    assert await values_of(broker, SOURCE) == [b"0", b"1"]
    await broker.close()
    assert await asyncio.to_thread(elsewhere, tmp_path / "data") == "opened"


async def test_opening_that_is_cancelled_holds_nothing(tmp_path: Path) -> None:
    """An ``open`` cut off in the middle lets go of what its thread still opens."""
    broker = EmbeddedBroker(tmp_path / "data")
    opening = asyncio.create_task(broker.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(elsewhere, tmp_path / "data")) != "opened":  # noqa: ASYNC110  # a process asks
            await asyncio.sleep(0)


async def test_threads_end_with_the_broker_and_hold_no_process(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its threads are daemons, which no interpreter waits for; none is left once it is closed or was refused."""

    def mine() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("keylanes-embedded")]

    assert mine()
    assert all(thread.daemon for thread in mine())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        await EmbeddedBroker(tmp_path / "file").open()
    await broker.close()
    await broker.open()
    await broker.close()
    for thread in mine():
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not mine()


async def test_a_fence_waits_for_a_large_transaction(broker: EmbeddedBroker) -> None:
    """A transaction that is written in a thread, even a cancelled one, is decided when ``fence`` returns."""
    for turn in range(6):
        producer = await broker.producer("id", transaction_timeout_ms=1000)
        begin = len(await values_of(broker, SOURCE))
        running = asyncio.create_task(producer.transact([*numbered("a", 20_000), *numbered("b", INLINE_RECORDS_MAX)]))
        for _ in range(turn):
            await asyncio.sleep(0.002)
        if turn % 2:
            running.cancel()
        await fence(broker, "id")
        seen = len(await values_of(broker, SOURCE)) - begin, len(await values_of(broker, OTHER))
        await asyncio.gather(running, return_exceptions=True)
        assert seen[0] in (0, 20_000)
        assert seen == (len(await values_of(broker, SOURCE)) - begin, len(await values_of(broker, OTHER)))


async def test_a_large_append_leaves_the_loop_its_turns(broker: EmbeddedBroker) -> None:
    """While 200,000 records are written other tasks go on."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    beside = asyncio.create_task(others())
    await append(broker, numbered("a", 200_000))
    beside.cancel()
    assert turns >= 5


async def test_a_fetch_wakes_across_threads(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """An append in another thread, on a loop of its own, wakes a fetch that waits here."""
    reader = await broker.reader({SOURCE: 0})
    waiting = asyncio.create_task(reader.fetch([SOURCE], records_max=10, wait_ms=60_000))
    await asyncio.sleep(0.01)

    async def write() -> None:
        another = await opened(tmp_path / "data")
        await append(another, numbered("a", 1))
        await another.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    async with asyncio.timeout(PATIENCE_S):
        assert [record.value for batch in await waiting for record in batch.records] == [b"0"]
    thread.join()


async def test_close_ends_a_waiting_fetch(broker: EmbeddedBroker) -> None:
    """A fetch of a broker, or of a reader, that is closed ends with BrokerError at once."""
    readers = [await broker.reader({SOURCE: 0}) for _ in range(2)]
    waiting = [asyncio.create_task(r.fetch([SOURCE], records_max=10, wait_ms=60_000)) for r in readers]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(PATIENCE_S):
        await readers[0].close()
        with pytest.raises(BrokerError):
            await waiting[0]
        await broker.close()
        with pytest.raises(BrokerError):
            await waiting[1]


async def with_table(broker: EmbeddedBroker) -> Table:
    """The table topic t of a broker."""
    await broker.create([TopicSpec("t", 1, TABLE_CONFIG)])
    table = broker.table("t", 0)
    assert table is not None
    return table


async def test_a_table_is_not_trimmed_and_ends_with_its_broker(broker: EmbeddedBroker) -> None:
    """It has no offsets to trim to, and can't be read any more when the broker is closed."""
    table = await with_table(broker)
    await append(broker, [Outgoing("t", 0, b"k", b"1")])
    with pytest.raises(BrokerError, match="by key"):
        await broker.trim({TopicPartition("t", 0): 1})
    assert table.get(b"k") == b"1"
    await broker.close()
    with pytest.raises(StoreError, match="was closed"):
        table.get(b"k")


TRANSACT_FOR_EVER = """
import asyncio, sys
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec
from keylanes.state.tables import TABLE_CONFIG

async def main():
    broker = EmbeddedBroker(sys.argv[1])
    await broker.open()
    await broker.create([TopicSpec("a", 1, {}), TopicSpec("b", 1, {}), TopicSpec("t", 1, TABLE_CONFIG)])
    size = int(sys.argv[2])
    producer = await broker.producer("id", transaction_timeout_ms=1000)
    number = (await broker.watermarks([TopicPartition("b", 0)]))[TopicPartition("b", 0)].high
    while True:
        records = [Outgoing("a", 0, None, b"%d" % number)] * size + [Outgoing("b", 0, None, b"%d" % size)]
        records += [Outgoing("t", 0, b"%d" % key, b"%d" % number) for key in range(size // 2)]
        await producer.transact(records)
        number += 1
        print(number, flush=True)
asyncio.run(main())
"""


@tier("test")
def test_a_killed_process_tears_no_transaction(tmp_path: Path) -> None:
    """After kill -9 at random moments transactions are there whole or not at all, all acknowledged ones among them."""
    drawn = random.Random(2)
    for size in (3, 2_000, 20_000):  # written on the loop, in a thread, in many chunks
        command = [sys.executable, "-c", TRANSACT_FOR_EVER, str(tmp_path / "data"), str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(drawn.randint(2, 9))]
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        acknowledged = max(int(line) for line in lines if line.endswith(b"\n"))
        asyncio.run(_check_whole(tmp_path / "data", acknowledged))


async def _check_whole(folder: Path, acknowledged: int) -> None:
    broker = await opened(folder)
    sizes = [int(value or b"") for value in await values_of(broker, OTHER)]
    assert len(sizes) >= acknowledged
    expected = [b"%d" % number for number, count in enumerate(sizes) for _ in range(count)]
    assert await values_of(broker, SOURCE) == expected
    # Each transaction wrote the first keys of the table: those of a larger size are of the last one of that size.
    last = {key: number for number, count in enumerate(sizes) for key in {*range(count // 2)}}
    found = (await with_table(broker)).page(b"", None, 100_000)
    assert {int(key): int(value) for key, value in found} == last
    await broker.close()
