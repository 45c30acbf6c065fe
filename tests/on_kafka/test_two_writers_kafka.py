"""Two members that write to one changelog partition and one offset-log partition of a real Kafka."""

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka import AIOKafkaProducer

from keylanes.brokers.protocol import Outgoing
from keylanes.errors import StateError
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event
from keylanes.state.changelog import beacon_key

from ..stage.ground import Ground
from ..stage.stateful import delete_topics, make_changelog
from ..stage.writers import Group, Member, changed_by, halves, read_all


def group_on(ground: Ground) -> Group:
    """A group on a ground."""

    async def read() -> list[Event]:
        broker = ground.connect()
        await broker.open()
        found = await read_all(broker, f"{ground.name}.offsets")
        await broker.close()
        return [decode(record.value or b"") for record in found]

    return Group(ground.name, ground.source, ground.connect, read)


async def transact(ground: Ground, group: Group, first: Member, second: Member) -> None:
    """Transactions one in the other: to the changelog first and second, to the offset log second and first."""
    carried = [group.carry(member) for member in (first, second)]
    producers = []
    for member in (first, second):
        name = f"{ground.name}.{member.incarnation}"
        servers = ground.servers
        producers.append(AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name))
    for producer in producers:
        await producer.start()
        await producer.begin_transaction()
    for producer, (changelog, _) in zip(producers, carried, strict=True):
        await write(producer, changelog)
    for producer, (_, offsets) in reversed(list(zip(producers, carried, strict=True))):
        await write(producer, offsets)
    for producer, member in reversed(list(zip(producers, (first, second), strict=True))):
        await producer.commit_transaction()
        await producer.stop()
        await group.committed(member)


async def write(producer: AIOKafkaProducer, records: Sequence[Outgoing]) -> None:
    """Write records in the open transaction; returns when the broker has them."""
    for record in records:
        await producer.send(record.topic, record.value, record.key, record.partition)
    await producer.flush()


@pytest.mark.broker
def test_transactions_one_in_the_other_on_kafka(kafka: Ground) -> None:
    """Each log has another transaction last. A start takes the changelog, has all that both wrote, and succeeds both
    with its first change. Without the last change of one of them the changelog is refused.
    """
    group = group_on(kafka)

    async def two() -> None:
        await group.create()
        lower, upper = [await group.join(half) for half in halves()]
        for _ in range(2):
            await transact(kafka, group, lower, upper)
        assert [changed_by(event)[0] for event in await group.read()] == [2, 1, 2, 1]
        group.fence(lower, upper)
        third = await group.join(WHOLE)
        assert group.kept(third) == group.truth
        changelog, _ = group.carry(third)
        assert [record.key for record in changelog if record.value is None] == [beacon_key(1), beacon_key(2)]
        await group.close()

    asyncio.run(two())
    rows = kafka.read(group.changelog)
    assert [row.key for row in rows if row.key in (beacon_key(1), beacon_key(2))] == [beacon_key(1), beacon_key(2)] * 2
    delete_topics(kafka, group.changelog)
    make_changelog(kafka, rows[:-1])

    async def without() -> None:
        words = "up to transaction 1 of incarnation 2, and the offset log says that transaction 2 was the last of that"
        with pytest.raises(StateError, match=words):
            await group.join(WHOLE)
        await group.close()

    asyncio.run(without())
