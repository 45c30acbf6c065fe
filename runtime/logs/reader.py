"""Reading our own logs to their ends, into the ledger.

"To the end" means: take the high watermark, then read committed records until the position reaches the watermark. To
learn who may commit, and from which offset, a process reads up to an own append instead; the caller gives the position
of the append. An event that can't be decoded stops the reader. At the start a process reads the offset log from the
newest snapshot on. The partitions of the offset log are read together: in a sequence, each partition would wait for the
fetch that the consumer has under way for the partition before.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, TypeVar

from ...brokers.patience import within_limit
from ...brokers.protocol import Batch, Broker, BrokerError, OffsetOutOfRange, Reader, TopicPartition, Watermarks
from ...errors import LogError
from ...keyrange.hashing import HASH_NAME
from ...offsets.codec import EventError, decode
from ...offsets.control import apply_event, event_counts
from ...offsets.control_events import AppCreated, ControlEvent, RangesGranted
from ...offsets.event_values import LEVEL
from ...offsets.events import Committed, Event, LogOpened, OffsetEvent, SnapshotTaken
from ...offsets.ledger import Ledger, PartitionLedger, SourcePartition, evolve, fold_grant, keep_granted_bounds
from ...offsets.snapshots import newest_snapshot, restore_snapshot, search_starts, transactions_in
from ..settings import Settings
from .grants import GrantTable

logger = logging.getLogger("keylanes")

T = TypeVar("T")

READ_RECORDS_MAX = 5_000
"""How many positions of a log are looked at together."""
FETCH_RECORDS_MAX = 2_000
"""How many records a fetch returns at most."""
GRANTS = "the control log again"
"""The connection for the second read of grants."""

Extent: TypeAlias = tuple[int, int]
"""Positions ``[first, end)``."""
Found: TypeAlias = tuple[list[SnapshotTaken] | None, int]
"""The parts of a whole snapshot (None: the log has no snapshot), and the position to go on reading at."""


class Placed(NamedTuple):
    """An event, the position of its record in the log, and the timestamp of the record in ms since the epoch."""

    position: int
    timestamp_ms: int
    event: Event


class EventsRead(NamedTuple):
    """The next events of a source in their order. All events below ``end`` are in this value or in an earlier one."""

    source: TopicPartition
    events: list[Placed]
    end: int


@dataclass(slots=True)
class OwnTransactions:
    """The own transactions of the reading process. A commit folds the events at once, and the reader passes them over.

    ``folded``: the last transaction that a commit of this process has folded. ``in_flight``: the transaction under way;
    its events are collected in ``collected`` until the outcome is known.

    The last transaction in the ledger is no such bound. The events of a transaction with an unknown outcome come from
    the logs: the ledger may have the events of one partition while the events of the next partition are still to be
    read and folded.
    """

    incarnation: int = 0
    folded: int = 0
    in_flight: int | None = None
    collected: list[OffsetEvent] = field(default_factory=list)

    def takes(self, event: OffsetEvent) -> bool:
        """Whether the event belongs to these transactions, and the reader does not fold it now; collects an event of
        the transaction in flight.
        """
        if event.incarnation != self.incarnation or not event.transaction:
            return False
        if self.in_flight is not None and event.transaction >= self.in_flight:
            self.collected.append(event)
            return True
        return event.transaction <= self.folded


class HistoryTrimmed(LogError):
    """A trim has removed the part of a log of ours that was to be read next."""


def control_topic(app: str) -> str:
    """The name of an application's control log."""
    return f"{app}.control"


def offsets_topic(app: str) -> str:
    """The name of an application's offset log."""
    return f"{app}.offsets"


def signals_topic(app: str) -> str:
    """The name of the topic for the signals between the processes of an application."""
    return f"{app}.signals"


class LogReader:
    """Reads the logs of an application; positions stay between calls. ``log_partitions``: the number of the offset
    log's partitions. Two attributes serve programs that look at the past. ``ends``: positions at which logs count as
    ending. ``passed_over``: the first bytes of events that are not decoded.

    The two logs have connections of their own, and are read side by side: an open transaction at the end of the offset
    log does not stop the reading of the control log, which may say how the transaction ends. Each log has only one call
    at a time.

    ``close`` drops the connections and everything fetched ahead (some MiB). Reading may go on afterwards, over new
    connections.
    """

    def __init__(self, app: str, broker: Broker, settings: Settings, log_partitions: int = 0) -> None:
        self.app = app
        self.broker = broker
        self.settings = settings
        self.ends: Mapping[TopicPartition, int] = {}
        self.passed_over: tuple[bytes, ...] = ()
        self.control = TopicPartition(control_topic(app), 0)
        self.log_partitions = log_partitions
        self.positions: dict[TopicPartition, int] = {}
        self._readers: dict[str, Reader] = {}
        """By topic, or by the purpose of the reader (``GRANTS``)."""
        self.commits_read = 0
        """How many transactions were read behind the snapshots."""
        self._granted = GrantTable()
        self._granted_meanwhile: list[RangesGranted] = []
        """The grants read while the offset log is begun."""
        self._has_begun = self._is_beginning = False
        """Whether the offset log was begun: the ledger has folds; whether the offset log is being begun now."""

    async def open(self, what: str) -> Reader:
        """The reader for a topic or another purpose, connected by the first call."""
        if what not in self._readers:
            self._readers[what] = await self._within_limit(self.broker.reader({}), f"opening a reader of {what}")
        return self._readers[what]

    async def close(self) -> None:
        """Drop the connections. A failure is logged: nothing depends on the closing."""
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
        """All partitions of the offset log."""
        return [self.offsets(log_partition) for log_partition in range(self.log_partitions)]

    def log_partition_of(self, partition: int) -> int:
        """The partition of the offset log for the progress of a source partition."""
        return partition % self.log_partitions

    async def read_control(self, ledger: Ledger, end: int | None = None) -> Ledger:
        """Read the control log up to a position (None: to its end), and change the ledger; raises LogError.

        Grants go into the folds of the source partitions once ``begin_offsets`` has made the folds.
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
        async for read in self.stream({self.control: (self.positions[self.control], high)}):
            for placed in read.events:
                self._fold_control(ledger, placed)
            self.positions[self.control] = read.end
        self._check_level(ledger)
        return ledger

    def fold_control(self, ledger: Ledger, batch: Batch) -> Ledger:
        """Change the ledger by a batch of the control log. The batch begins at this reader's position, or before."""
        position = self.positions[self.control]
        for placed in self._decode_batch(batch, batch.offset_next):
            if placed.position >= position:
                self._fold_control(ledger, placed)
        self.positions[self.control] = max(position, batch.offset_next)
        self._check_level(ledger)
        return ledger

    def _check_level(self, ledger: Ledger) -> None:
        """Raises LogError when newer programs write the logs in formats that this version can't read."""
        if ledger.control.level > LEVEL:
            raise LogError(
                f"{self.control.topic}: this application writes events of level {ledger.control.level}, and this "
                f"version of keylanes reads up to level {LEVEL}. Run the newer version that the other processes run"
            )

    def _fold_control(self, ledger: Ledger, placed: Placed) -> None:
        """Change the ledger by an event of the control log, if the event counts; note where a grant was read."""
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
            apply_event(ledger.control, event)

    async def begin_offsets(self, ledger: Ledger, own: OwnTransactions | None = None) -> Ledger:
        """Read the offset log from the newest snapshots on to its ends: as the first read, or after a trim of the part
        to be read next. ``own``: see ``read_offsets``; own folded transactions are read again, too.

        ``ledger``: the fold of the control log as far as read; this call changes the ledger. Raises LogError when a log
        belongs to another application, or has lost its history although ranges were granted.
        """
        positions = {source: at for source, at in self.positions.items() if source != self.control}  # read before
        commits_read = self.commits_read
        self._granted_meanwhile, self._is_beginning = [], True
        while True:
            self.commits_read = commits_read  # without the commits of a try that was cut short
            begun = Ledger(ledger.control, {}, ledger.opened.copy(), ledger.transactions.copy())
            try:
                await self._begin(begun, None if own is None else replace(own, folded=0), positions)
                break
            except HistoryTrimmed as trimmed:
                # A trim of the process that was just fenced was on its way: a trim is no part of a transaction. The
                # trim left a newer snapshot. Look again; the start is higher each time.
                logger.info("while it was searched: %s", trimmed)
            except BaseException:  # undo the positions, too: the read counts as a whole, or not at all
                control = {source: at for source, at in self.positions.items() if source == self.control}
                self.positions, self.commits_read = {**positions, **control}, commits_read
                self._is_beginning = False
                raise
        for grant in self._granted_meanwhile:  # a grant that the folds have already changes nothing
            fold_grant(begun, grant)
        keep_granted_bounds(begun.partitions, ledger.partitions)
        ledger.partitions, ledger.opened, ledger.transactions = begun.partitions, begun.opened, begun.transactions
        self._has_begun, self._is_beginning, self._granted_meanwhile = True, False, []
        return ledger

    async def _begin(self, ledger: Ledger, own: OwnTransactions | None, before: Mapping[TopicPartition, int]) -> None:
        """Begin the ledger. ``before``: earlier positions of the partitions; the read goes at least as far again."""
        # Take ``granted`` before asking for the ends: a grant read meanwhile may belong to a log opened since.
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

    async def _grants_behind(self, folds: Mapping[SourcePartition, PartitionLedger]) -> list[RangesGranted]:
        """Read again the grants that count and may be missing in ``folds``: all grants may be too many to store."""
        lacking = self._granted.grants_missing(folds)
        if not lacking:
            return []
        span = (min(lacking), max(lacking) + 1)
        grants: list[RangesGranted] = []
        async for read in self.stream({self.control: span}, GRANTS):  # beside the usual reading of the control log
            wanted = [placed.event for placed in read.events if placed.position in lacking]
            grants += [event for event in wanted if isinstance(event, RangesGranted)]
        return grants

    async def _search_snapshots(self, marks: Mapping[TopicPartition, Watermarks]) -> dict[TopicPartition, Found]:
        """For each partition of the offset log: the newest whole snapshot, and the position to go on reading at."""
        found: dict[TopicPartition, Found] = {}
        # Each try reads to the end of the log from a start further back; the last start is the start of the log.
        starts_left = {source: iter(search_starts(mark.start, mark.high)) for source, mark in marks.items()}
        while starts_left:
            spans: dict[TopicPartition, Extent] = {}
            for source, starts in list(starts_left.items()):
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
                del starts_left[source]
            snapshot_parts: dict[TopicPartition, list[SnapshotTaken]] = {source: [] for source in spans}
            async for read in self.stream(spans):
                events = (placed.event for placed in read.events)
                snapshot_parts[read.source] += [event for event in events if isinstance(event, SnapshotTaken)]
            for source, parts in snapshot_parts.items():
                snapshot = newest_snapshot(parts)
                if snapshot is not None and snapshot[0].position >= marks[source].start:
                    self._check_name(snapshot[0].app, source)
                    found[source] = snapshot, snapshot[0].position
                    del starts_left[source]
        return found

    def _check_history(self, marks: Mapping[TopicPartition, Watermarks], granted: Collection[int]) -> None:
        """Raises LogError when a partition of the offset log is empty after events were written to the partition.
        ``granted``: the log partitions with grants from before the question for the ends.
        """
        for source, mark in marks.items():
            if mark.high == mark.start and (source.partition in granted or mark.start > 0):
                raise LogError(
                    f"{source.topic}[{source.partition}] is empty although the application has run before: its offsets "
                    "are lost. Restore the log, or start under a new application name."
                )

    async def read_offsets(
        self, ledger: Ledger, own: OwnTransactions | None, ends: Mapping[TopicPartition, int]
    ) -> Ledger:
        """Read partitions of the offset log from the last positions up to the positions in ``ends``; raises LogError.
        ``own``: the transactions that are not to be folded.
        """
        async for read in self.stream({source: (self.positions[source], high) for source, high in ends.items()}):
            events = [placed.event for placed in read.events]
            self.commits_read += sum(isinstance(event, Committed) and not event.part for event in events)
            self.fold_offsets(ledger, read.source, events, own or OwnTransactions())  # type: ignore[arg-type]  # of the offset log
            self.positions[read.source] = read.end
        return ledger

    def fold_offsets(
        self, ledger: Ledger, source: TopicPartition, events: Iterable[OffsetEvent], own: OwnTransactions
    ) -> Ledger:
        """Change the ledger by events of a partition of the offset log; see ``read_offsets``."""
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
        """The high watermarks of log partitions. Raises LogError when a watermark lies below the own position."""
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
        """The events with positions in ``[start, high)`` of each source; raises LogError for an event that can't be
        decoded, HistoryTrimmed, BrokerTimeout.
        """
        found: dict[TopicPartition, list[Placed]] = {source: [] for source in spans}
        async for read in self.stream(spans):
            found[read.source] += read.events
        return found

    async def stream(self, spans: Mapping[TopicPartition, Extent], over: str = "") -> AsyncIterator[EventsRead]:
        """Yield events of ``spans`` as they arrive: memory does not grow with the log. All sources belong to a single
        log. ``over``: the connection to use; "" is the connection of the log.
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
                yield EventsRead(batch.source, self._decode_batch(batch, high), min(batch.offset_next, high))
            await asyncio.sleep(0)  # let other tasks run: a broker may have the next batch at once, every time

    def _decode_batch(self, batch: Batch, high: int) -> list[Placed]:
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
        """The watermarks of partitions of a log of ours, in the order of ``sources``; none above the ``ends``."""
        marks = await self._within_limit(self.broker.watermarks(sources), f"watermarks of {sources[0].topic}")
        return {
            source: Watermarks(marks[source].start, min(marks[source].high, self.ends.get(source, marks[source].high)))
            for source in sources
        }

    async def _within_limit(self, work: Awaitable[T], what: str) -> T:
        return await within_limit(work, self.settings.call_limit_ms, what)

    def _check_app(self, app: str, hash_name: str, source: TopicPartition) -> None:
        """Raises LogError for the first event of another application, or of another hash function."""
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
    """Batches of some of the assigned partitions; waits until a batch arrives."""
    while not (batches := await reader.fetch(sources, records_max=FETCH_RECORDS_MAX, wait_ms=100)):
        pass
    return batches


def places_of(ledger: Ledger, log_partition: int, log_partitions: int) -> Sequence[tuple[str, int]]:
    """The source partitions with their progress in ``log_partition`` of the offset log, in order."""
    return sorted(place for place in ledger.control.started if place[1] % log_partitions == log_partition)
