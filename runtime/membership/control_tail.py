"""The reading of the control log as the log grows, into the ledger of this process."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from ...brokers.patience import Patience, close_within, fatal_of, rest
from ...brokers.protocol import AuthenticationRefused, Batch, BrokerError, NotAuthorized, Reader
from ...group.signals_fold import News
from ..logs.own_ledger import OwnLedger
from ..settings import Settings

logger = logging.getLogger("keylanes")

FETCH_RECORDS_MAX = 1_000
AWAY_WAIT_MS = 200
"""The pause after a failed read."""


class LogMoment(NamedTuple):
    """A moment by two clocks: the loop's time in seconds, and ``wall_ms``, in ms since the epoch."""

    loop_s: float
    wall_ms: int


class ControlTail:
    """Reads the control log for a process. ``news``: the times of the events. ``on_read`` is called after each read.
    ``wall_ms``: the time of day in ms since the epoch; ``now_s``: the loop's time, also for calls from other threads.

    A reader at the end of the log learns of new events, but does not learn that no more events exist: a deposed leader
    that still answers never has anything new. Therefore the process also asks for the end of the log, and waits until
    the reader has reached the end.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        settings: Settings,
        news: News,
        on_read: Callable[[], None],
        wall_ms: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self.own_ledger = own_ledger
        self.settings = settings
        self.news = news
        self.on_read = on_read
        self.wall_ms = wall_ms
        self.now_s = now_s
        self.seen_ms = 0
        """All events of the log up to this time, by ``wall_ms``, are known: the process asked for the end at this time,
        and has read up to the end since. The time of the question counts: the process may have been suspended between
        the question and the answer.
        """
        self.seen_s = 0.0
        """``seen_ms`` by the loop's time."""
        self._has_read_on = asyncio.Event()
        """Set at each read; callers that wait for a position clear the event."""
        # Short enough: while the broker answers, the view of the log is never too old to answer queries.
        self._wait_ms = max(1, min(settings.heartbeat_interval_ms, settings.query_view_ms_max // 4))

    def moment(self) -> LogMoment:
        """The present moment, to be taken before the process asks for the end of the log."""
        return LogMoment(asyncio.get_running_loop().time(), self.wall_ms())

    def has_read(self, question: LogMoment) -> None:
        """Note that the log was read up to its end; the process had asked for the end at the moment ``question``."""
        self.seen_ms, self.seen_s = max(self.seen_ms, question.wall_ms), max(self.seen_s, question.loop_s)
        self._tell_read()

    def _tell_read(self) -> None:
        self._has_read_on.set()
        self.on_read()

    async def has_reached(self, position: int, limit_s: float) -> bool:
        """Wait until the log is read up to a position. False: ``limit_s`` was over before."""
        logs = self.own_ledger.logs
        try:
            async with asyncio.timeout(limit_s):
                while logs.positions.get(logs.control, 0) < position:
                    self._has_read_on.clear()
                    await self._has_read_on.wait()
        except TimeoutError:
            return False
        return True

    def age_ms(self) -> int:
        """The greatest possible age of the view of the log, in ms, by both clocks: the loop's clock stands still with a
        paused machine, and the wall clock can be set back.
        """
        return max(self.wall_ms() - self.seen_ms, int((self.now_s() - self.seen_s) * 1000))

    def is_lost(self) -> bool:
        """Whether the log could not be read for a session: this process no longer knows whether it may work."""
        return (asyncio.get_running_loop().time() - self.seen_s) * 1000 >= self.settings.session_timeout_ms

    async def run(self) -> None:
        """Read on until cancelled. Raises LogError; NotAuthorized after ``broker_retry_ms`` of refusals."""
        own_ledger = self.own_ledger
        source, broker = own_ledger.logs.control, own_ledger.identity.broker
        refused = Patience(self.settings.broker_retry_ms, "reading the control log")
        reader: Reader | None = None
        position = 0
        is_told = False
        try:
            while True:
                try:
                    if reader is None:
                        position = own_ledger.logs.positions[source]
                        reader = await broker.reader({source: position})
                    batches = await reader.fetch([source], records_max=FETCH_RECORDS_MAX, wait_ms=self._wait_ms)
                    for batch in batches:
                        await self._fold(position, batch)
                        position = batch.offset_next
                except NotAuthorized as error:
                    await self._close(reader)
                    reader = None
                    await refused.wait(error)
                except AuthenticationRefused as error:  # another try might lock the account
                    raise fatal_of(error) from error
                except BrokerError as error:
                    if not is_told:
                        logger.warning("the control log can't be read, until it can: %s", error)
                    is_told = True
                    await self._close(reader)
                    reader = None
                    await asyncio.sleep(AWAY_WAIT_MS / 1000)
                else:
                    refused.note_answer()
                    is_told = False
                    if batches:
                        self._tell_read()
        finally:
            await self._close(reader)

    async def see_ends(self) -> None:
        """Ask for the end of the log again and again, until cancelled: the answers bound the age of the view. Raises
        LogError when the log ends below the position already read.
        """
        logs = self.own_ledger.logs
        while True:
            question = self.moment()
            try:
                end = (await logs.ends_of([logs.control]))[logs.control]
            except BrokerError:  # the reader of the log logs the error; after a session the process pauses its work
                await asyncio.sleep(AWAY_WAIT_MS / 1000)
                continue
            if await self.has_reached(end, self.settings.call_limit_ms / 1000):
                self.has_read(question)
                await rest(self._wait_ms / 1000)

    async def _fold(self, begins: int, batch: Batch) -> None:
        """Fold a fetched batch into the ledger. Another read of the log may have folded the batch before."""
        for record in batch.records:
            self.news.add(record.offset, record.timestamp)
        if not await self.own_ledger.fold_control(begins, batch):
            await self.own_ledger.read_control()

    async def _close(self, reader: Reader | None) -> None:
        if reader is not None:
            await close_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of the control log")
