"""PURE. The state of a source partition in memory: values of done records, committed values, and values of the table
whose keys may come again.

Each state key in memory has one *entry* (the variables and attributes named ``cell``). The way of a write:

1. When the record is done, the value comes into the entry of its key. The write also comes into a *layer*, with the
   other writes of the record, and perhaps with those of neighbouring records. Handlers see the value from here on.
2. When the transaction is committed (``commit``), readers from outside see the value.
3. When the table has the writes of the layer (``settle``), the entry may be evicted. Until memory gets scarce the entry
   stays, with the value that the table has.

No lock is needed: ranges are disjoint and a worker runs one record at a time, so only a record of its worker writes to
an entry. And the table has a value before the entry is evicted.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, TypeAlias

from .keys import is_map_key, map_prefix, point_in
from .tables import Change

ENTRY_OVERHEAD_BYTES: Final = 200
"""The memory of a change in bytes, beside its key and value."""

CELL_OVERHEAD_BYTES: Final = 400
"""The memory of an entry in bytes, with its places in dicts, beside its key and value."""

_numbers: Final = count(1)


class Absent:
    """The answer for a key of which nothing is known here."""


ABSENT: Final = Absent()


class OverlayEntry:
    """What the overlay knows of one state key.

    - ``value``: the value of the newest done record that wrote to the key, None for a deleted key. In no layer any
      more: the value in the table. ABSENT: not known, only the table can tell.
    - ``attempt`` and ``own``: the attempt that wrote last (see ``AttemptWrites``), and the value that it wrote.
    - ``layer`` and ``at``: the number of the layer that the entry came into last, and the index of the entry there.
    - ``layers``: the number of layers with this entry that the table does not have yet.
    - ``is_here``: whether the overlay finds the entry. Later records do not see the value of an entry that was evicted,
      or that only one attempt knows.
    - ``is_queued`` and ``size``: whether the entry waits for its eviction, and its counted bytes.
    - ``point``, ``key_bytes``, ``is_of_map``: the point, the length and the kind of the key, computed once.
    """

    __slots__ = (
        "at", "attempt", "is_here", "is_of_map", "is_queued", "key", "key_bytes", "layer", "layers", "own", "point",
        "size", "value",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        self.value: bytes | Absent | None = ABSENT
        self.point = point_in(key)
        self.key_bytes = len(key)
        self.is_of_map = is_map_key(key)
        self.attempt = self.layer = self.at = self.layers = 0
        self.is_here = self.is_queued = False
        self.own: bytes | None = None
        self.key = key
        self.size = 0


Changes: TypeAlias = dict[OverlayEntry, bytes | None]
"""New values, None for a deleted one."""


class Layer:
    """Changes in the order in which their keys came in. Where a key comes twice, its last change counts."""

    __slots__ = ("entries", "number", "values")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.entries: list[OverlayEntry] = []
        self.values: list[bytes | None] = []

    def __bool__(self) -> bool:
        return len(self.entries) > 0

    def append(self, cell: OverlayEntry, value: bytes | None) -> None:
        """Add a change."""
        self.entries.append(cell)
        self.values.append(value)


class AttemptWrites:
    """The writes of one attempt at a record; only the attempt sees them. ``begin`` starts another attempt."""

    __slots__ = ("entries", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.entries: list[OverlayEntry] = []

    def begin(self) -> None:
        """Begin another attempt, without writes."""
        if self.entries:
            self.number = next(_numbers)
            self.entries.clear()

    def put(self, cell: OverlayEntry, value: bytes | None) -> None:
        """Write a new value; None deletes the key."""
        cell.own = value
        if cell.attempt != self.number:
            cell.attempt = self.number
            self.entries.append(cell)

    def get(self, cell: OverlayEntry) -> bytes | Absent | None:
        """The value that the attempt wrote; ABSENT: the attempt did not write this key."""
        return cell.own if cell.attempt == self.number else ABSENT

    def layer(self) -> Layer:
        """A layer with the writes of the attempt."""
        layer = Layer()
        for cell in self.entries:
            layer.append(cell, cell.own)
        return layer


class Overlay:
    """See the module. ``bytes_max`` limits, about, the memory of the queued entries, with their values."""

    __slots__ = ("_bytes", "_bytes_max", "_cells", "_committed", "_maps", "_queue")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._cells: dict[bytes, OverlayEntry] = {}
        self._queue: deque[OverlayEntry] = deque()
        """Entries in the order of eviction. An entry that is in a layer at its turn leaves the queue, and is queued
        anew when the layer is settled.
        """
        self._maps: dict[bytes, dict[bytes, OverlayEntry]] = {}
        """Map entries in layers, by the prefix of the entries of one map."""
        self._committed: Changes = {}

    def __len__(self) -> int:
        """The number of keys with changes that the table does not hold."""
        return sum(cell.layers > 0 for cell in self._cells.values())

    # --- cells -------------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> OverlayEntry | None:
        """The entry of a key; None: memory has none."""
        return self._cells.get(key)

    def entry_of(self, key: bytes) -> OverlayEntry:
        """The entry of a key, made if memory has none. On the loop only; the caller calls ``keep_bound`` afterwards."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = OverlayEntry(key)
            cell.is_here = True
            self._enqueue(cell)
        return cell

    def get(self, key: bytes) -> bytes | Absent | None:
        """The value of the newest done record that wrote to a key; ABSENT: the value is not in memory."""
        cell = self._cells.get(key)
        return ABSENT if cell is None else cell.value

    def learn(self, cells: Sequence[OverlayEntry], values: Sequence[bytes | None]) -> None:
        """Take over values that the table had for entries without a value. An entry that was written meanwhile keeps
        its newer value. An entry that was evicted meanwhile stays out: its key may have a new entry.
        """
        for cell, value in zip(cells, values, strict=True):
            if cell.is_here and isinstance(cell.value, Absent):
                cell.value = value
                self._measure(cell)
        self.keep_bound()

    def keep_bound(self) -> None:
        """Evict entries while they take too much memory; the entry that was queued first goes first."""
        while self._bytes > self._bytes_max and self._queue:
            self._evict_first()

    def forget(self) -> None:
        """Evict all entries that are in no layer: the table has changed beside the overlay, and values have to be read
        again.
        """
        while self._queue:
            self._evict_first()

    def _evict_first(self) -> None:
        """Take the first entry out of the queue; evict the entry unless it is in a layer."""
        cell = self._queue.popleft()
        cell.is_queued = False
        self._bytes -= cell.size
        if not cell.layers:
            cell.is_here = False
            cell.value = ABSENT
            del self._cells[cell.key]

    def _enqueue(self, cell: OverlayEntry) -> None:
        cell.size, cell.is_queued = _size(cell), True
        self._bytes += cell.size
        self._queue.append(cell)

    def _measure(self, cell: OverlayEntry) -> None:
        """Count the new size of an entry with a new value."""
        if cell.is_queued:
            size = _size(cell)
            self._bytes += size - cell.size
            cell.size = size
        else:
            self._enqueue(cell)

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, layer: Layer) -> None:
        """Take in the writes of a record that is done: a layer."""
        cells = layer.entries
        for i, value in enumerate(layer.values):
            cell = cells[i]
            if not cell.is_here:
                cell = cells[i] = self.entry_of(cell.key)
            cell.value = value
            self._come_in(cell)

    def move(self, writes: AttemptWrites, layer: Layer) -> int:
        """Put the writes of a record that is done into ``layer``. Returns the growth of the layer in bytes, about."""
        grown = 0
        for cell in writes.entries:
            value = cell.own
            if not cell.is_here:
                cell = self.entry_of(cell.key)  # the entry that later records see
            cell.value = value
            grown += 0 if value is None else len(value)
            if cell.layer == layer.number:
                before = layer.values[cell.at]
                grown -= 0 if before is None else len(before)
                layer.values[cell.at] = value
            else:
                grown += ENTRY_OVERHEAD_BYTES + cell.key_bytes
                cell.layer, cell.at = layer.number, len(layer.entries)
                layer.append(cell, value)
                self._come_in(cell)
        return grown

    def _come_in(self, cell: OverlayEntry) -> None:
        """Count one more layer for the entry."""
        cell.layers += 1
        if cell.layers == 1 and cell.is_of_map:
            self._maps.setdefault(map_prefix(cell.key), {})[cell.key] = cell

    def commit(self, changes: Changes) -> None:
        """Take in the changes of a committed transaction, the last change of each key."""
        self._committed.update(changes)

    def committed_changes(self) -> Changes:
        """All changes that are committed and not settled."""
        return self._committed.copy()

    def get_committed(self, key: bytes) -> bytes | Absent | None:
        """The newest value that is committed and not settled; ABSENT: none."""
        cell = self._cells.get(key)
        return ABSENT if cell is None else self._committed.get(cell, ABSENT)

    def settle(self, layers: Iterable[Layer], changes: Changes) -> None:
        """Settle committed ``changes``: the table holds the writes of these layers now."""
        for layer in layers:
            for cell in layer.entries:
                cell.layers -= 1
                if cell.layers:
                    continue
                self._measure(cell)
                if cell.is_of_map:
                    prefix = map_prefix(cell.key)
                    entries = self._maps[prefix]
                    del entries[cell.key]
                    if not entries:
                        del self._maps[prefix]
        committed = self._committed
        for cell in changes:
            committed.pop(cell, None)
        self.keep_bound()

    # --- many keys ---------------------------------------------------------------------------------------------------

    def map_changes(self, prefix: bytes) -> list[Change]:
        """The newest done values of the map with this key prefix (see ``map_prefix``), in order of keys."""
        found = [(key, cell.value) for key, cell in sorted(self._maps.get(prefix, {}).items(), key=_first)]
        # A handler may look from a thread: a value that was evicted in between is in the table.
        return [(key, value) for key, value in found if not isinstance(value, Absent)]

    def committed_within(self, first: bytes, end: bytes | None) -> list[Change]:
        """The committed changes of ``[first, end)`` (None: to the last key), in order of keys."""
        changes = [(cell.key, value) for cell, value in list(self._committed.items())]
        return sorted((key, value) for key, value in changes if first <= key and (end is None or key < end))


def entry_bytes(key: bytes, value: bytes | None) -> int:
    """The memory of a change in bytes, about."""
    return ENTRY_OVERHEAD_BYTES + len(key) + (0 if value is None else len(value))


def _size(cell: OverlayEntry) -> int:
    return CELL_OVERHEAD_BYTES + cell.key_bytes + (len(cell.value) if isinstance(cell.value, bytes) else 0)


def _first(item: tuple[bytes, OverlayEntry]) -> bytes:
    return item[0]


def laid_over(entries: Iterable[tuple[bytes, bytes]], over: Iterable[Change]) -> list[tuple[bytes, bytes]]:
    """Entries with changes laid over them, in order of keys."""
    merged: dict[bytes, bytes | None] = dict(entries)
    merged.update(over)
    return sorted((key, value) for key, value in merged.items() if value is not None)
