"""Copies of state: one behaviour in a folder and in memory; and of the folder: kills, damage, views, a full disk."""

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
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
from keylanes.state.rocks import RocksError, Writes, open_rocks
from keylanes.state.tables import Copies, Copy, Marker, StoreInfo

HALF = 1 << 31
LOW, HIGH = KeyRange(0, HALF), KeyRange(HALF, SPACE_END)
COUNTS = StoreInfo(0, "counts", "flights", "value", "", "int", "json")
SEEN = StoreInfo(1, "seen", "flights", "map", "str", "int", "json")


def key(point: int, store: int = 0, name: bytes = b"k", map_key: bytes = b"") -> bytes:
    """A state key."""
    return state_key(point, store, name, map_key)


def entries(copy: Copy) -> list[tuple[bytes, bytes]]:
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

    def copy(self, topic: str = "flights", partition: int = 0) -> Copy:
        """A copy, as the protocol has it."""
        copies: Copies = self.copies
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

    def both(self, place: tuple[str, int]) -> tuple[RocksCopy, Copy]:
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


# Whose folder it is


def test_the_folder_is_private(tmp_path: Path) -> None:
    """Only its owner may enter, and its marker names kind and format."""
    open_flights(tmp_path / "state").close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "KEYLANES").read_text() == "keylanes state format 1\n"


@pytest.mark.parametrize(("app", "birth"), [("others", "b1"), ("flights", "b2")])
def test_another_applications_folder_is_refused(tmp_path: Path, app: str, birth: str) -> None:
    """Another application, or the same one with other logs, is told both names and what to do; nothing changes."""
    copies = open_flights(tmp_path / "state")
    copies.copy("a", 0).write([(key(1), b"1")])
    copies.close()
    says = f"state holds the state of application 'flights', born b1; this is application '{app}', born {birth}: name "
    for mode in ("write", "beside"):
        with pytest.raises(RocksError, match=says + r"another folder, or delete this one \(what it held is read from"):
            open_copies(tmp_path / "state", app=app, birth=birth, mode=mode)  # type: ignore[arg-type]  # a literal
    copies = open_flights(tmp_path / "state")
    assert copies.copy("a", 0).get(key(1)) == b"1"
    copies.close()


def test_the_wrong_folder_is_refused(tmp_path: Path) -> None:
    """A folder with topics in it, one of another format, one in use, and none to read."""
    open_rocks(tmp_path / "topics", "topics", 1).close()
    open_rocks(tmp_path / "newer", "state", 2).close()
    for name, says in (("topics", "holds keylanes topics, not state"), ("newer", "has format 2; .* reads format 1")):
        with pytest.raises(RocksError, match=says):
            open_flights(tmp_path / name)
    copies = open_flights(tmp_path / "state")
    with pytest.raises(RocksError, match="already open in this process"):
        open_flights(tmp_path / "state")
    copies.close()
    with pytest.raises(RocksError, match="does not exist"):
        open_copies(tmp_path / "none", mode="beside")
    open_rocks(tmp_path / "young", "state", 1).close()
    with pytest.raises(RocksError, match="holds no state yet"):
        open_copies(tmp_path / "young", mode="beside")
    with pytest.raises(ValueError, match="to write copies, say for which application"):
        open_copies(tmp_path / "young", app="flights")


def test_closed_copies_say_so(tmp_path: Path) -> None:
    """Calls after close raise RocksError; a second close does nothing."""
    copies = open_flights(tmp_path / "state")
    copy = copies.copy("a", 0)
    copies.close()
    copies.close()
    for call in (lambda: copy.get(key(1)), lambda: copy.get_many([key(1)]), lambda: copy.write([]), copy.markers):
        with pytest.raises(RocksError, match="was closed"):
            call()


# Damage


@pytest.mark.parametrize(
    ("stored_under", "value", "says"),
    [
        (b"i", None, "it does not say whose state it holds"),
        (b"i", b"\xc1", "whose state it holds can't be read"),
        (b"s\0\0", b"\xc1", "a store can't be read"),
        (b"ta", b"\xc1", "a topic's number can't be read"),
        (b"m\0\0\0\0\0\0", b"\xc1", r"the marker of a\[0\] can't be read"),
        (b"m\0\0\0\0\0\0", msgspec.msgpack.encode([]), r"the marker of a\[0\] can't be read"),
        (b"m\0\0\0\0\0\0", msgspec.msgpack.encode([(5, 5, 1, 1)]), r"the marker of a\[0\] can't be read"),
        (
            b"m\0\0\0\0\0\0",
            msgspec.msgpack.encode([(0, 9, 1, 1), (8, 10, 2, 2)]),
            r"the marker of a\[0\] can't be read",
        ),
        (b"m\0\0\0\0\0\0", msgspec.msgpack.encode([(0, 1 << 33, 1, 1)]), r"the marker of a\[0\] can't be read"),
    ],
)
def test_what_can_not_be_read_is_damage(tmp_path: Path, stored_under: bytes, value: bytes | None, says: str) -> None:
    """Bytes that we did not write in the place of ours: an error that names the folder and what to do."""
    copies = open_flights(tmp_path / "state")
    copies.declare([COUNTS])
    copies.copy("a", 0).write([(key(1), b"1")], [(0, 5, Marker(1, 1))])
    copies.close()
    rocks = open_rocks(tmp_path / "state", "state", 1)
    writes = Writes()
    assert rocks.get(stored_under) is not None
    if value is None:
        writes.delete(stored_under)
    else:
        writes.put(stored_under, value)
    rocks.write(writes)
    rocks.close()
    with pytest.raises(RocksError, match=rf"state is damaged: {says}.*delete this one"):  # noqa: PT012  # any of them
        copies = open_flights(tmp_path / "state")
        try:
            copies.stores()
            copies.copy("a", 0).markers()
        finally:
            copies.close()
    rocks = open_rocks(tmp_path / "state", "state", 1)  # who was refused holds nothing
    rocks.close()


def test_a_damaged_file_is_never_an_empty_answer(tmp_path: Path) -> None:
    """A read over a damaged file of RocksDB's raises; it does not say that keys are missing."""
    copies = open_flights(tmp_path / "state")
    keys = [key(point) for point in range(3000)]
    copies.copy("a", 0).write([(k, random.Random(k).randbytes(50)) for k in keys])
    copies.close()
    for table in (tmp_path / "state").glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
        table.write_bytes(content)
    copies = open_flights(tmp_path / "state")
    copy = copies.copy("a", 0)
    with pytest.raises(RocksError, match="state is damaged"):
        entries(copy)
    with pytest.raises(RocksError, match="state is damaged"):
        copy.get_many(keys)
    copies.close()


# A writer that dies, and one that is busy

SPOTS = 64
"""The writer's keys: so many points, evenly spread."""
WRITE = """
import sys
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.state.copies import open_copies
from keylanes.state.keys import state_key
from keylanes.state.tables import Marker

size, block, spots = map(int, sys.argv[2:])
keys = [state_key(SPACE_END // spots * number, 0, b"k") for number in range(spots)]
copies = open_copies(sys.argv[1], app="flights", birth="b1")
copy = copies.copy("a", 0)
position = max((marker.position for _, _, marker in copy.markers().pieces()), default=0)
while True:
    if block and position % block == 0 and not sys.stdin.readline():
        break
    position += 1
    if position % 5 == 0:
        copy.clear(KeyRange(0, SPACE_END // 2))
    for slice in range(4):
        changes = [(key, b"%d " % position + bytes(size)) for key in keys[slice::4]]
        copy.write(changes, [(0, SPACE_END, Marker(position, 0))] if slice == 3 else ())
    print(position, flush=True)
"""


def start_writer(folder: Path, size: int, block: int = 0) -> "subprocess.Popen[bytes]":
    """A process that writes all its keys again and again, in slices, each time with the next position.

    It prints a position when it is written, and drops half of the points before every fifth. Before each ``block`` of
    positions it waits for a line, and it ends when there are no more.
    """
    command = [sys.executable, "-c", WRITE, str(folder), str(size), str(block), str(SPOTS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def check_behind_no_marker(copy: RocksCopy) -> int:
    """The last position of the markers; fails when a key's value is missing or older than its marker says."""
    markers = copy.markers()
    for number in range(SPOTS):
        point = SPACE_END // SPOTS * number
        marker, value = markers.at(point), copy.get(key(point))
        if marker is not None:
            assert value is not None
            assert int(value.split()[0]) >= marker.position
    return max((marker.position for _, _, marker in markers.pieces()), default=0)


def test_a_killed_writer_leaves_no_change_behind_a_marker(tmp_path: Path) -> None:
    """After kill -9 at random moments the changes below each marker are there, and so is what was acknowledged."""
    drawn = random.Random(1)
    for _ in range(6):
        with start_writer(tmp_path / "state", drawn.choice([1, 1_000, 20_000])) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(drawn.randint(1, 40))]
            writer.kill()
            lines += writer.stdout.read().split(b"\n")[:-1]
        copies = open_flights(tmp_path / "state")
        assert check_behind_no_marker(copies.copy("a", 0)) >= int(lines[-1])
        copies.close()


def test_a_torn_log_leaves_no_change_behind_a_marker(tmp_path: Path) -> None:
    """A log of RocksDB that lost its end or was damaged, as by a machine that died, ends there: older, and whole."""
    with start_writer(tmp_path / "state", 1_000) as writer:
        assert writer.stdout is not None
        for _ in range(60):
            writer.stdout.readline()
        writer.kill()
        last = 60 + len(writer.stdout.read().split(b"\n"))
    seen = set()
    for place in (0.2, 0.4, 0.6, 0.8):
        for cut in (True, False):
            folder = tmp_path / f"{place} {cut}"
            shutil.copytree(tmp_path / "state", folder)
            log = max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
            content = bytearray(log.read_bytes())
            torn = int(len(content) * place)
            content[torn:] = b"" if cut else b"\xff" * 50 + content[torn + 50 :]
            log.write_bytes(content)
            copies = open_flights(folder)
            position = check_behind_no_marker(copies.copy("a", 0))
            assert position < last
            seen.add(position)
            copies.close()
    assert len(seen) == 4


def test_a_view_reads_beside_the_writer(tmp_path: Path) -> None:
    """A folder is read without the application while another has it open; ``refresh`` shows what came since."""
    writer = open_flights(tmp_path / "state")
    writer.declare([COUNTS])
    view = open_copies(tmp_path / "state", mode="beside")
    assert (view.app, view.birth, view.topics(), view.stores()) == ("flights", "b1", [], [COUNTS])
    copy = view.copy("a", 3)
    writer.copy("a", 3).write([(key(1), b"1"), (key(HALF), b"2")], [(0, SPACE_END, Marker(2, 3))])
    assert (copy.get(key(1)), copy.get_many([key(1)]), entries(copy)) == (None, [None], [])
    assert (copy.markers(), view.partitions("a")) == (Steps(), [])
    view.refresh()
    assert (copy.get(key(1)), copy.get_many([key(HALF)])) == (b"1", [b"2"])
    assert (view.topics(), view.partitions("a")) == (["a"], [3])
    writer.copy("a", 3).clear(LOW)
    view.refresh()
    assert (entries(copy), copy.markers()) == ([(key(HALF), b"2")], Steps([(HALF, SPACE_END, Marker(2, 3))]))
    for call in (lambda: copy.write([]), lambda: copy.clear(LOW), lambda: view.declare([SEEN])):
        with pytest.raises(RocksError, match="was opened for reading only"):
            call()
    view.close()
    writer.close()


def test_views_beside_a_busy_writer_see_whole_writes(tmp_path: Path) -> None:
    """While another process writes, flushes and drops ranges, no view shows a marker ahead of its values."""
    last = 1
    with start_writer(tmp_path / "state", 5_000, block=20) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        writer.stdout.readline()
        for _ in range(12):
            writer.stdin.write(b"\n")
            writer.stdin.flush()
            view = open_copies(tmp_path / "state", app="flights", mode="beside")
            copy = view.copy("a", 0)
            for _ in range(4):
                position = check_behind_no_marker(copy)
                assert position >= last
                last = position
                view.refresh()
            view.close()
        writer.stdin.close()
        writer.stdout.read()
    copies = open_flights(tmp_path / "state")
    assert check_behind_no_marker(copies.copy("a", 0)) == 13 * 20
    copies.close()


# A full disk

FILL = """
import os, sys
from pathlib import Path
from keylanes.keyrange.hashing import SPACE_END
from keylanes.state.copies import open_copies
from keylanes.state.keys import state_key
from keylanes.state.rocks import RocksError
from keylanes.state.tables import Marker

disk = Path(sys.argv[1])
(disk / "ballast").write_bytes(bytes(36_000_000))
copies = open_copies(disk / "state", app="flights", birth="b1")
copy = copies.copy("a", 0)

def write(number):
    changes = [(state_key(number, 0, b"k"), os.urandom(20_000))]
    copy.write(changes, [(0, SPACE_END, Marker(number + 1, 0))])

done = 0
try:
    while done < 10_000:
        write(done)
        done += 1
except RocksError as error:
    print(error)
(disk / "ballast").unlink()
try:
    write(done)
except RocksError:
    print("still refused")
try:
    copies.close()
except RocksError:
    pass
copies = open_copies(disk / "state", app="flights", birth="b1")
copy = copies.copy("a", 0)
position = copy.markers().at(0).position
values = copy.get_many([state_key(number, 0, b"k") for number in range(position)])
print(done > 100, done <= position, None not in values)
write(position)
copies.close()
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The error says that the disk is full, later writes are refused, and after a restart with room all is there."""
    shell = 'mount -t tmpfs -o size=64m keylanes "$0" || exit 77; exec "$1" -c "$2" "$0"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", shell, str(tmp_path), sys.executable, FILL]
    if shutil.which("unshare") is None:
        pytest.skip("no small disk can be made here: there is no `unshare`")
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 77 or answer.stderr.startswith("unshare:"):
        pytest.skip(f"no small disk can be made here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    full, refused, kept = answer.stdout.splitlines()
    assert full.startswith(f"the disk that holds {tmp_path / 'state'} is full")
    assert (refused, kept) == ("still refused", "True True True")
