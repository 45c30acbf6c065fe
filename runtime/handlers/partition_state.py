"""PURE. The state of one source partition while it runs, and what one attempt at a record sees of it.

An attempt's writes are its own until its record is done; then they enter the overlay, and with the transaction the
table. An attempt sees its own writes, then what is in memory: what is done, or what was read ahead; then the table.
Left out on purpose: locks. A key belongs to one worker, and a worker runs one record at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from ...brokers.protocol import ConsumerRecord
from ...errors import ContextClosed, FatalError, StateError, StateNotReady, StateValueTooLarge, caused
from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...state.changelog import STAYS, Stored, decode_stored, encode_stored
from ...state.keys import bounds_of, prefix_end
from ...state.lookup import walk_table
from ...state.overlay import Absent, AttemptWrites, Overlay, OverlayEntry
from ...state.tables import Table

A = TypeVar("A")
T = TypeVar("T")

_STAYS: Final = STAYS[0]


class PartitionState:
    """State keys to stored values.

    ``entry_bytes_max`` bounds a key and its stored value together, ``ahead_bytes_max`` what is kept in memory of what
    the table holds, too.
    """

    def __init__(self, label: str, table: Table, *, entry_bytes_max: int, ahead_bytes_max: int) -> None:
        self.label, self.table = label, table
        self.entry_bytes_max = entry_bytes_max
        self.overlay = Overlay(ahead_bytes_max)
        self.ready: Steps[bool] = Steps()
        """Points whose state is here in full."""
        self.parting: Steps[bool] = Steps()
        """Those that a transaction under way gives up: from its commit on others change them."""

    def make_ready(self, ranges: Iterable[KeyRange]) -> None:
        """The state of these ranges is in the table in full; what was read of it before counts no more."""
        self.overlay.forget()  # records of a range that is being restored are read ahead, too
        held = list(ranges)
        self.ready = self.ready.replace((within.first, within.end, True) for within in held)
        self.parting = self.parting.replace((within.first, within.end, None) for within in held)

    def part_with(self, within: KeyRange) -> None:
        """A transaction that is being sent gives a range up."""
        self.parting = self.parting.replace([(within.first, within.end, True)])

    def keep(self, within: KeyRange) -> None:
        """That transaction was not committed."""
        self.parting = self.parting.replace([(within.first, within.end, None)])

    def is_answered(self, point: int) -> bool:
        """Whether readers outside are told what is committed of a point: nobody else can have changed it."""
        return bool(self.ready.at(point)) and not self.parting.at(point)

    def release(self, within: KeyRange) -> None:
        """The state of a range is somebody else's from here on."""
        self.ready = self.ready.replace([(within.first, within.end, None)])
        self.parting = self.parting.replace([(within.first, within.end, None)])

    # --- what handlers see -------------------------------------------------------------------------------------------

    def walk(self, prefix: bytes, own: AttemptWrites) -> Iterator[tuple[bytes, bytes]]:
        """Entries with a prefix in order of keys, as they were when it began: what is done, and ``own`` over it."""
        over = dict(self.overlay.entries(prefix))
        over.update((cell.key, cell.own) for cell in own.cells if cell.key.startswith(prefix))
        return walk_table(self.table, prefix, prefix_end(prefix), sorted(over.items()))

    # --- what readers outside see ------------------------------------------------------------------------------------

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """The newest value that is committed; raises StateNotReady."""
        if not self.is_answered(point):
            raise StateNotReady(f"{self.label}: the state of point {point:08x} is not restored yet, or not held here")
        found = self.overlay.get_committed(key)
        return self.table.get(key) if isinstance(found, Absent) else found

    def scan_committed(self, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a key range in order of state keys; raises StateNotReady."""
        return self.span_committed(*bounds_of(within), within)

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of ``[first, end)``, which lies in a key range; raises StateNotReady."""
        is_whole = self.ready.is_constant(within.first, within.end, True)
        if not is_whole or self.parting.pieces(within.first, within.end):
            raise StateNotReady(f"{self.label}: not all of {within} is restored, or held here")
        return walk_table(self.table, first, end, self.overlay.committed_within(first, end))


def _next_entry(entries: Iterator[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    return next(entries, None)


class Scope:
    """What one attempt at a record sees and writes. ``begin`` makes it that of another attempt, with nothing written.

    ``failed``: the error of a state that can't be used. It ends the run, also where a handler catches everything.
    """

    __slots__ = ("_is_closed", "_record", "_written", "failed", "state", "writes")

    def __init__(self, state: PartitionState, record: ConsumerRecord) -> None:
        self.state, self.writes = state, AttemptWrites()
        self._written: dict[bytes, OverlayEntry] = {}
        """The cells of what it wrote that is found by its key each time; they may be evicted meanwhile."""
        self.begin(record)

    def begin(self, record: ConsumerRecord) -> None:
        """The attempt at a record, which nothing was written in so far."""
        self._record = record
        self.writes.begin()
        if self._written:
            self._written = {}
        self.failed: FatalError | None = None
        self._is_closed = False

    @property
    def _where(self) -> str:
        return f"{self.state.label}@{self._record.offset}"

    def cell(self, key: bytes) -> OverlayEntry:
        """The cell of a state key, for this attempt alone when there is none in memory: threads look here."""
        found = self._written.get(key) if self._written else None
        if found is None:
            found = self.state.overlay.find(key)
        return OverlayEntry(key) if found is None else found

    def read(self, cell: OverlayEntry) -> bytes | None:
        """The payload that this record sees, None when there is none or its time is over; raises ContextClosed."""
        if self._is_closed:
            self._check()
        stored = self._stored(cell)
        if stored is None:
            return None
        return stored[1:] if stored and stored[0] == _STAYS else self._visible(cell, stored)

    def _stored(self, cell: OverlayEntry) -> bytes | None:
        found = cell.own if cell.attempt == self.writes.number else cell.value
        return self.tried(self.state.table.get, cell.key) if isinstance(found, Absent) else found

    def tried(self, step: Callable[[A], T], argument: A) -> T:
        """What a step gives; that the state can't be used is noted, whatever becomes of the exception."""
        try:
            return step(argument)
        except FatalError as error:
            self.failed = error
            raise

    def _visible(self, cell: OverlayEntry, data: bytes) -> bytes | None:
        stored = self.tried(self._decode, data)
        if stored.deadline_ms is not None and self._record.timestamp >= stored.deadline_ms:
            # Its owner met it: an ordinary delete, the same in every replay. Not when it was put anew since a listing
            # that meets its old value began: that would be lost.
            if isinstance(self.writes.get(cell), Absent):
                self._put(cell, None)
            return None
        return stored.payload

    def _decode(self, data: bytes) -> Stored:
        try:
            return decode_stored(data)
        except ValueError as error:
            raise caused(StateError(f"{self._where}: the state is damaged: {error}"), None)

    def write(self, cell: OverlayEntry, payload: bytes, ttl_ms: int | None) -> None:
        """Set a value for ``ttl_ms`` (None: for good) from the record's timestamp; raises StateValueTooLarge."""
        if self._is_closed:
            self._check()
        deadline = None if ttl_ms is None else max(0, self._record.timestamp + ttl_ms)
        stored = encode_stored(payload, deadline)
        size, limit = cell.key_bytes + len(stored), self.state.entry_bytes_max
        if size > limit:
            raise StateValueTooLarge(
                f"{self._where}: a value for the state has {size} bytes with its key; its changelog takes {limit}"
            )
        self.writes.put(cell, stored)

    def write_at(self, key: bytes, payload: bytes, ttl_ms: int | None) -> None:
        """The same where the next access finds the cell by its key again."""
        cell = self.cell(key)
        self.write(cell, payload, ttl_ms)
        self._written[key] = cell

    def delete(self, cell: OverlayEntry) -> None:
        """Delete a value; one that is not there is no change."""
        self._check()
        if self._stored(cell) is not None or not isinstance(self.writes.get(cell), Absent):
            self._put(cell, None)

    def _put(self, cell: OverlayEntry, value: bytes | None) -> None:
        self.writes.put(cell, value)
        self._written[cell.key] = cell

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(state key, payload) of what this record sees with a prefix, in order of keys, as it was when it began."""
        self._check()
        entries = self.state.walk(prefix, self.writes)
        while (entry := self.tried(_next_entry, entries)) is not None:
            self._check()
            key, data = entry
            payload = self._visible(self.cell(key), data)
            if payload is not None:
                yield key, payload

    def close(self) -> AttemptWrites:
        """End the attempt; what it wrote, until it is that of another attempt."""
        self._is_closed = True
        return self.writes

    def _check(self) -> None:
        if self._is_closed:
            raise ContextClosed(f"the attempt at {self._where} has ended; its state can't be used any more")
