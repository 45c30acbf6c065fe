"""The state of all partitions of a process: where it is kept, and what a transaction does to it.

Two ways, behind one face. A broker that keeps tables by itself (embedded) writes the changelog's records into them with
the transaction: when it is committed, the table holds the changes. Beside any other broker there are local copies: they
are restored from the changelog before the first record, and written after the commit, in slices between which the loop
has its turns; the markers come with the last slice. What a copy holds above its marker is committed all the same, so a
crash in the middle costs nothing but reading that again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ...brokers.protocol import Broker, Outgoing, Record, TopicDescription, TopicPartition
from ...brokers.threads import DaemonThreads
from ...errors import SettingsError, StateError, StateNotReady, StoreError
from ...keyrange.ranges import WHOLE, KeyRange
from ...offsets.decide import StoreSpec
from ...offsets.events import StateChanged
from ...offsets.ledger import Ledger, Place, birth
from ...state.changelog import BEACON_KEY, Beacon, changelog_topic, decode_beacon, encode_beacon
from ...state.changes import StateChanges
from ...state.overlay import Cell, Changes, Layer
from ...state.restore import ChangelogUnfit, check_beacon
from ...state.rocks import RocksError
from ...state.tables import Copies, Copy, Mark, Marker, StoreInfo, Table
from ..handlers.handler import Handler
from ..handlers.outputs import RECORD_FRAME_BYTES, destination_of
from ..handlers.partition_state import PartitionState
from ..handlers.store_declarations import codec_of
from ..handlers.stores import Binding, Bindings, looked_up
from ..settings import Settings
from ..watch.statistics import Progress
from .restore import Restore, Restoring

T = TypeVar("T")

OpenCopies: TypeAlias = Callable[[str], Copies]
"""From the birth of an application's logs to its copies; blocks, raises RocksError."""

SLICE_CHANGES: Final = 200
SLICE_BYTES: Final = 1024 * 1024
"""What is written to a copy at a stroke: about a millisecond."""

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
    ) -> None:
        self.app, self.broker, self.settings, self.wall_ms = app, broker, settings, wall_ms
        self.handlers = {handler.topic: handler for handler in handlers if handler.stores}
        self.states: dict[Place, PartitionState] = {}
        self.infos: dict[str, StoreInfo] = {}
        """Stores by name."""
        self.restoring: Progress | None = None
        """How far a restore is; None when there is none."""
        self._open_copies = open_copies
        self._copies: Copies | None = None
        self._followers: dict[Place, Copy] = {}
        self._positions: dict[Place, int] = {}
        """Of each changelog partition: all changes below it are in the copy."""
        self._committed_to: dict[Place, int] = {}
        """Of each changelog partition with committed changes that are not in the copy yet: where they end."""
        self._unwritten: dict[Place, list[Layer]] = {}
        """The layers of the overlay with those changes."""
        self._unwritten_bytes = 0
        self._written_s = 0.0
        self._marked_s = 0.0
        self._restores = 0
        self._asked_ms = self._in_office_ms = wall_ms()
        self._threads = DaemonThreads(2, "keylanes-state")

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
                "folder of its own for each process"
            )
        if isinstance(self._open_copies, StateFolder):
            await self._in_thread(self._open_copies.check)

    async def open(self, ledger: Ledger, topics: Mapping[str, TopicDescription]) -> None:
        """Find the tables of all source partitions with stores. Raises SettingsError, StoreError, StateError."""
        if not self.handlers:
            return
        numbered = ledger.control.stores
        infos = [StoreInfo(numbered[w.name].number, *w) for w in self.wanted]
        self.infos = {info.name: info for info in infos}
        for topic in self.handlers:
            changelog = topics[changelog_topic(self.app, topic)]
            limit = destination_of(changelog, None).bytes_max - RECORD_FRAME_BYTES
            for partition in range(changelog.partitions):
                table: Table | None = self.broker.table(changelog.name, partition)
                if table is None:
                    copy = self._followers[topic, partition] = await self._copy(ledger, infos, topic, partition)
                    table = _CopyTable(copy)
                self.states[topic, partition] = PartitionState(
                    f"{topic}[{partition}]",
                    table,
                    entry_bytes_max=limit,
                    ahead_bytes_max=max(1, self.settings.state_ahead_bytes_max // changelog.partitions),
                )

    async def _copy(self, ledger: Ledger, infos: Sequence[StoreInfo], topic: str, partition: int) -> Copy:
        if self._copies is None:
            assert self._open_copies is not None, "that was checked before"
            self._copies = await self._in_thread(self._open_copies, birth(ledger))
            await self._in_thread(self._copies.declare, infos)
        return await self._in_thread(self._copies.copy, topic, partition)

    def attach(self, place: Place, handler: Handler) -> tuple[PartitionState, Bindings]:
        """The state of a source partition, and what its handler, which has stores, is called with behind the value."""
        bindings = tuple(None if d is None else Binding(self.infos[d.name].number, d) for d in handler.further)
        return self.states[place], bindings

    async def restore(self, ledger: Ledger) -> None:
        """Make the state of all partitions whole. ``ledger``: read to the ends after the grants.

        Raises StateError when a changelog is not the one that the offset log knows, StoreError, BrokerError.
        """
        restoring = []
        for place, state in self.states.items():
            expected = ledger.partition(place).changed_by
            copy = self._followers.get(place)
            if copy is None:
                await self._check_table(place, state, expected)
                state.ready = state.ready.replace([(WHOLE.first, WHOLE.end, True)])
            else:
                restoring.append(self._restoring(place, copy, (WHOLE,), expected))
        await self._restored(restoring)
        self._marked_s = asyncio.get_running_loop().time()

    async def take_up(self, place: Place, ranges: Sequence[KeyRange]) -> None:
        """Make the state of ranges whole that were granted just now, while others of their partition are worked on.

        What changes there was checked at the start and has been written by this process since.
        """
        state, copy = self.states.get(place), self._followers.get(place)
        if state is None:
            return
        if copy is None:
            state.overlay.forget()  # it was somebody else's table
            state.ready = state.ready.replace((within.first, within.end, True) for within in ranges)
            return
        await self._restored([self._restoring(place, copy, ranges, None)._replace(is_checked=False)])

    def give_up(self, place: Place, within: KeyRange) -> None:
        """A range was released: its state is somebody else's from here on."""
        state = self.states.get(place)
        if state is not None:
            state.ready = state.ready.replace([(within.first, within.end, None)])

    def _restoring(
        self, place: Place, copy: Copy, ranges: Sequence[KeyRange], expected: tuple[int, int] | None
    ) -> Restoring:
        changelog = TopicPartition(changelog_topic(self.app, place[0]), place[1])
        state = self.states[place]

        def is_ready() -> None:
            state.overlay.forget()  # records of a range that is restored are read ahead, too
            state.ready = state.ready.replace((within.first, within.end, True) for within in ranges)
            markers = copy.markers()
            positions = [m.position for r in ranges for _, _, m in markers.pieces(r.first, r.end)]
            # While others are worked on, what they wrote meanwhile lies above; a marker may be too low, never too high.
            self._positions.setdefault(place, min(positions, default=0))

        return Restoring(changelog, copy, tuple(ranges), expected, is_ready)

    def was_in_office(self, at_ms: int) -> None:
        """Nobody but this process had changed the state when the clock (``wall_ms``) stood there.

        Markers carry this time, not that of their writing: a process that was suspended for days, and was replaced
        meanwhile, must not make its copy look young when it wakes up.
        """
        self._in_office_ms = at_ms

    async def _restored(self, restoring: Sequence[Restoring]) -> None:
        self._restores += 1
        try:
            await Restore(self.broker, self.settings, self._hear, self.wall_ms).run(restoring)
        finally:
            self._restores -= 1
            self.restoring = None

    def _hear(self, progress: Progress) -> None:
        self.restoring = progress

    async def _check_table(self, place: Place, state: PartitionState, expected: tuple[int, int] | None) -> None:
        stored = await self._in_thread(state.table.get, BEACON_KEY)
        try:
            check_beacon(None if stored is None else decode_beacon(stored), expected)
        except (ChangelogUnfit, ValueError) as error:
            raise StateError(f"{changelog_topic(self.app, place[0])}[{place[1]}]: {error}") from error

    def find(self, name: str) -> tuple[str, Binding, Mapping[Place, PartitionState]]:
        """The topic of a store, the store, and the states of all partitions; raises StateNotReady."""
        info = self.infos.get(name)
        if info is None:
            raise StateNotReady(f"store {name!r} can't be read yet: the application is starting")
        declared = next(d for d in self.handlers[info.topic].stores if d.name == name)
        return info.topic, Binding(info.number, declared), self.states

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def read_ahead(
        self, state: PartitionState | None, bindings: Bindings, records: Sequence[Record]
    ) -> Sequence[Cell | None]:
        """Have the values of these records' keys in memory before their handlers ask: a read may wait for a disk.

        Where the value of each record's key is, for a handler with one store, of values; else nothing.
        """
        if state is None:
            return ()
        cells, lacking = looked_up(state.overlay, bindings, records)
        for at in range(0, len(lacking), AHEAD_KEYS_MAX):
            part = lacking[at : at + AHEAD_KEYS_MAX]
            state.overlay.learn(part, await self._in_thread(state.table.get_many, [cell.key for cell in part]))
        return cells

    def records(
        self, changes: Sequence[StateChanges], incarnation: int, transaction: int
    ) -> tuple[list[Outgoing], list[StateChanged]]:
        """What a transaction carries of the state: changelog records with their beacons, and the events of it."""
        self._asked_ms = self.wall_ms()
        records: list[Outgoing] = []
        events: list[StateChanged] = []
        beacon = encode_beacon(Beacon(incarnation, transaction))
        for changed in changes:
            topic, partition = changelog_topic(self.app, changed.place[0]), changed.place[1]
            records += [Outgoing(topic, partition, cell.key, value) for cell, value in changed.last.items()]
            records.append(Outgoing(topic, partition, BEACON_KEY, beacon))
            events.append(StateChanged(incarnation, transaction, *changed.place, len(changed.last)))
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
            self._state_of(changed).overlay.commit(changed.last)
        for changed in changes:
            place = changed.place
            if place in self._followers:
                changelog = TopicPartition(changelog_topic(self.app, place[0]), place[1])
                known = self._committed_to.get(place, self._positions[place])
                self._committed_to[place] = positions.get(changelog, known)
                self._unwritten.setdefault(place, []).extend(changed.layers)
                self._unwritten_bytes += changed.size
            else:
                self._state_of(changed).overlay.settle(changed.layers, changed.last)
        if is_last:
            await self._write()
        else:
            await self.write_when_due()

    async def write_when_due(self) -> None:
        """Have in the copies what was committed, when the last time was long enough ago or it has become much."""
        waited_ms = (asyncio.get_running_loop().time() - self._written_s) * 1000
        is_much = self._unwritten_bytes >= self.settings.state_unwritten_bytes_max
        if self._committed_to and (is_much or waited_ms >= self.settings.state_write_interval_ms):
            await self._write()

    async def _write(self) -> None:
        for place, position in list(self._committed_to.items()):
            state = self.states[place]
            changes = state.overlay.committed()
            await self._follow(place, self._followers[place], changes, position)
            state.overlay.settle(self._unwritten.pop(place), changes)
            del self._committed_to[place]
        self._unwritten_bytes = 0
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
                await self._in_thread(copies.close)
        self._threads.shutdown(wait=False)

    def _state_of(self, changed: StateChanges) -> PartitionState:
        return self.states[changed.place]

    async def _follow(self, place: Place, copy: Copy, last: Changes, position: int) -> None:
        """Write what was committed, in slices; the marker of what is held comes with the last one."""
        part: list[tuple[bytes, bytes | None]] = []
        size = 0
        for cell, value in last.items():
            if len(part) >= SLICE_CHANGES or size >= SLICE_BYTES:
                await self._slice(copy, part, ())
                await asyncio.sleep(0)
                part, size = [], 0
            part.append((cell.key, value))
            size += len(cell.key) + len(value or b"")
        await self._slice(copy, part, self._marks(place, position))
        self._positions[place] = position

    async def _slice(self, copy: Copy, part: Sequence[tuple[bytes, bytes | None]], marks: Sequence[Mark]) -> None:
        """A thread is worth its while only beside a restore: RocksDB takes one write after the other, and its batches
        are large.
        """
        if self._restores:
            await self._in_thread(_written, copy, part, marks)
        else:
            _written(copy, part, marks)

    def _marks(self, place: Place, position: int) -> list[Mark]:
        marker = Marker(position, self._in_office_ms)
        return [(first, end, marker) for first, end, _ in self.states[place].ready.pieces()]

    def _renew_marks(self) -> None:
        self._marked_s = asyncio.get_running_loop().time()
        for place, copy in self._followers.items():
            if place in self._positions:
                _written(copy, (), self._marks(place, self._positions[place]))

    async def _in_thread(self, step: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, step, *arguments)
        except RocksError as error:
            raise StoreError(str(error)) from error


class _CopyTable:
    """A copy as handlers and readers outside see it. Raises StoreError, which no handler's policy passes over."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._copy.get(key)
        except RocksError as error:
            raise StoreError(str(error)) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._copy.get_many(keys)
        except RocksError as error:
            raise StoreError(str(error)) from error

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        try:
            return self._copy.page(first, end, entries_max)
        except RocksError as error:
            raise StoreError(str(error)) from error


def _written(copy: Copy, changes: Sequence[tuple[bytes, bytes | None]], marks: Sequence[Mark] = ()) -> None:
    try:
        copy.write(changes, marks)
    except RocksError as error:
        raise StoreError(str(error)) from error


class StateFolder:
    """An ``OpenCopies`` of ``Settings.state_folder``."""

    def __init__(self, app: str, folder: str, cache_bytes: int) -> None:
        self.app, self.folder, self.cache_bytes = app, Path(folder), cache_bytes

    def __call__(self, birth_text: str) -> Copies:
        """The copies; raises RocksError."""
        from ...state.copies import open_copies

        return open_copies(self.folder, app=self.app, birth=birth_text, cache_bytes=self.cache_bytes)

    def check(self) -> None:
        """Raises RocksError when the folder is in use, damaged, or holds something else."""
        from ...state.copies import check_copies

        check_copies(self.folder, app=self.app, cache_bytes=self.cache_bytes)


def open_state_folder(app: str, settings: Settings) -> StateFolder | None:
    """How the copies in ``Settings.state_folder`` are opened; None when none is named."""
    folder = settings.state_folder
    return None if folder is None else StateFolder(app, folder, settings.state_cache_bytes_max)
