"""Copies of state in a folder: whose it is, damage, writers that die, views beside a writer, and a full disk."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.copies import RocksCopies, RocksCopy, open_copies
from keylanes.state.keys import state_key
from keylanes.state.rocks import RocksError, WriteBatch, open_rocks
from keylanes.state.tables import Marker, StoreInfo

HALF = 1 << 31
LOW = KeyRange(0, HALF)
COUNTS = StoreInfo(0, "counts", "flights", "value", "", "int", "json")


def key(point: int) -> bytes:
    """A state key."""
    return state_key(point, 0, b"k")


def entries(copy: RocksCopy) -> list[tuple[bytes, bytes]]:
    """Everything in a copy."""
    return copy.page(b"", None, 1 << 30)


def open_flights(folder: Path) -> RocksCopies:
    """The folder's writer."""
    return open_copies(folder, app="flights", birth="b1")


# Whose folder it is


@pytest.mark.parametrize(
    ("app", "birth", "helps"),
    [
        ("others", "b1", r"name another folder, or delete this one \('flights' then has to read .* if they are still"),
        ("flights", "b2", "its logs were made anew since, and nothing of what the folder holds can be had from them"),
    ],
)
def test_another_applications_folder_is_refused(tmp_path: Path, app: str, birth: str, helps: str) -> None:
    """Another application, or the same one with other logs, is told both names and what to do; nothing changes. Nothing
    is promised that can't be had: the changelogs may be gone with the logs.
    """
    copies = open_flights(tmp_path / "state")
    copies.copy("a", 0).write([(key(1), b"1")])
    copies.close()
    says = f"state holds the state of application 'flights', born b1; this is application '{app}', born {birth}: "
    for mode in ("write", "beside"):
        with pytest.raises(RocksError, match=says + helps):
            open_copies(tmp_path / "state", app=app, birth=birth, mode=mode)
    copies = open_flights(tmp_path / "state")
    assert copies.copy("a", 0).get(key(1)) == b"1"
    copies.close()


def test_the_wrong_folder_is_refused(tmp_path: Path) -> None:
    """A folder of another kind or format, and one that holds nothing to read. Nobody writes without a name."""
    for name, kind, number, says in (
        ("topics", "topics", 1, "holds keylanes topics, not state"),
        ("newer", "state", 2, "has format 2; .* reads format 1"),
    ):
        open_rocks(tmp_path / name, kind, number).close()
        with pytest.raises(RocksError, match=says):
            open_flights(tmp_path / name)
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
    writes = WriteBatch()
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
    drawn, seen = random.Random(1), set()
    for number in range(64):  # of which a sixth falls between what two batches of one write would be
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "state", folder)
        log = max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
        content = bytearray(log.read_bytes())
        torn = drawn.randrange(len(content) // 10, len(content))
        content[torn:] = b"" if number % 2 else b"\xff" * 50 + content[torn + 50 :]
        log.write_bytes(content)
        copies = open_flights(folder)
        position = check_behind_no_marker(copies.copy("a", 0))
        assert position < last
        seen.add(position)
        copies.close()
        shutil.rmtree(folder)
    assert len(seen) > 20


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
    calls: list[Callable[[], object]] = [
        lambda: copy.write([]),
        lambda: copy.clear(LOW),
        lambda: view.declare([COUNTS]),
    ]
    for call in calls:
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
