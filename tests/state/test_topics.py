"""Topics in a folder: against a plain list, across reopening, trimming, kills, and beside a running writer."""

import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylanes.state.rocks import RocksError
from keylanes.state.tables import TABLE_CONFIG
from keylanes.state.topics import (
    CHUNK_BYTES_MAX,
    CHUNK_RECORDS_MAX,
    EpochStale,
    Guard,
    NewRecord,
    NotALog,
    OffsetMissing,
    StoredRecord,
    TopicMissing,
    TopicStore,
    TopicTable,
)

from ..tiers.marks import tier

pytestmark = tier("check")


def numbered(topic: str, count: int, partition: int = 0, first: int = 0) -> list[NewRecord]:
    """Records whose values count up from ``first``."""
    return [NewRecord(topic, partition, b"k", b"%d" % number) for number in range(first, first + count)]


def read_all(store: TopicStore, topic: str, partition: int = 0, bite: int = 1000) -> list[StoredRecord]:
    """Every record from the start on, in bites."""
    offset, high = store.watermarks(topic, partition)
    found: list[StoredRecord] = []
    while offset < high:
        records, offset = store.read(topic, partition, offset, bite)
        assert 0 < len(records) <= bite
        found += records
    return found


def test_records_come_back_whole(tmp_path: Path) -> None:
    """Key, value, headers and timestamp are read as written, null and empty kept apart; offsets count from 0."""
    store = TopicStore.open(tmp_path / "data")
    assert store.create("a", 2, {"retention.ms": "-1"})
    assert not store.create("a", 9, {})
    store.append(
        [
            NewRecord("a", 1, b"key", b"value", [("h", b"1"), ("h", b"\xff")], 123),
            NewRecord("a", 1, None, None),
            NewRecord("a", 1, b"", b"", (), 5),
        ],
        timestamp_default=77,
    )
    assert store.read("a", 1, 0, 10) == (
        [
            StoredRecord(0, 123, b"key", b"value", (("h", b"1"), ("h", b"\xff"))),
            StoredRecord(1, 77, None, None, ()),
            StoredRecord(2, 5, b"", b"", ()),
        ],
        3,
    )
    assert store.read("a", 1, 3, 10) == ([], 3)
    assert store.watermarks("a", 0) == (0, 0)
    assert {name: (topic.partitions, topic.config) for name, topic in store.topics().items()} == {
        "a": (2, {"retention.ms": "-1"})
    }
    store.close()


@pytest.mark.parametrize("count", [1, CHUNK_RECORDS_MAX - 1, CHUNK_RECORDS_MAX, CHUNK_RECORDS_MAX + 1, 2500])
def test_chunks_have_no_seams(tmp_path: Path, count: int) -> None:
    """Whatever the sizes of appends and bites, reading gives every record once, in order."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    for append in range(3):
        store.append(numbered("a", count, first=append * count))
    expected = [b"%d" % number for number in range(3 * count)]
    for bite in (999, 1000, 1001, 10_000):
        assert [record.value for record in read_all(store, "a", bite=bite)] == expected
    for offset in {0, count - 1, count, count + 1, 3 * count - 1}:
        assert store.read("a", 0, offset, 1)[0][0].offset == offset
    store.close()


def test_large_records_have_chunks_of_their_own(tmp_path: Path) -> None:
    """Records near and above a chunk's size are stored and read among small ones."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    sizes = [0, CHUNK_BYTES_MAX - 1, CHUNK_BYTES_MAX, 3 * CHUNK_BYTES_MAX, 1, 1, CHUNK_BYTES_MAX + 1, 0]
    store.append([NewRecord("a", 0, None, bytes(size)) for size in sizes])
    assert [len(record.value or b"") for record in read_all(store, "a", bite=3)] == sizes
    store.close()


def test_a_read_is_bounded_in_bytes(tmp_path: Path) -> None:
    """``bytes_max`` ends a read before the record that would exceed it, but one record always comes."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.append([NewRecord("a", 0, b"", bytes(100)) for _ in range(2500)])
    counts = [len(store.read("a", 0, 900, 2000, bytes_max)[0]) for bytes_max in (1, 99, 100, 250, 15_000, 150_050)]
    assert counts == [1, 1, 1, 2, 150, 1500]
    store.close()


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    """Unknown topics and partitions, and offsets outside the log, raise their errors; an append then writes nothing."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    with pytest.raises(TopicMissing, match="'b' does not exist"):
        store.append([*numbered("a", 1), *numbered("b", 1)])
    with pytest.raises(TopicMissing, match="has 1 partitions"):
        store.read("a", 1, 0, 1)
    with pytest.raises(OffsetMissing, match="0 to 0, not 1"):
        store.read("a", 0, 1, 1)
    with pytest.raises(OffsetMissing):
        store.trim("a", 0, 1)
    assert store.watermarks("a", 0) == (0, 0)
    store.close()


def test_names_that_resemble_each_other_stay_apart(tmp_path: Path) -> None:
    """Every name Kafka allows is a topic of its own: prefixes, dots, the letters of our own keys, 249 characters."""
    names = ["a", "a.b", "a-b", "A", "t", "r", "w", "e", "_", "0", "x" * 249]
    store = TopicStore.open(tmp_path / "data")
    for name in names:
        store.create(name, 1, {})
    store.append([NewRecord(name, 0, None, name.encode()) for name in names])
    store.close()
    store = TopicStore.open(tmp_path / "data")
    assert {name: [record.value for record in read_all(store, name)] for name in names} == {
        name: [name.encode()] for name in names
    }
    store.close()


def test_epochs_persist(tmp_path: Path) -> None:
    """An epoch only grows, an append guarded by an older one changes no log and no table, also across reopening."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.create("t", 1, TABLE_CONFIG)
    assert (store.epoch("id"), store.bump_epoch("id"), store.bump_epoch("id")) == (0, 1, 2)
    store.close()
    store = TopicStore.open(tmp_path / "data")
    assert (store.epoch("id"), store.epoch("other")) == (2, 0)
    with pytest.raises(EpochStale, match="at epoch 2; this producer holds 1"):
        store.append([*numbered("a", 1), NewRecord("t", 0, b"old", b"1")], guard=Guard("id", 1))
    written = store.append([*numbered("a", 1), NewRecord("t", 0, b"k", b"1")], guard=Guard("id", 2))
    assert written == {("a", 0): 1, ("t", 0): 1}
    assert store.watermarks("a", 0) == (0, 1)
    assert table_of(store).page(b"", None, 9) == [(b"k", b"1")]
    store.close()


def test_a_view_reads_beside_the_writer(tmp_path: Path) -> None:
    """A read-only view shows what was there when it was opened, more after ``refresh``, and refuses to write."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.append(numbered("a", 10))
    view = TopicStore.open_read_only(tmp_path / "data")
    store.append(numbered("a", 5, first=10))
    store.create("b", 1, {})
    store.trim("a", 0, 3)
    assert (len(read_all(view, "a")), list(view.topics())) == (10, ["a"])
    view.refresh()
    assert [record.offset for record in read_all(view, "a")] == list(range(3, 15))
    assert list(view.topics()) == ["a", "b"]
    for write in (
        lambda: view.append(numbered("a", 1)),
        lambda: view.bump_epoch("id"),
        lambda: view.create("c", 1, {}),
    ):
        with pytest.raises(RocksError, match="for reading only"):
            write()
    view.close()
    store.close()


def test_damage_to_a_chunk_is_an_error(tmp_path: Path) -> None:
    """A chunk that can't be decoded and a hole between start and high are reported as damage, never skipped."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.append(numbered("a", 1))
    store.append(numbered("a", 1))
    broken = store._writes()
    broken.put(b"r" + bytes((0, 0, 0, 1, 0, 0, 0, 0)) + (1).to_bytes(8), b"\xc1")
    store._rocks.write(broken)
    assert len(store.read("a", 0, 0, 1)[0]) == 1
    with pytest.raises(RocksError, match="damaged"):
        store.read("a", 0, 1, 1)
    missing = store._writes()
    missing.delete_range(b"r", b"s")
    store._rocks.write(missing)
    with pytest.raises(RocksError, match="no record at offset 1"):
        store.read("a", 0, 1, 1)
    store.close()


def table_of(store: TopicStore, topic: str = "t", partition: int = 0) -> TopicTable:
    """A table that is there."""
    table = store.table(topic, partition)
    assert table is not None
    return table


def test_a_table_is_no_log(tmp_path: Path) -> None:
    """Reads and trims by offset are refused in words, so is a record without a key, and a log is no table."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.create("t", 2, {**TABLE_CONFIG, "retention.ms": "-1"})
    assert [(topic.name, topic.by_key) for topic in store.topics().values()] == [("a", False), ("t", True)]
    store.append([NewRecord("t", 0, b"k", b"v")])
    for refused in (lambda: store.read("t", 0, 0, 1), lambda: store.trim("t", 0, 1)):
        with pytest.raises(NotALog, match="'t' is kept by key"):
            refused()
    with pytest.raises(ValueError, match="no key"):
        store.append([NewRecord("a", 0, None, None), NewRecord("t", 0, b"k", b"w"), NewRecord("t", 0, None, b"w")])
    assert (store.watermarks("a", 0), store.watermarks("t", 0)) == ((0, 0), (0, 1))
    assert table_of(store).get(b"k") == b"v"
    assert store.table("a", 0) is None
    for missing in (("t", 2), ("b", 0)):
        with pytest.raises(TopicMissing):
            store.table(*missing)
    store.close()
    with pytest.raises(RocksError, match="was closed"):
        table_of(store).get(b"k")


def test_tables_are_read_while_another_thread_writes(tmp_path: Path) -> None:
    """Each page shows whole appends, never half of one, and each append shows in the log and in the table."""
    store = TopicStore.open(tmp_path / "data")
    store.create("a", 1, {})
    store.create("t", 1, TABLE_CONFIG)
    keys = [b"%03d" % number for number in range(200)]

    def write() -> None:
        for number in range(60):
            value = None if number % 7 == 6 else b"%d" % number
            store.append([NewRecord("t", 0, key, value) for key in keys] + [NewRecord("a", 0, None, b"%d" % number)])

    writing = threading.Thread(target=write)
    table = table_of(store)
    writing.start()
    seen: set[int] = set()
    while writing.is_alive():
        before = store.watermarks("a", 0).high
        page, many = table.page(b"", None, 1000), table.get_many(keys)
        after = store.watermarks("a", 0).high
        assert len(page) in (0, len(keys))
        assert len(set(many)) == 1
        for value in {value for _, value in page} | (set(many) - {None}):
            assert before - 1 <= int(value or b"") <= after
        seen.add(len({value for _, value in page}))
    writing.join()
    assert seen <= {0, 1}
    assert table.page(keys[7], keys[9], 10) == [(key, b"59") for key in keys[7:9]]
    store.close()


table_key = st.binary(max_size=2) | st.sampled_from([b"", b"\0", b"\xff", b"\xff" * 9, b"\xff" * 40])
table_step = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 1), table_key, st.none() | st.binary(max_size=3)))),
    st.tuples(st.just("page"), st.integers(0, 1), table_key, st.none() | table_key, st.integers(0, 5)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("view")),
)


@settings(max_examples=25)
@given(st.lists(table_step, max_size=12))
def test_a_table_is_a_dictionary(steps: list[Any]) -> None:
    """Any sequence of appends, pages and reopenings behaves as one sorted dictionary for each partition would."""
    twins: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
    written = [0, 0]
    folder = Path(tempfile.mkdtemp())
    store = TopicStore.open(folder / "data")
    for name in ("s", "t", "u"):  # neighbours, whose keys lie right beside
        store.create(name, 2, TABLE_CONFIG)
        store.append([NewRecord(name, p, key, b"other") for p in (0, 1) for key in (b"", b"\xff" * 50) if name != "t"])
    try:
        for name, *arguments in steps:
            if name == "append":
                store.append([NewRecord("t", at, key, value) for at, key, value in arguments[0]])
                for at, key, value in arguments[0]:
                    written[at] += 1
                    twins[at].pop(key, None)
                    if value is not None:
                        twins[at][key] = value
            elif name == "page":
                at, first, end, most = arguments
                inside = [entry for entry in sorted(twins[at].items()) if first <= entry[0] and _below(entry[0], end)]
                assert table_of(store, "t", at).page(first, end, most) == inside[:most]
            elif name == "reopen":
                store.close()
                store = TopicStore.open(folder / "data")
            view = TopicStore.open_read_only(folder / "data") if name == "view" else store
            for at in (0, 1):
                table = table_of(view, "t", at)
                assert view.watermarks("t", at) == (0, written[at])
                assert table.page(b"", None, 1000) == sorted(twins[at].items())
                keys = [b"", b"\xff", *twins[at], b"\0"]
                assert table.get_many(keys) == [table.get(key) for key in keys] == [twins[at].get(key) for key in keys]
            if view is not store:
                view.close()
    finally:
        store.close()
        shutil.rmtree(folder)


def _below(key: bytes, end: bytes | None) -> bool:
    return end is None or key < end


PARTITIONS = (("a", 0), ("a", 1), ("b", 0))
where = st.sampled_from(PARTITIONS)
record = st.tuples(
    where,
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=5) | st.integers(0, CHUNK_BYTES_MAX * 5 // 4).map(bytes),
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2),
    st.integers(0, 2**50),
)
step = st.one_of(
    st.tuples(st.just("append"), st.lists(record, max_size=8)),
    st.tuples(st.just("many"), where, st.integers(1, 2 * CHUNK_RECORDS_MAX + 5)),
    st.tuples(st.just("read"), where, st.floats(0, 1), st.integers(1, 1500)),
    st.tuples(st.just("trim"), where, st.floats(0, 1)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("view")),
)


@settings(max_examples=25)
@given(st.lists(step, max_size=12))
@example(
    [("many", ("a", 0), 2000), *(("trim", ("a", 0), part) for part in (0.0, 0.0005, 0.5, 0.75, 0.7, 1)), ("view",)]
)
def test_the_store_is_a_list(steps: list[Any]) -> None:
    """Any sequence of appends, reads, trims and reopenings behaves as plain lists would."""
    twin: dict[tuple[str, int], list[StoredRecord]] = defaultdict(list)
    start: dict[tuple[str, int], int] = defaultdict(int)
    folder = Path(tempfile.mkdtemp())
    store = TopicStore.open(folder / "data")
    store.create("a", 2, {})
    store.create("b", 1, {})
    try:
        arguments: Any
        at: tuple[str, int]
        for name, *arguments in steps:
            if name in ("append", "many"):
                if name == "many":
                    arguments = [[(arguments[0], b"k", b"%d" % number, [], number) for number in range(arguments[1])]]
                for at, key, value, headers, timestamp in arguments[0]:
                    twin[at].append(StoredRecord(len(twin[at]), timestamp, key, value, tuple(headers)))
                store.append(
                    [
                        NewRecord(at[0], at[1], key, value, headers, time)
                        for at, key, value, headers, time in arguments[0]
                    ]
                )
            elif name == "read":
                at, part, bite = arguments
                offset = start[at] + int(part * (len(twin[at]) - start[at]))
                assert store.read(*at, offset, bite)[0] == twin[at][offset : offset + bite]
            elif name == "trim":
                at, part = arguments
                before = int(part * len(twin[at]))
                store.trim(*at, before)
                start[at] = max(start[at], before)
                if start[at]:
                    with pytest.raises(OffsetMissing):
                        store.read(*at, start[at] - 1, 1)
            elif name == "reopen":
                store.close()
                store = TopicStore.open(folder / "data")
            view = TopicStore.open_read_only(folder / "data") if name == "view" else store
            for at in PARTITIONS:
                assert view.watermarks(*at) == (start[at], len(twin[at]))
                if name in ("reopen", "view"):
                    assert read_all(view, *at) == twin[at][start[at] :]
            if view is not store:
                view.close()
    finally:
        store.close()
        shutil.rmtree(folder)


WRITE = """
import random, sys
from keylanes.state.topics import NewRecord, TopicStore
store = TopicStore.open(sys.argv[1])
store.create("a", 1, {})
store.create("b", 2, {})
size = int(sys.argv[2])
number = store.watermarks("b", 1).high
block = int(sys.argv[3])
while True:
    if block and number % block == 0 and not sys.stdin.readline():
        break
    store.append(
        [NewRecord("a", 0, None, b"%d" % number + bytes(size)) for _ in range(7)]
        + [NewRecord("b", 0, None, b"%d" % number)] * 2
        + [NewRecord("b", 1, None, b"%d" % number)]
    )
    number += 1
    print(number, flush=True)
"""


def check_whole(store: TopicStore) -> int:
    """How many appends of ``WRITE`` are in the store; fails unless each is there whole, and in order."""
    count = store.watermarks("b", 1).high
    assert store.watermarks("a", 0) == (0, 7 * count)
    assert store.watermarks("b", 0) == (0, 2 * count)
    for topic, partition, times in (("a", 0, 7), ("b", 0, 2), ("b", 1, 1)):
        numbers = [int((r.value or b"").rstrip(b"\0")) for r in read_all(store, topic, partition)]
        assert numbers == [number for number in range(count) for _ in range(times)]
    return count


def start_writer(folder: Path, size: int, block: int = 0) -> "subprocess.Popen[bytes]":
    """A process that appends, and prints how many appends have returned.

    Before each ``block`` of appends it waits for a line, and it ends when there are no more.
    """
    command = [sys.executable, "-c", WRITE, str(folder), str(size), str(block)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@tier("test")
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """After kill -9 at random moments each append is there whole or not at all, and every acknowledged one is there."""
    drawn = random.Random(1)
    for _ in range(6):
        with start_writer(tmp_path / "data", drawn.choice([1, 2_000, 100_000])) as writer:
            assert writer.stdout is not None
            for _ in range(drawn.randint(1, 60)):
                writer.stdout.readline()
            writer.kill()
            rest = writer.stdout.read().split(b"\n")
        store = TopicStore.open(tmp_path / "data")
        count = check_whole(store)
        assert count >= max((int(line) for line in rest[:-1]), default=0)
        store.close()


@tier("test")
def test_views_beside_a_busy_writer_see_whole_appends(tmp_path: Path) -> None:
    """While another process writes, flushes and drops logs, each view and each refresh shows whole appends."""
    seen = 1
    with start_writer(tmp_path / "data", size=30_000, block=50) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        writer.stdout.readline()
        for _ in range(15):
            writer.stdin.write(b"\n")
            writer.stdin.flush()
            view = TopicStore.open_read_only(tmp_path / "data")
            for _ in range(4):
                count = view.watermarks("b", 1).high
                assert count >= seen
                assert view.watermarks("a", 0).high == 7 * count
                assert [int(r.value or b"") for r in view.read("b", 1, count - 1, 9)[0]] == [count - 1]
                last, _ = view.read("a", 0, 7 * (count - 1), 9)
                assert [int((r.value or b"").rstrip(b"\0")) for r in last] == 7 * [count - 1]
                seen = count
                view.refresh()
            view.close()
        writer.stdin.close()
        writer.stdout.read()
    store = TopicStore.open(tmp_path / "data")
    assert check_whole(store) == 16 * 50
    store.close()
