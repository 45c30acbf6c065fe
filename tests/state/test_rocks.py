"""The one way to open RocksDB: whose folder it is, who may enter, and errors in words."""

import json
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rocksdict

from keylanes.state.rocks import CACHE_BYTES, MARKER, Rocks, RocksError, WriteBatch, _SharedCache, open_rocks

from ..tiers.marks import tier

pytestmark = tier("check")

OPEN_AND_SAY = """
import sys
from pathlib import Path
from keylanes.state.rocks import RocksError, open_rocks
try:
    rocks = open_rocks(Path(sys.argv[1]), "things", 1, sys.argv[2])
except RocksError as error:
    print("refused:", error)
else:
    print(rocks.get(b"key"))
    rocks.close()
"""


WRITE_AND_DIE = """
import os, sys
from pathlib import Path
from keylanes.state.rocks import WriteBatch, open_rocks
rocks = open_rocks(Path(sys.argv[1]), "things", 1)
for number in range(300):
    writes = WriteBatch()
    writes.put(b"%d" % number, os.urandom(1000))
    rocks.write(writes)
os._exit(9)
"""


def open_things(folder: Path) -> Rocks:
    """The folder's writer."""
    return open_rocks(folder, "things", 1)


def put(rocks: Rocks, key: bytes, value: bytes) -> None:
    """One write."""
    writes = WriteBatch()
    writes.put(key, value)
    rocks.write(writes)


def elsewhere(folder: Path, mode: str) -> str:
    """What another process sees under the key, or why it is refused."""
    command = [sys.executable, "-c", OPEN_AND_SAY, str(folder), mode]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    """Values survive close and reopen; the folder says what it holds, and is its owner's alone, also when others could
    enter it before.
    """
    folder = tmp_path / "deep" / "data"
    rocks = open_things(folder)
    put(rocks, b"key", b"value")
    rocks.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    rocks = open_things(folder)
    assert (rocks.get(b"key"), rocks.get(b"other")) == (b"value", None)
    rocks.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / MARKER).read_text() == "keylanes things format 1\n"


def test_values_are_never_unpickled(tmp_path: Path) -> None:
    """Bytes that are a pickle come back as the same bytes, and the database is marked as raw."""
    rocks = open_things(tmp_path / "data")
    put(rocks, b"key", pickle.dumps({"a": 1}))
    assert rocks.get(b"key") == pickle.dumps({"a": 1})
    rocks.close()
    assert json.loads((tmp_path / "data" / "rocksdict-config.json").read_text())["raw_mode"] is True


def test_options_survive_reopening(tmp_path: Path) -> None:
    """Bloom filter, compression and buffer size are in force after the second opening too."""
    open_things(tmp_path / "data").close()
    open_things(tmp_path / "data").close()
    newest = max((tmp_path / "data").glob("OPTIONS-*"))
    options = dict(re.findall(r"^\s*(\w+)=(.*)$", newest.read_text(), re.MULTILINE))
    assert "bloom" in options["filter_policy"].lower()
    assert options["compression"] == "kLZ4Compression"
    assert options["write_buffer_size"] == str(32 * 1024 * 1024)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """A second writer is refused in words that name the folder, in this process and in another one."""
    rocks = open_things(tmp_path / "data")
    with pytest.raises(RocksError, match=r"data is already open in this process"):
        open_things(tmp_path / "data")
    says = rf"refused: .*data is in use by another process \(pid {os.getpid()}\)$"
    assert re.search(says, elsewhere(tmp_path / "data", "write"))
    put(rocks, b"key", b"still works")
    rocks.close()
    assert elsewhere(tmp_path / "data", "write") == "b'still works'"


def test_reading_beside_a_writer(tmp_path: Path) -> None:
    """Another process sees what was written before it opened; an open view sees more only after ``catch_up``."""
    rocks = open_things(tmp_path / "data")
    put(rocks, b"key", b"1")
    view = open_rocks(tmp_path / "data", "things", 1, "beside")
    put(rocks, b"key", b"2")
    assert view.get(b"key") == b"1"
    view.catch_up()
    assert view.get(b"key") == b"2"
    assert elsewhere(tmp_path / "data", "beside") == "b'2'"
    view.close()
    rocks.close()
    assert elsewhere(tmp_path / "data", "beside") == "b'2'"


def test_a_view_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scratch folder of a read-only view is gone after its close."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_things(tmp_path / "data").close()
    view = open_rocks(tmp_path / "data", "things", 1, "beside")
    assert len(list(tmp_path.iterdir())) == 2
    view.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A folder with something else in it, be it another RocksDB, is refused, and not a byte of it changes."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "letter").write_text("dear")
    rocksdict.Rdict(str(tmp_path / "rocks")).close()
    for name in ("text", "rocks"):
        before = {entry.name: entry.read_bytes() for entry in (tmp_path / name).iterdir()}
        with pytest.raises(RocksError, match="was not made by keylanes"):
            open_things(tmp_path / name)
        with pytest.raises(RocksError, match="was not made by keylanes"):
            open_rocks(tmp_path / name, "things", 1, "beside")
        assert {entry.name: entry.read_bytes() for entry in (tmp_path / name).iterdir()} == before


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("keylanes things format 2\n", "has format 2; this version of keylanes reads format 1"),
        ("keylanes others format 1\n", "holds keylanes others, not things"),
        ("keylanes thi", "is damaged"),
        ("", "is damaged"),
    ],
)
def test_another_kind_or_format_is_refused(tmp_path: Path, marker: str, words: str) -> None:
    """The marker has to name this kind and this format."""
    open_things(tmp_path / "data").close()
    (tmp_path / "data" / MARKER).write_text(marker)
    with pytest.raises(RocksError, match=words):
        open_things(tmp_path / "data")


def test_a_half_made_folder_is_finished(tmp_path: Path) -> None:
    """A process that died while it made the folder, before or after the marker, leaves nothing in the way."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "KEYLANES.new").write_text("keyl")
    open_things(tmp_path / "one").close()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / MARKER).write_text("keylanes things format 1\n")
    open_things(tmp_path / "two").close()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    """A link, which could lead anywhere; a file; and, to read, a folder that does not exist: none is made."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RocksError, match="symbolic link"):
        open_things(tmp_path / "link")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RocksError, match="can't be used"):
        open_things(tmp_path / "file")
    with pytest.raises(RocksError, match="does not exist"):
        open_rocks(tmp_path / "none", "things", 1, "beside")
    assert not (tmp_path / "none").exists()


def test_a_delete_takes_its_place_among_the_puts(tmp_path: Path) -> None:
    """In a batch the later of a put and a delete counts; to delete what is not there is nothing."""
    rocks = open_things(tmp_path / "data")
    writes = WriteBatch()
    writes.put(b"gone", b"1")
    writes.delete(b"gone")
    writes.delete(b"back")
    writes.put(b"back", b"2")
    writes.delete(b"never")
    rocks.write(writes)
    assert [rocks.get(key) for key in (b"gone", b"back", b"never")] == [None, b"2", None]
    rocks.close()


def test_many_keys_are_read_at_once(tmp_path: Path) -> None:
    """The values come in the order of the keys, with None for missing ones, wherever RocksDB keeps them."""
    rocks = open_things(tmp_path / "data")
    for flushed in (True, False):
        writes = WriteBatch()
        for number in range(0, 1000, 3 if flushed else 5):
            writes.put(b"%d" % number, b"%d %d" % (number, flushed))
        rocks.write(writes)
        if flushed:
            rocks.flush()
            assert list((tmp_path / "data").glob("*.sst"))
    keys = [b"%d" % (number * 7 % 1200) for number in range(1500)]
    assert rocks.get_many(keys) == [rocks.get(key) for key in keys]
    assert rocks.get_many([b"3", b"none", b"", b"5", b"3"]) == [b"3 1", None, None, b"5 0", b"3 1"]
    assert rocks.get_many([]) == []
    rocks.close()


def test_other_threads_run_while_many_keys_are_read(tmp_path: Path) -> None:
    """A read of many keys in a thread leaves the others at work."""
    rocks = open_things(tmp_path / "data")
    writes = WriteBatch()
    for number in range(20_000):
        writes.put(b"%d" % number, bytes(100))
    rocks.write(writes)
    rocks.flush()
    began, done = threading.Event(), threading.Event()

    def read() -> None:
        began.set()
        for _ in range(5):
            rocks.get_many([b"%d" % number for number in range(20_000)])
        done.set()

    # Only who lets go in the middle of a call is overtaken: a thread that wants its turn waits for this long.
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            began.wait()
            assert not done.is_set()
            reading.result()
    finally:
        sys.setswitchinterval(before)
    rocks.close()


def test_pages_and_walks_have_their_bounds(tmp_path: Path) -> None:
    """Both give ``[first, end)`` in order: a page its first entries, a walk with ``before`` from the last key at or
    below ``first`` on. Neither keeps anything open, also when it is left early.
    """
    rocks = open_things(tmp_path / "data")
    for key in (b"b", b"d", b"f"):
        put(rocks, key, key)
    assert rocks.page(b"a", b"z", 2) == [(b"b", b"b"), (b"d", b"d")]
    assert rocks.page(b"d", b"f", 9) == [(b"d", b"d")]
    assert rocks.page(b"g", b"z", 9) == rocks.page(b"a", b"z", 0) == []
    found = []
    for first, end, before in ((b"a", b"f", False), (b"c", b"z", False), (b"c", b"z", True), (b"d", b"e", True)):
        with rocks.entries(first, end, before=before) as entries:
            found.append(b"".join(key for key, _ in entries))
    assert found == [b"bd", b"df", b"bdf", b"d"]
    with rocks.entries(b"a", b"z") as entries:
        assert next(entries) == (b"b", b"b")
    rocks.close()
    open_things(tmp_path / "data").close()


def test_damage_is_an_error_not_an_end(tmp_path: Path) -> None:
    """A walk over a damaged file raises RocksError instead of ending early."""
    rocks = open_things(tmp_path / "data")
    for number in range(2000):
        put(rocks, b"%05d" % number, os.urandom(50))
    rocks.close()
    for table in (tmp_path / "data").glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
        table.write_bytes(content)
    rocks = open_things(tmp_path / "data")
    with pytest.raises(RocksError, match="damaged"), rocks.entries(b"", b"\xff") as entries:
        list(entries)
    with pytest.raises(RocksError, match="damaged"):
        rocks.page(b"", b"\xff", 2000)
    with pytest.raises(RocksError, match="damaged"):
        rocks.get_many([b"%05d" % number for number in range(2000)])
    rocks.close()


def test_a_damaged_log_ends_a_follower_only(tmp_path: Path) -> None:
    """Damage inside the write-ahead log is an error; a follower keeps what lies before it, and nothing behind it."""
    command = [sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "data")]
    assert subprocess.run(command, check=False).returncode == 9
    log = max((tmp_path / "data").glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 20] = bytes(20)
    log.write_bytes(content)
    with pytest.raises(RocksError, match="damaged"):
        open_things(tmp_path / "data")
    rocks = open_rocks(tmp_path / "data", "things", 1, follower=True)
    there = [rocks.get(b"%d" % number) is not None for number in range(300)]
    assert 50 < sum(there) < 250
    assert there == sorted(there, reverse=True)
    rocks.close()


def test_the_cache_grows_to_the_largest_wish(tmp_path: Path) -> None:
    """Databases of a process share one cache; who asks for less does not make it smaller."""
    cache = _SharedCache()
    assert cache.at_least(1_000) is cache.at_least(2_000) is cache.at_least(500)
    assert cache.size == 2_000
    open_rocks(tmp_path / "data", "things", 1, cache_bytes=CACHE_BYTES + 1).close()


def test_a_damaged_database_is_not_opened(tmp_path: Path) -> None:
    """Broken files of RocksDB's own are reported as damage of the named folder."""
    open_things(tmp_path / "data").close()
    (tmp_path / "data" / "CURRENT").write_text("garbage\n")
    with pytest.raises(RocksError, match=r"data is damaged"):
        open_things(tmp_path / "data")


def test_closing_waits_for_reads_in_other_threads(tmp_path: Path) -> None:
    """A close in the middle of a batch of reads in another thread lets go of the folder; the next batch is refused."""
    rocks = open_rocks(tmp_path / "data", "things", 1)
    keys = [b"%d" % number for number in range(50_000)]
    writes = WriteBatch()
    for key in keys:
        writes.put(key, b"value")
    rocks.write(writes)
    batches = threading.Semaphore(0)

    def read() -> None:
        while True:
            batches.release()
            rocks.get_many(keys)

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        for _ in range(2):
            batches.acquire()
        rocks.close()
        with pytest.raises(RocksError, match="was closed"):
            reading.result()
    open_rocks(tmp_path / "data", "things", 1).close()


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    """Calls after close raise RocksError; a second close does nothing."""
    rocks = open_things(tmp_path / "data")
    rocks.close()
    rocks.close()
    assert rocks.is_closed
    with pytest.raises(RocksError, match="was closed"):
        rocks.get(b"key")


FILL = """
import resource, signal, sys
from pathlib import Path
from keylanes.state.rocks import RocksError, WriteBatch, open_rocks
rocks = open_rocks(Path(sys.argv[1]), "things", 1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
refused = []
for number in range(300):
    writes = WriteBatch()
    writes.put(b"%d" % number, bytes(10_000))
    try:
        rocks.write(writes)
    except RocksError as error:
        refused.append(number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(refused[0], len(refused) == 300 - refused[0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs Unix limits")
def test_writes_stay_refused_after_the_first_that_failed(tmp_path: Path) -> None:
    """When a file can't grow the write is refused, so is each one after it, and what was acknowledged is there."""
    command = [sys.executable, "-c", FILL, str(tmp_path / "data")]
    first, all_refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert 50 < int(first) < 150
    assert all_refused == "True"
    rocks = open_things(tmp_path / "data")
    assert all(rocks.get(b"%d" % number) == bytes(10_000) for number in range(int(first)))
    rocks.close()
