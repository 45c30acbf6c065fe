"""The control log as it goes on: tailed into the ledger of this process, and who waits for something in it told."""

import asyncio
import logging
from collections.abc import Callable

from ...brokers.protocol import BrokerError, NotAuthorized, Reader
from ...brokers.waiting import Patience, closed_within
from ...group.heard import News
from ..logs.office import Standing
from ..settings import Settings

logger = logging.getLogger("keylanes")

FETCH_RECORDS_MAX = 1_000
AWAY_WAIT_MS = 200
"""After a read that failed."""


class Following:
    """Of one process. ``news``: when the events were written. ``listeners`` are called when something was read."""

    def __init__(self, standing: Standing, settings: Settings, news: News) -> None:
        self.standing, self.settings, self.news = standing, settings, news
        self.listeners: list[Callable[[], None]] = []
        self.wall_ms: Callable[[], int] = lambda: 0
        self.asked_ms = 0
        """When the read was begun that came to the end last, by ``wall_ms``: who was suspended in its midst knows only
        how it was then.
        """
        self.read_s = 0.0
        """When the log was read to its end last, by the loop's time."""

    def has_read(self, asked_ms: int) -> None:
        """The log was read to its end just now; that was begun at this time, by ``wall_ms``."""
        self.asked_ms = max(self.asked_ms, asked_ms)
        self.read_s = asyncio.get_running_loop().time()
        for listener in self.listeners:
            listener()

    def is_lost(self) -> bool:
        """Whether the log could not be read for a session: what this process may do, it does not know."""
        return (asyncio.get_running_loop().time() - self.read_s) * 1000 >= self.settings.session_timeout_ms

    async def run(self) -> None:
        """Follow until cancelled. Raises LogError; NotAuthorized, when it may not be read for ``broker_retry_ms``."""
        standing = self.standing
        source, broker = standing.logs.control, standing.identity.broker
        refused = Patience(self.settings.broker_retry_ms, "reading the control log")
        reader: Reader | None = None
        is_told = False
        try:
            while True:
                asked_ms = self.wall_ms()
                try:
                    if reader is None:
                        reader = await broker.reader({source: standing.logs.positions[source]})
                    wait_ms = self.settings.heartbeat_interval_ms
                    batches = await reader.fetch([source], records_max=FETCH_RECORDS_MAX, wait_ms=wait_ms)
                    for record in (record for batch in batches for record in batch.records):
                        self.news.add(record.offset, record.timestamp)
                    if batches:
                        await self.standing.read_control()
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
                    await asyncio.sleep(AWAY_WAIT_MS / 1000)
                else:
                    refused.answered()
                    is_told = False
                    self.has_read(asked_ms)
        finally:
            await self._let_go(reader)

    async def _let_go(self, reader: Reader | None) -> None:
        if reader is not None:
            await closed_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of the control log")
