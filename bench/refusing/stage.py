"""Source, output and limit of a run, and what a committed reader sees of it.

Keys lie in two partitions by turns. A source value asks for the length of its output in its third field.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from rig.ground import Ground
from rig.reader import COUNTS, changelog_of
from rig.records import key_bytes
from rig.witness import WrongRun

KEYS, PARTITIONS = 20, 2
REFUSED_KEY, REFUSED_NUMBER = 0, 15
"""The record whose output is too large."""
SMALL_BYTES, LARGE_BYTES = 100, 600_000
LIMIT_BYTES, ROOM_BYTES = 300_000, 1_048_588
"""What the output topic takes while it refuses, and else: Kafka's default. No batch of small outputs is larger than
either, and every client's own limit lies above the large one.
"""
T = TypeVar("T")
_head = Struct("<IIQ")


@dataclass
class Visible:
    """Of an output: how often each (key, number) is there."""

    times: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def doubled(self) -> int:
        """Records that are there more than once."""
        return sum(times - 1 for times in self.times.values())

    @property
    def refused(self) -> bool:
        """Whether the large one is there."""
        return (REFUSED_KEY, REFUSED_NUMBER) in self.times

    def of_others(self) -> int:
        """How many records of other keys are there."""
        return sum(key != REFUSED_KEY for key, _ in self.times)


class Stage:
    """The topics of one run. ``ground`` removes them."""

    def __init__(self, ground: Ground, arm: str, group: str, *, limit_bytes: int) -> None:
        self.bootstrap, self.arm, self.group = ground.bootstrap, arm, group
        self.source, self.output, self.dead = f"{group}-source", f"{group}-output", f"{group}-dead"
        ground.make(self.source, PARTITIONS)
        ground.make(self.output, PARTITIONS, {"max.message.bytes": str(limit_bytes)})
        ground.make(self.dead, PARTITIONS)
        self.has_group = not arm.startswith("keylanes")
        """Whether the arm is in a consumer group; keylanes has an offset log."""
        self.refused_offset = -1
        """Of the source record with the large output, in partition 0."""

    def send(self, numbers: range) -> None:
        """The records of every key with these numbers, in turn."""
        _run(self._send(numbers))

    async def _send(self, numbers: range) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for number in numbers:
                for key in range(KEYS):
                    is_refused = (key, number) == (REFUSED_KEY, REFUSED_NUMBER)
                    value = _head.pack(key, number, LARGE_BYTES if is_refused else SMALL_BYTES)
                    place = key % PARTITIONS
                    sent = await producer.send(self.source, value, key_bytes(key), partition=place)
                    if is_refused:
                        self.refused_offset = (await sent).offset
            await producer.flush()

    def limit(self, size: int) -> None:
        """Let the output topic take batches of so many bytes. Raises WrongRun."""
        _run(self._limit(size))

    async def _limit(self, size: int) -> None:
        settings = {"max.message.bytes": str(size)}
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            for answer in await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.output, settings)]):
                for code, said, *_ in answer.resources:
                    if code:
                        raise WrongRun(f"the limit of {self.output} can't be set: {for_code(code).__name__}: {said}")
        finally:
            await admin.close()

    def visible(self) -> Visible:
        """What the output holds."""
        return visible_of([value for _, value in _run(self._read(self.output))])

    def dead_letters(self) -> int:
        """How many there are."""
        return len(_run(self._read(self.dead)))

    def counts(self) -> dict[int, int]:
        """The last committed count of each key, where the arm has a changelog."""
        if self.arm not in CHANGELOGS:
            return {}
        name = CHANGELOGS[self.arm]
        found: dict[bytes, int] = {}
        for key, value in _run(self._read(changelog_of(name, self.group, self.source))):
            if key is not None and value is not None and (held := COUNTS[name](key, value)) is not None:
                found[held[0]] = held[1]
        names = {key_bytes(key): key for key in range(KEYS)}
        return {names[name]: count for name, count in found.items()}

    def committed(self) -> int:
        """The consumer group's next offset in partition 0, or -1: there is none."""
        return _run(self._committed()) if self.has_group else -1

    async def _committed(self) -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(self.group)
            place = offsets.get(TopicPartition(self.source, 0))
            return int(place.offset) if place is not None else -1
        finally:
            await admin.close()

    async def _read(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of all records that are committed now."""
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found: list[tuple[bytes | None, bytes | None]] = []
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, isolation_level="read_committed"
        ) as consumer:
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [(record.key, record.value) for record in records]
        return found


CHANGELOGS = {arm: arm for arm in ("flechtwerk", "quix-eos", "quix-alo", "streams-eos", "streams-alo")} | {
    "keylanes": "keylanes",
    "keylanes-known": "keylanes",
}
"""Arms that keep their counts in a changelog, and how that is read."""


def visible_of(values: Sequence[bytes | None]) -> Visible:
    """What these outputs are of. Raises WrongRun for one that is nobody's."""
    seen = Visible()
    for value in values:
        if value is None or len(value) < _head.size:
            raise WrongRun(f"an output that is no output of the handler: {value!r}")
        key, number, _ = _head.unpack_from(value)
        seen.times[key, number] = seen.times.get((key, number), 0) + 1
    return seen


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
