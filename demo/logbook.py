"""What the offset log of an application says, read with the runtime's own client: for figures and for the picture.

No judgement: whether the tiles are right is for the audit to say.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ..offsets.codec import EventError, decode
from ..offsets.events import Committed, WorkersCut
from ..runtime.brokers.protocol import Batch, Broker, TopicPartition, UnknownTopic
from ..runtime.errors import LogError
from ..runtime.logs import offsets_topic
from .tiles import PlaneTile

FETCH_RECORDS_MAX = 5_000


@dataclass(slots=True)
class Logbook:
    """``commits`` are transactions that moved an edge; ``log_bytes`` are the values of all events."""

    tiles: list[PlaneTile] = field(default_factory=list)
    commits: int = 0
    log_bytes: int = 0
    running_s: float = 0.0
    """From the cut of an incarnation's workers to its last commit, summed over the incarnations."""
    workers: int = 0
    """As the last incarnation cut them at its start."""

    def areas(self) -> dict[TopicPartition, int]:
        """The area of the tiles of each source partition, in offsets times points.

        From a start at offset 0, and with tiles that are right, all is done below offset n if and only if it is n times
        2**32.
        """
        areas: dict[TopicPartition, int] = {}
        for tile in self.tiles:
            source = TopicPartition(tile.topic, tile.partition)
            area = (tile.end - tile.first) * (tile.offset_to - tile.offset_from)
            areas[source] = areas.get(source, 0) + area
        return areas


async def read_logbook(broker: Broker, app: str) -> Logbook:
    """Read the offset log of an application at an open broker; empty when there is none. Raises LogError."""
    book = Logbook()
    transactions: set[tuple[int, int]] = set()
    cut: dict[int, int] = {}
    started: dict[int, int] = {}
    ended: dict[int, int] = {}
    topic = offsets_topic(app)
    if topic not in await broker.describe([topic]):
        return book
    async for batch in read_topic(broker, topic):
        for record in batch.records:
            try:
                event = decode(record.value or b"")
            except EventError as error:
                raise LogError(f"{topic}[{batch.source.partition}] at position {record.offset}: {error}") from None
            book.log_bytes += len(record.value or b"")
            if isinstance(event, WorkersCut):
                at = started.setdefault(event.incarnation, record.timestamp)
                started[event.incarnation] = min(at, record.timestamp)
                cut[event.incarnation] = cut.get(event.incarnation, 0) + len(event.bounds) - 1
            elif isinstance(event, Committed):
                transactions.add((event.incarnation, event.transaction))
                ended[event.incarnation] = max(ended.get(event.incarnation, 0), record.timestamp)
                book.tiles += tiles_of(event)
    book.commits = len(transactions)
    book.workers = cut[max(cut)] if cut else 0
    book.running_s = sum(max(0, end - started[i]) for i, end in ended.items() if i in started) / 1000
    return book


def tiles_of(event: Committed) -> list[PlaneTile]:
    """The tiles of a commit event."""
    return [
        PlaneTile(
            event.topic, event.partition, event.incarnation, event.transaction,
            tile.worker, tile.count, tile.first, tile.end, tile.offset_from, tile.offset_to,
        )
        for tile in event.tiles
    ]  # fmt: skip


async def read_topic(broker: Broker, topic: str) -> AsyncIterator[Batch]:
    """All committed records that a topic holds now; raises UnknownTopic and what ``fetch`` raises."""
    found = await broker.describe([topic])
    if topic not in found:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    marks = await broker.watermarks([TopicPartition(topic, p) for p in range(found[topic].partitions)])
    reader = await broker.reader({source: mark.start for source, mark in marks.items()})
    try:
        while waiting := [source for source, mark in marks.items() if reader.position(source) < mark.high]:
            for batch in await reader.fetch(waiting, records_max=FETCH_RECORDS_MAX, wait_ms=100):
                yield batch
    finally:
        await reader.close()
