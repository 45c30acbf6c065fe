"""The control log as it goes on: tailed into the ledger of this process, and who waits for something in it told."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from ...brokers.protocol import Batch, BrokerError, NotAuthorized, Reader
from ...brokers.waiting import Patience, closed_within
from ...group.heard import News
from ..logs.office import Standing
from ..settings import Settings

logger = logging.getLogger("keylanes")

FETCH_RECORDS_MAX = 1_000
AWAY_WAIT_MS = 200
"""After a read that failed."""
FETCHES_APART_S = 0.05
"""One that is begun sooner counts from the one before."""


class Following:
    """Of one process. ``news``: when the events were written. ``listeners`` are called when something was read."""

    def __init__(self, standing: Standing, settings: Settings, news: News) -> None:
        self.standing, self.settings, self.news = standing, settings, news
        self.listeners: list[Callable[[], None]] = []
        self.wall_ms: Callable[[], int] = lambda: 0
        self.now_s: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        """The loop's time, also when another thread asks."""
        self.seen_ms = 0
        """All that stood in the log at that time, by ``wall_ms``, is known: a read that came to its end was begun
        then. Who was suspended in its midst knows only how it was before.
        """
        self.read_s = 0.0
        """When the log was read to its end last, or what was found of it was asked for, by the loop's time."""
        self._has_told = asyncio.Event()
        self._end_s = 0.0
        self._fetches: deque[tuple[float, int]] = deque()
        """When those were begun that the log was not seen to its end since, by both clocks; some of them."""

    def has_read(self, asked_ms: int) -> None:
        """The log was read to its end just now; that was begun at this time, by ``wall_ms``."""
        self.seen_ms = max(self.seen_ms, asked_ms)
        self._tell(asyncio.get_running_loop().time())

    def _was_at_end(self, end_s: float) -> None:
        """The broker was asked at this time, by the loop's time, and all that it had then is known. By the other clock
        that is when the fetch was begun, or earlier, if this process was suspended since.
        """
        if end_s <= self._end_s:
            return
        self._end_s = end_s
        while len(self._fetches) > 1 and self._fetches[1][0] <= end_s:
            self._fetches.popleft()
        begun_s, begun_ms = self._fetches[0]
        if begun_s <= end_s:
            self.seen_ms = max(self.seen_ms, begun_ms)
            self._tell(end_s)

    def _tell(self, read_s: float) -> None:
        self.read_s = max(self.read_s, read_s)
        self._has_told.set()
        for listener in self.listeners:
            listener()

    async def has_numbered(self, term: int, number: int, limit_s: float) -> bool:
        """Wait until a decision is read, or a later term is; False: not in time."""
        try:
            async with asyncio.timeout(limit_s):
                while (control := self.standing.ledger.control).term == term and control.number < number:
                    self._has_told.clear()
                    await self._has_told.wait()
        except TimeoutError:
            return False
        return True

    def age_ms(self) -> int:
        """How old what is known of the log may be. By both clocks: one stands still with the machine, the other can be
        set back.
        """
        return max(self.wall_ms() - self.seen_ms, int((self.now_s() - self.read_s) * 1000))

    def is_lost(self) -> bool:
        """Whether the log could not be read for a session: what this process may do, it does not know."""
        return (asyncio.get_running_loop().time() - self.read_s) * 1000 >= self.settings.session_timeout_ms

    async def run(self) -> None:
        """Follow until cancelled. Raises LogError; NotAuthorized, when it may not be read for ``broker_retry_ms``."""
        standing = self.standing
        source, broker = standing.logs.control, standing.identity.broker
        refused = Patience(self.settings.broker_retry_ms, "reading the control log")
        reader: Reader | None = None
        position = 0
        # Short enough, so that what is known is never too old for questions while the broker answers.
        wait_ms = max(1, min(self.settings.heartbeat_interval_ms, self.settings.query_view_ms_max // 4))
        is_told = False
        try:
            while True:
                asked_s = asyncio.get_running_loop().time()
                if not self._fetches or asked_s - self._fetches[-1][0] >= FETCHES_APART_S:
                    self._fetches.append((asked_s, self.wall_ms()))
                try:
                    if reader is None:
                        position = standing.logs.positions[source]
                        reader = await broker.reader({source: position})
                    batches = await reader.fetch([source], records_max=FETCH_RECORDS_MAX, wait_ms=wait_ms)
                    for batch in batches:
                        await self._take(position, batch)
                        position = batch.offset_next
                except NotAuthorized as error:
                    await self._let_go(reader)
                    reader = None
                    await refused.wait(error)
                except BrokerError as error:
                    if not is_told:
                        logger.warning("the control log can't be read, until it can: %s", error)
                    is_told = True
                    await self._let_go(reader)
                    reader = None
                    self._fetches.clear()
                    await asyncio.sleep(AWAY_WAIT_MS / 1000)
                else:
                    refused.answered()
                    is_told = False
                    if batches:  # there may be more of it
                        self._tell(asked_s)
                    if (end_s := reader.at_end_s(source)) is not None:  # a broker that is silent tells no end
                        self._was_at_end(end_s)
        finally:
            await self._let_go(reader)

    async def _take(self, begins: int, batch: Batch) -> None:
        """What was fetched goes into the ledger; who reads the log to its end meanwhile may have it there already."""
        for record in batch.records:
            self.news.add(record.offset, record.timestamp)
        if not await self.standing.fold_control(begins, batch):
            await self.standing.read_control()

    async def _let_go(self, reader: Reader | None) -> None:
        if reader is not None:
            await closed_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of the control log")
