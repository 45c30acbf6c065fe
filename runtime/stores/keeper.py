"""The state of all source partitions of a process: the door of this room, and the ranges that come and go.

| subject | module |
|---|---|
| the folder and the storages in it | folder.py |
| the storage of one partition | storage.py |
| writers, beacons, succession | state_writers.py |
| committed changes on their way to the storages | write_behind.py |
| restores, learners and standbys | copy_pass.py, restore.py, learner.py |
| queries | view.py, answers.py |
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from ...brokers.partitioner import Partitioner
from ...brokers.protocol import Broker, ConsumerRecord, Outgoing, TopicDescription, TopicPartition
from ...keyrange.ranges import KeyRange
from ...offsets.events import StateChanged
from ...offsets.ledger import Ledger, SourcePartition
from ...offsets.signals import Copy as CopyTold
from ...state.changes import StateChanges
from ...state.copy_readiness import points_of
from ...state.overlay import OverlayEntry
from ...state.restore import Writers
from ...state.sampling import sampled_bytes
from ...state.tables import StoreInfo
from ..handlers.handler import Handler
from ..handlers.partition_state import PartitionState
from ..handlers.stores import Binding, Bindings, look_up_entries
from ..settings import Settings
from ..watch.statistics import Progress
from .answers import GroupView
from .copy_pass import CopyMeans, CopyPass
from .copy_writes import CopyWrites
from .folder import OpenCopies, StorageOpener, wanted_stores
from .key_places import KeyPlaces
from .learner import Learner
from .restore import Restore
from .state_writers import StateLogs, StateWriters
from .storage import BrokerTable, OwnCopy, StateThreads, Storage
from .view import Queries
from .write_behind import WriteBehind

AHEAD_KEYS_MAX: Final = 2_000
"""Keys whose values are read ahead at a stroke."""


class Keeper:
    """Opened once a run. All methods are called on the loop.

    ``group``: the view of the group by which queries are answered. ``tell_copies`` is called with the progress of
    learners and standbys. ``logs``: for the writers of state that is thrown away.
    """

    def __init__(
        self,
        app: str,
        broker: Broker,
        settings: Settings,
        handlers: Sequence[Handler],
        wall_ms: Callable[[], int],
        open_copies: OpenCopies | None,
        partitioners: Mapping[str, Partitioner],
        group: GroupView,
        tell_copies: Callable[[tuple[CopyTold, ...]], None],
        logs: StateLogs,
    ) -> None:
        self.handlers = {handler.topic: handler for handler in handlers if handler.stores}
        self.storages: dict[SourcePartition, Storage] = {}
        self.infos: dict[str, StoreInfo] = {}
        """Stores by name."""
        self.wanted = wanted_stores(handlers)
        self.restoring: Progress | None = None
        """The progress of a restore; None: no restore is going on."""
        self._restores = 0
        """The number of restores that are going on."""
        self._lanes = asyncio.Semaphore(settings.limits.restore_partitions_max)
        self._threads = StateThreads()
        self._writes = CopyWrites(settings, self._threads)
        self._means = CopyMeans(broker, settings, wall_ms, self._writes)
        self._opener = StorageOpener(
            app=app,
            broker=broker,
            settings=settings,
            handlers=list(self.handlers.values()),
            open_copies=open_copies,
            threads=self._threads,
        )
        self.key_places = KeyPlaces(self.handlers, partitioners, self.storages, self._threads)
        self.writers = StateWriters(app, logs)
        self.write_behind = WriteBehind(self.storages, settings, wall_ms)
        self.learner = Learner(
            means=self._means,
            storages=self.storages,
            tell=tell_copies,
            ask_writers=self.writers.ask,
            compare=self.key_places.compare,
        )
        self.queries = Queries(
            handlers=self.handlers,
            infos=self.infos,
            storages=self.storages,
            group=group,
            copies=self.learner,
            key_places=self.key_places,
        )

    # --- from the start to the end -----------------------------------------------------------------------------------

    async def check(self) -> None:
        """See ``StorageOpener``. Raises SettingsError, StoreError."""
        await self._opener.check()

    async def open(self, ledger: Ledger, topics: Mapping[str, TopicDescription]) -> None:
        """Open the storages of all source partitions with stores. Raises SettingsError, StoreError, StateError."""
        if not self.handlers:
            return
        infos = [StoreInfo(ledger.control.stores[wanted.name].store, *wanted) for wanted in self.wanted]
        storages = await self._opener.open(ledger, infos, topics)
        self.storages.update(storages)  # all at once: a reader meanwhile would take those so far for all there are
        self.infos.update((info.name, info) for info in infos)

    async def close(self) -> None:
        """Let go of copies and threads; a second call does nothing."""
        try:
            if self._opener.copies is not None:
                await self.write_behind.write()
                self.write_behind.renew_marks()
        finally:
            await self._opener.close()
        self._writes.shutdown()
        self._threads.shutdown()

    # --- ranges that come --------------------------------------------------------------------------------------------

    def attach(self, place: SourcePartition, handler: Handler) -> tuple[PartitionState, Bindings]:
        """The state of a source partition, and the arguments behind the value for its handler, which has stores."""
        bindings = tuple(None if d is None else Binding(self.infos[d.name].number, d) for d in handler.further)
        return self.storages[place].state, bindings

    async def take_up(
        self,
        granted: Mapping[SourcePartition, Sequence[KeyRange]],
        logs: Callable[[], Awaitable[Ledger]],
        incarnation: int,
        on_whole: Callable[[SourcePartition], None],
    ) -> None:
        """Make the state of ranges whole that were granted to this process, as ``incarnation``. Meanwhile other ranges
        of the partitions may be worked on, or taken up by another call. ``on_whole`` is called on the loop for each
        partition as soon as its ranges are whole.

        ``logs``: read the offset log to its end; the grants were read before. Raises what ``logs`` raises; StateError
        when a changelog is not the one that the logs know; StoreError, BrokerError.
        """
        storages = {place: self.storages[place] for place in granted if place in self.storages}
        passes = {
            place: CopyPass(place, storage.changelog, storage.copy, points_of(granted[place]), has_end=True)
            for place, storage in storages.items()
            if isinstance(storage, OwnCopy)
        }
        known: dict[SourcePartition, Writers] = {}

        def note_whole(place: SourcePartition) -> None:
            storages[place].note_whole(granted[place])
            self.writers.succeed(place, known[place])
            self.key_places.compare(place)
            on_whole(place)

        restore = Restore(self._means, self._lanes, self._note_progress, lambda one: note_whole(one.place))
        self._restores += 1
        try:
            for one in passes.values():
                await restore.open(one)
            known |= self.writers.by_logs(storages, await logs(), incarnation)  # as they are now
            for place, storage in storages.items():
                self.learner.owns(place, granted[place])
                if isinstance(storage, BrokerTable):
                    await storage.check(known[place])
                    note_whole(place)
                else:
                    passes[place].writers = known[place]
            if passes:
                await restore.run(list(passes.values()))
        finally:
            await restore.close()
            self._restores -= 1
            if not self._restores:
                self.restoring = None

    def _note_progress(self, progress: Progress) -> None:
        self.restoring = progress

    def take_back(self, place: SourcePartition, within: KeyRange) -> None:
        """Take a range that this process released and nobody has changed since."""
        storage = self.storages.get(place)
        if storage is not None:
            self.learner.owns(place, [within])
            storage.state.make_ready([within])

    # --- ranges that go -----------------------------------------------------------------------------------------------

    def part_with(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """A transaction that gives these points up is being sent: others may change them before this process knows the
        outcome.
        """
        for place, within in points:
            if (storage := self.storages.get(place)) is not None:
                storage.state.part_with(within)

    def keep(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """The transaction that gave these points up was not committed: this process keeps them."""
        for place, within in points:
            if (storage := self.storages.get(place)) is not None:
                storage.state.keep(within)

    def release(self, place: SourcePartition, within: KeyRange) -> None:
        """A range was released: its state is another member's from here on."""
        if (storage := self.storages.get(place)) is not None:
            storage.state.release(within)
            self.learner.release(place, within)

    # --- records and commits -----------------------------------------------------------------------------------------

    async def read_ahead(
        self, state: PartitionState | None, bindings: Bindings, records: Sequence[ConsumerRecord]
    ) -> Sequence[OverlayEntry | None]:
        """Have the values of these records' keys in memory before their handlers ask: a read may wait for a disk.

        Returns, for a handler with one store, of values, the entry of each record's key; else nothing.
        """
        if state is None:
            return ()
        cells, lacking = look_up_entries(state.overlay, bindings, records)
        for at in range(0, len(lacking), AHEAD_KEYS_MAX):
            part = lacking[at : at + AHEAD_KEYS_MAX]
            state.overlay.learn(part, await self._threads.run(state.table.get_many, [cell.key for cell in part]))
        return cells

    def records(
        self, changes: Sequence[StateChanges], incarnation: int, transaction: int
    ) -> tuple[list[Outgoing], list[StateChanged]]:
        """See ``StateWriters``."""
        self.write_behind.begin_transaction()
        return self.writers.records(changes, incarnation, transaction)

    async def note_commit(
        self, changes: Sequence[StateChanges], positions: Mapping[TopicPartition, int], *, is_last: bool
    ) -> None:
        """See ``WriteBehind``."""
        for changed in changes:
            self.writers.note_committed(changed.place)
        await self.write_behind.note_commit(changes, positions, is_last=is_last)

    async def write_when_due(self) -> None:
        """See ``WriteBehind``."""
        await self.write_behind.write_when_due()

    async def sampled_bytes(self, place: SourcePartition, within: KeyRange) -> int:
        """About the size of a range's state, by samples. Raises StoreError."""
        return await self._threads.run(sampled_bytes, self.storages[place].state.table, within)
