"""Snapshots of the offset log at their time, and the trimming with each snapshot."""

import logging
from collections.abc import Callable

from ...brokers.protocol import BrokerError
from ...offsets.events import OffsetEvent
from ...offsets.snapshots import take_snapshot
from ..settings import Settings
from .own_ledger import OwnLedger
from .reader import places_of
from .trimming import HistoryTrimming

logger = logging.getLogger("keylanes")


class Snapshots:
    """The coordinator's snapshots of all log partitions, each after ``snapshot_every_commits`` commits of any process.

    ``wall_ms``: now, in ms since the epoch.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        settings: Settings,
        wall_ms: Callable[[], int],
        is_coordinator: Callable[[], bool],
    ) -> None:
        self.own_ledger = own_ledger
        self.settings = settings
        self._is_coordinator = is_coordinator
        self._history = HistoryTrimming(own_ledger.logs, settings, wall_ms)
        self._own_commits = self._commits_read_before = 0
        """How many transactions this process has committed since the last snapshot, and ``LogReader.commits_read`` at
        the last snapshot.
        """
        self._is_told = False
        """Whether the log has a line about the snapshots that fail now."""

    @property
    def trims_failed(self) -> int:
        """How many trims of the log have failed."""
        return self._history.failures

    @property
    def is_due(self) -> bool:
        """Whether a snapshot is due, and this process is the coordinator."""
        commits = self._own_commits + self.own_ledger.logs.commits_read - self._commits_read_before
        return commits >= self.settings.limits.snapshot_every_commits and self._is_coordinator()

    async def take_when_due(self, transaction: int) -> list[OffsetEvent]:
        """The events of a due snapshot of all log partitions, to be written with ``transaction``; [] before."""
        if not self.is_due:
            return []
        try:
            events = await self._take(transaction)
        except BrokerError as error:
            if not self._is_told:
                logger.warning("no snapshot with transaction %d, nor until it works: %s", transaction, error)
            self._is_told = True
            return []
        self._is_told = False
        return events

    def count_commit(self, *, has_snapshot: bool) -> None:
        """Count a committed transaction."""
        if has_snapshot:
            self._own_commits, self._commits_read_before = 0, self.own_ledger.logs.commits_read
        else:
            self._own_commits += 1

    async def _take(self, transaction: int) -> list[OffsetEvent]:
        """The events of a snapshot; trims each log partition, too."""
        own_ledger, logs = self.own_ledger, self.own_ledger.logs
        await own_ledger.read()
        events: list[OffsetEvent] = []
        for log_partition in range(logs.log_partitions):
            position = logs.positions[logs.offsets(log_partition)]
            places = places_of(own_ledger.ledger, log_partition, logs.log_partitions)
            events += take_snapshot(
                own_ledger.ledger, logs.app, log_partition, places, position, own_ledger.incarnation, transaction
            )
            async with own_ledger.offsets_lock:
                await self._history.trim(log_partition, position)
        return events
