"""The overlay against a plain account of what was done, committed and settled; and what is laid over a table."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keylanes.state.keys import state_key
from keylanes.state.overlay import (
    ABSENT,
    CELL_OVERHEAD_BYTES,
    AttemptWrites,
    Changes,
    Layer,
    Overlay,
    OverlayEntry,
    entry_bytes,
    laid_over,
)
from keylanes.state.tables import Change

from ..stage.planting import Planting, change
from ..tiers.marks import tier

pytestmark = tier("check")

VALUE_KEYS = [state_key(point, 0, name) for point, name in ((1, b"a"), (1, b"ab"), (2, b""), (1 << 31, b"\xff"))]
MAPS = [state_key(point, store, name) for point, store, name in ((1, 1, b"a"), (1, 2, b"a"), (2, 1, b"\xff"))]
ALL_KEYS = sorted(VALUE_KEYS + [prefix + map_key for prefix in MAPS for map_key in (b"x", b"\xff\xff")])
KEYS = st.sampled_from(ALL_KEYS)
VALUES = st.none() | st.binary(max_size=2)
CELLS_MAX = 3
BYTES_MAX = CELLS_MAX * (CELL_OVERHEAD_BYTES + 20)
WRITES = st.dictionaries(KEYS, VALUES, max_size=4)
FOUND_ONCE = settings(max_examples=500, phases=[Phase.generate], report_multiple_bugs=False)
"""The search for a planted defect ends where it is found: nobody reads the example, so none is made small."""


def written(overlay: Overlay, changes: dict[bytes, bytes | None], *, finds: bool = True) -> AttemptWrites:
    """What an attempt writes; in cells of its own where it does not look for those that are there."""
    writes = AttemptWrites()
    for key, value in changes.items():
        writes.put((overlay.find(key) if finds else None) or OverlayEntry(key), value)
    return writes


def changes_of(layers: list[Layer]) -> Changes:
    """The last value of each key."""
    return {cell: value for layer in layers for cell, value in zip(layer.entries, layer.values, strict=True)}


class OverlayAgainstHistory(RuleBasedStateMachine):
    """The twin keeps every record's writes in a list, and a table; what is seen is found by going through all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.overlay = Overlay(BYTES_MAX)
        self.done: list[tuple[Layer, dict[bytes, bytes | None]]] = []
        """Of the records not in the table, in order; each with what the twin says of it."""
        self.committed = 0
        """How many of them, from the first on, are in transactions that were committed."""
        self.table: dict[bytes, bytes] = {}
        self.reading: list[tuple[list[OverlayEntry], list[bytes | None]]] = []

    @rule(writes=WRITES, finds=st.booleans())
    def add(self, writes: dict[bytes, bytes | None], *, finds: bool) -> None:
        """A record is done."""
        layer = written(self.overlay, writes, finds=finds).layer()
        self.overlay.add(layer)
        self.done.append((layer, writes))

    @rule(records=st.lists(WRITES, min_size=1, max_size=3), finds=st.booleans())
    def add_together(self, records: list[dict[bytes, bytes | None]], *, finds: bool) -> None:
        """Some records are done, and are one layer."""
        layer, size = Layer(), 0
        for writes in records:
            size += self.overlay.move(written(self.overlay, writes, finds=finds), layer)
        assert size == sum(map(entry_bytes, [cell.key for cell in layer.entries], layer.values))
        self.done.append((layer, {key: value for writes in records for key, value in writes.items()}))

    @rule(count=st.integers(1, 4))
    def commit_and_settle(self, count: int) -> None:
        """A transaction takes the next records; in between the readers look."""
        taken = [layer for layer, _ in self.done[:count]]
        changes = changes_of(taken)
        assert {cell.key: value for cell, value in changes.items()} == self.said(self.done[:count])
        self.overlay.commit(changes)
        self.committed = len(taken)
        self.seen_as_told()
        for key, value in self.said(self.done[:count]).items():
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value
        self.seen_as_told()
        self.overlay.settle(taken, changes)
        self.done, self.committed = self.done[len(taken) :], 0
        assert sum(self.overlay.find(key) is not None for key in ALL_KEYS) <= len(self.newest()) + CELLS_MAX

    @rule(keys=st.lists(KEYS, max_size=4, unique=True))
    def begin_reading(self, keys: list[bytes]) -> None:
        """A thread reads the table ahead."""
        self.reading.append(([self.overlay.entry_of(key) for key in keys], [self.table.get(key) for key in keys]))

    @rule()
    def end_reading(self) -> None:
        """And is through, at any time after."""
        if self.reading:
            self.overlay.learn(*self.reading.pop(0))

    @rule()
    def forget(self) -> None:
        """The table may have been written by somebody else."""
        self.overlay.forget()
        assert {key for key in ALL_KEYS if self.overlay.get(key) is not ABSENT} == set(self.newest())

    @staticmethod
    def said(done: list[tuple[Layer, dict[bytes, bytes | None]]]) -> dict[bytes, bytes | None]:
        """What the twin says of some records."""
        return {key: value for _, writes in done for key, value in writes.items()}

    def newest(self) -> dict[bytes, bytes | None]:
        """Of the keys that the table does not hold as they are."""
        return self.said(self.done)

    @invariant()
    def seen_as_told(self) -> None:
        """Handlers see what is done over the table, readers what is committed over it; nothing is kept in vain."""
        overlay, newest = self.overlay, self.newest()
        committed = self.said(self.done[: self.committed])
        assert len(overlay) == len(newest)
        for key in ALL_KEYS:
            right = newest.get(key, self.table.get(key))
            assert overlay.get(key) in ((right,) if key in newest else (right, ABSENT))
            assert overlay.get_committed(key) == committed.get(key, ABSENT)
        for prefix in MAPS:
            assert overlay.map_changes(prefix) == sorted(item for item in newest.items() if item[0].startswith(prefix))
        for first, end in ((b"", None), (ALL_KEYS[2], ALL_KEYS[5]), (ALL_KEYS[4], None), (ALL_KEYS[4], ALL_KEYS[4])):
            within = [(k, v) for k, v in sorted(committed.items()) if first <= k and (end is None or k < end)]
            assert overlay.committed_within(first, end) == within


def test_handlers_and_readers_see_what_a_full_account_says() -> None:
    """In any order of records, commits and reads ahead, with memory for few cells: never anything old."""
    run_state_machine_as_test(OverlayAgainstHistory)


DEFECTS = {
    "older read wins": ("learn", "cell.is_here and isinstance(cell.value, Absent)", "cell.is_here and not cell.layers"),
    "read into a cell that was evicted": ("learn", "cell.is_here and isinstance", "isinstance"),
    "evicted while in a layer": ("_evict_first", "if not cell.layers:", "if True:"),
    "written to a cell that was evicted": ("move", "if not cell.is_here:", "if False:"),
    "the same alone": ("add", "if not cell.is_here:", "if False:"),
    "another layer's place": ("move", "cell.layer == layer.number", "cell.layer"),
    "settled while a newer write waits": ("settle", "if cell.layers:", "if False:"),
    "nothing is forgotten": ("forget", "while self._queue:", "while False:"),
}


@pytest.mark.interpreted
@tier("test")
@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    """Each of them leads to something that the account does not say."""
    method, was, by = DEFECTS[defect]
    change(Planting(monkeypatch), Overlay, method, (was, by))
    with pytest.raises((AssertionError, KeyError, IndexError)):
        run_state_machine_as_test(OverlayAgainstHistory, settings=FOUND_ONCE)


@given(st.dictionaries(KEYS, st.binary(max_size=2)), st.lists(st.tuples(KEYS, VALUES)))
def test_changes_are_laid_over_entries(entries: dict[bytes, bytes], over: list[Change]) -> None:
    """The last change of a key counts, a deleted one hides its entry, and what is left is in order."""
    twin = dict(entries)
    for key, value in over:
        twin.pop(key, None)
        if value is not None:
            twin[key] = value
    assert laid_over(sorted(entries.items()), over) == sorted(twin.items())
