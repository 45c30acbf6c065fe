"""Copies of state: one behaviour in a folder and in memory, each way by itself and the two at random."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.copies import RocksCopies, RocksCopy, open_copies
from keylanes.state.keys import bounds_of, state_key
from keylanes.state.memory import MemoryCopies
from keylanes.state.tables import LocalCopies, LocalCopy, Marker, StoreInfo

HALF = 1 << 31
HIGH = KeyRange(HALF, SPACE_END)
COUNTS = StoreInfo(0, "counts", "flights", "value", "", "int", "json")
SEEN = StoreInfo(1, "seen", "flights", "map", "str", "int", "json")


def key(point: int, store: int = 0, name: bytes = b"k", map_key: bytes = b"") -> bytes:
    """A state key."""
    return state_key(point, store, name, map_key)


def entries(copy: LocalCopy) -> list[tuple[bytes, bytes]]:
    """Everything in a copy."""
    return copy.page(b"", None, 1 << 30)


def open_flights(folder: Path) -> RocksCopies:
    """The folder's writer."""
    return open_copies(folder, app="flights", birth="b1")


class Ground:
    """Copies of one kind that can be let go of and taken up again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder if kind == "folder" else None
        self.memory = MemoryCopies()
        self.copies: RocksCopies | MemoryCopies = self.memory
        self.reopen()

    def reopen(self) -> None:
        """As a new process would find them."""
        self.copies.close()
        if self.folder is not None:
            self.copies = open_flights(self.folder)

    def copy(self, topic: str = "flights", partition: int = 0) -> LocalCopy:
        """A copy, as the protocol has it."""
        copies: LocalCopies = self.copies
        return copies.copy(topic, partition)


@pytest.fixture(params=["folder", "memory"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    """Copies of each kind."""
    ground = Ground(request.param, tmp_path / "state")
    yield ground
    ground.copies.close()


# In a folder and in memory alike


def test_a_new_copy_is_empty(ground: Ground) -> None:
    """It has no entries, no markers, and every key is missing."""
    copy = ground.copy()
    assert (copy.get(key(1)), copy.get_many([key(1), key(2)]), entries(copy)) == (None, [None, None], [])
    assert copy.markers() == Steps()
    assert ground.copies.partitions("flights") == []


def test_changes_and_markers_are_kept(ground: Ground) -> None:
    """Values are read back one by one, many at once and in pages, in order of keys; deletes delete; all over again."""
    copy = ground.copy()
    marks = [(0, HALF, Marker(7, 70)), (HALF, SPACE_END, Marker(9, 90))]
    markers = Steps(marks)
    copy.write([(key(5), b"old"), (key(9), b"9"), (key(1, 1, b"k", b"m"), b""), (key(5), b"5"), (key(6), None)], marks)
    for _ in range(2):
        assert copy.get(key(5)) == b"5"
        assert copy.get_many([key(9), key(8), key(5), key(9)]) == [b"9", None, b"5", b"9"]
        assert copy.get_many([]) == []
        assert entries(copy) == [(key(1, 1, b"k", b"m"), b""), (key(5), b"5"), (key(9), b"9")]
        assert copy.markers() == markers
        ground.reopen()
        copy = ground.copy()
    copy.write([(key(5), None), (key(9), b"10")])
    assert entries(copy) == [(key(1, 1, b"k", b"m"), b""), (key(9), b"10")]
    assert copy.markers() == markers


def test_markers_are_set_by_points(ground: Ground) -> None:
    """Marks change the markers of their points only; a later one covers an earlier one; equal neighbours melt."""
    copy = ground.copy()
    copy.write([], [(0, SPACE_END, Marker(1, 1)), (10, 20, Marker(5, 5)), (20, 30, Marker(5, 5))])
    copy.write([(key(1), b"1")], iter([(25, 40, Marker(7, 7))]))
    copy.write([(key(2), b"2")])
    assert list(copy.markers().pieces()) == [
        (0, 10, Marker(1, 1)),
        (10, 25, Marker(5, 5)),
        (25, 40, Marker(7, 7)),
        (40, SPACE_END, Marker(1, 1)),
    ]


def test_pages_join_without_a_seam(ground: Ground) -> None:
    """A page gives the first entries of its bounds; from behind its last key the next one goes on."""
    copy = ground.copy()
    all_of_it = [(key(point, 0, b"%d" % point), b"%d" % point) for point in range(0, SPACE_END, SPACE_END // 50)]
    copy.write(reversed(all_of_it))
    for size in (1, 7, 1000):
        found: list[tuple[bytes, bytes]] = []
        while page := copy.page(found[-1][0] + b"\0" if found else b"", None, size):
            assert len(page) <= size
            found += page
        assert found == all_of_it
    first, end = bounds_of(KeyRange(all_of_it[3][0][0] << 24, HALF))
    assert copy.page(first, end, 1000) == [
        entry for entry in all_of_it if first <= entry[0] and entry[0] < (end or b"")
    ]
    assert copy.page(key(5), key(5), 10) == copy.page(key(6), key(5), 10) == copy.page(b"", None, 0) == []


def test_a_range_is_dropped_with_its_markers(ground: Ground) -> None:
    """``clear`` takes the entries and markers of its points, of all stores, and of no other points."""
    copy = ground.copy()
    points = [0, 1, HALF - 1, HALF, HALF + 1, SPACE_END - 1]
    everything = [(key(point, store), b"x") for point in points for store in (0, 65535)]
    copy.write(everything, [(0, SPACE_END, Marker(3, 4))])
    copy.clear(KeyRange(1, HALF))
    assert [k for k, _ in entries(copy)] == [key(p, s) for p in points if p not in (1, HALF - 1) for s in (0, 65535)]
    assert copy.markers() == Steps([(0, 1, Marker(3, 4)), (HALF, SPACE_END, Marker(3, 4))])
    copy.write([(key(HALF - 1), b"back")])
    assert copy.get(key(HALF - 1)) == b"back"
    copy.clear(HIGH)
    assert copy.markers() == Steps([(0, 1, Marker(3, 4))])
    assert [k for k, _ in entries(copy)] == [key(0), key(0, 65535), key(HALF - 1)]
    copy.clear(WHOLE)
    assert (entries(copy), copy.markers()) == ([], Steps())
    ground.reopen()
    assert (entries(ground.copy()), ground.copy().markers()) == ([], Steps())


def test_copies_do_not_touch_each_other(ground: Ground) -> None:
    """Topics and partitions stay apart, also when one is dropped and however high its number is."""
    places = [("a", 0), ("a", 1), ("a", 255), ("a", 256), ("a", (1 << 32) - 1), ("b", 0), ("", 0), ("a\xff", 1)]
    for number, (topic, partition) in enumerate(places):
        value, marker = b"%d" % number, Marker(number, 0)
        ground.copy(topic, partition).write([(key(5), value), (key(SPACE_END - 1), value)], [(0, 9, marker)])
    ground.copy("a", 1).clear(WHOLE)
    ground.reopen()
    for number, (topic, partition) in enumerate(places):
        copy, value = ground.copy(topic, partition), b"%d" % number
        kept = [] if (topic, partition) == ("a", 1) else [(key(5), value), (key(SPACE_END - 1), value)]
        assert entries(copy) == kept
        assert [marker.position for _, _, marker in copy.markers().pieces()] == [number] * bool(kept)


def test_what_is_there_can_be_listed(ground: Ground) -> None:
    """Topics, partitions with entries or markers, and stores as they were declared, without the application."""
    ground.copies.declare([SEEN, COUNTS])
    ground.copies.declare([COUNTS._replace(codec="msgpack")])
    for topic, partition in (("flights", 300), ("flights", 2), ("gates", 0)):
        ground.copy(topic, partition).write([(key(1), b"1"), (key(2), b"2")])
    ground.copy("flights", 7).write([], [(0, 5, Marker(0, 0))])
    ground.copy("gates", 0).clear(WHOLE)
    for _ in range(2):
        assert ground.copies.topics() == ["flights", "gates"]
        assert [ground.copies.partitions(name) for name in ("flights", "gates", "none")] == [[2, 7, 300], [], []]
        assert ground.copies.stores() == [COUNTS._replace(codec="msgpack"), SEEN]
        ground.reopen()


def test_a_write_that_fails_half_way_changes_nothing(ground: Ground) -> None:
    """When the changes end in an error neither they nor the markers are there."""

    def broken() -> Iterator[tuple[bytes, bytes | None]]:
        yield key(1), b"new"
        yield key(2), None
        raise LookupError

    copy = ground.copy()
    copy.write([(key(2), b"2")])
    with pytest.raises(LookupError):
        copy.write(broken(), [(0, SPACE_END, Marker(5, 5))])
    assert (entries(copy), copy.markers()) == ([(key(2), b"2")], Steps())


def test_threads_work_side_by_side(ground: Ground) -> None:
    """Partitions made, written and read by several threads at once hold what each wrote."""

    def work(number: int) -> None:
        for partition in range(5):
            copy = ground.copy(f"topic {number % 3}", number * 5 + partition)
            for step in range(20):
                copy.write([(key(step), b"%d" % number)], [(0, SPACE_END, Marker(step, 0))])
                assert copy.get(key(step)) == b"%d" % number
            copy.clear(KeyRange(0, 10))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    ground.reopen()
    for number in range(6):
        for partition in range(5):
            copy = ground.copy(f"topic {number % 3}", number * 5 + partition)
            assert entries(copy) == [(key(step), b"%d" % number) for step in range(10, 20)]
            assert copy.markers() == Steps([(10, SPACE_END, Marker(19, 0))])


def test_two_threads_mark_one_copy(ground: Ground) -> None:
    """Each sets and drops markers of its own points; none of the other's is lost or comes back."""
    copy = ground.copy()
    parts = 4

    def work(part: int) -> None:
        within = KeyRange(HALF // parts * part, HALF // parts * (part + 1))
        for step in range(150):
            copy.write([(key(within.first), b"%d" % step)], [(within.first, within.end, Marker(step, part))])
            assert copy.markers().is_constant(within.first, within.end, Marker(step, part))
            if step % 3 == part % 3:
                copy.clear(within)
                assert copy.markers().at(within.first) is None

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(work, range(parts)))
    finally:
        sys.setswitchinterval(before)


# The folder against memory, at random

POINTS = st.sampled_from([0, 1, 255, 256, HALF - 1, HALF, SPACE_END - 2, SPACE_END - 1])
KEYS = st.builds(
    key,
    POINTS,
    st.sampled_from([0, 1, 65535]),
    st.sampled_from([b"", b"k", b"\xff"]),
    st.sampled_from([b"", b"\xff\xff"]),
)
BOUNDS = st.sampled_from([0, 1, 256, HALF, SPACE_END - 1, SPACE_END])
RANGES = st.tuples(BOUNDS, BOUNDS).filter(lambda pair: pair[0] < pair[1])
MARKERS = st.builds(Marker, st.integers(0, 5), st.integers(0, 2))
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), max_size=8)
PLACES = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
EDGES = st.just(b"") | KEYS | KEYS.map(lambda k: k[:4])


class FolderAgainstMemory(RuleBasedStateMachine):
    """The same calls to both; whatever can be read is the same."""

    @initialize()
    def begin(self) -> None:
        """An empty folder, and nothing in memory."""
        self.folder = Path(tempfile.mkdtemp(prefix="keylanes-test-"))
        self.rocks = open_flights(self.folder)
        self.memory = MemoryCopies()

    def both(self, place: tuple[str, int]) -> tuple[RocksCopy, LocalCopy]:
        """The two copies of a place."""
        return self.rocks.copy(*place), self.memory.copy(*place)

    @rule(place=PLACES, changes=CHANGES, marks=st.lists(st.tuples(RANGES, MARKERS), max_size=3))
    def write(self, place, changes, marks) -> None:  # type: ignore[no-untyped-def]  # drawn as the rule says
        """Changes, with markers or without."""
        for copy in self.both(place):
            copy.write(changes, [(*bounds, marker) for bounds, marker in marks])

    @rule(place=PLACES, bounds=RANGES)
    def clear(self, place: tuple[str, int], bounds: tuple[int, int]) -> None:
        """A range dropped."""
        for copy in self.both(place):
            copy.clear(KeyRange(*bounds))

    @rule(place=PLACES, first=EDGES, end=st.none() | EDGES, size=st.integers(0, 5), keys=st.lists(KEYS, max_size=5))
    def read(self, place, first, end, size, keys) -> None:  # type: ignore[no-untyped-def]  # drawn as the rule says
        """A page, and many keys at once."""
        rocks, memory = self.both(place)
        assert rocks.page(first, end, size) == memory.page(first, end, size)
        assert rocks.get_many(keys) == memory.get_many(keys) == [rocks.get(k) for k in keys]

    @rule(flush=st.booleans())
    def reopen(self, flush: bool) -> None:
        """Let go and open again, once in a while with everything in files."""
        if flush:
            self.rocks._rocks.flush()
        self.rocks.close()
        self.rocks = open_flights(self.folder)

    @precondition(lambda self: hasattr(self, "rocks"))
    @invariant()
    def the_same(self) -> None:
        """Topics, partitions, entries and markers agree."""
        assert self.rocks.topics() == self.memory.topics()
        for topic in self.rocks.topics():
            assert self.rocks.partitions(topic) == self.memory.partitions(topic)
            for partition in self.rocks.partitions(topic):
                rocks, memory = self.both((topic, partition))
                assert (entries(rocks), rocks.markers()) == (entries(memory), memory.markers())

    def teardown(self) -> None:
        """Nothing stays behind."""
        self.rocks.close()
        shutil.rmtree(self.folder)


def test_the_folder_does_as_memory_does() -> None:
    """Writes, clears, pages and reopenings in any order: a folder and its twin in memory never differ."""
    run_state_machine_as_test(FolderAgainstMemory, settings=settings(max_examples=25, stateful_step_count=25))
