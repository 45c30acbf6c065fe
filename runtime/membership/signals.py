"""The signals of an application: what this process tells the others, and what it hears from them.

Each partition that is written to has a connection of its own, and one append at a time: what is said meanwhile goes
with the next one. What is said again in each interval takes the place of what was said before and still waits. So after
an outage nobody is taken for silent or deaf by beats that are as old as the outage. What can't be told or heard is no
error: it is told again in the next interval, and whoever is not heard is slow, never wrong.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

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
from ...brokers.waiting import closed_within, fatal_of, within_limit
from ...errors import FatalError
from ...group.heard import COORDINATORS, PARTITIONS, Heard
from ...offsets.codec import SignalError, decode_signal, encode
from ...offsets.signals import Beat, CoordinatorBeat, Copies, JoinAsked, LeaveAsked, Signal
from ..logs.reader import signals_topic
from ..settings import Settings

logger = logging.getLogger("keylanes")

HISTORY = 20
"""So many records of the coordinator's partition are heard that stood there before: it may have said that it stops."""
RECALLED = 200
"""So many records of each other partition that stood there before tell who lived: whoever begins to coordinate goes on
with the sessions, by the times at which they were appended.
"""
FETCH_RECORDS_MAX = 2_000
AWAY_WAIT_MS = 200
"""After a read that failed."""
REPEATED: Final = (Beat, Copies, CoordinatorBeat, JoinAsked, LeaveAsked)
"""What is said in each interval: only the last one counts."""


class Signals:
    """Of one process. ``heard``: the fold of what it hears. ``on_heard`` is called when there is something new, and is
    told whether it is more than that somebody lives.
    """

    def __init__(
        self, app: str, broker: Broker, settings: Settings, heard: Heard, on_heard: Callable[[bool], None]
    ) -> None:
        self.topic, self.broker, self.settings = signals_topic(app), broker, settings
        self.heard, self.on_heard = heard, on_heard
        self._appenders: dict[int, Appender] = {}
        self._waiting: dict[int, dict[object, tuple[Signal, asyncio.Future[None]]]] = {}
        """What is to be said in a partition behind the append that is going on there, in order; by its kind, where only
        the last one counts."""
        self._telling: dict[int, asyncio.Task[None]] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        """From where on what is said is heard; what stands before that is recalled."""
        self._wanted = set(range(PARTITIONS))
        self._mute: set[int] = set()
        """The partitions that can't be written to."""
        self.read_s = [0.0] * PARTITIONS
        """When a record of each was read last, by the loop's time."""
        self.is_listening = asyncio.Event()
        """From here on nothing that is said is missed."""

    # --- telling -----------------------------------------------------------------------------------------------------

    def tell(self, partition: int, signal: Signal) -> None:
        """Say something in a partition; nobody waits for it."""
        self._say(partition, signal)

    async def told(self, partition: int, signal: Signal) -> None:
        """The same; returns when it is acknowledged, or was not in time."""
        await self._say(partition, signal)

    def _say(self, partition: int, signal: Signal) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(partition, {})
        key = type(signal) if isinstance(signal, REPEATED) else object()
        before = waiting.pop(key, None)
        said: asyncio.Future[None] = loop.create_future() if before is None else before[1]
        waiting[key] = signal, said
        if partition not in self._telling:
            self._telling[partition] = loop.create_task(self._tell_on(partition))
        return said

    async def _tell_on(self, partition: int) -> None:
        """Until there is nothing more to be said in a partition."""
        try:
            while waiting := self._waiting.pop(partition, None):
                try:
                    await self._append(partition, [signal for signal, _ in waiting.values()])
                finally:
                    for _, said in waiting.values():
                        if not said.done():
                            said.set_result(None)
        finally:
            del self._telling[partition]

    async def _append(self, partition: int, signals: Sequence[Signal]) -> None:
        if partition not in self._appenders:
            self._appenders[partition] = self.broker.appender()
        try:
            records = [Outgoing(self.topic, partition, None, encode(signal)) for signal in signals]
            await within_limit(self._appenders[partition].append(records), self.settings.call_limit_ms, "telling")
        except (BrokerError, FatalError) as error:  # what ends the run is said by whoever works with that
            if not self._mute:
                logger.warning("%s[%d] can't be written to, until it can: %s", self.topic, partition, error)
            self._mute.add(partition)
        else:
            self._mute.discard(partition)

    # --- hearing -----------------------------------------------------------------------------------------------------

    def listen(self, *, to_all: bool) -> None:
        """Hear the coordinator, or all, which is how it begins; what was said before in a partition is recalled."""
        self._wanted = set(range(PARTITIONS)) if to_all else {COORDINATORS}

    async def run(self) -> None:
        """Hear until cancelled."""
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
                except OffsetOutOfRange as error:  # retention passed what was to be heard next
                    self._positions[error.source] = error.watermarks.start
                    assigned = []
                except AuthenticationRefused as error:  # one more try might lock the account
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
        for source in self._positions.keys() - {*wanted}:  # what is said meanwhile is not heard: nobody is silent there
            del self._positions[source]
            self.heard.begin_anew(source.partition)
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
                with contextlib.suppress(SignalError):  # a newer version's: no fact
                    signal = decode_signal(record.value or b"")
                    if record.offset < self._begins[batch.source]:
                        self.heard.recall(batch.source.partition, record.timestamp, signal)
                        continue
                    self.heard.hear(batch.source.partition, record.timestamp, signal)
                    has_news |= not isinstance(signal, Beat) and not _is_plain(signal)
        if batches:
            self.on_heard(has_news)

    async def _close(self, reader: Reader) -> None:
        await closed_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of signals")

    async def close(self) -> None:
        """Let go of the connections; what is still being told is waited for, for a bounded time."""
        limit_s = self.settings.close_timeout_ms / 1000
        if telling := list(self._telling.values()):
            try:
                await asyncio.wait(telling, timeout=limit_s)
            finally:  # also when whoever closes has less time
                for task in telling:
                    task.cancel()
        appenders, self._appenders = list(self._appenders.values()), {}
        for appender in appenders:
            await closed_within(self.settings.close_timeout_ms, appender.close(), "closing an appender of signals")


def _is_plain(signal: Signal) -> bool:
    """Whether it says no more than that the coordinator lives."""
    return isinstance(signal, CoordinatorBeat) and not signal.resigns
