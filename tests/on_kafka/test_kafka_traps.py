"""Each trap of Kafka and its client on a real broker: outcomes are known or named unknown, nothing is lost silently."""

import asyncio
import contextlib
import gc
import logging
import random
import time
import tracemalloc
from typing import Any

import pytest

from keylanes.brokers.delivery import SEQUENCES
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import (
    Batch,
    BrokerProducer,
    BrokerTimeout,
    CorruptRecord,
    OffsetOutOfRange,
    Outgoing,
    ProducerFenced,
    Reader,
    TopicPartition,
    TopicSpec,
    TransactionAborted,
    TransactionRefused,
    TransactionUnknown,
    UnknownTopic,
)

from ..stage.appending import append
from ..stage.fencing import fence
from ..stage.ground import Ground
from ..stage.proxy import END_TXN, PRODUCE, Fault, Proxy
from ..stage.raw import flip_byte, log_file
from ..stage.stateful import configure, delete_topics
from ..tiers.brokers import SharedKafka

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

TIMEOUT_MS = 10_000
SHORT_MS = 1_000
NOISE = random.Random(3).randbytes(5_000)


def numbers(place: TopicPartition, *values: int) -> list[Outgoing]:
    """Records with these values."""
    return [Outgoing(place.topic, place.partition, b"k", b"%d" % value) for value in values]


async def high(broker: KafkaBroker, place: TopicPartition) -> int:
    """The high watermark."""
    return (await broker.watermarks([place]))[place].high


async def read_up_to(reader: Reader, place: TopicPartition, end: int, records_max: int = 1000) -> list[int]:
    """The values up to a position, however the holes lie."""
    found: list[int] = []
    async with asyncio.timeout(30):
        while reader.position(place) < end:
            for batch in await reader.fetch([place], records_max=records_max, wait_ms=500):
                found += [int(record.value or b"") for record in batch.records]
    return found


async def fetched(reader: Reader, place: TopicPartition) -> list[Batch]:
    """One record of what comes next, as soon as there is one."""
    async with asyncio.timeout(30):
        while not (batches := await reader.fetch([place], records_max=1, wait_ms=500)):
            pass
    return batches


async def visible(broker: KafkaBroker, place: TopicPartition) -> list[int]:
    """All values a committed reader sees up to the high watermark as it is now."""
    reader = await broker.reader({place: 0})
    try:
        return await read_up_to(reader, place, await high(broker, place))
    finally:
        await reader.close()


async def held_transaction(
    through: KafkaBroker, proxy: Proxy, name: str, records: list[Outgoing], timeout_ms: int = TIMEOUT_MS
) -> tuple[BrokerProducer, "asyncio.Task[dict[TopicPartition, int]]"]:
    """A transaction whose records are written and whose commit is held back in the network."""
    producer = await through.producer(name, transaction_timeout_ms=timeout_ms)
    proxy.arm(END_TXN, Fault.HOLD_REQUEST)
    running = asyncio.create_task(producer.transact(records))
    await proxy.caught()
    return producer, running


async def test_a_refused_record_aborts_all_and_is_named(broker: KafkaBroker, name: str, place: TopicPartition) -> None:
    """A record beyond the topic's limit is the only culprit named, and nothing of its transaction becomes visible."""
    small = TopicPartition(f"{name}-small", 0)
    await broker.create([TopicSpec(small.topic, 1, {"max.message.bytes": "2000"})])
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    records = [*numbers(place, 1), *numbers(small, 2), Outgoing(small.topic, 0, b"k", NOISE), *numbers(small, 3)]
    with pytest.raises(TransactionRefused) as caught:
        await producer.transact(records)
    assert caught.value.culprits == (2,)
    assert await visible(broker, place) == await visible(broker, small) == []


async def test_small_records_are_never_refused_together(broker: KafkaBroker, name: str) -> None:
    """Batches are cut to ``max.message.bytes``: many records that fit one by one are written, in order."""
    place = TopicPartition(name, 0)
    await broker.create([TopicSpec(name, 1, {"max.message.bytes": "2000"})])
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    await producer.transact([Outgoing(name, 0, NOISE[at : at + 100], b"%d" % at) for at in range(400)])
    assert await visible(broker, place) == list(range(400))


async def test_a_lowered_limit_is_learnt_from_a_refusal(broker: KafkaBroker, kafka: Ground, name: str) -> None:
    """Batches cut to an outdated limit are refused once; the next producer cuts them to the new one."""
    place = TopicPartition(name, 0)
    records = [Outgoing(name, 0, NOISE[at : at + 100], b"%d" % at) for at in range(400)]
    await broker.create([TopicSpec(name, 1, {})])
    await append(broker, numbers(place, -1))  # the limit is known from here on
    await asyncio.to_thread(configure, kafka, name, {"max.message.bytes": "2000"})
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    with pytest.raises(TransactionRefused):
        await producer.transact(records)
    await producer.close()
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    await producer.transact(records)
    assert await visible(broker, place) == list(range(-1, 400))


async def test_a_newer_producer_aborts_an_open_transaction(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """Making a producer aborts the older one's open transaction; the older one's late commit is ProducerFenced."""
    _producer, running = await held_transaction(through, proxy, name, numbers(place, 1, 2))
    newer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    proxy.release()
    with pytest.raises(ProducerFenced):
        await running
    await newer.transact(numbers(place, 3))
    assert await visible(broker, place) == [3]


async def test_an_idle_producer_is_fenced(broker: KafkaBroker, name: str, place: TopicPartition) -> None:
    """A producer that was fenced while it did nothing gets ProducerFenced, and stays of no use."""
    producer = await broker.producer(name, transaction_timeout_ms=SHORT_MS)
    await producer.transact(numbers(place, 1))
    await fence(broker, name)
    with pytest.raises(ProducerFenced):
        await producer.transact(numbers(place, 2))
    assert await visible(broker, place) == [1]


async def test_the_reader_waits_at_an_open_transaction(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """The high watermark lies beyond an open transaction, where a committed reader waits until it is decided."""
    await append(broker, numbers(place, 1))
    reader = await broker.reader({place: 0})
    _producer, running = await held_transaction(through, proxy, name, numbers(place, 2, 3))
    await append(broker, numbers(place, 4))
    assert await high(broker, place) == 4
    assert await read_up_to(reader, place, 1) == [1]
    assert await reader.fetch([place], records_max=10, wait_ms=300) == []
    assert reader.position(place) == 1
    proxy.release()
    await running
    assert await read_up_to(reader, place, 5) == [2, 3, 4]


async def test_positions_pass_markers_and_aborted_records(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """At the end of a partition, too, a position passes what is not a record, soon and without a record to carry it."""
    await append(broker, numbers(place, 1))
    _producer, running = await held_transaction(through, proxy, name, numbers(place, 2, 3))
    await fence(broker, name)
    proxy.release()
    with pytest.raises(ProducerFenced):
        await running
    reader = await broker.reader({place: 1})
    loop = asyncio.get_running_loop()
    began, end = loop.time(), await high(broker, place)
    batches = await reader.fetch([place], records_max=10, wait_ms=20_000)
    assert [(list(batch.records), batch.offset_next) for batch in batches] == [([], end)]
    assert (end, reader.position(place)) == (4, 4)
    assert loop.time() - began < 10


async def test_what_was_read_is_freed_at_once(broker: KafkaBroker, place: TopicPartition) -> None:
    """Nothing of a batch waits for the garbage collection, which stands still for the longer the more there is."""
    reader, appender = await broker.reader({place: 0}), broker.appender()
    await appender.append(numbers(place, 0))
    assert await read_up_to(reader, place, 1) == [0]
    gc.collect()
    gc.freeze()  # what tests before this one let go of later is not looked at
    gc.disable()
    try:
        for i in range(1, 100):
            await appender.append(numbers(place, i))
            assert await read_up_to(reader, place, i + 1) == [i]
        assert gc.collect() < 100, "something of each batch is in a circle"
    finally:
        gc.unfreeze()
        gc.enable()
        await appender.close()
        await reader.close()


async def test_what_was_fetched_ahead_is_freed_at_once(broker: KafkaBroker, place: TopicPartition) -> None:
    """Whoever reads elsewhere, or reads no more, gives back what the client holds of what comes next: some MiB."""
    values = [b"%d " % i + NOISE for i in range(400)]
    await append(broker, [Outgoing(place.topic, place.partition, b"k", value) for value in values])
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        held = []
        for _ in range(4):
            reader = await broker.reader({})
            for start in (200, 0):
                reader.assign({place: start})
                (batch,) = await fetched(reader, place)
                assert [record.offset for record in batch.records] == [start]
                del batch
            await reader.close()
            held.append(tracemalloc.get_traced_memory()[0])
        assert held[-1] - held[0] < 300_000, held  # a fetch brings all of it, and each loop fetches twice
    finally:
        tracemalloc.stop()
        gc.enable()


async def nothing_goes_on(before: "set[asyncio.Task[Any]]") -> None:
    """The tasks that began since then end."""
    if left := asyncio.all_tasks() - before:
        _, going_on = await asyncio.wait(left, timeout=10)
        assert not going_on, "goes on"


async def test_a_reader_ends_as_soon_as_it_is_assigned_anew(broker: KafkaBroker, place: TopicPartition) -> None:
    """The consumer's fetcher, while it gives up what it had asked before, would miss that it has to end."""
    before = asyncio.all_tasks()
    for turns in range(4):
        reader = await broker.reader({place: 0})
        await reader.fetch([place], records_max=1, wait_ms=300)  # longer than one request waits: another is under way
        reader.assign({place: 0})
        await reader.fetch([place], records_max=1, wait_ms=0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await reader.close()
    await nothing_goes_on(before)


async def test_a_reader_ends_also_when_who_closes_it_is_cancelled(broker: KafkaBroker, place: TopicPartition) -> None:
    """As when a stop and a limit come at once: nothing of it goes on, and no connection stays open."""
    before = asyncio.all_tasks()
    reader = await broker.reader({place: 0})
    await reader.fetch([place], records_max=1, wait_ms=0)

    async def close() -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        task.cancel()
        await reader.close()

    await asyncio.wait([asyncio.create_task(close())])
    await nothing_goes_on(before)


async def test_a_dead_client_frees_its_readers(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """The transaction of a client that died is aborted at its time limit, and readers go on."""
    producer, running = await held_transaction(through, proxy, name, numbers(place, 1), SHORT_MS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await producer.close()
    await append(broker, numbers(place, 2))
    assert await visible(broker, place) == [2]


async def test_a_transaction_beyond_its_time_limit_is_aborted_not_fenced(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """When Kafka ended a transaction for its slowness the answer is TransactionAborted, since no newer producer is."""
    _producer, running = await held_transaction(through, proxy, name, numbers(place, 1), SHORT_MS)
    assert await visible(broker, place) == []
    proxy.release()
    with pytest.raises(TransactionAborted, match="took longer"):
        await running


async def test_a_slow_transaction_that_was_taken_over_is_fenced(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """Beyond the time limit, too, a newer producer is told apart: the older one gets ProducerFenced."""
    _producer, running = await held_transaction(through, proxy, name, numbers(place, 1), SHORT_MS)
    assert await visible(broker, place) == []
    newer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    proxy.release()
    with pytest.raises(ProducerFenced):
        await running
    await newer.transact(numbers(place, 2))
    assert await visible(broker, place) == [2]


LOST = [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.CUT_REPLY, Fault.CUT_REQUEST, Fault.SILENCE]
CARRIED_OUT = (Fault.LOSE_REPLY, Fault.CUT_REPLY)


@pytest.mark.parametrize("fault", LOST)
async def test_a_lost_commit_is_unknown_until_the_log_is_read(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition, fault: Fault
) -> None:
    """Without an answer to the commit the outcome is TransactionUnknown; after a new producer the log tells it."""
    producer = await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    await producer.transact(numbers(place, 1))
    proxy.arm(END_TXN, fault)
    with pytest.raises(TransactionUnknown):
        await producer.transact(numbers(place, 2))
    await producer.close()
    await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    assert await visible(broker, place) == ([1, 2] if fault in CARRIED_OUT else [1])


async def test_a_late_commit_does_not_end_the_next_transaction(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """A commit that reaches the broker long after its sender gave up changes nothing of the next producer's work."""
    late, other = TopicPartition(f"{name}-late", 0), f"{name}-proxied"
    await broker.create([TopicSpec(late.topic, 1, {})])
    producer, running = await held_transaction(through, proxy, other, numbers(late, 1))
    with pytest.raises(TransactionUnknown):
        await running
    await producer.close()
    newer = await broker.producer(other, transaction_timeout_ms=TIMEOUT_MS)
    proxy.release()
    await newer.transact(numbers(late, 2))
    await newer.transact(numbers(late, 3))
    assert await visible(broker, late) == [2, 3]


async def test_a_commit_that_arrives_within_the_next_transaction(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition
) -> None:
    """A commit that is held until its sender, connected anew, has begun the next transaction ends neither of them."""
    producer = await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    proxy.arm(END_TXN, Fault.HOLD_TO_NEXT)
    with pytest.raises(TransactionUnknown):
        await producer.transact(numbers(place, 1))
    await producer.close()
    newer = await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    assert await visible(broker, place) == []
    proxy.arm(PRODUCE, Fault.DELAY_REQUEST)
    await newer.transact(numbers(place, 2))
    await newer.transact(numbers(place, 3))
    assert await visible(broker, place) == [2, 3]
    assert proxy.met[Fault.HOLD_TO_NEXT] == 1


@pytest.mark.parametrize("fault", LOST)
async def test_a_lost_write_aborts_its_transaction(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, name: str, place: TopicPartition, fault: Fault
) -> None:
    """Without an answer to its records a transaction is aborted at once, and may be sent again."""
    producer = await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    proxy.arm(PRODUCE, fault)
    with pytest.raises(TransactionAborted):
        await producer.transact(numbers(place, 1))
    await producer.close()
    producer = await through.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    await producer.transact(numbers(place, 1))
    assert await visible(broker, place) == [1]


@pytest.mark.parametrize("fault", LOST[:-1])  # silence lasts as long as an append may
async def test_a_lost_append_is_written_once_and_in_order(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, place: TopicPartition, fault: Fault
) -> None:
    """An append whose answer is lost is sent again under the same sequence number: no double, no change of order."""
    appender = through.appender()
    await appender.append(numbers(place, 1))
    proxy.arm(PRODUCE, fault)
    await asyncio.gather(appender.append(numbers(place, 2, 3)), appender.append(numbers(place, 4)))
    assert await visible(broker, place) == [1, 2, 3, 4]


async def test_sequence_numbers_begin_anew_behind_the_last_one(
    broker: KafkaBroker, place: TopicPartition, name: str
) -> None:
    """After 2**31 - 1 comes 0, within a batch, too: Kafka counts the records of a producer in a partition so."""
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    producer.session.sequences[place] = SEQUENCES - 2
    await producer.transact(numbers(place, 1, 2, 3))
    await producer.transact(numbers(place, 4))
    assert producer.session.sequences[place] == 2
    assert await visible(broker, place) == [1, 2, 3, 4]


async def test_a_silent_broker_is_an_error_everywhere(
    proxy: Proxy, kafka_server: SharedKafka, broker: KafkaBroker, name: str, place: TopicPartition
) -> None:
    """When nothing is answered any more every call ends, within its limits, with the error that the protocol names."""
    limits: dict[str, Any] = dict.fromkeys(("request_timeout_ms", "default_api_timeout_ms"), SHORT_MS)
    limits["close_timeout_ms"] = 500
    through = KafkaBroker(f"127.0.0.1:{kafka_server.proxied_port}", **limits)
    await through.open()
    producer = await through.producer(name, transaction_timeout_ms=SHORT_MS)
    reader = await through.reader({place: 0})
    await reader.fetch([place], records_max=1, wait_ms=0)
    proxy.silent = True
    with pytest.raises(TransactionAborted):
        await producer.transact(numbers(place, 1))
    calls = (
        append(through, numbers(place, 1)),
        through.watermarks([place]),
        through.describe([place.topic]),
        fence(through, name),
        through.producer(name, transaction_timeout_ms=TIMEOUT_MS),
        through.reader({place: 0}),
        through.trim({place: 0}),
        through.create([TopicSpec(f"{name}-other", 1, {})]),
        read_up_to(reader, place, 1),
    )
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, BrokerTimeout)] == []
    async with asyncio.timeout(10):
        await through.close()
    assert await visible(broker, place) == []


async def test_nobody_there_is_an_error() -> None:
    """Connecting where nobody listens ends with BrokerTimeout."""
    with pytest.raises(BrokerTimeout, match=r"127\.0\.0\.1:9"):
        await KafkaBroker("127.0.0.1:9", request_timeout_ms=300, default_api_timeout_ms=300).open()


async def test_retention_that_passes_a_reader_is_an_error(broker: KafkaBroker, place: TopicPartition) -> None:
    """A reader that stands below the new start gets OffsetOutOfRange with the watermarks, again and again."""
    reader = await broker.reader({place: 0})
    await reader.fetch([place], records_max=1, wait_ms=0)
    reader.assign({place: 0})
    await append(broker, numbers(place, *range(5)))
    await broker.trim({place: 3})
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange) as caught:
            await read_up_to(reader, place, 5)
        assert (caught.value.offset, tuple(caught.value.watermarks)) == (0, (3, 5))
    with pytest.raises(OffsetOutOfRange):
        await broker.trim({place: 6})


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", None])
async def test_every_codec_is_written_and_read(
    kafka_server: SharedKafka, broker: KafkaBroker, name: str, place: TopicPartition, codec: str | None
) -> None:
    """Records written with each codec, in appends and in transactions, are read as they were."""
    writer = KafkaBroker(kafka_server.bootstrap, compression_type=codec)
    await writer.open()
    try:
        await append(writer, numbers(place, *range(100)))
        producer = await writer.producer(name, transaction_timeout_ms=TIMEOUT_MS)
        await producer.transact(numbers(place, *range(100, 200)))
    finally:
        await writer.close()
    assert await visible(broker, place) == list(range(200))


async def test_a_damaged_batch_is_an_error_and_loses_no_neighbour(
    kafka_server: SharedKafka, broker: KafkaBroker, name: str
) -> None:
    """A flipped byte on disk raises CorruptRecord each time, and other partitions' records are still handed out."""
    sound, damaged = [TopicPartition(name, index) for index in range(7)], TopicPartition(name, 7)
    await broker.create([TopicSpec(name, 8, {})])
    await append(broker, [record for place in (*sound, damaged) for record in numbers(place, *range(50))])
    flip_byte(log_file(kafka_server.folder, name, 7), 100)
    reader = await broker.reader(dict.fromkeys((*sound, damaged), 0))
    found: dict[TopicPartition, list[int]] = {place: [] for place in sound}
    errors = 0
    async with asyncio.timeout(30):
        while errors < 3 or any(reader.position(place) < 50 for place in sound):
            try:
                for batch in await reader.fetch([*sound, damaged], records_max=1_000, wait_ms=500):
                    found[batch.source] += [int(record.value or b"") for record in batch.records]
            except CorruptRecord:
                errors += 1
    assert found == {place: list(range(50)) for place in sound}
    assert reader.position(damaged) == 0


async def test_records_are_never_logged(
    broker: KafkaBroker, name: str, place: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """With all logging at DEBUG neither keys nor values of what is written and read appear in a log."""
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    await broker.open()
    producer = await broker.producer(name, transaction_timeout_ms=TIMEOUT_MS)
    await producer.transact([Outgoing(place.topic, 0, b"secret-key", b"123454321")])
    assert await visible(broker, place) == [123454321]
    assert "secret-key" not in caplog.text
    assert "123454321" not in caplog.text


async def test_damage_that_passed_is_left_behind(
    kafka_server: SharedKafka, broker: KafkaBroker, place: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """Where damage was met records come one by one, which is logged; after enough good ones many come again."""
    await append(broker, numbers(place, *range(20)))
    file = log_file(kafka_server.folder, place.topic)
    reader = await broker.reader({place: 0})
    flip_byte(file, 100)
    async with asyncio.timeout(30):
        with pytest.raises(CorruptRecord):
            await read_up_to(reader, place, 20, records_max=5)
        assert f"{place.topic}[0] from offset 0 on: damage; the next 5 records are read one by one" in caplog.text
        flip_byte(file, 100)
        sizes: list[int] = []
        while reader.position(place) < 20:
            with contextlib.suppress(CorruptRecord):  # of what was fetched before
                sizes += [len(batch.records) for batch in await reader.fetch([place], records_max=5, wait_ms=500)]
    assert sizes == [1, 1, 1, 1, 1, 5, 5, 5]


async def test_a_process_that_stood_still_calls_nothing_damaged(
    kafka_server: SharedKafka, broker: KafkaBroker, place: TopicPartition
) -> None:
    """While this process stands still no broker answers it: that calls for a new reader, not for a mended source."""
    for value in range(2):  # batches of their own
        await append(broker, numbers(place, value))
    hasty = KafkaBroker(kafka_server.bootstrap, default_api_timeout_ms=2 * SHORT_MS)
    await hasty.open()
    try:
        reader = await hasty.reader({place: 0})
        while not await reader.fetch([place], records_max=1, wait_ms=500):
            pass
        reader._consumer._fetcher._records.clear()  # as when the rest is still on its way
        assert await reader.fetch([place], records_max=1, wait_ms=0) == []
        time.sleep(4.5 * SHORT_MS / 1000)  # noqa: ASYNC251  # the loop stands still, and the client with it
        with pytest.raises(BrokerTimeout):
            await reader.fetch([place], records_max=1, wait_ms=0)
    finally:
        await hasty.close()


async def test_a_new_reader_knows_the_topic_that_the_old_one_read(
    kafka: Ground, broker: KafkaBroker, place: TopicPartition
) -> None:
    """A topic that was created anew between two readers is no more the one that was read than within one."""
    await append(broker, numbers(place, 1, 2))
    reader = await broker.reader({place: 0})
    assert await read_up_to(reader, place, 2) == [1, 2]
    await reader.close()
    await asyncio.to_thread(delete_topics, kafka, place.topic)
    await broker.create([TopicSpec(place.topic, 1, {})])
    await append(broker, numbers(place, 3, 4, 5))
    reader = await broker.reader({place: 2})
    with pytest.raises(UnknownTopic, match="created anew"):
        await reader.fetch([place], records_max=10, wait_ms=500)
