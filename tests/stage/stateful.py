"""An application with state on a ground, and what is done to its topics and folders in tests of faults."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from keylanes import App, State
from keylanes.brokers.protocol import ConsumerRecord, Outgoing
from keylanes.state.changelog import CHANGELOG_CONFIG, changelog_topic, decode_stored
from keylanes.state.keys import parse_key

from .feeding import write
from .ground import Ground


def counting(ground: Ground, **settings: object) -> App:
    """An application that counts the records of each key."""
    app = ground.app(None, **settings)

    @app.handler(ground.source, to=ground.late, parallelising_factor=4)
    async def count(value: int, seen: State[int]) -> int:
        seen.put((seen.get() or 0) + 1)
        return seen.get() or 0

    return app


def fill(ground: Ground, times: int = 4) -> None:
    """So many records more of each of three keys."""
    ground.fill([(b"k%d" % (i % 3), b"%d" % i) for i in range(3 * times)])


def counts(ground: Ground, subfolder: str | None = None) -> dict[bytes, int]:
    """What is kept, of the first store."""
    found = ground.kept(1, subfolder)
    kept = [(parse_key(key), json.loads(decode_stored(value).payload)) for (_, key), value in found.items()]
    return {place.key: value for place, value in kept if place.store == 0}


def all_at(times: int) -> dict[bytes, int]:
    """Each key was seen so often."""
    return {b"k%d" % i: times for i in range(3)}


def changelog_of(ground: Ground) -> str:
    """The name of the changelog of the source."""
    return changelog_topic(ground.name, ground.source)


def append(ground: Ground, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Write to partition 0 of a topic that exists."""
    write(ground, [Outgoing(topic, 0, key, value) for key, value in records])


def administer(ground: Ground, work: Callable[[AIOKafkaAdminClient], Any]) -> None:
    """Do something to a Kafka that only people do."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=ground.servers)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def delete_topics(ground: Ground, *topics: str) -> None:
    """Delete topics; returns when they are gone."""

    async def delete(admin: AIOKafkaAdminClient) -> None:
        await admin.delete_topics(list(topics))
        async with asyncio.timeout(30):
            while set(topics) & set(await admin.list_topics()):  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.02)

    administer(ground, delete)


def configure(ground: Ground, topic: str, settings: Mapping[str, str]) -> None:
    """Give a topic these settings, and Kafka's own for all others."""

    async def alter(admin: AIOKafkaAdminClient) -> None:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))])

    administer(ground, alter)


def make_changelog(ground: Ground, records: Sequence[ConsumerRecord] = (), partitions: int = 1) -> None:
    """The changelog anew, with these records."""
    ground.create(changelog_of(ground), partitions, **CHANGELOG_CONFIG)
    if records:
        append(ground, changelog_of(ground), [(record.key, record.value) for record in records])
