"""The overlay against a plain account of what was done, committed and settled; and what is laid over a table."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keylanes.state.keys import state_key
from keylanes.state.overlay import ABSENT, Absent, Overlay, laid_over
from keylanes.state.tables import Change

VALUE_KEYS = [state_key(point, 0, name) for point, name in ((1, b"a"), (1, b"ab"), (2, b""), (1 << 31, b"\xff"))]
MAPS = [state_key(point, store, name) for point, store, name in ((1, 1, b"a"), (1, 2, b"a"), (2, 1, b"\xff"))]
ALL_KEYS = sorted(VALUE_KEYS + [prefix + map_key for prefix in MAPS for map_key in (b"x", b"\xff\xff")])
KEYS = st.sampled_from(ALL_KEYS)
VALUES = st.none() | st.binary(max_size=2)
WRITES = st.dictionaries(KEYS, VALUES, max_size=4)


class OverlayAgainstHistory(RuleBasedStateMachine):
    """The twin keeps every record's writes in a list, and a table; what is seen is found by going through all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.overlay = Overlay()
        self.done: list[dict[bytes, bytes | None]] = []
        """Of the records not in the table, in order."""
        self.committed = 0
        """How many of them, from the first on, are in transactions that were committed."""
        self.table: dict[bytes, bytes] = {}

    @rule(writes=WRITES)
    def add(self, writes: dict[bytes, bytes | None]) -> None:
        """A record is done."""
        self.overlay.add(writes)
        self.done.append(writes)

    @rule(records=st.lists(WRITES, min_size=1, max_size=3))
    def add_together(self, records: list[dict[bytes, bytes | None]]) -> None:
        """Some records are done, and are one layer."""
        layer: dict[bytes, bytes | None] = {}
        for writes in records:
            self.overlay.add(writes, layer)
        self.done.append(layer)

    @rule(count=st.integers(1, 4))
    def commit_and_settle(self, count: int) -> None:
        """A transaction takes the next records; in between the readers look."""
        taken = self.done[:count]
        self.overlay.commit({key: value for writes in taken for key, value in writes.items()})
        self.committed = len(taken)
        self.seen_as_told()
        for writes in taken:
            for key, value in writes.items():
                if value is None:
                    self.table.pop(key, None)
                else:
                    self.table[key] = value
        self.seen_as_told()
        self.overlay.settle(taken)
        self.done, self.committed = self.done[len(taken) :], 0

    @invariant()
    def seen_as_told(self) -> None:
        """Handlers see what is done over the table, readers what is committed over it; nothing is kept in vain."""
        overlay = self.overlay
        newest = {key: value for writes in self.done for key, value in writes.items()}
        committed = {key: value for writes in self.done[: self.committed] for key, value in writes.items()}
        assert len(overlay) == len(newest)
        for key in ALL_KEYS:
            assert overlay.get(key) == newest.get(key, ABSENT)
            assert (key in overlay) == (key in newest)
            assert overlay.get_committed(key) == committed.get(key, ABSENT)
        for prefix in MAPS:
            assert overlay.entries(prefix) == sorted(item for item in newest.items() if item[0].startswith(prefix))
        for first, end in ((b"", None), (ALL_KEYS[2], ALL_KEYS[5]), (ALL_KEYS[4], None), (ALL_KEYS[4], ALL_KEYS[4])):
            within = [(k, v) for k, v in sorted(committed.items()) if first <= k and (end is None or k < end)]
            assert overlay.committed_within(first, end) == within


def test_the_overlay_is_what_is_not_in_the_table() -> None:
    """In any order of records and commits, handlers and readers see what a full account says, and no more is kept."""
    run_state_machine_as_test(OverlayAgainstHistory)


def test_a_key_stays_as_long_as_a_record_of_it_does() -> None:
    """A key of two records is settled with the second; until then the newest value is seen, deleted or not."""
    overlay = Overlay()
    key = MAPS[0] + b"x"
    first: dict[bytes, bytes | None] = {key: b"1"}
    second: dict[bytes, bytes | None] = {key: None}
    overlay.add(first)
    overlay.add(second)
    assert overlay.get(key) is None
    assert isinstance(overlay.get_committed(key), Absent)
    overlay.commit(first)
    assert overlay.get_committed(key) == b"1"
    overlay.settle([first])
    assert overlay.get(key) is None
    assert overlay.get_committed(key) is ABSENT
    overlay.commit(second)
    assert overlay.get_committed(key) is None
    overlay.settle([second])
    assert (overlay.get(key), overlay.get_committed(key), len(overlay)) == (ABSENT, ABSENT, 0)
    assert overlay.entries(MAPS[0]) == []


@given(st.dictionaries(KEYS, st.binary(max_size=2)), st.lists(st.tuples(KEYS, VALUES)))
def test_changes_are_laid_over_entries(entries: dict[bytes, bytes], over: list[Change]) -> None:
    """The last change of a key counts, a deleted one hides its entry, and what is left is in order."""
    twin = dict(entries)
    for key, value in over:
        twin.pop(key, None)
        if value is not None:
            twin[key] = value
    assert laid_over(sorted(entries.items()), over) == sorted(twin.items())
