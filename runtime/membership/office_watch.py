"""Whether this process is still in office: looked at while it works, and when it finds damage."""

import asyncio
import logging
from collections.abc import Callable

from ...brokers.protocol import BrokerError, NotAuthorized
from ...brokers.waiting import Patience, until_answered
from ...errors import FencedError, LogError
from ...offsets.ledger import Ledger
from ..logs.office import Identity, Standing
from ..logs.reader import LogReader

logger = logging.getLogger("keylanes")

CONTROL_CHECK_MS = 500
"""How often an idle process looks whether it was expelled."""


class OfficeWatch:
    """Reads the control log over connections of its own."""

    def __init__(self, identity: Identity, wall_ms: Callable[[], int]) -> None:
        self.identity, self.settings, self.wall_ms = identity, identity.settings, wall_ms

    def _reader(self) -> LogReader:
        of = self.identity
        return LogReader(of.app, of.broker, of.settings, of.logs.log_partitions)

    async def run(self, standing: Standing, on_office: Callable[[int], None]) -> None:
        """Look in intervals until cancelled; raises FencedError when another process took over, NotAuthorized when
        the log may not be read for ``broker_retry_ms``.

        An idle process learns it here, a busy one mostly at its next commit. ``on_office`` hears, by ``wall_ms``, when
        nobody else was in office.
        """
        watch = self._reader()
        patience = Patience(self.settings.broker_retry_ms, "reading the control log")
        ledger = Ledger()
        try:
            while True:
                try:
                    asked_ms = self.wall_ms()
                    ledger = await watch.read_control(ledger)
                    self.identity.check_in_office(ledger, standing.incarnation)
                    on_office(asked_ms)
                    patience.answered()
                except NotAuthorized as error:
                    await patience.wait(error)
                except BrokerError as error:
                    logger.warning("the control log can't be read: %s", error)
                await asyncio.sleep(CONTROL_CHECK_MS / 1000)
        finally:
            await watch.close()

    async def taken_over(self) -> FencedError | None:
        """Whether another process is in office, for one that found damage.

        1. This one stands still, or waits for its disk. 2. Another takes over, processes and commits. 3. Retention
        takes the records that were processed, the offset log is trimmed, or the changelog goes on. 4. This one, back
        again, misses what it believes to be its own, or finds newer state than it knows of. Nothing is damaged: it has
        to go, not to be mended.
        """
        watch = self._reader()
        patience = Patience(self.settings.call_limit_ms, "asking who is in office")
        try:
            fresh = Ledger()
            ledger = await until_answered(lambda: watch.read_control(fresh), patience)
            if self.identity.incarnation is not None:
                self.identity.check_in_office(ledger, self.identity.incarnation)
        except FencedError as fenced:
            return fenced
        except (BrokerError, LogError) as error:
            logger.warning("whether another process took over can't be read: %s", error)
        finally:
            await watch.close()
        return None
