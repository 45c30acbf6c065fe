"""What the offset log of an application says, read with the runtime's own client: for figures and for the picture.

No judgement: whether the tiles are right is for the audit to say.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..brokers.protocol import Batch, Broker, TopicPartition, UnknownTopic
from ..errors import LogError
from ..group.happened import MoveEntry
from ..group.history import History as GroupHistory
from ..keyrange.hashing import SPACE_END
from ..offsets.codec import EventError, decode
from ..offsets.control_events import ControlEvent
from ..offsets.events import Committed, Event, RangesReleased, WorkersCut, WorkersMerged, WorkerSplit
from ..runtime.logs.reader import control_topic, offsets_topic
from .owners import Commit, History, Hold, Holding, RunningTime, history_of
from .scaling import Motion
from .tiles import Change, PlaneTile, WorkerName, offset_of

FETCH_RECORDS_MAX = 5_000
_Structural: TypeAlias = WorkersCut | WorkerSplit | WorkersMerged | RangesReleased


@dataclass(slots=True)
class Logbook:
    """``commits`` are transactions that moved an edge; ``log_bytes`` are the values of all events."""

    tiles: list[PlaneTile] = field(default_factory=list)
    commits: int = 0
    log_bytes: int = 0
    running: RunningTime = field(default_factory=lambda: RunningTime(()))
    """When some incarnation worked: each from the cut of its workers to its last commit."""
    workers: dict[str, int] = field(default_factory=dict)
    """By source topic: as each partition was last cut as a whole."""
    changes: list[tuple[Change, int]] = field(default_factory=list)
    """Splits, merges, releases and grants, each with the offset at which it happened."""
    ranges: dict[WorkerName, tuple[int, int]] = field(default_factory=dict)
    """The range of every worker there ever was."""
    holds: list[Hold] = field(default_factory=list)
    """Who worked on what, by the time at which it began."""
    times: dict[Commit, int] = field(default_factory=dict)
    """When each commit was made, in ms."""
    history: History = field(default_factory=lambda: History({}, []))
    motion: Motion = field(default_factory=Motion)
    moves: list[MoveEntry] = field(default_factory=list)
    """Of ranges, each with its times."""

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
    """Read the logs of an application at an open broker; empty when there are none. Raises LogError."""
    book = Logbook()
    offsets, control = offsets_topic(app), control_topic(app)
    if not {offsets, control} <= (await broker.describe([offsets, control])).keys():
        return book
    structure, holding, cuts, group = Structure(), Holding(), WholeCuts(), GroupHistory()
    async for read in _read_events(broker, offsets):
        book.log_bytes += read.size
        group.hear_offsets(read.partition, read.position, read.ms, read.event)
        structure.take(read.event, len(book.tiles))
        holding.take(read.event, read.ms)
        if isinstance(read.event, WorkersCut):
            cuts.take(read.event)
        elif isinstance(read.event, Committed):
            book.tiles += tiles_of(read.event)
    book.ranges, book.workers = structure.ranges, cuts.workers()
    book.changes = [(change, offset_of(change, book.tiles, near)) for change, near in structure.changes]
    book.times, book.holds, book.running = holding.times, holding.holds(), holding.running()
    book.commits = len(book.times)
    events = await _read_control(broker, app)
    for position, (ms, event) in enumerate(events):
        group.hear_control(position, ms, event)
        book.motion.take(ms, event)
    book.history = history_of(events)
    book.moves = [entry for entry in group.entries() if isinstance(entry, MoveEntry)]
    return book


async def read_history(broker: Broker, app: str) -> History:
    """Who took part in an application whose logs exist. Raises LogError."""
    return history_of(await _read_control(broker, app))


async def read_at_rest(broker: Broker, app: str) -> frozenset[str]:
    """The names of a group that is at rest now; empty: it is not, or has no logs yet. Raises LogError."""
    motion = Motion()
    if control_topic(app) in await broker.describe([control_topic(app)]):
        for ms, event in await _read_control(broker, app):
            motion.take(ms, event)
    return motion.at_rest


async def _read_control(broker: Broker, app: str) -> list[tuple[int, ControlEvent]]:
    """All events of the control log with their times, in order."""
    found = [(read.ms, read.event) async for read in _read_events(broker, control_topic(app))]
    return [(ms, event) for ms, event in found if isinstance(event, ControlEvent)]


class _Read(NamedTuple):
    partition: int
    position: int
    ms: int
    size: int
    event: Event


async def _read_events(broker: Broker, topic: str) -> AsyncIterator[_Read]:
    async for batch in read_topic(broker, topic):
        for record in batch.records:
            value = record.value or b""
            try:
                event = decode(value)
            except EventError as error:
                raise LogError(f"{topic}[{batch.source.partition}] at position {record.offset}: {error}") from None
            yield _Read(batch.source.partition, record.offset, record.timestamp, len(value), event)


class WholeCuts:
    """Into how many workers each partition was cut, the last time that all of it was cut in one transaction."""

    def __init__(self) -> None:
        self._cuts: dict[TopicPartition, tuple[Commit, int, int]] = {}
        self._whole: dict[TopicPartition, int] = {}

    def take(self, event: WorkersCut) -> None:
        """The next one."""
        place, commit = TopicPartition(event.topic, event.partition), (event.incarnation, event.transaction)
        before, points, workers = self._cuts.get(place, (commit, 0, 0))
        points, workers = (points, workers) if before == commit else (0, 0)
        points, workers = points + event.bounds[-1] - event.bounds[0], workers + len(event.bounds) - 1
        self._cuts[place] = commit, points, workers
        if points == SPACE_END:
            self._whole[place] = workers

    def workers(self) -> dict[str, int]:
        """By topic."""
        counted: dict[str, int] = {}
        for place, workers in self._whole.items():
            counted[place.topic] = counted.get(place.topic, 0) + workers
        return counted


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
