"""Does a copy come cheaper from the files of a process of the same host than from the changelog?

A *learner* makes a copy of the state that an *owner* holds, which goes on working: 20,000 changes a second. Arms, one
after the other in each round, each learner in a fresh process and an empty folder:

    changelog   the application's restore from a real Kafka: what a learner does
    beside      the owner's database opened beside its writer, read in order, written in batches; the owner does nothing
    files       the same, written as SST files, which RocksDB takes in as they are; the owner does nothing
    export      the owner writes the SST files from a snapshot, in a thread beside its work; the learner takes them in

Of every process: its processor time, and how late a thread of it wakes up that wants to run each millisecond: so long
somebody else had the interpreter, or the machine was busy. What is copied is checked: the number of entries and a sample
of the values.
"""

import multiprocessing
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import rocksdict

from keylanes.keyrange.hashing import SPACE_END
from keylanes.state.copies import RocksCopies, RocksCopy, open_copies
from keylanes.state.rocks import CACHE_BYTES, _cache, _options
from keylanes.state.tables import Marker
from restore import GIB, SOURCE, entry, ours, run_fill
from rig.broker import running_broker
from rig.child import in_child, quiet, run_coroutine
from rig.gaps import percentile
from rig.machine import Processors, surroundings
from rig.places import FOLDER
from rig.records import SEED
from rig.results import print_table, write_result
from rig.rounds import Figures, arguments, run_rounds
from rig.witness import WrongRun

ARMS = ("changelog", "beside", "files", "export")
PARTITIONS = 1
WORK_PER_S, WORK_EVERY_S = 20_000, 0.05
CALM_S = 2.0
PAGE = 4_000
SST_BYTES = 64 * 1024 * 1024
SAMPLED = 2_000


class Probe:
    """A thread that wants to run each millisecond, and how late it does, in s."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            time.sleep(0.001)
            self.late_s.append(time.perf_counter() - began_s - 0.001)

    def since(self, count: int) -> dict[str, float]:
        """Of those behind the first ``count``: the 99th percentile and the longest, in ms."""
        found = self.late_s[count:]
        return {"late_ms_p99": percentile(found, 0.99) * 1e3, "late_ms_max": max(found, default=0.0) * 1e3}


def measured(work: Callable[[], int]) -> Figures:
    """Run it; the processor time of this process meanwhile, how late the probe was, and the entries."""
    probe = Probe()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    entries = work()
    return {
        "seconds": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_s,
        "entries": entries,
        **probe.since(0),
    }


# --- files -----------------------------------------------------------------------------------------------------------


def database_of(copies: RocksCopies) -> rocksdict.Rdict:
    """What is below the copies of a process."""
    return copies._rocks._open()


def entries_of(copies: RocksCopies, copy: RocksCopy) -> Iterator[tuple[bytes, bytes]]:
    """All entries of a copy in order, with whole keys, as they are at one moment."""
    prefix = copy._prefix(b"d")
    assert prefix is not None, "it was filled"
    snapshot = database_of(copies).snapshot()
    walk = snapshot.iter()
    walk.seek(prefix)
    while walk.valid() and (key := walk.key()).startswith(prefix):
        yield key, walk.value()
        walk.next()


def write_files(entries: Iterator[tuple[bytes, bytes]], folder: Path) -> tuple[list[str], int]:
    """SST files of entries that are in order; their paths, and the number of entries."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, count, size = list[str](), 0, SST_BYTES
    writer: rocksdict.SstFileWriter | None = None
    for key, value in entries:
        if size >= SST_BYTES:
            if writer is not None:
                writer.finish()
            paths.append(str(folder / f"{len(paths)}.sst"))
            writer, size = rocksdict.SstFileWriter(_options(_cache.at_least(CACHE_BYTES))), 0
            writer.open(paths[-1])
        assert writer is not None, "a file was begun"
        writer[key] = value
        size += len(key) + len(value)
        count += 1
    if writer is not None:
        writer.finish()
    return paths, count


def take_in(copies: RocksCopies, paths: list[str]) -> None:
    """Have RocksDB take files in as its own."""
    chosen = rocksdict.IngestExternalFileOptions()
    chosen.set_move_files(True)
    database_of(copies).ingest_external_file(paths, chosen)


# --- the owner -------------------------------------------------------------------------------------------------------


def run_owner(orders: Connection, folder: Path, options: dict[str, Any]) -> None:
    """Change state at a steady rate; do what is ordered: ``calm``, ``export`` FOLDER, or end."""
    quiet()
    copies = open_copies(folder, app="restore", birth="bench")
    copy, is_over = copies.copy(SOURCE, 0), threading.Event()
    late_s = list[float]()
    position = max(marker.position for _, _, marker in copy.markers().pieces())

    def work() -> None:
        due_s, step = time.perf_counter(), int(WORK_PER_S * WORK_EVERY_S)
        changed, place = random.Random(SEED), position
        while not is_over.is_set():
            numbers = [int(changed.random() * options["records"]) for _ in range(step)]
            place += step
            copy.write(
                [entry(n, 0, options["value_bytes"]) for n in numbers], [(0, SPACE_END, Marker(place, 0))]
            )
            due_s += WORK_EVERY_S
            late_s.append(max(time.perf_counter() - due_s, 0.0))
            time.sleep(max(due_s - time.perf_counter(), 0.0))

    worker = threading.Thread(target=work)
    worker.start()
    probe = Probe()
    orders.send({})
    while (order := orders.recv()) is not None:
        late_s.clear()
        seen, began_s, cpu_s = len(probe.late_s), time.perf_counter(), time.process_time()
        own_s = time.thread_time()
        found: Figures = {}
        if order == "wait":
            orders.send({})
            orders.recv()  # until the learner is through
        elif order == "calm":
            time.sleep(CALM_S)
        else:
            found["paths"], found["entries"] = write_files(entries_of(copies, copy), order)
        seconds = time.perf_counter() - began_s
        found |= {"seconds": seconds, "thread_cpu_s": time.thread_time() - own_s, "cpu_s": time.process_time() - cpu_s}
        found |= {"work_late_ms_max": max(late_s, default=0.0) * 1e3, **probe.since(seen)}
        orders.send(found)
    is_over.set()
    worker.join()
    copies.close()


class Owner:
    """It, in a process of its own."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, other = context.Pipe()
        self._process = context.Process(target=run_owner, args=(other, folder, options), daemon=True)
        self._process.start()
        other.close()
        self._orders.recv()

    def asked(self, order: Any) -> Figures:
        """What it says of an order that it has done."""
        self._orders.send(order)
        return dict(self._orders.recv())

    def end(self) -> None:
        """Its end in order."""
        self._orders.send(None)
        self._process.join(60)
        self._process.kill()


# --- the learner -----------------------------------------------------------------------------------------------------


def learn_from_changelog(folder: Path, address: str, options: dict[str, Any]) -> Figures:
    """The application's restore."""
    return measured(lambda: int(run_coroutine(ours(address, folder, options))["records"]) - PARTITIONS)


def learn_beside(folder: Path, owner: Path, options: dict[str, Any], *, by_files: bool) -> Figures:
    """Read beside the owner."""

    def work() -> int:
        theirs = open_copies(owner, mode="beside")
        own = open_copies(folder, app="restore", birth="bench")
        copy, entries, count = own.copy(SOURCE, 0), entries_of(theirs, theirs.copy(SOURCE, 0)), 0
        if by_files:
            paths, count = write_files(entries, folder.with_suffix(".files"))
            take_in(own, paths)
        else:
            prefix = len(copy._writable_prefix(b"d"))
            while page := [(key[prefix:], value) for key, value in islice(entries, PAGE)]:
                copy.write(page)
                count += len(page)
        entries.close()
        theirs.close()
        check(copy, count, options)
        own.close()
        return count

    return measured(work)


def learn_from_files(folder: Path, paths: list[str], count: int, options: dict[str, Any]) -> Figures:
    """Take files in."""

    def work() -> int:
        own = open_copies(folder, app="restore", birth="bench")
        copy = own.copy(SOURCE, 0)
        take_in(own, paths)
        check(copy, count, options)
        own.close()
        return count

    return measured(work)


def check(copy: RocksCopy, count: int, options: dict[str, Any]) -> None:
    """Raises WrongRun unless all entries came and the sampled values are right."""
    if count != options["records"]:
        raise WrongRun(f"{count} entries of {options['records']}")
    numbers = random.Random(SEED).sample(range(count), min(SAMPLED, count))
    wanted = dict(entry(number, 0, options["value_bytes"]) for number in numbers)
    wrong = sum(copy.get(key) != value for key, value in wanted.items())
    if wrong:
        raise WrongRun(f"{wrong} of {len(wanted)} values are wrong")


# --- the rounds ------------------------------------------------------------------------------------------------------


def run_arm(arm: str, address: str, home: Path, owner: Owner, options: dict[str, Any]) -> Figures:
    """The figures of both processes."""
    folder = home / "learner"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder.with_suffix(".files"), ignore_errors=True)
    exported: Figures = {}
    if arm == "export":
        exported = owner.asked(folder.with_suffix(".files"))
        learned = in_child(learn_from_files, folder, exported.pop("paths"), exported["entries"], options)
    else:
        owner.asked("wait")
        learned = in_child(LEARN[arm], folder, address, home / "owner", options)
        exported = owner.asked("")
    calm = owner.asked("calm")
    return {"learner": learned, "owner": exported, "owner_calm": calm}


def _changelog(folder: Path, address: str, _: Path, options: dict[str, Any]) -> Figures:
    return learn_from_changelog(folder, address, options)


def _beside(folder: Path, _: str, owner: Path, options: dict[str, Any]) -> Figures:
    return learn_beside(folder, owner, options, by_files=False)


def _files(folder: Path, _: str, owner: Path, options: dict[str, Any]) -> Figures:
    return learn_beside(folder, owner, options, by_files=True)


LEARN = {"changelog": _changelog, "beside": _beside, "files": _files}


def main() -> int:
    """Run the rounds."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--gib", type=float, default=0.28, help="state in GiB")
    parser.add_argument("--value-bytes", type=int, default=115)
    parsed = parser.parse_args()
    records = int(parsed.gib * GIB / (23 + parsed.value_bytes))
    options = {"records": records, "value_bytes": parsed.value_bytes, "partitions": PARTITIONS}
    where, processors, home = surroundings(), Processors(), FOLDER / "siblings"
    shutil.rmtree(home, ignore_errors=True)
    try:
        with running_broker("kafka", "siblings") as address:
            in_child(run_fill, address, options, records, 0, limit_s=3_600)
            in_child(learn_from_changelog, home / "owner", address, options)
            owner = Owner(home / "owner", options)
            try:
                rounds = run_rounds(
                    parsed.rounds, ARMS, lambda arm, _: run_arm(arm, address, home, owner, options), said
                )
            finally:
                owner.end()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    write_result("siblings", {**where, "stolen": processors.stolen_share(), "settings": options, "rounds": rounds})
    columns = ["arm", "learner s", "learner CPU s", "learner late ms p99", "max", "owner CPU s", "above calm"]
    columns += ["owner late ms p99", "max", "owner work late ms max", "calm"]
    print_table(f"{options['records']:,} entries", columns, [row(figures) for figures in rounds])
    return 0


def said(figures: Figures) -> str:
    """A run, for a person."""
    learned = figures["learner"]
    return f"{learned['seconds']:.1f} s, processor {learned['cpu_s']:.1f} s"


def row(figures: Figures) -> list[Any]:
    """A run, for the table."""
    learned, owner, calm = figures["learner"], figures["owner"], figures["owner_calm"]
    above = owner["cpu_s"] - calm["cpu_s"] * owner["seconds"] / calm["seconds"]
    cells = [figures["arm"], learned["seconds"], learned["cpu_s"], learned["late_ms_p99"], learned["late_ms_max"]]
    cells += [owner["cpu_s"], above, owner["late_ms_p99"], owner["late_ms_max"], owner["work_late_ms_max"]]
    return [*cells, calm["work_late_ms_max"]]


if __name__ == "__main__":
    sys.exit(main())
