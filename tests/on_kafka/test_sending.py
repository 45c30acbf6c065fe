"""``app.send`` on a real Kafka: acknowledged, once, and honest about a lost session."""

import asyncio

import pytest

from keylanes import App, SendUnknown, Settings
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
