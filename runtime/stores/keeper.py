"""The state of all partitions of a process: opened, restored, read ahead, and written behind the commits.

How one partition's state is kept is in ``follower.py``; here is when which of them has its turn.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from ...brokers.partitioner import Partitioner
from ...brokers.protocol import Broker, ConsumerRecord, Outgoing, TopicDescription, TopicPartition
from ...errors import FencedError, SettingsError, StateNotReady
from ...keyrange.ranges import KeyRange
from ...offsets.decide import WRITERS_MAX, StoreSpec
from ...offsets.events import StateChanged
from ...offsets.ledger import Ledger, SourcePartition
from ...state.changelog import Beacon, beacon_key, changelog_topic, encode_beacon
from ...state.changes import StateChanges
from ...state.overlay import OverlayEntry
from ...state.restore import Writers
from ...state.sampling import sampled_bytes
from ...state.tables import LocalCopies, LocalCopy, StoreInfo
from ..handlers.handler import Handler
from ..handlers.outputs import RECORD_FRAME_BYTES, destination_of
from ..handlers.partition_state import PartitionState
from ..handlers.store_declarations import codec_of
from ..handlers.stores import Binding, Bindings, look_up_entries
from ..settings import Settings
from ..watch.statistics import Progress
from .answers import FollowedCopies, GroupView, LocalAnswers
from .follower import BrokerTable, CopyTable, OwnCopy, StateThreads, Storage
from .key_places import KeyPlaces
from .learner import Learner
from .restore import CopyToRestore, Restore
from .view import DeclaredStore

if TYPE_CHECKING:
    from ...state.subfolders import Claimed

logger = logging.getLogger("keylanes")

OpenCopies: TypeAlias = Callable[[str], LocalCopies]
"""From the birth of an application's logs to its copies; blocks, raises RocksError."""

AHEAD_KEYS_MAX: Final = 2_000
"""Read ahead at a stroke."""

MARKS_EVERY_S: Final = 600.0
"""Markers of partitions that nothing changes are renewed so often: an old one means a restore from the start."""


class Keeper:
    """Opened once a run; everything is called on the loop."""

    def __init__(
        self,
        app: str,
        broker: Broker,
        settings: Settings,
        handlers: Sequence[Handler],
        wall_ms: Callable[[], int],
        open_copies: OpenCopies | None,
        partitioners: Mapping[str, Partitioner],
    ) -> None:
        self.app, self.broker, self.settings, self.wall_ms = app, broker, settings, wall_ms
        self.handlers = {handler.topic: handler for handler in handlers if handler.stores}
        self.storages: dict[SourcePartition, Storage] = {}
        self.infos: dict[str, StoreInfo] = {}
        """Stores by name."""
        self.restoring: Progress | None = None
        """How far a restore is; None when there is none."""
        self._open_copies = open_copies
        self._copies: LocalCopies | None = None
        self._behind: dict[SourcePartition, Storage] = {}
        """Those with committed changes that they don't hold yet."""
        self._succeeded: dict[SourcePartition, tuple[int, ...]] = {}
        """Fenced writers whose changes this process has seen, and whose beacons it deletes with its first change of the
        partition's state: those that no committed transaction has named yet.
        """
        self._seen: dict[SourcePartition, set[int]] = {}
        """Fenced writers whose beacons were found in order."""
        self._written_s = self._marked_s = 0.0
        self._lanes = asyncio.Semaphore(settings.limits.restore_partitions_max)
        self._asked_ms = self._in_office_ms = wall_ms()
        self._threads = StateThreads()
        self._restores = 0
        """How many are going on."""
        self.key_places = KeyPlaces(self.handlers, partitioners, self.storages, self._threads)
        self.learner = Learner(broker, settings, self.storages, wall_ms, self._threads, self.key_places.compare)
        self.group: GroupView | None = None
        """By which questions from outside are answered."""
        self.followed: FollowedCopies = self.learner
        self._withheld: str | None = None
        """Why no question from outside is answered any more."""

    @property
    def wanted(self) -> list[StoreSpec]:
        """The stores that the handlers ask for."""
        return [
            StoreSpec(d.name, topic, d.kind, d.key_type, d.value_type, codec_of(d))
            for topic, handler in self.handlers.items()
            for d in handler.stores
        ]

    # --- from the start to the first record --------------------------------------------------------------------------

    async def check(self) -> None:
        """Before the process takes office, so that a start that is refused disturbs no running one: state can be kept.

        The changelogs are there. Raises SettingsError, StoreError.
        """
        changelogs = [changelog_topic(self.app, topic) for topic in self.handlers]
        if all(self.broker.table(changelog, 0) is not None for changelog in changelogs):
            return
        if self._open_copies is None:
            raise SettingsError(
                f"application {self.app!r} keeps state, and this broker can't: give Settings.state_folder, a local "
                "folder that the processes of one machine may share"
            )
        if isinstance(self._open_copies, StateFolder):
            await self._threads.run(self._open_copies.check)

    async def open(self, ledger: Ledger, topics: Mapping[str, TopicDescription]) -> None:
        """Find the tables of all source partitions with stores. Raises SettingsError, StoreError, StateError."""
        if not self.handlers:
            return
        numbered = ledger.control.stores
        infos = [StoreInfo(numbered[w.name].store, *w) for w in self.wanted]
        storages: dict[SourcePartition, Storage] = {}
        for topic in self.handlers:
            changelog = topics[changelog_topic(self.app, topic)]
            limit = destination_of(changelog).bytes_max - RECORD_FRAME_BYTES
            ahead = max(1, self.settings.limits.state_ahead_bytes_max // changelog.partitions)
            for partition in range(changelog.partitions):
                state = partial(PartitionState, f"{topic}[{partition}]", entry_bytes_max=limit, ahead_bytes_max=ahead)
                source = TopicPartition(changelog.name, partition)
                table = self.broker.table(*source)
                storage: Storage
                if table is not None:
                    storage = BrokerTable(source, state(table), self._threads)
                else:
                    copy = await self._copy(ledger, infos, topic, partition)
                    storage = OwnCopy(source, state(CopyTable(copy)), copy, self._threads)
                storages[topic, partition] = storage
        self.storages.update(storages)  # all at once: who asks meanwhile would take those so far for all there are
        self.infos = {info.name: info for info in infos}

    async def _copy(self, ledger: Ledger, infos: Sequence[StoreInfo], topic: str, partition: int) -> LocalCopy:
        if self._copies is None:
            assert self._open_copies is not None, "that was checked before"
            self._copies = await self._threads.run(self._open_copies, ledger.control.app_birth)
            await self._threads.run(self._copies.declare, infos)
        return await self._threads.run(self._copies.copy, topic, partition)

    def attach(self, place: SourcePartition, handler: Handler) -> tuple[PartitionState, Bindings]:
        """The state of a source partition, and what its handler, which has stores, is called with behind the value."""
        bindings = tuple(None if d is None else Binding(self.infos[d.name].number, d) for d in handler.further)
        return self.storages[place].state, bindings

    async def take_up(
        self,
        granted: Mapping[SourcePartition, Sequence[KeyRange]],
        logs: Callable[[], Awaitable[Ledger]],
        incarnation: int,
        on_whole: Callable[[SourcePartition], None] = lambda _: None,
    ) -> None:
        """Make the state of ranges whole that were granted to this process, which is ``incarnation``, while others of
        their partitions may be worked on, or taken up by another call. ``on_whole`` is called on the loop for each
        partition as soon as it is.

        ``logs``: read the offset log to its end, the grants were read before. Raises what that raises, StateError when
        a changelog is not the one that the logs know, StoreError, BrokerError.
        """
        storages = {place: self.storages[place] for place in granted if place in self.storages}
        restore = Restore(self.broker, self.settings, self._hear, self.wall_ms, self._lanes)
        try:
            for place, storage in storages.items():
                if isinstance(storage, OwnCopy):
                    await restore.open(storage.changelog, storage.copy, granted[place])
            writers = self._all_writers(storages, await logs(), incarnation)
            await self._restore(restore, await self._wanted(granted, storages, writers, on_whole))
        finally:
            await restore.close()
        if not self._marked_s:
            self._marked_s = asyncio.get_running_loop().time()

    def _all_writers(
        self, places: Iterable[SourcePartition], ledger: Ledger, incarnation: int
    ) -> dict[SourcePartition, Writers]:
        living = frozenset(member.incarnation for member in ledger.control.unfenced_members())
        return {place: self._writers(ledger, place, living, incarnation) for place in places}  # as they are now

    async def _wanted(
        self,
        granted: Mapping[SourcePartition, Sequence[KeyRange]],
        storages: Mapping[SourcePartition, Storage],
        known: Mapping[SourcePartition, Writers],
        on_whole: Callable[[SourcePartition], None],
    ) -> list[CopyToRestore]:
        def is_whole(place: SourcePartition) -> None:
            fenced = tuple(i for i in sorted(known[place].required) if known[place].is_fenced(i))
            self._succeed(place, fenced)
            self.key_places.compare(place)
            on_whole(place)

        wanted: list[CopyToRestore] = []
        for place, storage in storages.items():
            await self.learner.let_go(place, granted[place])
            restoring = await storage.restoring(granted[place], known[place])
            if restoring is None:
                is_whole(place)
            else:
                wanted.append(restoring._replace(on_ready=partial(_both, restoring.on_ready, partial(is_whole, place))))
        return wanted

    def _succeed(self, place: SourcePartition, fenced: Sequence[int]) -> None:
        """The beacons of these writers were found in order; they are deleted with the first change."""
        seen = self._seen[place]
        new = tuple(i for i in fenced if i not in seen)
        seen.update(new)
        if new:
            self._succeeded[place] = (*self._succeeded.get(place, ()), *new)

    def take_back(self, place: SourcePartition, within: KeyRange) -> None:
        """A range that this process released comes back, and nobody has changed its state since."""
        storage = self.storages.get(place)
        if storage is not None:
            self.learner.owns(place, [within])
            storage.state.make_ready([within])

    def is_as_released(self, place: SourcePartition, within: KeyRange) -> bool:
        """Whether a range that this process released lies here as it was then: no copy was followed since."""
        return not self.learner.has_touched(place, within)

    def writers(self, ledger: Ledger, place: SourcePartition, own: int) -> Writers:
        """Who changed the state of a source partition, by the logs as they are now; ``own``: this process."""
        return self._all_writers([place], ledger, own)[place]

    def _writers(self, ledger: Ledger, place: SourcePartition, living: frozenset[int], own: int) -> Writers:
        """Who changed the state of a source partition, by the logs as they are now. Who is succeeded was looked at when
        a range was taken up, perhaps while this one is: that change may be committed while it is looked again.
        """
        succeeding = self._seen.setdefault(place, set())
        changed = {i: last for i, last in ledger.partition(place).changed.items() if i not in succeeding}
        maximum = ledger.control.incarnation_max
        return Writers(changed, _newest(changed), living, maximum, own=own, succeeding=succeeding)

    def part_with(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """A transaction gives points up that is being sent: others may change them before its outcome is known here."""
        for place, within in points:
            if (storage := self.storages.get(place)) is not None:
                storage.state.part_with(within)

    def keep(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """It was not committed."""
        for place, within in points:
            if (storage := self.storages.get(place)) is not None:
                storage.state.keep(within)

    def release(self, place: SourcePartition, within: KeyRange) -> None:
        """A range was released: its state is somebody else's from here on."""
        if (storage := self.storages.get(place)) is not None:
            storage.state.release(within)
            self.learner.release(place, within)

    async def sampled_bytes(self, place: SourcePartition, within: KeyRange) -> int:
        """How large the state of a range is, about. Raises StoreError."""
        return await self._threads.run(sampled_bytes, self.storages[place].state.table, within)

    def was_in_office(self, at_ms: int) -> None:
        """Nobody but this process had changed the state when the clock (``wall_ms``) stood there.

        Markers carry this time, not that of their writing: a process that was suspended for days, and was replaced
        meanwhile, must not make its copy look young when it wakes up.
        """
        self._in_office_ms = at_ms

    async def _restore(self, restore: Restore, restoring: Sequence[CopyToRestore]) -> None:
        if not restoring:
            return
        self._restores += 1
        self._threads.large_writes += 1
        try:
            await restore.run(restoring)
        finally:
            self._restores -= 1
            self._threads.large_writes -= 1
            if not self._restores:
                self.restoring = None

    def _hear(self, progress: Progress) -> None:
        self.restoring = progress

    def withhold(self, why: str) -> None:
        """Answer no question from outside any more, as others may have what this process had."""
        self._withheld = why

    def find(self, name: str) -> DeclaredStore:
        """A store, and all partitions of its topic; raises StateNotReady."""
        info, group = self.infos.get(name), self.group
        if self._withheld is not None:
            raise StateNotReady(f"store {name!r} can't be read: {self._withheld}")
        if info is None or group is None:
            raise StateNotReady(f"store {name!r} can't be read yet: the application is starting")
        declared = next(d for d in self.handlers[info.topic].stores if d.name == name)
        if (doubt := group.doubt()) is not None:
            raise StateNotReady(f"store {name!r} can't be read: {doubt}")
        partitions = {
            place[1]: LocalAnswers(place, storage.state, group, self.followed)
            for place, storage in self.storages.items()
            if place[0] == info.topic
        }
        return DeclaredStore(info, Binding(info.number, declared), partitions, self.key_places)

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def read_ahead(
        self, state: PartitionState | None, bindings: Bindings, records: Sequence[ConsumerRecord]
    ) -> Sequence[OverlayEntry | None]:
        """Have the values of these records' keys in memory before their handlers ask: a read may wait for a disk.

        Where the value of each record's key is, for a handler with one store, of values; else nothing.
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
        """What a transaction carries of the state: changelog records with the beacons, and the events of it."""
        self._asked_ms = self.wall_ms()
        records: list[Outgoing] = []
        events: list[StateChanged] = []
        key, beacon = encode_beacon(Beacon(incarnation, transaction))
        for changed in changes:
            topic, partition = changelog_topic(self.app, changed.place[0]), changed.place[1]
            records += [Outgoing(topic, partition, cell.key, value) for cell, value in changed.last.items()]
            succeeded = self._succeeded.get(changed.place, ())
            records += [Outgoing(topic, partition, beacon_key(one), None) for one in succeeded]
            records.append(Outgoing(topic, partition, key, beacon))
            count = len(changed.last)
            events.append(StateChanged(incarnation, transaction, *changed.place, count, succeeded))
        return records, events

    async def committed(
        self, changes: Sequence[StateChanges], positions: Mapping[TopicPartition, int], *, is_last: bool = False
    ) -> None:
        """A transaction was committed: its changes become visible outside, and go to where the state is kept; at once
        where it is the last one for some ranges (``is_last``), else together with those of the next ones.

        ``positions``: behind its records, where that is known.
        """
        self.was_in_office(self._asked_ms)
        for changed in changes:
            self._succeeded.pop(changed.place, None)
            storage = self.storages[changed.place]
            storage.committed(changed, positions.get(storage.changelog))
            if storage.unwritten_bytes is not None:
                self._behind[changed.place] = storage
        if is_last:
            await self._write()
        else:
            await self.write_when_due()

    async def write_when_due(self) -> None:
        """Have in the copies what was committed, when the last time was long enough ago or it has become much."""
        waited_ms = (asyncio.get_running_loop().time() - self._written_s) * 1000
        unwritten_bytes = sum(storage.unwritten_bytes or 0 for storage in self._behind.values())
        is_much = unwritten_bytes >= self.settings.limits.state_unwritten_bytes_max
        if self._behind and (is_much or waited_ms >= self.settings.limits.state_write_interval_ms):
            await self._write()

    async def _write(self) -> None:
        for place, storage in list(self._behind.items()):
            await storage.write(self._in_office_ms)
            del self._behind[place]
        self._written_s = asyncio.get_running_loop().time()

    def renew_marks_when_due(self) -> None:
        """The markers of what nothing changes get old, too, and an old one means a restore from the start."""
        if asyncio.get_running_loop().time() - self._marked_s > MARKS_EVERY_S:
            self._renew_marks()

    async def close(self) -> None:
        """Let go of copies and threads; a second call does nothing."""
        copies, self._copies = self._copies, None
        if copies is not None:
            try:
                await self._write()
                self._renew_marks()
            finally:
                await self._threads.run(self._let_go, copies)
        else:
            self._let_go(None)
        self._threads.shutdown()

    def _let_go(self, copies: LocalCopies | None) -> None:
        """Of the folder behind its copies, however they end: who has it next would find them open."""
        try:
            if copies is not None:
                copies.close()
        finally:
            if isinstance(self._open_copies, StateFolder):
                self._open_copies.close()

    def _renew_marks(self) -> None:
        self._marked_s = asyncio.get_running_loop().time()
        for storage in self.storages.values():
            storage.renew_marks(self._in_office_ms)


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    first()
    then()


def _newest(changed: Iterable[int]) -> frozenset[int]:
    """Those whose beacons are looked for."""
    return frozenset(sorted(changed)[-WRITERS_MAX:])


class StateFolder:
    """An ``OpenCopies`` of a subfolder of ``Settings.state_folder``, which this process has from the first call on."""

    def __init__(self, app: str, folder: str, name: str | None, cache_bytes: int, birth: str) -> None:
        self.app, self.folder, self.name, self.cache_bytes = app, Path(folder), name, cache_bytes
        self.birth = birth
        """Of this process: the subfolder says it, so that others know whose it is."""
        self._claimed: Claimed | None = None
        self._closed = False
        self._guard = threading.Lock()

    def __call__(self, birth_text: str) -> LocalCopies:
        """The copies; raises RocksError."""
        from ...state.copies import open_copies

        return open_copies(self._claim(), app=self.app, birth=birth_text, cache_bytes=self.cache_bytes)

    def check(self) -> None:
        """Raises RocksError when there is no subfolder for this process, or it is damaged or holds something else."""
        from ...state.copies import check_copies

        check_copies(self._claim(), app=self.app, cache_bytes=self.cache_bytes)

    def close(self) -> None:
        """Let go of the subfolder; it is not taken again, also not by a thread that is looking for one meanwhile."""
        with self._guard:
            self._closed = True
            claimed, self._claimed = self._claimed, None
        if claimed is not None:
            claimed.lock.close()

    def _claim(self) -> Path:
        """The subfolder of this process; raises RocksError, FencedError. One call at a time."""
        from ...state.rocks import RocksError
        from ...state.subfolders import NameInUse, claim

        if self._claimed is not None:
            return self._claimed.folder
        try:
            claimed = claim(self.folder, self.app, self.name, birth=self.birth)
        except NameInUse as error:
            raise FencedError(str(error)) from error
        with self._guard:
            if not self._closed:
                self._claimed = claimed
                return claimed.folder
        claimed.lock.close()
        raise RocksError(f"{claimed.folder} is not wanted any more: the application stops")


def open_state_folder(app: str, settings: Settings, birth: str) -> StateFolder | None:
    """How the copies in ``Settings.state_folder`` are opened; None when none is named."""
    folder = settings.state_folder
    if folder is None:
        return None
    return StateFolder(app, folder, settings.group_instance_id, settings.limits.state_cache_bytes_max, birth)
