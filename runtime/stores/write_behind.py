"""When committed state goes into the storages, and with which time their markers are renewed.

Markers carry the last time at which nobody else had changed the state, not the time of the writing: a process that was
suspended for days, and was replaced meanwhile, must not make its copy look young when it wakes up.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ...brokers.protocol import TopicPartition
from ...offsets.ledger import SourcePartition
from ...state.changes import StateChanges
from ..settings import Settings
from .copy_pass import MARKS_EVERY_S
from .storage import Storage


class WriteBehind:
    """Writes of committed changes, some time after the commits."""

    def __init__(
        self, storages: Mapping[SourcePartition, Storage], settings: Settings, wall_ms: Callable[[], int]
    ) -> None:
        self.storages = storages
        self.settings = settings
        self.wall_ms = wall_ms
        self._behind: dict[SourcePartition, Storage] = {}
        """The storages with committed changes that they lack."""
        self._written_s = 0.0
        self._marked_s = 0.0
        self._asked_ms = wall_ms()
        self._in_office_ms = self._asked_ms

    def begin_transaction(self) -> None:
        """Note the time at which a transaction is begun: when it is committed, nobody else had changed the state."""
        self._asked_ms = self.wall_ms()

    def follow(self, at_ms: int) -> None:
        """Nobody but this process had changed the state when the clock (``wall_ms``) stood there. The markers of
        unchanged storages are renewed from time to time: an old marker means a restore from the start.
        """
        self._in_office_ms = at_ms
        if asyncio.get_running_loop().time() - self._marked_s > MARKS_EVERY_S:
            self.renew_marks()

    async def note_commit(
        self, changes: Sequence[StateChanges], positions: Mapping[TopicPartition, int], *, is_last: bool
    ) -> None:
        """Show the changes of a committed transaction to readers outside, and write them to the storages: at once when
        they are the last ones of some ranges (``is_last``), else together with the next ones. ``positions``: behind the
        records of the transaction, where known.
        """
        self._in_office_ms = self._asked_ms
        for changed in changes:
            storage = self.storages[changed.place]
            storage.take_commit(changed, positions.get(storage.changelog))
            if storage.unwritten_bytes is not None:
                self._behind[changed.place] = storage
        if is_last:
            await self.write()
        else:
            await self.write_when_due()

    async def write_when_due(self) -> None:
        """Write the committed changes when the last time was long enough ago or the changes have become large."""
        waited_ms = (asyncio.get_running_loop().time() - self._written_s) * 1000
        unwritten_bytes = sum(storage.unwritten_bytes or 0 for storage in self._behind.values())
        is_much = unwritten_bytes >= self.settings.limits.state_unwritten_bytes_max
        if self._behind and (is_much or waited_ms >= self.settings.limits.state_write_interval_ms):
            await self.write()

    async def write(self) -> None:
        """Write all committed changes. Raises StoreError."""
        for place, storage in list(self._behind.items()):
            await storage.write(self._in_office_ms)
            del self._behind[place]
        self._written_s = asyncio.get_running_loop().time()

    def renew_marks(self) -> None:
        """Renew the markers of all storages. Raises StoreError."""
        self._marked_s = asyncio.get_running_loop().time()
        for storage in self.storages.values():
            storage.renew_marks(self._in_office_ms)
