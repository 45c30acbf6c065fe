"""What the offset log of an application says, read with the runtime's own client: for figures and for the picture.

No judgement: whether the tiles are right is for the audit to say.
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ..brokers.protocol import Batch, Broker, TopicPartition, UnknownTopic
from ..errors import LogError
from ..offsets.codec import EventError, decode
from ..offsets.events import Committed, Event, RangesReleased, WorkersCut, WorkersMerged, WorkerSplit
from ..runtime.logs.reader import offsets_topic
from .tiles import Change, PlaneTile, WorkerName, offset_of

FETCH_RECORDS_MAX = 5_000
_Structural: TypeAlias = WorkersCut | WorkerSplit | WorkersMerged | RangesReleased


@dataclass(slots=True)
class Logbook:
    """``commits`` are transactions that moved an edge; ``log_bytes`` are the values of all events."""

    tiles: list[PlaneTile] = field(default_factory=list)
    commits: int = 0
    log_bytes: int = 0
    running_s: float = 0.0
    """From the cut of an incarnation's workers to its last commit, summed over the incarnations."""
    workers: dict[str, int] = field(default_factory=dict)
    """By source topic: as the last incarnation cut them at its start."""
    changes: list[tuple[Change, int]] = field(default_factory=list)
    """Splits, merges, releases and grants, each with the offset at which it happened."""
    ranges: dict[WorkerName, tuple[int, int]] = field(default_factory=dict)
    """The range of every worker there ever was."""

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
    cut: dict[int, Counter[str]] = {}
    started: dict[int, int] = {}
    ended: dict[int, int] = {}
    structure = Structure()
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
            structure.take(event, len(book.tiles))
            if isinstance(event, WorkersCut):
                at = started.setdefault(event.incarnation, record.timestamp)
                started[event.incarnation] = min(at, record.timestamp)
                if structure.is_at_start(event):
                    cut.setdefault(event.incarnation, Counter())[event.topic] += len(event.bounds) - 1
            elif isinstance(event, Committed):
                transactions.add((event.incarnation, event.transaction))
                ended[event.incarnation] = max(ended.get(event.incarnation, 0), record.timestamp)
                book.tiles += tiles_of(event)
    book.ranges = structure.ranges
    book.changes = [(change, offset_of(change, book.tiles, near)) for change, near in structure.changes]
    book.commits = len(transactions)
    book.workers = dict(cut[max(cut)]) if cut else {}
    book.running_s = sum(max(0, end - started[i]) for i, end in ended.items() if i in started) / 1000
    return book


class Structure:
    """Follows which worker has which range, and collects the changes."""

    def __init__(self) -> None:
        self.changes: list[tuple[Change, int]] = []
        """Each with the number of tiles that were read before it."""
        self.ranges: dict[WorkerName, tuple[int, int]] = {}
        self._starts: dict[int, int] = {}

    def is_at_start(self, event: WorkersCut) -> bool:
        """Whether an incarnation cut these workers when it began, and not for a range that it took up later."""
        return self._starts[event.incarnation] == event.transaction

    def take(self, event: Event, tiles: int) -> None:
        """The next event of the offset log."""
        match event:
            case WorkersCut():
                self._starts.setdefault(event.incarnation, event.transaction)
                for i in range(len(event.bounds) - 1):
                    self.ranges[self._key(event, event.worker + i)] = event.bounds[i], event.bounds[i + 1]
                if not self.is_at_start(event):
                    self._add("grant", event, event.bounds[0], event.bounds[-1], tiles)
            case WorkerSplit():
                first, end = self.ranges[self._key(event, event.worker)]
                self.ranges[self._key(event, event.left)] = first, event.at
                self.ranges[self._key(event, event.left + 1)] = event.at, end
                self._add("split", event, event.at, end, tiles)
            case WorkersMerged():
                first, _ = self.ranges[self._key(event, event.left)]
                middle, end = self.ranges[self._key(event, event.right)]
                self.ranges[self._key(event, event.worker)] = first, end
                self._add("merge", event, middle, end, tiles)
            case RangesReleased():
                for band in event.bands:
                    self._add("release", event, band.first, band.end, tiles)

    def _key(self, event: WorkersCut | WorkerSplit | WorkersMerged, worker: int) -> WorkerName:
        return event.topic, event.partition, event.incarnation, worker

    def _add(self, kind: str, event: _Structural, first: int, end: int, tiles: int) -> None:
        moment = event.incarnation, event.transaction
        self.changes.append((Change(kind, event.topic, event.partition, *moment, first, end), tiles))


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
