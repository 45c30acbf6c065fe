"""What every benchmark here stands on: a broker of its own, its source records, the witness, and the results.

A figure counts only when its witness holds: every expected record was handled exactly once, and the records of a key
in order, one at a time. Each arm runs in a fresh process, so that memory and garbage are its own; arms alternate in
rounds, so that a machine that changes its speed changes it for all of them.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

from keylanes import Settings, __version__
from keylanes.brokers.protocol import Broker, Outgoing, Record, TopicPartition, TopicSpec
from keylanes.devkafka.jars import KAFKA_VERSION
from keylanes.devkafka.server import KafkaServer
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Committed
from keylanes.runtime.connect import connect

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".keylanes" / "bench"
VALUE_BYTES = 100
SEED = 7
LOAD_RECORDS = 5_000
"""Records of one append while source records are written."""
BROKER_OPTIONS = (
    "-Xms3g", "-Xmx3g", "-Xmn2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip
"""As Apache Kafka's own script starts a broker, but for its heap: with 1 GiB it stands still for 20 to 30 ms
every eight seconds at W7's rate, which is what the last percentiles of every arm are then. So it is every two minutes.
"""
CHILD_SECONDS_MAX = 600.0
LIBRARIES = ("aiokafka", "msgspec", "rocksdict", "uvloop", "xxhash")

_place = Struct("<II")
_filler = random.Random(SEED).randbytes(4_096)  # does not compress, as keys and values of real systems mostly do not


# --- source records ------------------------------------------------------------------------------------------------


def keys_of(count: int, keys: int) -> "array[int]":
    """Which key each of ``count`` records has: drawn at random, the same in every process and run."""
    draw = random.Random(SEED).random
    return array("I", (int(draw() * keys) for _ in range(count)))


def key_bytes(key: int) -> bytes:
    """A key as it is on the wire."""
    return b"key-%06d" % key


def source_records(topic: str, keys: Sequence[int]) -> Iterator[Outgoing]:
    """Records for partition 0: a value starts with the number of its key and with its own number within the key."""
    numbers = [0] * (max(keys) + 1)
    for i, key in enumerate(keys):
        start = i % (len(_filler) - VALUE_BYTES)
        value = _place.pack(key, numbers[key]) + _filler[start : start + VALUE_BYTES - _place.size]
        numbers[key] += 1
        yield Outgoing(topic, 0, key_bytes(key), value)


async def load(broker: Broker, topic: str, keys: Sequence[int]) -> None:
    """Create a topic of one partition and fill it."""
    await broker.create([TopicSpec(topic, 1, {})])
    waiting: list[Outgoing] = []
    for record in source_records(topic, keys):
        waiting.append(record)
        if len(waiting) == LOAD_RECORDS:
            await broker.append(waiting)
            waiting = []
    await broker.append(waiting)


def fill(address: str, topic: str, keys: Sequence[int]) -> None:
    """``load``, from a process of its own."""

    async def work() -> None:
        async with connected(address) as broker:
            await load(broker, topic, keys)

    run_coroutine(work())


def key_and_number(value: bytes) -> tuple[int, int]:
    """The number of a value's key and its own number within the key."""
    key, number = _place.unpack_from(value)
    return key, number


# --- the witness ---------------------------------------------------------------------------------------------------


class Witness:
    """Sees each record when its handler begins and ends, and keeps the clock: from the first one to the last.

    ``expected`` holds the keys of the records that shall come. Complete and in order means: each key's records began in
    the order of their numbers, none before the one before it had ended, and all of them came.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = [0] * (max(expected) + 1)
        for key in expected:
            self.expected[key] += 1
        self.next = [0] * len(self.expected)
        self.out_of_order: list[tuple[int, int]] = []
        self.handled = 0
        self.began_s = self.ended_s = self.began_cpu_s = self.pause_s_max = 0.0
        """Seconds of the performance counter; the longest time in which no handler ended."""

    def begin(self, value: bytes) -> int:
        """A handler began; the number of the key."""
        if not self.began_s:
            self.began_s = self.ended_s = time.perf_counter()
            self.began_cpu_s = time.process_time()
        key, number = _place.unpack_from(value)
        if self.next[key] != number:
            self.out_of_order.append((key, number))
        return int(key)

    def end(self, key: int) -> None:
        """A handler ended."""
        self.next[key] += 1
        self.handled += 1
        now = time.perf_counter()
        if now - self.ended_s > self.pause_s_max:
            self.pause_s_max = now - self.ended_s
        self.ended_s = now

    @property
    def seconds(self) -> float:
        """From the first record's begin to the last one's end."""
        return self.ended_s - self.began_s

    def cpu_us_per_record(self) -> float:
        """Microseconds of processor time of this process for each record so far: other work on the machine aside."""
        return (time.process_time() - self.began_cpu_s) / self.handled * 1e6

    def check(self) -> None:
        """Raises WrongRun unless everything came exactly once and in order per key."""
        if self.out_of_order:
            first = self.out_of_order[0]
            raise WrongRun(f"{len(self.out_of_order)} records out of order; the first (key, number): {first}")
        wrong = [k for k, (seen, wanted) in enumerate(zip(self.next, self.expected, strict=True)) if seen != wanted]
        if wrong:
            key = wrong[0]
            raise WrongRun(
                f"{len(wrong)} keys are incomplete: key {key} has {self.next[key]} of {self.expected[key]} records"
            )


class WrongRun(Exception):
    """A run that lost, doubled or reordered records: its figures are void."""


# --- brokers -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_broker(kind: str, name: str) -> Iterator[str]:
    """The address of a fresh, empty broker for one benchmark; it and its data are gone afterwards."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started ends too
    folder = FOLDER / f"{name}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        if kind == "embedded":
            yield f"embedded:{folder / 'topics'}"
        else:
            with KafkaServer(folder, java_options=BROKER_OPTIONS) as server:
                yield f"kafka://{server.bootstrap}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Broker]:
    """An open broker adapter."""
    broker = connect(address, Settings(), "keylanes-bench")
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def all_records(broker: Broker, topic: str) -> AsyncIterator[Record]:
    """The committed records of every partition of a topic, up to their ends as they are now."""
    found = (await broker.describe([topic]))[topic]
    sources = [TopicPartition(topic, p) for p in range(found.partitions)]
    marks = await broker.watermarks(sources)
    reader = await broker.reader({source: mark.start for source, mark in marks.items()})
    try:
        while any(reader.position(source) < mark.high for source, mark in marks.items()):
            for batch in await reader.fetch(sources, records_max=LOAD_RECORDS, wait_ms=100):
                for record in batch.records:
                    yield record
    finally:
        await reader.close()


async def committed_events(broker: Broker, app: str) -> list[tuple[int, Committed]]:
    """(bytes in the log, event) of each commit event of an application, in the order of the log."""
    events = []
    async for record in all_records(broker, f"{app}.offsets"):
        assert record.value is not None, "our logs hold events only"
        event = decode(record.value)
        if isinstance(event, Committed):
            events.append((len(record.value), event))
    return events


# --- processes -----------------------------------------------------------------------------------------------------


def in_child(function: Callable[..., T], *arguments: Any, limit_s: float = CHILD_SECONDS_MAX) -> T:
    """The result of a function in a fresh process; raises WrongRun when it fails or does not end."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_and_send, args=(sender, function, arguments))
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise WrongRun(f"{function.__name__} did not end within {limit_s:g} s")
        result: T = receiver.recv()
    except EOFError:
        raise WrongRun(f"{function.__name__} failed, see above") from None
    except BaseException:
        child.kill()
        raise
    finally:
        child.join()
    return result


def _run_and_send(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    quiet()
    sender.send(function(*arguments))


def quiet() -> None:
    """Warnings only."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run on the kind of loop that an application gets."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.run(work)
    return asyncio.run(work)


def resident_bytes() -> int:
    """The memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- results -------------------------------------------------------------------------------------------------------


class Processors:
    """What becomes of the processors' time from now on, as Linux counts it."""

    def __init__(self) -> None:
        self._began = self._ticks()

    @staticmethod
    def _ticks() -> list[int]:
        try:
            return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return []

    def stolen_share(self) -> float | None:
        """The part in which this machine had something to do and its host ran others; None where nobody tells."""
        spent = [now - before for before, now in zip(self._began, self._ticks(), strict=True)]
        return spent[7] / max(sum(spent), 1) if spent else None


def arguments(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("kafka", "embedded"), default="kafka", help="default: a real Kafka")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each arm runs (default {rounds})")
    parser.add_argument("--full", action="store_true", help="larger, longer, more arms")
    return parser


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def surroundings() -> dict[str, Any]:
    """The machine, the versions and the commit that a result belongs to."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": platform.platform(),
            "load_average_before": os.getloadavg(),
        },
        "versions": {
            "keylanes": __version__,
            "python": platform.python_version(),
            "kafka": KAFKA_VERSION,
            **{library: version(library) for library in LIBRARIES},
        },
        "commit": git("rev-parse", "HEAD"),
        "has_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git(*command: str) -> str:
    """What git says of this checkout, stripped; empty where there is none."""
    with contextlib.suppress(OSError):
        answer = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        return answer.stdout.strip()
    return ""


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write ``.keylanes/bench/NAME.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


def picture(module: str, content: dict[str, Any], path: Path) -> None:
    """Draw it by a module beside this one, where matplotlib is."""
    try:
        draw = importlib.import_module(module).draw
    except ImportError:
        print("no plot: matplotlib is missing")
        return
    print(f"drawn: {draw(content, path).relative_to(ROOT)}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for a person: the first column to the left, figures to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    print(title)
    with contextlib.suppress(ImportError):
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in cells:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))]))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def verdict(required: str, holds: bool) -> bool:
    """Say whether what is required holds."""
    print(f"{'holds' if holds else 'FAILS'}: {required}", flush=True)
    return holds
