"""Reading our own logs to their ends, into the ledger.

"To its end" means: take the high watermark, then read committed until the position reaches it. An event that can't be
decoded stops the reader. At the start the offset log is read from its newest snapshot on.
"""

import logging
from collections.abc import Awaitable, Sequence
from types import MappingProxyType
from typing import TypeVar

from ..keyrange.hashing import HASH_NAME
from ..offsets.codec import EventError, decode
from ..offsets.events import AppCreated, Event, LogOpened, OffsetEvent, RangesGranted, SnapshotTaken
from ..offsets.ledger import Ledger, PartitionLedger, Place, evolve, evolve_all
from ..offsets.snapshots import newest_snapshot, restore_snapshot, search_starts
from .bounded import bounded
from .brokers.protocol import Broker, OffsetOutOfRange, Reader, TopicPartition, Watermarks
from .errors import LogError
from .settings import Settings

logger = logging.getLogger("keylanes")

T = TypeVar("T")

READ_RECORDS_MAX = 5_000


class HistoryTrimmed(LogError):
    """What was to be read of a log of ours is gone."""


def control_topic(app: str) -> str:
    """The name of an application's control log."""
    return f"{app}.control"


def offsets_topic(app: str) -> str:
    """The name of an application's offset log."""
    return f"{app}.offsets"


class LogReader:
    """Reads one application's logs; positions stay between calls. ``open`` first, ``close`` at last."""

    def __init__(self, app: str, broker: Broker, settings: Settings) -> None:
        self.app = app
        self.broker = broker
        self.settings = settings
        self.control = TopicPartition(control_topic(app), 0)
        self.log_partitions = 0
        self.positions: dict[TopicPartition, int] = {}
        self._reader: Reader | None = None
        self._control_events: list[Event] = []

    async def open(self, log_partitions: int) -> None:
        """Begin at the start of the control log; offset-log partitions join when their snapshot was found."""
        self.log_partitions = log_partitions
        self._reader = await self._bounded(self.broker.reader({}), "opening a reader of the logs")

    async def close(self) -> None:
        """Let go of the connection."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            await bounded(reader.close(), self.settings.close_timeout_ms, "closing the reader of the logs")

    def offsets(self, log_partition: int) -> TopicPartition:
        """A partition of the offset log."""
        return TopicPartition(offsets_topic(self.app), log_partition)

    def log_partition_of(self, partition: int) -> int:
        """The partition of the offset log that a source partition's progress is written to."""
        return partition % self.log_partitions

    async def read_control(self, ledger: Ledger) -> Ledger:
        """Read the control log to its end; raises LogError."""
        if self.control not in self.positions:
            marks = await self.watermarks(self.control)
            if marks.start > 0:
                raise LogError(
                    f"{self.control.topic} starts at position {marks.start}, so its history is lost; "
                    "nothing may expire from it (retention.ms=-1). Restore it from a copy."
                )
            self.positions[self.control] = 0
        for event in await self.read_to_end(self.control):
            if isinstance(event, AppCreated):
                self._check_app(event.app, event.hash_name, self.control)
                self._check_partitions(event.log_partitions)
            self._control_events.append(event)
            ledger = evolve(ledger, event)
        return ledger

    async def begin_offsets(self) -> Ledger:
        """The first read of the offset log, every partition: its newest snapshot, then on to its end.

        The result holds the control events that were read so far, too. Raises LogError when a log is foreign, or has
        lost its history although something was granted.
        """
        folds: dict[Place, PartitionLedger] = {}
        opened: set[int] = set()
        for log_partition in range(self.log_partitions):
            snapshot, position = await self._find_snapshot(log_partition)
            self.positions[self.offsets(log_partition)] = position
            if snapshot:
                folds.update(restore_snapshot(snapshot))
                opened.add(log_partition)
        ledger = Ledger(partitions=MappingProxyType(folds), opened=frozenset(opened))
        ledger = evolve_all(ledger, self._control_events)
        for log_partition in range(self.log_partitions):
            ledger = await self.read_offsets(ledger, log_partition)
        return ledger

    async def _find_snapshot(self, log_partition: int) -> tuple[list[SnapshotTaken] | None, int]:
        """The newest whole snapshot of a log partition, and the position to go on reading at."""
        source = self.offsets(log_partition)
        while True:
            marks = await self.watermarks(source)
            try:
                return await self._search_snapshot(log_partition, source, marks)
            except HistoryTrimmed:
                # A trim of the process that was just fenced was on its way: a trim is no part of a transaction. It left
                # a newer snapshot, so look again; each time the start is higher.
                logger.info("%s[%d] was trimmed while it was read", *source)

    async def _search_snapshot(
        self, log_partition: int, source: TopicPartition, marks: Watermarks
    ) -> tuple[list[SnapshotTaken] | None, int]:
        was_granted = any(
            isinstance(e, RangesGranted) and self.log_partition_of(e.partition) == log_partition
            for e in self._control_events
        )
        if marks.high == marks.start and (was_granted or marks.start > 0):
            raise LogError(
                f"{source.topic}[{log_partition}] is empty although the application has run before: its offsets "
                "are lost. Restore the log, or start under a new application name."
            )
        for start in search_starts(marks.start, marks.high):
            snapshot = newest_snapshot(await self.read_range(source, start, marks.high))
            if snapshot is not None and snapshot[0].position >= marks.start:
                self._check_name(snapshot[0].app, source)
                return snapshot, snapshot[0].position
        if marks.start > 0:
            raise LogError(
                f"{source.topic}[{log_partition}] starts at position {marks.start} and holds no snapshot: its history "
                "is lost. Restore the log, or start under a new application name."
            )
        return None, marks.start

    async def read_offsets(self, ledger: Ledger, log_partition: int, folded: tuple[int, int] = (0, 0)) -> Ledger:
        """Read one partition of the offset log from where it was left to its end; raises LogError.

        ``folded``: an incarnation, and its last transaction that went into the ledger when it was committed. Its events
        are passed up to there. Not up to the last one that the ledger knows: a transaction of unknown outcome may be
        found in one partition while its events in the next one are still to be read.
        """
        source = self.offsets(log_partition)
        own, known = folded
        for event in await self.read_to_end(source):
            if event.incarnation == own and event.transaction <= known:
                continue
            if isinstance(event, LogOpened):
                self._check_app(event.app, event.hash_name, source)
                self._check_partitions(event.log_partitions)
            elif isinstance(event, SnapshotTaken):
                self._check_name(event.app, source)
            ledger = evolve(ledger, event)
        return ledger

    async def read_to_end(self, source: TopicPartition) -> list[OffsetEvent]:
        """The events from the position on; the position moves to the end that was found."""
        marks = await self.watermarks(source)
        position = self.positions[source]
        if marks.high < position:
            raise LogError(
                f"{source.topic}[{source.partition}] ends at {marks.high}, but was read up to {position} before: it "
                "was truncated or created anew. Restore it from a copy."
            )
        events = await self.read_range(source, position, marks.high)
        self.positions[source] = max(position, marks.high)
        return events

    async def read_range(self, source: TopicPartition, start: int, high: int) -> list[OffsetEvent]:
        """The events of ``[start, high)``; raises LogError for one that can't be decoded, BrokerTimeout."""
        return [event for _, event in await self.read_stamped(source, start, high)]

    async def read_stamped(self, source: TopicPartition, start: int, high: int) -> list[tuple[int, OffsetEvent]]:
        """Like ``read_range``, each event with its record's timestamp in ms since the epoch."""
        if start >= high:
            return []
        limit = self.settings.request_timeout_ms + self.settings.transaction_timeout_ms
        what = f"reading {source.topic}[{source.partition}] to {high}"
        try:
            return await bounded(self._read(source, start, high), limit, what)
        except OffsetOutOfRange as error:
            raise HistoryTrimmed(f"{source.topic}[{source.partition}] lost what was to be read: {error}") from error

    async def _read(self, source: TopicPartition, start: int, high: int) -> list[tuple[int, OffsetEvent]]:
        assert self._reader is not None, "open() was called"
        self._reader.assign({source: start})
        events: list[tuple[int, Event]] = []
        while self._reader.position(source) < high:
            batches = await self._reader.fetch([source], records_max=READ_RECORDS_MAX, wait_ms=100)
            for batch in batches:
                events.extend(
                    (record.timestamp, self._decode(source, record.offset, record.value))
                    for record in batch.records
                    if record.offset < high
                )
        return events  # type: ignore[return-value]  # each log holds its own kinds; the fold takes both

    def _decode(self, source: TopicPartition, position: int, value: bytes | None) -> Event:
        try:
            return decode(value or b"")
        except EventError as error:
            raise LogError(f"{source.topic}[{source.partition}] at position {position}: {error}") from None

    async def watermarks(self, source: TopicPartition) -> Watermarks:
        """The watermarks of one of our logs."""
        marks = await self._bounded(self.broker.watermarks([source]), f"watermarks of {source.topic}")
        return marks[source]

    async def _bounded(self, work: Awaitable[T], what: str) -> T:
        return await bounded(work, self.settings.request_timeout_ms, what)

    def _check_app(self, app: str, hash_name: str, source: TopicPartition) -> None:
        self._check_name(app, source)
        if hash_name != HASH_NAME:
            raise LogError(
                f"{source.topic} was written with the hash function {hash_name!r}; this version uses {HASH_NAME!r}"
            )

    def _check_name(self, app: str, source: TopicPartition) -> None:
        if app != self.app:
            raise LogError(f"{source.topic} holds the events of application {app!r}; this is application {self.app!r}")

    def _check_partitions(self, log_partitions: int) -> None:
        if log_partitions != self.log_partitions:
            raise LogError(
                f"{offsets_topic(self.app)} was made with {log_partitions} partitions and has {self.log_partitions} "
                "now: progress would be looked for in the wrong place. Partitions must not be added to it."
            )


def places_of(ledger: Ledger, log_partition: int, log_partitions: int) -> Sequence[tuple[str, int]]:
    """The source partitions whose progress one partition of the offset log holds, in order."""
    return sorted(place for place in ledger.control.started if place[1] % log_partitions == log_partition)
