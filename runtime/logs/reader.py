"""Reading our own logs to their ends, into the ledger.

"To its end" means: take the high watermark, then read committed until the position reaches it. Who may commit, and from
where, is read to an own append instead, whose position the caller gives. An event that can't be decoded stops the
reader. At the start the offset log is read from its newest snapshot on. Its partitions are read
together: one after the other each would wait for what the consumer has under way for the one before.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

from ...brokers.protocol import Batch, Broker, BrokerError, OffsetOutOfRange, Reader, TopicPartition, Watermarks
from ...brokers.waiting import within_limit
from ...errors import LogError
from ...keyrange.hashing import HASH_NAME
from ...offsets.codec import EventError, decode
from ...offsets.control import event_counts, take
from ...offsets.control_events import AppCreated, ControlEvent, RangesGranted
from ...offsets.event_values import LEVEL
from ...offsets.events import Committed, Event, LogOpened, OffsetEvent, SnapshotTaken
from ...offsets.ledger import Ledger, PartitionLedger, Place, evolve, fold_grant, keep_granted_bounds
from ...offsets.snapshots import newest_snapshot, restore_snapshot, search_starts, transactions_in
from ..settings import Settings
from .grants import GrantTable

logger = logging.getLogger("keylanes")

T = TypeVar("T")

READ_RECORDS_MAX = 5_000
"""So long a stretch of a log is looked at."""
FETCH_RECORDS_MAX = 2_000
"""At a time."""
GRANTS = "the control log again"
"""A connection over which grants are read that were read before."""

Extent: TypeAlias = tuple[int, int]
"""Positions from the first on and below the second."""
Found: TypeAlias = tuple[list[SnapshotTaken] | None, int]


class Placed(NamedTuple):
    """An event, where its record stands in its log, and that one's timestamp in ms since the epoch."""

    position: int
    timestamp_ms: int
    event: Event


class EventsRead(NamedTuple):
    """Events of one source in their order; all below ``end`` that were not in one before."""

    source: TopicPartition
    events: list[Placed]
    end: int


@dataclass(slots=True)
class Own:
    """The own transactions of whoever reads: their events are folded when they are committed, and passed over here.

    ``folded``: the last one whose events went into the ledger so. ``in_flight``: the one that is under way; what is
    read of it is ``held`` until it is known what becomes of it. Not everything up to the last one that the ledger knows
    is passed over: a transaction of unknown outcome may be found in one partition while its events in the next one are
    still to be read.
    """

    incarnation: int = 0
    folded: int = 0
    in_flight: int | None = None
    held: list[OffsetEvent] = field(default_factory=list)

    def takes(self, event: OffsetEvent) -> bool:
        """Whether the event is one of these, and needs no folding now."""
        if event.incarnation != self.incarnation or not event.transaction:
            return False
        if self.in_flight is not None and event.transaction >= self.in_flight:
            self.held.append(event)
            return True
        return event.transaction <= self.folded


class HistoryTrimmed(LogError):
    """What was to be read of a log of ours is gone."""


def control_topic(app: str) -> str:
    """The name of an application's control log."""
    return f"{app}.control"


def offsets_topic(app: str) -> str:
    """The name of an application's offset log."""
    return f"{app}.offsets"


def signals_topic(app: str) -> str:
    """The name of the topic in which an application's processes tell each other what they see."""
    return f"{app}.signals"


class LogReader:
    """Reads one application's logs; positions stay between calls. ``log_partitions``: how many the offset log has.
    For who looks at the past: ``ends``: positions below which the log is read and no further, as if it ended there;
    ``passed_over``: events that begin so are not even decoded.

    The two logs are read over connections of their own, side by side: what stands behind an open transaction in the
    offset log keeps nobody from reading the control log, which may say how it is ended. Of each log there is one call
    at a time.

    ``close`` lets go of the connections, and of all that was fetched ahead of what was asked for (some MiB). Reading
    may go on after it, over others.
    """

    def __init__(
        self,
        app: str,
        broker: Broker,
        settings: Settings,
        log_partitions: int = 0,
        ends: Mapping[TopicPartition, int] = MappingProxyType({}),
        passed_over: tuple[bytes, ...] = (),
    ) -> None:
        self.app, self.broker, self.settings = app, broker, settings
        self.ends, self.passed_over = ends, passed_over
        self.control = TopicPartition(control_topic(app), 0)
        self.log_partitions = log_partitions
        self.positions: dict[TopicPartition, int] = {}
        self._readers: dict[str, Reader] = {}
        """By topic, or by what is read over it."""
        self.commits_read = 0
        """Transactions that ``begin_offsets`` read behind the snapshots."""
        self._granted = GrantTable()
        self._granted_meanwhile: list[RangesGranted] = []
        """While the offset log is begun."""
        self._has_begun = self._is_beginning = False

    async def open(self, what: str) -> Reader:
        """Connect to read something, unless it is connected."""
        if what not in self._readers:
            self._readers[what] = await self._bounded(self.broker.reader({}), f"opening a reader of {what}")
        return self._readers[what]

    async def close(self) -> None:
        """Let go of the connections. What goes wrong there is logged: nothing depends on it."""
        readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            try:
                await within_limit(reader.close(), self.settings.close_timeout_ms, "closing the reader of the logs")
            except BrokerError as error:
                logger.warning("%s", error)

    def offsets(self, log_partition: int) -> TopicPartition:
        """A partition of the offset log."""
        return TopicPartition(offsets_topic(self.app), log_partition)

    def offset_logs(self) -> list[TopicPartition]:
        """All of them."""
        return [self.offsets(log_partition) for log_partition in range(self.log_partitions)]

    def log_partition_of(self, partition: int) -> int:
        """The partition of the offset log that a source partition's progress is written to."""
        return partition % self.log_partitions

    async def read_control(self, ledger: Ledger, end: int | None = None) -> Ledger:
        """Read the control log up to a position (None: to its end), into the ledger, which is changed; raises LogError.

        What is granted goes into the folds of the source partitions once ``begin_offsets`` has found these.
        """
        if self.control not in self.positions:
            start = (await self.watermarks([self.control]))[self.control].start
            if start > 0:
                raise LogError(
                    f"{self.control.topic} starts at position {start}, so its history is lost; "
                    "nothing may expire from it (retention.ms=-1). Restore it from a copy."
                )
            self.positions[self.control] = 0
        high = (await self.ends_of([self.control]))[self.control] if end is None else end
        async for placed in self.stream({self.control: (self.positions[self.control], high)}):
            for one in placed.events:
                self._fold_control(ledger, one)
            self.positions[self.control] = placed.end
        self._check_level(ledger)
        return ledger

    def fold_control(self, ledger: Ledger, batch: Batch) -> Ledger:
        """The ledger, changed, with a batch of the control log that begins where that was read to, or before."""
        position = self.positions[self.control]
        for placed in self._decoded(batch, batch.offset_next):
            if placed.position >= position:
                self._fold_control(ledger, placed)
        self.positions[self.control] = max(position, batch.offset_next)
        self._check_level(ledger)
        return ledger

    def _check_level(self, ledger: Ledger) -> None:
        if ledger.control.level > LEVEL:
            raise LogError(
                f"{self.control.topic}: this application writes events of level {ledger.control.level}, and this "
                f"version of keylanes reads up to level {LEVEL}. Run the newer version that the other processes run"
            )

    def _fold_control(self, ledger: Ledger, placed: Placed) -> None:
        event = placed.event
        if not isinstance(event, ControlEvent):
            raise LogError(
                f"{self.control.topic} at position {placed.position}: {type(event).__name__} is an event of the offset "
                "log. Something else writes to this topic"
            )
        if isinstance(event, AppCreated):
            self._check_app(event.app, event.hash_name, self.control)
            self._check_partitions(event.log_partitions)
        if not event_counts(ledger.control, event):
            return
        if isinstance(event, RangesGranted):
            self._granted.add(event, placed.position)
            if self._is_beginning:
                self._granted_meanwhile.append(event)
        if self._has_begun:
            evolve(ledger, event)
        else:
            take(ledger.control, event)

    async def begin_offsets(self, ledger: Ledger, own: Own | None = None) -> Ledger:
        """The offset log from its newest snapshots on to its ends: the first read, and one after what was to be read
        next was trimmed. ``own``: see ``read_offsets``; what of it was folded is read again, too.

        ``ledger``: of the control log as far as it was read; it is changed. Raises LogError when a log is foreign, or
        has lost its history although something was granted.
        """
        positions = {source: at for source, at in self.positions.items() if source != self.control}  # read before
        commits_read = self.commits_read
        self._granted_meanwhile, self._is_beginning = [], True
        while True:
            self.commits_read = commits_read  # without those of a try that was cut short
            begun = Ledger(ledger.control, {}, ledger.opened.copy(), ledger.transactions.copy())
            try:
                await self._begin(begun, None if own is None else replace(own, folded=0), positions)
                break
            except HistoryTrimmed as trimmed:
                # A trim of the process that was just fenced was on its way: a trim is no part of a transaction. It left
                # a newer snapshot, so look again; each time the start is higher.
                logger.info("while it was searched: %s", trimmed)
            except BaseException:  # what was read goes with the positions: all of it, or nothing
                control = {source: at for source, at in self.positions.items() if source == self.control}
                self.positions, self.commits_read = {**positions, **control}, commits_read
                self._is_beginning = False
                raise
        for grant in self._granted_meanwhile:  # what is there already stays as it is
            fold_grant(begun, grant)
        keep_granted_bounds(begun.partitions, ledger.partitions)
        ledger.partitions, ledger.opened, ledger.transactions = begun.partitions, begun.opened, begun.transactions
        self._has_begun, self._is_beginning, self._granted_meanwhile = True, False, []
        return ledger

    async def _begin(self, ledger: Ledger, own: Own | None, before: Mapping[TopicPartition, int]) -> None:
        """``before``: up to where the partitions were read once; it is read so far again, whatever their ends are."""
        # Known before the ends are asked for: meanwhile the control log is read on, to grants of what was opened since.
        granted = {self.log_partition_of(partition) for _, partition in self._granted.places()}
        marks = await self.watermarks(self.offset_logs())
        self._check_history(marks, granted)
        for source, (snapshot, position) in (await self._search_snapshots(marks)).items():
            self.positions[source] = position
            if snapshot:
                ledger.partitions |= restore_snapshot(snapshot)
                ledger.opened.add(source.partition)
                for incarnation, transaction in transactions_in(snapshot).items():
                    known = ledger.transactions.get(incarnation, 0)
                    ledger.transactions[incarnation] = max(known, transaction)
        for grant in await self._grants_behind(ledger.partitions):
            fold_grant(ledger, grant)
        ends = await self.ends_of(self.offset_logs())
        await self.read_offsets(ledger, own, {source: max(end, before.get(source, 0)) for source, end in ends.items()})

    async def _grants_behind(self, folds: Mapping[Place, PartitionLedger]) -> list[RangesGranted]:
        """The grants that count and that these folds may not hold: read again, for there may be very many others."""
        lacking = self._granted.lacking(folds)
        if not lacking:
            return []
        span = (min(lacking), max(lacking) + 1)
        grants: list[RangesGranted] = []
        async for placed in self.stream({self.control: span}, GRANTS):  # the control log is read on meanwhile
            wanted = [one.event for one in placed.events if one.position in lacking]
            grants += [event for event in wanted if isinstance(event, RangesGranted)]
        return grants

    async def _search_snapshots(self, marks: Mapping[TopicPartition, Watermarks]) -> dict[TopicPartition, Found]:
        """Of each partition of the offset log the newest whole snapshot, and the position to go on reading at."""
        found: dict[TopicPartition, Found] = {}
        searched = {source: iter(search_starts(mark.start, mark.high)) for source, mark in marks.items()}
        while searched:
            spans: dict[TopicPartition, tuple[int, int]] = {}
            for source, starts in list(searched.items()):
                mark, start = marks[source], next(starts, None)
                if start is not None:
                    spans[source] = start, mark.high
                    continue
                if mark.start > 0:
                    raise LogError(
                        f"{source.topic}[{source.partition}] starts at position {mark.start} and holds no snapshot: "
                        "its history is lost. Restore the log, or start under a new application name."
                    )
                found[source] = None, mark.start
                del searched[source]
            taken: dict[TopicPartition, list[SnapshotTaken]] = {source: [] for source in spans}
            async for placed in self.stream(spans):
                events = (one.event for one in placed.events)
                taken[placed.source] += [event for event in events if isinstance(event, SnapshotTaken)]
            for source, parts in taken.items():
                snapshot = newest_snapshot(parts)
                if snapshot is not None and snapshot[0].position >= marks[source].start:
                    self._check_name(snapshot[0].app, source)
                    found[source] = snapshot, snapshot[0].position
                    del searched[source]
        return found

    def _check_history(self, marks: Mapping[TopicPartition, Watermarks], granted: Collection[int]) -> None:
        """Raises LogError when a partition of the offset log is empty that can't be. ``granted``: those of which
        something was granted before the ends were asked for.
        """
        for source, mark in marks.items():
            if mark.high == mark.start and (source.partition in granted or mark.start > 0):
                raise LogError(
                    f"{source.topic}[{source.partition}] is empty although the application has run before: its offsets "
                    "are lost. Restore the log, or start under a new application name."
                )

    async def read_offsets(self, ledger: Ledger, own: Own | None, ends: Mapping[TopicPartition, int]) -> Ledger:
        """Read partitions of the offset log from where they were left up to these positions; raises LogError. ``own``:
        what is not to be folded of it.
        """
        async for placed in self.stream({source: (self.positions[source], high) for source, high in ends.items()}):
            events = [one.event for one in placed.events]
            self.commits_read += sum(isinstance(event, Committed) and not event.part for event in events)
            self.fold_offsets(ledger, placed.source, events, own or Own())  # type: ignore[arg-type]  # of the offset log
            self.positions[placed.source] = placed.end
        return ledger

    def fold_offsets(self, ledger: Ledger, source: TopicPartition, events: Iterable[OffsetEvent], own: Own) -> Ledger:
        """The ledger, changed, with the events of one partition of the offset log; see ``read_offsets``."""
        for event in events:
            if own.takes(event):
                continue
            if isinstance(event, LogOpened):
                self._check_app(event.app, event.hash_name, source)
                self._check_partitions(event.log_partitions)
            elif isinstance(event, SnapshotTaken):
                self._check_name(event.app, source)
            evolve(ledger, event)
        return ledger

    async def ends_of(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of sources, which must not lie below the positions that they had been read to before."""
        before = {source: self.positions[source] for source in sources}
        marks = await self.watermarks(sources)
        for source, mark in marks.items():
            if mark.high < before[source]:
                raise LogError(
                    f"{source.topic}[{source.partition}] ends at {mark.high}, but was read up to "
                    f"{before[source]} before: it was truncated or created anew. Restore it from a copy."
                )
        return {source: mark.high for source, mark in marks.items()}

    async def read_spans(self, spans: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, list[Placed]]:
        """The events with positions in ``[start, high)`` of each source; raises LogError for one that can't be decoded,
        HistoryTrimmed, BrokerTimeout.
        """
        found: dict[TopicPartition, list[Placed]] = {source: [] for source in spans}
        async for placed in self.stream(spans):
            found[placed.source] += placed.events
        return found

    async def stream(self, spans: Mapping[TopicPartition, Extent], over: str = "") -> AsyncIterator[EventsRead]:
        """The same as it comes, so that a log of any length is read without being held; all sources are of one log.
        ``over``: which connection; that of the log unless it is said.
        """
        wanted = {source: span for source, span in spans.items() if span[0] < span[1]}
        if not wanted:
            return
        reader = await self.open(over or next(iter(wanted)).topic)
        reader.assign({source: start for source, (start, _) in wanted.items()})
        limit = self.settings.call_limit_ms + self.settings.transaction_timeout_ms
        while wanted:
            what = "reading " + ", ".join(f"{s.topic}[{s.partition}] to {high}" for s, (_, high) in wanted.items())
            try:
                batches = await within_limit(_some(reader, wanted), limit, what)
            except OffsetOutOfRange as error:
                where = f"{error.source.topic}[{error.source.partition}]"
                raise HistoryTrimmed(f"{where} lost what was to be read: {error}") from error
            for batch in batches:
                _, high = wanted[batch.source]
                if batch.offset_next >= high:
                    del wanted[batch.source]
                yield EventsRead(batch.source, self._decoded(batch, high), min(batch.offset_next, high))
            await asyncio.sleep(0)  # a broker that always has the next batch would not let anything else run

    def _decoded(self, batch: Batch, high: int) -> list[Placed]:
        return [
            Placed(record.offset, record.timestamp, self._decode(batch.source, record.offset, record.value))
            for record in batch.records
            if record.offset < high and not (record.value or b"").startswith(self.passed_over)
        ]

    def _decode(self, source: TopicPartition, position: int, value: bytes | None) -> Event:
        try:
            return decode(value or b"")
        except EventError as error:
            raise LogError(f"{source.topic}[{source.partition}] at position {position}: {error}") from None

    async def watermarks(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """The watermarks of partitions of one of our logs, in this order; none above the ``ends``."""
        marks = await self._bounded(self.broker.watermarks(sources), f"watermarks of {sources[0].topic}")
        return {
            source: Watermarks(marks[source].start, min(marks[source].high, self.ends.get(source, marks[source].high)))
            for source in sources
        }

    async def _bounded(self, work: Awaitable[T], what: str) -> T:
        return await within_limit(work, self.settings.call_limit_ms, what)

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


async def _some(reader: Reader, sources: Collection[TopicPartition]) -> list[Batch]:
    """Batches of some of these assigned partitions; waits until there are."""
    while not (batches := await reader.fetch(sources, records_max=FETCH_RECORDS_MAX, wait_ms=100)):
        pass
    return batches


def places_of(ledger: Ledger, log_partition: int, log_partitions: int) -> Sequence[tuple[str, int]]:
    """The source partitions whose progress one partition of the offset log holds, in order."""
    return sorted(place for place in ledger.control.started if place[1] % log_partitions == log_partition)
