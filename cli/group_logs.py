"""Reading a group from the logs of its application: its present or past state, and its history."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from ..brokers.patience import fatal_of, within_limit
from ..brokers.protocol import BrokerError, OffsetOutOfRange, Reader, TopicPartition, Watermarks
from ..brokers.rights import Right
from ..errors import SettingsError
from ..group.beats import Beats
from ..group.history import History
from ..group.loads import Loads, PointsCost
from ..group.overview import GroupShown, show_group
from ..group.piece_table import PieceTable
from ..group.reports import ALL_EVERY
from ..group.signals_fold import COORDINATORS, PARTITIONS, partition_of
from ..offsets.codec import SignalError, decode_signal, prefix_of
from ..offsets.control import Control
from ..offsets.control_events import ControlEvent
from ..offsets.events import Committed, SnapshotTaken, StateChanged
from ..offsets.ledger import Ledger
from ..offsets.signals import CoordinatorBeat, Copies, Copy, Load, Signal
from ..offsets.snapshots import newest_snapshot, search_starts
from ..runtime.connect import connect
from ..runtime.logs.reader import (
    FETCH_RECORDS_MAX,
    READ_RECORDS_MAX,
    HistoryTrimmed,
    LogReader,
    Placed,
    offsets_topic,
    signals_topic,
)
from ..runtime.logs.rights import refuse_lacking
from ..runtime.outside_requests import GroupLogs
from ..runtime.watch.progress import ProgressShown
from .application import Named
from .moments import written
from .rights import to_look

T = TypeVar("T")

TRIES_MAX: Final = 5
"""The number of attempts to read a log that is trimmed meanwhile."""
TOLD_INTERVALS: Final = ALL_EVERY + 2
"""The number of intervals within which each member reports the load of all its ranges."""
PROGRESS: Final = tuple(prefix_of(kind) for kind in (Committed, StateChanged, SnapshotTaken))
"""The most frequent kinds of events in the offset log; a history does not contain them."""


class LastBeats(NamedTuple):
    """The last beats of the members. ``last_ms``: by incarnation, where a beat was found. ``expired``: incarnations
    without a found beat, perhaps with beats that retention has deleted.
    """

    last_ms: Mapping[int, int]
    expired: Collection[int]


class GroupMoment(NamedTuple):
    """A group at a moment. ``at_ms``: the requested moment, None for now. ``heard``: None where the signals of the
    moment are gone.
    """

    group: GroupShown
    at_ms: int | None
    now_ms: int
    heard: LastBeats | None
    costs: Mapping[int, PointsCost] = MappingProxyType({})
    """The cost of the ranges of each incarnation, by its last report; without incarnations of unknown load."""

    @property
    def moment_ms(self) -> int:
        """The moment of the group: the requested moment, else now."""
        return self.now_ms if self.at_ms is None else self.at_ms


class SignalContents(NamedTuple):
    """The content of the signals at a moment. ``heard``: None where the signals of the moment are gone."""

    heard: LastBeats | None
    loads: Loads
    copies: Mapping[int, Mapping[int, Copy]] = MappingProxyType({})
    """The progress of the copies of each incarnation, by move."""
    parked: Mapping[int, str] = MappingProxyType({})
    """The reasons why moves have not begun, by the coordinator's last beat."""


@asynccontextmanager
async def open_group_logs(named: Named, rights: Sequence[Right], *, hears: bool = True) -> AsyncIterator[GroupLogs]:
    """The logs of an application, for commands with these rights. Errors of the broker become fatal errors.
    ``hears``: whether the signals are included.
    """
    broker = connect(named.address, named.settings, named.app, "group")
    try:
        await broker.open()
    except BrokerError as error:
        raise fatal_of(error) from error
    try:
        await refuse_lacking(broker, named.settings, rights)
        yield await GroupLogs.of(named.app, broker, named.settings, hears=hears)
    except BrokerError as error:
        raise fatal_of(error) from error
    finally:
        await broker.close()


async def _read(group: GroupLogs, read: Callable[[LogReader], Awaitable[T]]) -> T:
    """Read with a new reader; read again when the application has trimmed its log meanwhile."""
    for tries_left in reversed(range(TRIES_MAX)):
        logs = LogReader(group.app, group.broker, group.settings, group.log_partitions)
        try:
            return await read(logs)
        except HistoryTrimmed:
            if not tries_left:
                raise
        finally:
            await logs.close()
    raise AssertionError("it returns or raises")


async def group_at(named: Named, at_ms: int | None, wall_ms: Callable[[], int]) -> GroupMoment:
    """``read_group`` of an application on its broker."""
    async with open_group_logs(named, to_look(named.app)) as logs:
        return await read_group(logs, at_ms, wall_ms)


# --- the group at a moment --------------------------------------------------------------------------------------------


async def read_group(group: GroupLogs, at_ms: int | None, wall_ms: Callable[[], int]) -> GroupMoment:
    """The group now, or at an earlier moment; ``wall_ms``: the clock. Raises SettingsError for a moment that the logs
    do not cover, LogError, BrokerError.
    """
    if at_ms is not None and at_ms > (now_ms := wall_ms()):
        raise SettingsError(f"--at: {written(at_ms)} is to come; it is {written(now_ms)} now")

    async def read(logs: LogReader) -> Ledger:
        if at_ms is not None:
            logs.ends = await _ends_at(group, [logs.control, *logs.offset_logs()], at_ms)
            await _check_known(logs, at_ms)
        return await logs.begin_offsets(await logs.read_control(Ledger()))

    ledger = await _read(group, read)
    heard, loads, copies, parked = await read_signal_contents(group, ledger.control, at_ms, wall_ms)
    found = show_group(PieceTable(), ledger, copies, parked)
    return GroupMoment(group=found, at_ms=at_ms, now_ms=wall_ms(), heard=heard, costs=costs_of(found, loads))


def costs_of(group: GroupShown, loads: Loads) -> dict[int, PointsCost]:
    """The cost of the ranges of each member, as far as known."""
    found: dict[int, PointsCost] = {}
    for member in group.members:
        own = [loads.cost(held.topic_partition, held.first, held.end) for held in member.held]
        if known := [cost for cost in own if cost is not None]:
            found[member.incarnation] = PointsCost(*map(sum, zip(*known, strict=True)))
    return found


async def _ends_at(group: GroupLogs, sources: Sequence[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
    """For each partition the first position behind a moment; no entry: no record lies behind the moment."""
    finding = group.broker.offsets_at(dict.fromkeys(sources, at_ms + 1))
    found = await within_limit(finding, group.settings.call_limit_ms, f"looking for positions at {written(at_ms)}")
    return {source: position for source, position in found.items() if position is not None}


async def _check_known(logs: LogReader, at_ms: int) -> None:
    """Raises SettingsError when the logs do not cover a moment; the message names the first moment that they cover.

    The offset log covers the moments from its first whole snapshot on, where its head was trimmed.
    """
    if logs.ends.get(logs.control) == 0 and (first := await _first_event(logs, logs.control)) is not None:
        raise SettingsError(
            f"--at: {written(at_ms)} is before the application began: {logs.control.topic} begins at "
            f"{written(first.timestamp_ms)}"
        )
    marks = await logs.watermarks(logs.offset_logs())
    trimmed = [source for source, mark in marks.items() if mark.start > 0 and source in logs.ends]
    known_ms = [await _known_from_ms(logs, source, marks[source].start, logs.ends[source]) for source in trimmed]
    if (from_ms := max((ms for ms in known_ms if ms is not None), default=None)) is not None:
        raise SettingsError(
            f"--at: {written(at_ms)} is before what {offsets_topic(logs.app)} holds, which was trimmed: it knows how "
            f"the group stood from {written(from_ms)} on"
        )


async def _present_watermarks(logs: LogReader, source: TopicPartition) -> Watermarks:
    """The watermarks of a log now. ``logs.ends``, the positions of a requested moment, would cut the log there."""
    ends, logs.ends = logs.ends, {}
    marks = await logs.watermarks([source])
    logs.ends = ends
    return marks[source]


async def _first_event(logs: LogReader, source: TopicPartition) -> Placed | None:
    """The first event in a log; None for an empty log."""
    mark = await _present_watermarks(logs, source)
    async for stretch in logs.stream({source: (mark.start, mark.high)}):
        if stretch.events:
            return stretch.events[0]
    return None


async def _known_from_ms(logs: LogReader, source: TopicPartition, start: int, end: int) -> int | None:
    """The time of the first whole snapshot in a trimmed log; None if the snapshot lies in front of position ``end``, or
    without a snapshot. The snapshot was taken at or above ``start``.
    """
    high = (await _present_watermarks(logs, source)).high
    taken: list[Placed] = []
    for first in range(start, high, READ_RECORDS_MAX):
        span = first, min(high, first + READ_RECORDS_MAX)
        for placed in (await logs.read_spans({source: span}))[source]:
            if not isinstance(placed.event, SnapshotTaken):
                continue
            taken.append(placed)
            parts = newest_snapshot(one.event for one in taken if isinstance(one.event, SnapshotTaken))
            if parts is not None and parts[0].position >= start:
                return placed.timestamp_ms if placed.position >= end else None
    return None


# --- the signals ------------------------------------------------------------------------------------------------------


async def read_signal_contents(
    group: GroupLogs, control: Control, at_ms: int | None, wall_ms: Callable[[], int]
) -> SignalContents:
    """The last beats, the loads of ranges, the progress of copies, and the reasons why moves have not begun.

    Beats are searched backwards, until a beat of each member is found, or to the start. All other reports come again in
    intervals: the signals of the last intervals have them all.
    """
    loads, copies, parked = Loads(), dict[int, dict[int, Copy]](), dict[int, str]()
    if not group.has_signals:
        return SignalContents(None, loads)
    broker, limit = group.broker, group.settings.call_limit_ms
    sources = [TopicPartition(signals_topic(group.app), partition) for partition in range(PARTITIONS)]
    marks = await within_limit(broker.watermarks(sources), limit, f"watermarks of {sources[0].topic}")
    if at_ms is not None:
        ends = await _ends_at(group, sources, at_ms)
        marks = {source: Watermarks(mark.start, ends.get(source, mark.high)) for source, mark in marks.items()}
        are_gone = all(0 < mark.start >= mark.high for mark in marks.values())  # deleted beyond the moment
        if are_gone:
            return SignalContents(None, loads)
    reader = await within_limit(broker.reader({}), limit, f"opening a reader of {sources[0].topic}")
    try:
        heard = await _last_beats(group, control, reader, marks)
        since_ms = (wall_ms() if at_ms is None else at_ms) - TOLD_INTERVALS * group.settings.load_interval_ms
        starts = await _ends_at(group, sources, since_ms)
        spans = {source: (start, marks[source].high) for source, start in starts.items()}
        of_coordinators = {source: spans.pop(source) for source in list(spans) if source.partition == COORDINATORS}

        def hear(append_ms: int, signal: Signal) -> None:
            if isinstance(signal, Load):
                loads.hear(signal, append_ms)
            elif isinstance(signal, Copies):
                copies[signal.incarnation] = {copy.move: copy for copy in signal.copies}

        def hear_coordinator(_: int, signal: Signal) -> None:
            if (waits := parked_by(control, signal)) is not None:
                parked.clear()
                parked.update(waits)

        await within_limit(
            _read_signals(reader, of_coordinators, hear_coordinator), limit, f"reading {sources[0].topic}"
        )
        await within_limit(_read_signals(reader, spans, hear), limit, f"reading {sources[0].topic}")
    finally:
        await reader.close()
    return SignalContents(heard, loads, copies, parked)


def parked_by(control: Control, signal: Signal) -> dict[int, str] | None:
    """The reasons why moves have not begun, from a beat of the present coordinator; None: another signal."""
    if not isinstance(signal, CoordinatorBeat) or signal.term != control.term:
        return None
    return {wait.move: wait.reason for wait in signal.waits}


async def _last_beats(
    group: GroupLogs, control: Control, reader: Reader, marks: Mapping[TopicPartition, Watermarks]
) -> LastBeats:
    """Search backwards for the last beat of each member, in longer and longer spans."""
    beats = Beats(control)
    starts = {source: iter(search_starts(mark.start, mark.high)) for source, mark in marks.items()}
    upper = {source: mark.high for source, mark in marks.items()}
    while lacking := beats.partitions_unheard():
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for source in marks:
            if source.partition in lacking and (start := next(starts[source], None)) is not None:
                spans[source], upper[source] = (start, upper[source]), start
        if not spans:
            break
        reading = _read_signals(reader, spans, beats.hear)
        await within_limit(reading, group.settings.call_limit_ms, f"reading {signals_topic(group.app)}")
    members = control.unfenced_members()
    last_ms = {m.incarnation: beats.last_ms[m.birth] for m in members if m.birth in beats.last_ms}
    whole = {source.partition for source, mark in marks.items() if mark.start == 0}
    expired = {m.incarnation for m in members if partition_of(m.joined.instance, m.birth) not in whole}
    return LastBeats(last_ms, expired - last_ms.keys())


async def _read_signals(
    reader: Reader, spans: Mapping[TopicPartition, tuple[int, int]], hear: Callable[[int, Signal], None]
) -> None:
    """Read the signals in spans of positions; ``hear`` gets each signal with the time of its append in ms."""
    wanted = {source: span for source, span in spans.items() if span[0] < span[1]}
    reader.assign({source: start for source, (start, _) in wanted.items()})
    while wanted:
        try:
            batches = await reader.fetch(wanted, records_max=FETCH_RECORDS_MAX, wait_ms=100)
        except OffsetOutOfRange as error:  # retention has trimmed this offset
            del wanted[error.source]
            reader.assign({source: reader.position(source) for source in wanted})
            continue
        for batch in batches:
            end = wanted[batch.source][1]
            for record in batch.records:
                with contextlib.suppress(SignalError):  # a newer version's: no fact
                    if record.offset < end:
                        hear(record.timestamp, decode_signal(record.value or b""))
            if batch.offset_next >= end:
                del wanted[batch.source]


# --- the history ------------------------------------------------------------------------------------------------------


async def read_history(group: GroupLogs) -> History:
    """The whole history in the logs. Raises LogError, BrokerError."""
    return await _read(group, _read_history)


async def _read_history(logs: LogReader) -> History:
    await logs.read_control(Ledger())  # check that the log is ours, whole, and of a known level
    history, marks = History(), await logs.watermarks(logs.offset_logs())
    for source, mark in marks.items():
        if mark.start > 0 and (first := await _first_event(logs, source)) is not None:
            history.hear_offsets(source.partition, *first)
    logs.passed_over = PROGRESS
    control = {logs.control: (0, logs.positions[logs.control])}
    offsets = {source: (mark.start, mark.high) for source, mark in marks.items()}
    done, total = 0, sum(end - start for span in (control, offsets) for start, end in span.values())
    with ProgressShown(f"{logs.app}: events read", total) as progress:
        for spans in (control, offsets):
            at = {source: start for source, (start, _) in spans.items()}
            async for stretch in logs.stream(spans):
                for position, timestamp_ms, event in stretch.events:
                    if isinstance(event, ControlEvent):
                        history.hear_control(position, timestamp_ms, event)
                    else:
                        history.hear_offsets(stretch.source.partition, position, timestamp_ms, event)
                done += stretch.end - at[stretch.source]
                at[stretch.source] = stretch.end
                progress.move(done)
    return history
