"""PURE. The cells of all source partitions, computed again only after a change.

``cells`` (cells.py) would be too slow for all places at each decision. So the cells are cached, and the cache checks
every input of ``cells``: the partition's fold (by identity and version), the expelled and fenced owners, and the epochs
read. Where an input may have changed, the cells are computed again. A test compares the cache with ``cells``.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from ..offsets.control import Control
from ..offsets.ledger import Ledger, PartitionLedger, SourcePartition
from .cells import NOTHING, Cell, CellState, cells


@dataclass(frozen=True, slots=True)
class _CachedCells:
    """The cells of a place, and the input of the cells: the fold at a version, and the owners in the cells."""

    fold: PartitionLedger
    version: int
    cells: list[Cell]
    owners: frozenset[int]


class CellCache:
    """The cells of all places, for one coordinator. ``free``: places with free points; ``unread``: places with unread
    points; ``unheld``: places with points that are not held, in any other state.
    """

    def __init__(self) -> None:
        self.free: set[SourcePartition] = set()
        self.unread: set[SourcePartition] = set()
        self.unheld: set[SourcePartition] = set()
        self.touching_ms: dict[SourcePartition, int] = {}
        """Places with touching bands of one member at different epochs. The value is the time when the cells of the
        place were computed last.
        """
        self._entries: dict[SourcePartition, _CachedCells] = {}
        self._control: Control | None = None
        self._members: dict[int, tuple[bool, bool]] = {}
        """By incarnation, at the last refresh: whether the member was expelled, and whether fenced."""
        self._incarnation_max = 0
        self._read: AbstractSet[tuple[SourcePartition, int]] | None = None
        self._reads = 0
        """The size of ``_read`` at the last refresh. The set is changed in place, and only grows."""

    def refresh(self, ledger: Ledger, read: AbstractSet[tuple[SourcePartition, int]], now_ms: int) -> None:
        """Compute the changed cells again."""
        control, folds = ledger.control, ledger.partitions
        self._forget(control, read)
        entries = self._entries
        for place in control.started:
            fold, entry = folds.get(place, NOTHING), entries.get(place)
            if entry is None or entry.fold is not fold or entry.version != fold.version:
                self._enter(place, fold, cells(control, folds, place, read), now_ms)

    def cells(self, place: SourcePartition) -> list[Cell]:
        """The cells of a started place; the caller must not change the list."""
        return self._entries[place].cells

    def _forget(self, control: Control, read: AbstractSet[tuple[SourcePartition, int]]) -> None:
        """Drop cells that may differ after an expulsion, a fence or a read."""
        if control is not self._control or read is not self._read or len(read) < self._reads:
            self._entries.clear()
            self.free.clear()
            self.unread.clear()
            self.unheld.clear()
        elif len(read) > self._reads:
            for place in self.unread:
                self._entries.pop(place, None)
        members = {i: (member.expelled, member.fenced) for i, member in control.members.items()}
        if members != self._members or control.incarnation_max != self._incarnation_max:
            both = self._members.keys() | members.keys()
            changed = {i for i in both if self._members.get(i) != members.get(i)}
            # An unknown incarnation counts as expelled once a higher incarnation has joined.
            changed |= {*range(self._incarnation_max + 1, control.incarnation_max + 1)}
            for place in [place for place, entry in self._entries.items() if entry.owners & changed]:
                del self._entries[place]
        self._control, self._members, self._incarnation_max = control, members, control.incarnation_max
        self._read, self._reads = read, len(read)

    def _enter(self, place: SourcePartition, fold: PartitionLedger, found: list[Cell], now_ms: int) -> None:
        self._entries[place] = _CachedCells(fold, fold.version, found, frozenset(cell.owner for cell in found))
        states = {cell.state for cell in found}
        for places, is_there in (
            (self.free, CellState.FREE in states),
            (self.unread, CellState.UNREAD in states),
            (self.unheld, states != {CellState.HELD}),
        ):
            if is_there:
                places.add(place)
            else:
                places.discard(place)
        if any(touch(a, b) for a, b in pairwise(found)):
            self.touching_ms[place] = now_ms
        else:
            self.touching_ms.pop(place, None)


def touch(left: Cell, right: Cell) -> bool:
    """Whether two cells touch, and one member holds both at different epochs. A plan may join such cells."""
    are_held = left.state is CellState.HELD and right.state is CellState.HELD
    return are_held and left.end == right.first and left.owner == right.owner and left.epoch != right.epoch
