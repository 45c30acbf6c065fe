"""PURE. The state of a source partition in memory: done values, committed values, and the table's values of keys that
come again.

Each state key in memory has one *cell*. A record's writes come into their cells when the record is done, and into a
*layer*, alone or together with those of neighbouring records; the writes become visible outside when their transaction
is committed (``commit``). A cell may be evicted when the table holds all layers of the cell (``settle``); until memory
gets scarce the cell stays, with the value that the table holds. Handlers see the newest value that is done; readers
from outside see the newest committed value. Ranges are disjoint and a worker runs one record at a time. Hence no lock
is needed: only a record of its worker writes to a cell, and the table holds a value before its cell is evicted.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, TypeAlias

from .keys import is_map_key, map_prefix, point_in
from .tables import Change

ENTRY_OVERHEAD_BYTES: Final = 200
"""The memory of a change beside its key and value."""

CELL_OVERHEAD_BYTES: Final = 400
"""The memory of a cell beside its key and value, with its places in tables."""

_numbers: Final = count(1)


class Absent:
    """The answer for a key of which nothing is known here."""


ABSENT: Final = Absent()


class OverlayEntry:
    """The cell of one state key. ``value``: the newest value that is done, None for a deleted key; in no layer any
    more: the value in the table; ABSENT: not known, only the table can tell.

    ``attempt`` and ``own``: the attempt that wrote last (see ``AttemptWrites``), and the value that the attempt wrote.
    ``layer`` and ``at``: the number of the layer that the cell came into last, and the place of the cell in the layer.
    ``layers``: the number of layers with this cell that the table does not hold. ``is_here``: whether the overlay finds
    the cell; later records do not see values of other cells. ``point``, ``key_bytes``, ``is_of_map``: the point, the
    length and the kind of the key, taken once.
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
    """Changes in the order in which their keys came in. A key that comes twice counts with its last place."""

    __slots__ = ("cells", "number", "values")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.cells: list[OverlayEntry] = []
        self.values: list[bytes | None] = []

    def __bool__(self) -> bool:
        return len(self.cells) > 0

    def append(self, cell: OverlayEntry, value: bytes | None) -> None:
        """Add a change."""
        self.cells.append(cell)
        self.values.append(value)


class AttemptWrites:
    """The writes of one attempt at a record; only the attempt sees them. ``begin`` starts another attempt."""

    __slots__ = ("cells", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.cells: list[OverlayEntry] = []

    def begin(self) -> None:
        """Begin another attempt, without writes."""
        if self.cells:
            self.number = next(_numbers)
            self.cells.clear()

    def put(self, cell: OverlayEntry, value: bytes | None) -> None:
        """Write a new value; None deletes the key."""
        cell.own = value
        if cell.attempt != self.number:
            cell.attempt = self.number
            self.cells.append(cell)

    def get(self, cell: OverlayEntry) -> bytes | Absent | None:
        """The value that the attempt wrote; ABSENT: the attempt did not write this key."""
        return cell.own if cell.attempt == self.number else ABSENT

    def layer(self) -> Layer:
        """A layer with the writes of the attempt."""
        layer = Layer()
        for cell in self.cells:
            layer.append(cell, cell.own)
        return layer


class Overlay:
    """See the module. ``bytes_max`` limits, about, the memory of queued cells, with the values that the table holds."""

    __slots__ = ("_bytes", "_bytes_max", "_cells", "_committed", "_maps", "_queue")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._cells: dict[bytes, OverlayEntry] = {}
        self._queue: deque[OverlayEntry] = deque()
        """Cells in the order of eviction. A cell that is in a layer at its turn is queued anew when the layer is
        settled."""
        self._maps: dict[bytes, dict[bytes, OverlayEntry]] = {}
        """Map entries in layers, by the prefix of the entries of one map."""
        self._committed: Changes = {}

    def __len__(self) -> int:
        """The number of keys with changes that the table does not hold."""
        return sum(cell.layers > 0 for cell in self._cells.values())

    # --- cells -------------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> OverlayEntry | None:
        """The cell of a key; None: memory has no cell for the key."""
        return self._cells.get(key)

    def cell(self, key: bytes) -> OverlayEntry:
        """The cell of a key, made if memory has none. On the loop only; the caller calls ``keep_bound`` afterwards."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = OverlayEntry(key)
            cell.is_here = True
            self._enqueue(cell)
        return cell

    def get(self, key: bytes) -> bytes | Absent | None:
        """The newest value that is done; ABSENT: the value is not in memory."""
        cell = self._cells.get(key)
        return ABSENT if cell is None else cell.value

    def learn(self, cells: Sequence[OverlayEntry], values: Sequence[bytes | None]) -> None:
        """Take over values that the table held of cells without a value. A cell that was written meanwhile keeps its
        newer value. A cell that was evicted stays out: the next cell of its key counts.
        """
        for cell, value in zip(cells, values, strict=True):
            if cell.is_here and isinstance(cell.value, Absent):
                cell.value = value
                self._measure(cell)
        self.keep_bound()

    def keep_bound(self) -> None:
        """Evict cells while the cells take too much memory; the cell that was queued first goes first."""
        while self._bytes > self._bytes_max and self._queue:
            self._evict_first()

    def forget(self) -> None:
        """Evict all cells: another process writes the table from now on, and values have to be read again."""
        while self._queue:
            self._evict_first()

    def _evict_first(self) -> None:
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
        """Count the new size of a cell with a new value."""
        if cell.is_queued:
            size = _size(cell)
            self._bytes += size - cell.size
            cell.size = size
        else:
            self._enqueue(cell)

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, layer: Layer) -> None:
        """Take in the writes of a record that is done: a layer."""
        cells = layer.cells
        for i, value in enumerate(layer.values):
            cell = cells[i]
            if not cell.is_here:
                cell = cells[i] = self.cell(cell.key)
            cell.value = value
            self._come_in(cell)

    def move(self, writes: AttemptWrites, layer: Layer) -> int:
        """Put the writes of a record that is done into ``layer``. Returns the growth of the layer in bytes, about."""
        grown = 0
        for cell in writes.cells:
            value = cell.own
            if not cell.is_here:
                cell = self.cell(cell.key)  # the one that later records see
            cell.value = value
            grown += 0 if value is None else len(value)
            if cell.layer == layer.number:
                before = layer.values[cell.at]
                grown -= 0 if before is None else len(before)
                layer.values[cell.at] = value
            else:
                grown += ENTRY_OVERHEAD_BYTES + cell.key_bytes
                cell.layer, cell.at = layer.number, len(layer.cells)
                layer.append(cell, value)
                self._come_in(cell)
        return grown

    def _come_in(self, cell: OverlayEntry) -> None:
        """Count one more layer for the cell."""
        cell.layers += 1
        if cell.layers == 1 and cell.is_of_map:
            self._maps.setdefault(map_prefix(cell.key), {})[cell.key] = cell

    def commit(self, changes: Changes) -> None:
        """Take in the changes of a committed transaction, the last change of each key."""
        self._committed.update(changes)

    def committed(self) -> Changes:
        """All changes that are committed and not settled."""
        return self._committed.copy()

    def get_committed(self, key: bytes) -> bytes | Absent | None:
        """The newest value that is committed and not settled; ABSENT: none."""
        cell = self._cells.get(key)
        return ABSENT if cell is None else self._committed.get(cell, ABSENT)

    def settle(self, layers: Iterable[Layer], changes: Changes) -> None:
        """Settle committed ``changes``: the table holds the writes of these layers now."""
        for layer in layers:
            for cell in layer.cells:
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

    def entries(self, prefix: bytes) -> list[Change]:
        """The newest done values of the map with this key prefix (see ``map_prefix``), in order of keys."""
        found = [(key, cell.value) for key, cell in sorted(self._maps.get(prefix, {}).items(), key=_first)]
        # A handler looks from a thread: what was evicted in between is in the table.
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
