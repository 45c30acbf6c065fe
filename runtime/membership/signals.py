"""The signals of an application: the signals that this process sends, and the signals of the others.

Each written partition has a connection of its own, and a single append at a time: signals sent meanwhile go with the
next append. A signal that repeats in each interval replaces its waiting predecessor: after an outage no old beat makes
a member look silent or deaf. A signal that can't be sent or received is no error: the next interval repeats the signal,
and a member without signals is slow, never wrong.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ...brokers.patience import close_within, fatal_of, within_limit
from ...brokers.protocol import (
    Appender,
    AuthenticationRefused,
    Batch,
    Broker,
    BrokerError,
    OffsetOutOfRange,
    Outgoing,
    Reader,
    TopicPartition,
)
from ...errors import FatalError
from ...group.signals_fold import COORDINATORS, PARTITIONS, Heard
from ...offsets.codec import SignalError, decode_signal, encode
from ...offsets.signals import Beat, CoordinatorBeat, Copies, JoinAsked, LeaveAsked, Signal
from ..logs.reader import signals_topic
from ..settings import Settings

logger = logging.getLogger("keylanes")

HISTORY = 20
"""How many older records of the coordinators' partition are heard: the coordinator may have said there that it ends."""
RECALLED = 200
"""How many older records of each partition of members are recalled, to show when a member lived. A new coordinator goes
on with the sessions of the old coordinator, by the times of the appends.
"""
FETCH_RECORDS_MAX = 2_000
AWAY_WAIT_MS = 200
"""The pause after a failed read."""
REPEATED: Final = (Beat, Copies, CoordinatorBeat, JoinAsked, LeaveAsked)
"""Signals that repeat in each interval: only the last one counts."""


class Signals:
    """The signals of a process. ``heard``: the fold of received signals. ``on_heard`` is called after new records; the
    argument is False when the records only say that members live.
    """

    def __init__(
        self, app: str, broker: Broker, settings: Settings, heard: Heard, on_heard: Callable[[bool], None]
    ) -> None:
        self.topic = signals_topic(app)
        self.broker = broker
        self.settings = settings
        self.heard = heard
        self.on_heard = on_heard
        self._appenders: dict[int, Appender] = {}
        self._waiting: dict[int, dict[object, tuple[Signal, asyncio.Future[None]]]] = {}
        """By partition, the signals that wait for the append under way, in order, each with the future of its append. A
        repeated signal is stored by its type, any other signal by a key of its own.
        """
        self._sends: dict[int, asyncio.Task[None]] = {}
        """By partition, the task that appends the waiting signals."""
        self._positions: dict[TopicPartition, int] = {}
        """By partition, the next offset to read."""
        self._begins: dict[TopicPartition, int] = {}
        """By partition, the first offset with a signal that is heard, which counts as a new signal. An older record is
        recalled: the record only shows when its member lived.
        """
        self._wanted = set(range(PARTITIONS))
        """The partitions to listen to."""
        self._failing: set[int] = set()
        """The partitions whose last append failed."""
        self.read_s = [0.0] * PARTITIONS
        """The time of the last read of each partition, by the loop's time."""
        self.is_listening = asyncio.Event()
        """Set when the reader has its positions: a signal sent from now on is not missed."""

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, partition: int, signal: Signal) -> None:
        """Send a signal to a partition, without waiting."""
        self._enqueue(partition, signal)

    async def send_and_wait(self, partition: int, signal: Signal) -> None:
        """Send a signal to a partition; returns when the append is acknowledged, or has failed."""
        await self._enqueue(partition, signal)

    def _enqueue(self, partition: int, signal: Signal) -> "asyncio.Future[None]":
        """Let a signal wait for the next append. The future is done when the append is acknowledged, or has failed."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(partition, {})
        key = type(signal) if isinstance(signal, REPEATED) else object()
        before = waiting.pop(key, None)
        sent: asyncio.Future[None] = loop.create_future() if before is None else before[1]
        waiting[key] = signal, sent
        if partition not in self._sends:
            self._sends[partition] = loop.create_task(self._send_waiting(partition))
        return sent

    async def _send_waiting(self, partition: int) -> None:
        """Send the waiting signals of a partition until none is left."""
        try:
            while waiting := self._waiting.pop(partition, None):
                try:
                    await self._append(partition, [signal for signal, _ in waiting.values()])
                finally:
                    for _, sent in waiting.values():
                        if not sent.done():
                            sent.set_result(None)
        finally:
            del self._sends[partition]

    async def _append(self, partition: int, signals: Sequence[Signal]) -> None:
        if partition not in self._appenders:
            self._appenders[partition] = self.broker.appender()
        try:
            records = [Outgoing(self.topic, partition, None, encode(signal)) for signal in signals]
            await within_limit(self._appenders[partition].append(records), self.settings.call_limit_ms, "telling")
        except (BrokerError, FatalError) as error:  # another part of the process ends the run for a fatal error
            if not self._failing:
                logger.warning("%s[%d] can't be written to, until it can: %s", self.topic, partition, error)
            self._failing.add(partition)
        else:
            self._failing.discard(partition)

    # --- hearing -----------------------------------------------------------------------------------------------------

    def listen(self, *, to_all: bool) -> None:
        """Listen to the coordinators' partition alone, or, as at the start, to all partitions. A partition that comes
        anew is read from a few older records on.
        """
        self._wanted = set(range(PARTITIONS)) if to_all else {COORDINATORS}

    async def run(self) -> None:
        """Listen until cancelled."""
        reader: Reader | None = None
        assigned: list[TopicPartition] = []
        try:
            while True:
                wanted = [TopicPartition(self.topic, partition) for partition in sorted(self._wanted)]
                try:
                    if reader is None:
                        reader, assigned = await self.broker.reader({}), []
                    if wanted != assigned:
                        await self._find_positions(wanted)
                        reader.assign({source: self._positions[source] for source in wanted})
                        assigned = wanted
                        self.is_listening.set()
                    wait_ms = self.settings.heartbeat_interval_ms
                    batches = await reader.fetch(wanted, records_max=FETCH_RECORDS_MAX, wait_ms=wait_ms)
                except OffsetOutOfRange as error:  # retention passed the next record
                    self._positions[error.source] = error.watermarks.start
                    assigned = []
                except AuthenticationRefused as error:  # another try might lock the account
                    raise fatal_of(error) from error
                except BrokerError as error:
                    logger.debug("signals can't be heard: %s", error)
                    if reader is not None:
                        await self._close(reader)
                    reader = None
                    await asyncio.sleep(AWAY_WAIT_MS / 1000)
                else:
                    self._hear(batches)
        finally:
            if reader is not None:
                await self._close(reader)

    async def _find_positions(self, wanted: list[TopicPartition]) -> None:
        """Drop the positions of other partitions, and find the positions of new partitions."""
        for source in self._positions.keys() - {*wanted}:
            del self._positions[source]
            self.heard.begin_anew(source.partition)  # no member counts as silent in a partition without a listener
        if missing := [source for source in wanted if source not in self._positions]:
            limit = self.settings.call_limit_ms
            marks = await within_limit(self.broker.watermarks(missing), limit, f"watermarks of {self.topic}")
            for source in missing:
                start, high = marks[source].start, marks[source].high
                self.heard.begin_anew(source.partition)
                is_heard = source.partition == COORDINATORS
                self._positions[source] = max(start, high - (HISTORY if is_heard else RECALLED))
                self._begins[source] = self._positions[source] if is_heard else high

    def _hear(self, batches: list[Batch]) -> None:
        has_news = False
        for batch in batches:
            self._positions[batch.source] = batch.offset_next
            self.read_s[batch.source.partition] = asyncio.get_running_loop().time()
            for record in batch.records:
                with contextlib.suppress(SignalError):  # a newer version may write other signals; signals are no facts
                    signal = decode_signal(record.value or b"")
                    if record.offset < self._begins[batch.source]:
                        self.heard.recall(batch.source.partition, record.timestamp, signal)
                        continue
                    self.heard.hear(batch.source.partition, record.timestamp, signal)
                    has_news |= not isinstance(signal, Beat) and not _is_plain(signal)
        if batches:
            self.on_heard(has_news)

    async def _close(self, reader: Reader) -> None:
        await close_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of signals")

    async def close(self) -> None:
        """Drop the connections, after a bounded wait for the appends under way."""
        limit_s = self.settings.close_timeout_ms / 1000
        if sends := list(self._sends.values()):
            try:
                await asyncio.wait(sends, timeout=limit_s)
            finally:  # also when the caller has less time
                for task in sends:
                    task.cancel()
        appenders, self._appenders = list(self._appenders.values()), {}
        for appender in appenders:
            await close_within(self.settings.close_timeout_ms, appender.close(), "closing an appender of signals")


def _is_plain(signal: Signal) -> bool:
    """Whether a signal says only that the coordinator lives."""
    return isinstance(signal, CoordinatorBeat) and not signal.resigns
