"""PURE. The state of one source partition while it runs, and what one attempt at a record sees of it.

An attempt's writes are its own until its record is done; then they enter the overlay, and with the transaction the
table. An attempt sees its own writes, then what is done, then what was read ahead, then the table. Left out on purpose:
locks. A key belongs to one worker, and a worker runs one record at a time.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from ..state.changelog import STAYS, Stored, decode_stored, encode_stored
from ..state.keys import bounds_of, prefix_end
from ..state.overlay import ABSENT, Absent, Overlay, Writes, laid_over
from ..state.tables import Change, Table
from .brokers.protocol import Record
from .errors import ContextClosed, FatalError, StateError, StateNotReady, StateValueTooLarge, caused

A = TypeVar("A")
T = TypeVar("T")

PAGE_ENTRIES: Final = 256
AT_HAND_MAX: Final = 65_536
_STAYS: Final = STAYS[0]
ENTRY_OVERHEAD_BYTES: Final = 200  # what an entry in memory costs beside its key and value


class PartitionState:
    """State keys to stored values.

    ``entry_bytes_max`` bounds a key and its stored value together, ``ahead_bytes_max`` what is read ahead.
    """

    def __init__(self, label: str, table: Table, *, entry_bytes_max: int, ahead_bytes_max: int) -> None:
        self.label, self.table = label, table
        self.entry_bytes_max, self.ahead_bytes_max = entry_bytes_max, ahead_bytes_max
        self.overlay = Overlay()
        self.ready: Steps[bool] = Steps()
        """Points whose state is here in full."""
        self._ahead: OrderedDict[bytes, bytes | None] = OrderedDict()  # a dict is slow to find its first entry again
        self._at_hand: set[bytes] = set()
        """Some of the keys that are in the overlay or were read ahead; they are read ahead when they leave it."""
        self._known: set[bytes | None] = set()
        """Some keys of records all of whose state keys are at hand, so that nobody looks at each again and again."""
        self._ahead_bytes = 0
        self._reading: list[set[bytes]] = []

    # --- what handlers see -------------------------------------------------------------------------------------------

    def read(self, key: bytes) -> bytes | None:
        """The newest value that is done."""
        found = self.overlay.get(key)
        if isinstance(found, Absent):
            found = self._ahead.get(key, ABSENT)
            if isinstance(found, Absent):
                return self.table.get(key)
        return found

    def walk(self, prefix: bytes, own: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        """Entries with a prefix in order of keys, as they were when it began: what is done, and ``own`` over it."""
        over = dict(self.overlay.entries(prefix))
        over.update((key, value) for key, value in own.items() if key.startswith(prefix))
        return self._walk(prefix, prefix_end(prefix), sorted(over.items()))

    def _walk(self, first: bytes, end: bytes | None, over: Sequence[Change]) -> Iterator[tuple[bytes, bytes]]:
        """The table's entries in pages, with changes laid over them; a page is in memory, not the whole."""
        at, i = first, 0
        while True:
            page = self.table.page(at, end, PAGE_ENTRIES)
            is_last = len(page) < PAGE_ENTRIES
            stop = i
            while stop < len(over) and (is_last or over[stop][0] <= page[-1][0]):
                stop += 1
            yield from laid_over(page, over[i:stop])
            if is_last:
                return
            at, i = page[-1][0] + b"\x00", stop

    # --- what readers outside see ------------------------------------------------------------------------------------

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """The newest value that is committed; raises StateNotReady."""
        if not self.ready.at(point):
            raise StateNotReady(f"{self.label}: the state of point {point:08x} is not restored yet, or not held here")
        found = self.overlay.get_committed(key)
        return self.table.get(key) if isinstance(found, Absent) else found

    def scan_committed(self, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a key range in order of state keys; raises StateNotReady."""
        return self.span_committed(*bounds_of(within), within)

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of ``[first, end)``, which lies in a key range; raises StateNotReady."""
        if not self.ready.is_constant(within.first, within.end, True):
            raise StateNotReady(f"{self.label}: not all of {within} is restored, or held here")
        return self._walk(first, end, self.overlay.committed_within(first, end))

    # --- reading ahead -----------------------------------------------------------------------------------------------

    def lacks(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys, each there once, that are neither done nor read ahead."""
        newest, ahead = self.overlay.newest, self._ahead
        lacking = [key for key in keys if key not in newest and key not in ahead]
        if len(self._at_hand) > AT_HAND_MAX:
            self._at_hand.clear()
            self._known.clear()
        self._at_hand.update(keys)
        self._at_hand.difference_update(lacking)
        return lacking

    def knows(self, records: Iterable[Record]) -> bool:
        """Whether nothing is lacking for the keys of these records, which is so mostly; False: maybe."""
        known = self._known
        return all(record.key in known for record in records)

    def is_known(self, keys: Iterable[bytes | None]) -> None:
        """Nothing is lacking for these keys of records."""
        self._known.update(keys)

    def begin_reading(self) -> set[bytes]:
        """The table is going to be read ahead elsewhere; for ``end_reading``, always."""
        settled: set[bytes] = set()
        self._reading.append(settled)
        return settled

    def end_reading(self, settled: set[bytes], keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """What the table held of keys. What was settled meanwhile is newer than that, and passed over."""
        going_on = [other for other in self._reading if other is not settled]
        is_void, self._reading = len(going_on) == len(self._reading), going_on
        if is_void:
            return
        for key, value in zip(keys, values, strict=True):
            if key not in settled and key not in self._ahead:
                self._ahead[key] = value
                self._ahead_bytes += entry_bytes(key, value)
                self._at_hand.add(key)
        self._keep_bound()

    def forget_ahead(self) -> None:
        """The table was written by a restore: what was read before, or is being read, may be half of it."""
        self._ahead.clear()
        self._at_hand.clear()
        self._known.clear()
        self._ahead_bytes = 0
        self._reading = []

    def _keep_bound(self) -> None:
        while self._ahead_bytes > self.ahead_bytes_max:
            oldest, value = self._ahead.popitem(last=False)
            self._ahead_bytes -= entry_bytes(oldest, value)
            self._at_hand.discard(oldest)
            self._known.clear()

    # --- what the commit cycle does ----------------------------------------------------------------------------------

    def settle(self, layers: Sequence[Writes], changes: Writes) -> None:
        """The table holds these changes, which were committed: what these layers of the overlay wrote."""
        ahead, at_hand = self._ahead, self._at_hand
        for key, value in changes.items():
            if key in ahead:
                self._ahead_bytes += entry_bytes(key, value) - entry_bytes(key, ahead[key])
                ahead[key] = value
            elif key in at_hand:  # because it was in the overlay, which it leaves
                self._ahead_bytes += entry_bytes(key, value)
                ahead[key] = value
        self._keep_bound()
        for settled in self._reading:
            settled.update(changes)
        self.overlay.settle(layers)


def entry_bytes(key: bytes, value: bytes | None) -> int:
    """What an entry takes in memory, about."""
    return ENTRY_OVERHEAD_BYTES + len(key) + (0 if value is None else len(value))


def _following(entries: Iterator[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    return next(entries, None)


class Scope:
    """What one attempt at a record sees and writes. ``begin`` makes it that of another attempt, with nothing written.

    ``failed``: the error of a state that can't be used. It ends the run, also where a handler catches everything.
    ``size``: what its writes take in memory, about, as long as they wait for a commit.
    """

    __slots__ = ("_is_closed", "_newest", "_offset", "_state", "failed", "size", "timestamp_ms", "writes")

    def __init__(self, state: PartitionState, offset: int, timestamp_ms: int) -> None:
        self._state, self._newest = state, state.overlay.newest
        self.writes: Writes = {}
        self.begin(offset, timestamp_ms)

    def begin(self, offset: int, timestamp_ms: int) -> None:
        """The attempt at a record, which nothing was written in so far."""
        self._offset, self.timestamp_ms = offset, timestamp_ms
        if self.writes:  # they are kept by whoever has them now
            self.writes = {}
        self.failed: FatalError | None = None
        self.size = 0
        self._is_closed = False

    @property
    def _where(self) -> str:
        return f"{self._state.label}@{self._offset}"

    def read(self, key: bytes) -> bytes | None:
        """The payload that this record sees, None when there is none or its time is over; raises ContextClosed."""
        if self._is_closed:
            self._check()
        found: bytes | Absent | None = self.writes.get(key, ABSENT) if self.writes else ABSENT
        if found is ABSENT:
            found = self._newest.get(key, ABSENT)  # the usual case, and what the state looks at first
        stored = self.tried(self._state.read, key) if isinstance(found, Absent) else found
        if stored is None:
            return None
        return stored[1:] if stored and stored[0] == _STAYS else self._visible(key, stored)

    def tried(self, step: Callable[[A], T], argument: A) -> T:
        """What a step gives; that the state can't be used is noted, whatever becomes of the exception."""
        try:
            return step(argument)
        except FatalError as error:
            self.failed = error
            raise

    def _visible(self, key: bytes, data: bytes) -> bytes | None:
        stored = self.tried(self._decode, data)
        if stored.deadline_ms is not None and self.timestamp_ms >= stored.deadline_ms:
            # Its owner met it: an ordinary delete, the same in every replay. Not when it was put anew since a listing
            # that meets its old value began: that would be lost.
            self.writes.setdefault(key, None)
            self.size += entry_bytes(key, None)
            return None
        return stored.payload

    def _decode(self, data: bytes) -> Stored:
        try:
            return decode_stored(data)
        except ValueError as error:
            raise caused(StateError(f"{self._where}: the state is damaged: {error}"), None)

    def write(self, key: bytes, payload: bytes, ttl_ms: int | None) -> None:
        """Set a value for ``ttl_ms`` (None: for good) from the record's timestamp; raises StateValueTooLarge."""
        if self._is_closed:
            self._check()
        deadline = None if ttl_ms is None else max(0, self.timestamp_ms + ttl_ms)
        stored = encode_stored(payload, deadline)
        size, limit = len(key) + len(stored), self._state.entry_bytes_max
        if size > limit:
            raise StateValueTooLarge(
                f"{self._where}: a value for the state has {size} bytes with its key; its changelog takes {limit}"
            )
        self.writes[key] = stored
        self.size += ENTRY_OVERHEAD_BYTES + size

    def delete(self, key: bytes) -> None:
        """Delete a value; one that is not there is no change."""
        self._check()
        if key in self.writes or self.tried(self._state.read, key) is not None:
            self.writes[key] = None
            self.size += entry_bytes(key, None)

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(state key, payload) of what this record sees with a prefix, in order of keys, as it was when it began."""
        self._check()
        entries = self._state.walk(prefix, self.writes)
        while (entry := self.tried(_following, entries)) is not None:
            self._check()
            key, data = entry
            payload = self._visible(key, data)
            if payload is not None:
                yield key, payload

    def close(self) -> Writes:
        """End the attempt; what it wrote."""
        self._is_closed = True
        return self.writes

    def _check(self) -> None:
        if self._is_closed:
            raise ContextClosed(f"the attempt at {self._where} has ended; its state can't be used any more")
