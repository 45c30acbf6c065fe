"""PURE. The state of a source partition in a running process, and the view of an attempt at a record.

The writes of an attempt are visible to the attempt alone until the record is done. Then the writes enter the overlay,
and after the commit of the transaction the table. An attempt looks for a value among its own writes, then in the
overlay (writes of done records, values read ahead), then in the table. Locks are left out on purpose: a key belongs to
one worker, and a worker runs one record at a time.
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
    """The stored values of a source partition, by state key.

    ``label``: the source partition, for people. ``entry_bytes_max`` bounds a key and its stored value together.
    ``ahead_bytes_max`` bounds the memory for values read ahead from the table.
    """

    def __init__(self, label: str, table: Table, *, entry_bytes_max: int, ahead_bytes_max: int) -> None:
        self.label = label
        self.table = table
        self.entry_bytes_max = entry_bytes_max
        self.overlay = Overlay(ahead_bytes_max)
        self.ready: Steps[bool] = Steps()
        """Points whose state the table has in full."""
        self.parting: Steps[bool] = Steps()
        """Points that a transaction under way gives up: from its commit on, other processes change their state."""

    def make_ready(self, ranges: Iterable[KeyRange]) -> None:
        """Take up ranges whose state is in the table in full; forget values of the ranges that were read before."""
        self.overlay.forget()  # values of a range under restore were read ahead, too
        taken_up = list(ranges)
        self.ready = self.ready.replace((within.first, within.end, True) for within in taken_up)
        self.parting = self.parting.replace((within.first, within.end, None) for within in taken_up)

    def part_with(self, within: KeyRange) -> None:
        """Mark a range that the transaction under way gives up."""
        self.parting = self.parting.replace([(within.first, within.end, True)])

    def keep(self, within: KeyRange) -> None:
        """The transaction that gave the range up was not committed: the process keeps the range's state."""
        self.parting = self.parting.replace([(within.first, within.end, None)])

    def answers_for(self, point: int) -> bool:
        """Whether queries get committed values of a point: no other process can have changed the values."""
        return bool(self.ready.at(point)) and not self.parting.at(point)

    def release(self, within: KeyRange) -> None:
        """Give the state of a range up: from here on another process owns the range."""
        self.ready = self.ready.replace([(within.first, within.end, None)])
        self.parting = self.parting.replace([(within.first, within.end, None)])

    # --- the view of handlers ----------------------------------------------------------------------------------------

    def walk(self, prefix: bytes, own: AttemptWrites) -> Iterator[tuple[bytes, bytes]]:
        """The entries with a prefix in order of keys, as of the start of the walk: the table, over it the writes of
        done records, over these the attempt's ``own`` writes.
        """
        over = dict(self.overlay.map_changes(prefix))
        over.update((cell.key, cell.own) for cell in own.entries if cell.key.startswith(prefix))
        return walk_table(self.table, prefix, prefix_end(prefix), sorted(over.items()))

    # --- the view of queries -----------------------------------------------------------------------------------------

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """The newest committed value; raises StateNotReady."""
        if not self.answers_for(point):
            raise StateNotReady(f"{self.label}: the state of point {point:08x} is not restored yet, or not held here")
        found = self.overlay.get_committed(key)
        return self.table.get(key) if isinstance(found, Absent) else found

    def scan_committed(self, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a key range in order of state keys; raises StateNotReady."""
        return self.span_committed(*bounds_of(within), within)

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of ``[first, end)``, a part of the key range ``within``; raises StateNotReady."""
        is_whole = self.ready.is_constant(within.first, within.end, True)
        if not is_whole or self.parting.pieces(within.first, within.end):
            raise StateNotReady(f"{self.label}: not all of {within} is restored, or held here")
        return walk_table(self.table, first, end, self.overlay.committed_within(first, end))


def _next_entry(entries: Iterator[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    return next(entries, None)


class Scope:
    """The state in the view of an attempt at a record, and the attempt's writes. ``begin`` reuses the scope for another
    attempt.

    ``failed``: the error of an unusable state. The error ends the run, also where a handler catches everything.
    """

    __slots__ = ("_is_closed", "_record", "_written", "failed", "state", "writes")

    def __init__(self, state: PartitionState, record: ConsumerRecord) -> None:
        self.state = state
        self.writes = AttemptWrites()
        self._written: dict[bytes, OverlayEntry] = {}
        """Overlay entries with writes of the attempt, for accesses by key: the overlay may evict an entry."""
        self.begin(record)

    def begin(self, record: ConsumerRecord) -> None:
        """Begin an attempt at a record, with nothing written."""
        self._record = record
        self.writes.begin()
        if self._written:
            self._written = {}
        self.failed: FatalError | None = None
        self._is_closed = False

    @property
    def _where(self) -> str:
        return f"{self.state.label}@{self._record.offset}"

    def entry_of(self, key: bytes) -> OverlayEntry:
        """The overlay entry of a state key; where memory has none, a new entry that only the attempt knows. Threads
        call this method, too.
        """
        found = self._written.get(key) if self._written else None
        if found is None:
            found = self.state.overlay.find(key)
        return OverlayEntry(key) if found is None else found

    def read(self, cell: OverlayEntry) -> bytes | None:
        """The payload in the record's view; None without a value or after its time to live. Raises ContextClosed."""
        if self._is_closed:
            self._check()
        stored = self._value_bytes(cell)
        if stored is None:
            return None
        return stored[1:] if stored and stored[0] == _STAYS else self._visible(cell, stored)

    def _value_bytes(self, cell: OverlayEntry) -> bytes | None:
        """The stored value in the attempt's view; None without a value."""
        found = cell.own if cell.attempt == self.writes.number else cell.value
        return self.run_step(self.state.table.get, cell.key) if isinstance(found, Absent) else found

    def run_step(self, step: Callable[[A], T], argument: A) -> T:
        """The result of ``step(argument)``. A FatalError is noted in ``failed``: a handler may catch the exception."""
        try:
            return step(argument)
        except FatalError as error:
            self.failed = error
            raise

    def _visible(self, cell: OverlayEntry, data: bytes) -> bytes | None:
        """The payload of a stored value; None after its time to live, and then the value is deleted."""
        stored = self.run_step(self._decode, data)
        if stored.deadline_ms is not None and self._record.timestamp >= stored.deadline_ms:
            # A record from the deadline on deletes the value, the same in every replay. But a walk may meet the old
            # value of a key that the attempt has written anew: a delete would lose the new value.
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
        """Set a value as ``write`` does, for accesses that look the overlay entry up by key each time."""
        cell = self.entry_of(key)
        self.write(cell, payload, ttl_ms)
        self._written[key] = cell

    def delete(self, cell: OverlayEntry) -> None:
        """Delete a value; a missing value is no change."""
        self._check()
        if self._value_bytes(cell) is not None or not isinstance(self.writes.get(cell), Absent):
            self._put(cell, None)

    def _put(self, cell: OverlayEntry, value: bytes | None) -> None:
        self.writes.put(cell, value)
        self._written[cell.key] = cell

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(state key, payload) of the visible entries with a prefix, in order of keys, as of the start of the walk."""
        self._check()
        entries = self.state.walk(prefix, self.writes)
        while (entry := self.run_step(_next_entry, entries)) is not None:
            self._check()
            key, data = entry
            payload = self._visible(self.entry_of(key), data)
            if payload is not None:
                yield key, payload

    def close(self) -> AttemptWrites:
        """End the attempt. Returns its writes; they are valid until ``begin`` starts another attempt."""
        self._is_closed = True
        return self.writes

    def _check(self) -> None:
        if self._is_closed:
            raise ContextClosed(f"the attempt at {self._where} has ended; its state can't be used any more")
