"""The storage of one source partition's state, and what becomes there of the changes of transactions.

Two ways, behind one face. ``BrokerTable``: a broker that keeps tables by itself (embedded) writes the records of the
changelog into them with the transaction: after the commit the table holds the changes. ``OwnCopy``: beside any other
broker a local copy follows the changelog. The copy is restored before the first record, and written after the commit,
in slices between which the loop has its turns. The markers come with the last slice. Changes above the marker are
committed all the same, so a crash in the middle costs nothing but another reading of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from ...brokers.protocol import TopicPartition
from ...brokers.threads import DaemonThreads
from ...errors import StateError, StoreError
from ...keyrange.ranges import KeyRange
from ...state.changes import StateChanges
from ...state.overlay import Changes, Layer
from ...state.restore import ChangelogUnfit, Writers, check_table
from ...state.rocks import RocksError
from ...state.tables import Change, LocalCopy, Mark, Marker
from ..handlers.partition_state import PartitionState

T = TypeVar("T")

SLICE_CHANGES: Final = 200
SLICE_BYTES: Final = 1024 * 1024
"""The limits of one write to a copy: about a millisecond."""

THREADS: Final = 2


class StateThreads:
    """Threads for steps that may wait for a disk. Errors of RocksDB leave as StoreError."""

    def __init__(self) -> None:
        self.large_writes = 0
        """The number of large writes to copies, of restores and the learner, that are going on or soon will."""
        self._threads = DaemonThreads(THREADS, "keylanes-state")

    async def run(self, step: Callable[..., T], *arguments: object) -> T:
        """The result of a step; raises StoreError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, step, *arguments)
        except RocksError as error:
            raise StoreError(str(error)) from error

    def shutdown(self) -> None:
        """Let the threads end; a second call does nothing."""
        self._threads.shutdown(wait=False)


class Storage(Protocol):
    """The storage of one source partition's state. All methods are called on the loop."""

    @property
    def changelog(self) -> TopicPartition:
        """The changelog of the state."""

    @property
    def state(self) -> PartitionState:
        """The state as handlers and readers outside see it."""

    @property
    def unwritten_bytes(self) -> int | None:
        """About the bytes of committed state that wait for ``write``; None: nothing waits."""

    def note_whole(self, ranges: Sequence[KeyRange]) -> None:
        """Note that these ranges are whole."""

    def take_commit(self, changed: StateChanges, position: int | None) -> None:
        """Take in a committed transaction. ``position``: behind its records in the changelog; None: not known."""

    async def write(self, time_ms: int) -> None:
        """Have in the storage what was committed. ``time_ms``: nobody else had changed the state then. Raises
        StoreError.
        """

    def renew_marks(self, time_ms: int) -> None:
        """Note that nobody else had changed the held ranges at this time; raises StoreError."""


class BrokerTable:
    """A ``Storage`` that the broker writes, with the transaction: nothing is left to be done later."""

    unwritten_bytes: Final = None

    def __init__(self, changelog: TopicPartition, state: PartitionState, threads: StateThreads) -> None:
        self.changelog = changelog
        self.state = state
        self._threads = threads

    async def check(self, writers: Writers) -> None:
        """Compare the beacons with the writers; raises StateError."""
        try:
            await self._threads.run(check_table, self.state.table, writers)
        except ChangelogUnfit as error:
            raise StateError(f"{self.changelog.topic}[{self.changelog.partition}]: {error}") from error

    def note_whole(self, ranges: Sequence[KeyRange]) -> None:
        """See ``Storage``."""
        self.state.make_ready(ranges)

    def take_commit(self, changed: StateChanges, position: int | None) -> None:  # noqa: ARG002  # a table has no marker
        """See ``Storage``."""
        self.state.overlay.commit(changed.last)
        self.state.overlay.settle(changed.layers, changed.last)

    async def write(self, time_ms: int) -> None:
        """Nothing."""

    def renew_marks(self, time_ms: int) -> None:
        """Nothing."""


class OwnCopy:
    """A ``Storage`` in a local copy, which follows the changelog.

    ``position``: the copy has all changes of the changelog below; None: nothing was restored so far.
    """

    def __init__(
        self, changelog: TopicPartition, state: PartitionState, copy: LocalCopy, threads: StateThreads
    ) -> None:
        """``state`` has a ``CopyTable`` of the same copy."""
        self.changelog = changelog
        self.state = state
        self.copy = copy
        self.position: int | None = None
        self._threads = threads
        self._committed_to: int | None = None
        """The end of the committed changes that the copy lacks; None: the copy lacks nothing."""
        self._unwritten: list[Layer] = []
        """The layers of the overlay with those changes."""
        self._unwritten_bytes = 0

    @property
    def unwritten_bytes(self) -> int | None:
        """See ``Storage``."""
        return None if self._committed_to is None else self._unwritten_bytes

    def note_whole(self, ranges: Sequence[KeyRange]) -> None:
        """See ``Storage``."""
        self.state.make_ready(ranges)
        if self.position is None:
            # While others are worked on, what they wrote meanwhile lies above; a marker may be too low, never too high.
            markers = self.copy.markers()
            found = [marker.position for r in ranges for _, _, marker in markers.pieces(r.first, r.end)]
            self.position = min(found, default=0)

    def take_commit(self, changed: StateChanges, position: int | None) -> None:
        """See ``Storage``: visible outside at once, and in the copy with the next ``write``."""
        assert self.position is not None, "what changes was restored before"
        self.state.overlay.commit(changed.last)
        if position is not None:
            self._committed_to = position
        elif self._committed_to is None:
            self._committed_to = self.position
        self._unwritten += changed.layers
        self._unwritten_bytes += changed.size

    async def write(self, time_ms: int) -> None:
        """See ``Storage``. In slices; the markers of the held ranges come with the last slice."""
        position = self._committed_to
        if position is None:
            return
        changes = self.state.overlay.committed_changes()
        await self._follow(changes, position, time_ms)
        self.state.overlay.settle(self._unwritten, changes)
        self._committed_to, self._unwritten, self._unwritten_bytes = None, [], 0

    def marks(self, position: int, time_ms: int) -> list[Mark]:
        """The markers of the held ranges, at a position."""
        marker = Marker(position, time_ms)
        return [(first, end, marker) for first, end, _ in self.state.ready.pieces()]

    def renew_marks(self, time_ms: int) -> None:
        """See ``Storage``."""
        if self.position is not None:
            self._put((), self.marks(self.position, time_ms))

    async def _follow(self, last: Changes, position: int, time_ms: int) -> None:
        part: list[Change] = []
        size = 0
        for cell, value in last.items():
            if len(part) >= SLICE_CHANGES or size >= SLICE_BYTES:
                await self._slice(part, ())
                await asyncio.sleep(0)
                part, size = [], 0
            part.append((cell.key, value))
            size += len(cell.key) + len(value or b"")
        await self._slice(part, self.marks(position, time_ms))
        self.position = position

    async def _slice(self, part: Sequence[Change], marks: Sequence[Mark]) -> None:
        """Write in a thread beside a large write only: RocksDB takes one write after the other."""
        if self._threads.large_writes:
            await self._threads.run(self._put, part, marks)
        else:
            self._put(part, marks)

    def _put(self, changes: Sequence[Change], marks: Sequence[Mark]) -> None:
        try:
            self.copy.write(changes, marks)
        except RocksError as error:
            raise StoreError(str(error)) from error


class CopyTable:
    """A copy as handlers and readers outside see the state. Raises StoreError: no policy of a handler passes over."""

    def __init__(self, copy: LocalCopy) -> None:
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
