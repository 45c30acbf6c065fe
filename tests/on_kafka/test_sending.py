"""``app.send`` on a real Kafka: acknowledged, once, and honest about a lost session."""

import asyncio
import json
import time

import pytest

from keylanes import App, OutputRefused, SendUnknown, Settings
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.protocol import TopicPartition, TopicSpec

from ..stage.ground import Ground
from ..stage.proxy import PRODUCE, Fault, Proxy
from ..tiers.brokers import SharedKafka

pytestmark = pytest.mark.broker

TIMEOUT_MS = 2_500


def through(kafka_server: SharedKafka, name: str) -> App:
    """An application that reaches the broker by the proxy."""
    settings = Settings(request_timeout_ms=TIMEOUT_MS, default_api_timeout_ms=TIMEOUT_MS, close_timeout_ms=1_000)
    app = App(f"sender-{name}", broker=f"kafka://127.0.0.1:{kafka_server.proxied_port}", settings=settings)

    @app.handler(name)
    async def handle(value: int) -> None: ...

    return app


async def read(broker: KafkaBroker, place: TopicPartition) -> list[int]:
    """The values of a partition."""
    reader, found = await broker.reader({place: 0}), list[int]()
    end = await high(broker, place)
    async with asyncio.timeout(30):
        while reader.position(place) < end:
            for batch in await reader.fetch([place], records_max=1_000, wait_ms=100):
                found += [json.loads(record.value or b"") for record in batch.records]
    await reader.close()
    return found


async def high(broker: KafkaBroker, place: TopicPartition) -> int:
    """How many records there are."""
    return (await broker.watermarks([place]))[place].high


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CUT_REPLY])
async def test_a_lost_connection_does_not_double_what_is_sent(
    broker: KafkaBroker, proxy: Proxy, kafka_server: SharedKafka, name: str, place: TopicPartition, fault: Fault
) -> None:
    """The session's sequence numbers make it safe to send the batch again: it is acknowledged, and there once."""
    app = through(kafka_server, name)
    proxy.arm(PRODUCE, fault)
    await app.send(name, 1, key="a")
    assert proxy.met[fault] == 1
    assert await high(broker, place) == 1


async def test_a_lost_session_is_said_and_the_next_one_is_its_own(
    broker: KafkaBroker, proxy: Proxy, kafka_server: SharedKafka, name: str, place: TopicPartition
) -> None:
    """The request stays in the network: SendUnknown. It comes late, and is there; what is sent meanwhile is, too."""
    app = through(kafka_server, name)
    await app.send(name, 1, key="a")
    proxy.arm(PRODUCE, Fault.HOLD_REQUEST)
    with pytest.raises(SendUnknown, match=f"whether the record for '{name}' was written is not known"):
        await app.send(name, 2, key="b")
    await app.send(name, 3, key="c")
    assert await high(broker, place) == 2
    proxy.release()
    await proxy.answered()
    assert await high(broker, place) == 3


async def test_a_running_application_is_fed(kafka: Ground, broker: KafkaBroker) -> None:
    """Its records are handled like all others; the session of the application's own logs is another one."""
    await broker.create([TopicSpec(kafka.source, 3, {})])
    app, seen, all_seen = kafka.app(), [], asyncio.Event()

    @app.handler(kafka.source)
    async def handle(value: int) -> None:
        seen.append(value)
        if len(seen) == 20:
            all_seen.set()

    async with app:
        for number in range(20):
            await app.send(kafka.source, number, key=b"k%d" % number)
        async with asyncio.timeout(30):
            await all_seen.wait()
    assert sorted(seen) == list(range(20))
    ends = [await high(broker, TopicPartition(kafka.source, partition)) for partition in range(3)]
    keys = [partition_of_key(b"k%d" % number, 3) for number in range(20)]
    assert ends == [keys.count(partition) for partition in range(3)]


async def test_what_is_behind_an_unknown_outcome_is_sent_then(
    broker: KafkaBroker, proxy: Proxy, kafka_server: SharedKafka, name: str, place: TopicPartition
) -> None:
    """In the order of the calls, in few requests; what was held comes late."""
    app = through(kafka_server, name)
    await app.send(name, 0, key="a")
    proxy.arm(PRODUCE, Fault.HOLD_REQUEST)
    held = asyncio.create_task(app.send(name, -1, key="b"))
    await proxy.caught()
    requests = proxy.seen[PRODUCE]
    behind = asyncio.gather(*(app.send(name, number, key=b"k%d" % number) for number in range(1, 2_000)))
    with pytest.raises(SendUnknown):
        await held
    await behind
    assert proxy.seen[PRODUCE] - requests <= 3
    proxy.release()
    await proxy.answered()
    await app.close()
    assert await read(broker, place) == [*range(2_000), -1]


async def test_a_time_that_is_refused_is_that_of_one_call(broker: KafkaBroker, name: str) -> None:
    """Kafka refuses the whole batch; the others are written, in their order."""
    await broker.create([TopicSpec(name, 1, {"message.timestamp.after.max.ms": "60000"})])
    app, late = App(f"sender-{name}", broker=broker), int(time.time() * 1000) + 3_600_000
    calls = [app.send(name, number, timestamp=late if number in (5, 200) else None) for number in range(300)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [number for number, outcome in enumerate(outcomes) if outcome is not None]
    assert refused == [5, 200]
    assert all(isinstance(outcomes[number], OutputRefused) for number in refused)
    await app.close()
    assert await read(broker, TopicPartition(name, 0)) == [number for number in range(300) if number not in (5, 200)]
