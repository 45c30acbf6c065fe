"""The logs of an application, read with the runtime's own client. The audit alone judges whether the logs are right."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from keylanes.brokers.protocol import Batch, Broker, ConsumerRecord, TopicPartition
from keylanes.errors import LogError
from keylanes.offsets.codec import EventError, decode
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.events import Committed, Event
from keylanes.runtime.logs.reader import control_topic, offsets_topic
from keylanes.spark.history import fold_workers, ranges_of
from keylanes.spark.plane_tiles import NO_PLANE, PlaneLog, PlaneTile, plane_log
from owners import GroupLog

FETCH_RECORDS_MAX = 5_000


@dataclass(slots=True)
class Logbook:
    """The content of both logs. ``log_bytes``: the size of the values of all events of the offset log."""

    log_bytes: int = 0
    plane: PlaneLog = NO_PLANE
    group: GroupLog = field(default_factory=GroupLog)

    def areas(self) -> Counter[tuple[str, int]]:
        """The area of the tiles of each source partition, in offsets times points.

        Where a partition is started at offset 0 and the tiles are right, all records below offset n are done if and
        only if the area is n times 2**32.
        """
        areas: Counter[tuple[str, int]] = Counter()
        for tile in self.plane.tiles:
            areas[tile[:2]] += (tile.end - tile.first) * (tile.offset_to - tile.offset_from)
        return areas


async def read_logbook(broker: Broker, app: str) -> Logbook:
    """Read the logs of an application at an open broker; empty when there are none. Raises LogError."""
    book = Logbook()
    tiles: list[PlaneTile] = []
    rare: list[tuple[int, Event]] = []
    async for partition, record, event in _read_events(broker, offsets_topic(app)):
        book.log_bytes += len(record.value or b"")
        book.group.history.hear_offsets(partition, record.offset, record.timestamp, event)
        if not isinstance(event, Committed):
            rare.append((len(tiles), event))
            continue
        commit = event.topic, event.partition, event.incarnation, event.transaction
        tiles += [
            PlaneTile(*commit, t.worker, t.count, t.first, t.end, t.offset_from, t.offset_to) for t in event.tiles
        ]
        book.group.times[event.incarnation, event.transaction] = record.timestamp
    book.plane = plane_log(tiles, rare, ranges_of(fold_workers(rare)[0]))
    await _read_control(broker, app, book.group)
    return book


async def read_group(broker: Broker, app: str) -> GroupLog:
    """The group, by the control log alone. Raises LogError."""
    return await _read_control(broker, app, GroupLog())


async def _read_control(broker: Broker, app: str, group: GroupLog) -> GroupLog:
    async for _, record, event in _read_events(broker, control_topic(app)):
        if isinstance(event, ControlEvent):
            group.hear_control(record.offset, record.timestamp, event)
    return group.close()


async def _read_events(broker: Broker, topic: str) -> AsyncIterator[tuple[int, ConsumerRecord, Event]]:
    async for batch in read_topic(broker, topic):
        for record in batch.records:
            try:
                event = decode(record.value or b"")
            except EventError as error:
                raise LogError(f"{topic}[{batch.source.partition}] at position {record.offset}: {error}") from None
            yield batch.source.partition, record, event


async def read_topic(broker: Broker, topic: str) -> AsyncIterator[Batch]:
    """All committed records that a topic has now; no records without the topic. Raises BrokerError."""
    if topic not in (found := await broker.describe([topic])):
        return
    marks = await broker.watermarks([TopicPartition(topic, p) for p in range(found[topic].partitions)])
    reader = await broker.reader({source: mark.start for source, mark in marks.items()})
    try:
        while waiting := [source for source, mark in marks.items() if reader.position(source) < mark.high]:
            for batch in await reader.fetch(waiting, records_max=FETCH_RECORDS_MAX, wait_ms=100):
                yield batch
    finally:
        await reader.close()
