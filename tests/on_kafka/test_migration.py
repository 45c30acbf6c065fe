"""Moving a service from a consumer group to keylanes, as docs/migration.md walks through it: on real groups."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as TheirPartition
from confluent_kafka import Consumer, Producer, TopicPartition

from keylanes import App, SettingsError, SourceError

from ..stage.feeding import stops_with, trim
from ..stage.ground import Ground

pytestmark = pytest.mark.broker

PARTITIONS = 2
RECORDS = 40
HANDLED = 7
WAIT_S = 30.0


def fill(ground: Ground) -> set[bytes]:
    """Numbered records in two partitions."""
    records = [(number % PARTITIONS, b"k%d" % number, b"%d" % number) for number in range(RECORDS)]
    ground.scatter(records, PARTITIONS)
    return {value for _, _, value in records}


def moved(ground: Ground, start: Any) -> App:
    """The service on keylanes: it passes on what it handles."""
    app = ground.app()

    @app.handler(ground.source, to=ground.late, start=start)
    async def handle(value: bytes) -> bytes:
        return value

    return app


def passed_on(ground: Ground) -> list[bytes | None]:
    """What keylanes has handled."""
    return [record.value for partition in range(PARTITIONS) for record in ground.read(ground.late, partition)]


async def test_a_service_moves_without_a_loss_and_without_a_double(kafka: Ground) -> None:
    """Handled there, refused while it is there, handled here from its offsets on; then the group does not matter."""
    everything = await asyncio.to_thread(fill, kafka)
    group, old = f"billing-{kafka.name}", []
    consumer = AIOKafkaConsumer(
        kafka.source,
        bootstrap_servers=kafka.servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    async with asyncio.timeout(WAIT_S):
        for _ in range(HANDLED):
            old.append((await consumer.getone()).value)
            await consumer.commit()
    app = moved(kafka, f"group:{group}")
    with pytest.raises(SettingsError, match=r"the group has members \(it is Stable\).*Stop all consumers of the group"):
        async with app:
            pass
    assert await asyncio.to_thread(kafka.read, f"{kafka.name}.control") == []
    await consumer.stop()
    await asyncio.to_thread(app.run, until="level")
    new = await asyncio.to_thread(passed_on, kafka)
    assert len(old) == HANDLED
    assert sorted([*old, *new]) == sorted(everything), "each once"
    await consumer_again(kafka, group)
    again = moved(kafka, f"group:{group}")
    await asyncio.to_thread(again.run, until="level")
    assert len(await asyncio.to_thread(passed_on, kafka)) == RECORDS - HANDLED


async def consumer_again(kafka: Ground, group: str) -> None:
    """The group commits something else afterwards."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    place = TheirPartition(kafka.source, 0)
    consumer.assign([place])
    await consumer.commit({place: 1})
    await consumer.stop()


@contextmanager
def subscribed(kafka: Ground, group: str, **settings: Any) -> Iterator[Consumer]:
    """A member of a group, with its assignment; it leaves at the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    consumer.subscribe([kafka.source])
    for _ in range(int(WAIT_S * 10)):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            break
    else:
        pytest.fail("the consumer got nothing")
    yield consumer
    consumer.close()


def test_a_group_of_the_newer_protocol(kafka: Ground) -> None:
    """The broker does not describe it to those who ask in the old way; its members are seen all the same."""
    fill(kafka)
    group = f"newer-{kafka.name}"
    app = moved(kafka, f"group:{group}")
    with subscribed(kafka, group, **{"group.protocol": "consumer"}) as consumer:
        places = [TopicPartition(kafka.source, partition, 15) for partition in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)
        stops_with(SettingsError, app, "the group has members", "Stop all consumers of the group")
    app.run(until="level")
    assert sorted(int(value or b"") for value in passed_on(kafka)) == list(range(30, 40))


def test_offsets_that_a_transaction_is_about_to_commit_are_waited_for(kafka: Ground) -> None:
    """As Kafka Streams and other exactly-once services commit them: not the older ones are taken."""
    fill(kafka)
    group = f"exact-{kafka.name}"
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": group})
    producer.init_transactions(WAIT_S)
    with subscribed(kafka, group) as consumer:
        consumer.commit(offsets=[TopicPartition(kafka.source, p, 5) for p in range(PARTITIONS)], asynchronous=False)
        producer.begin_transaction()
        offsets = [TopicPartition(kafka.source, p, 18) for p in range(PARTITIONS)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
    committing = threading.Timer(1.0, producer.commit_transaction)
    committing.start()
    moved(kafka, f"group:{group}").run(until="level")
    committing.join()
    assert sorted(int(value or b"") for value in passed_on(kafka)) == list(range(36, 40))


def test_groups_that_can_not_be_gone_on_from(kafka: Ground) -> None:
    """No such group, and one that stands below what the topic holds."""
    fill(kafka)
    group = f"late-{kafka.name}"
    stops_with(SettingsError, moved(kafka, f"group:{group}"), "has committed no offset for this topic", "--list")
    with subscribed(kafka, group) as consumer:
        consumer.commit(offsets=[TopicPartition(kafka.source, 1, 3)], asynchronous=False)
    trim(kafka, 5, partition=1)
    stops_with(
        SourceError, moved(kafka, f"group:{group}"), "stands at offset 3 of partition 1, which holds offsets 5 to 20"
    )
    moved(kafka, "earliest").run(until="level")
    assert len(passed_on(kafka)) == RECORDS - 5
