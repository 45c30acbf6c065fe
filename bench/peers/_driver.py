"""What the Python drivers share: the order they get, the witness, and the events they print. Standard library only.

A driver is called as ``python DRIVER.py SPEC.json`` and runs one arm of one workload in a process of its own. It prints
``{"event": "ready"}`` when it polls and ``{"event": "result", …}`` after the last record, then closes in order.

A value is: u32 number of its key, u32 number of the record within its key, u64 running index in the topic (W7: when it
was to be sent, in ns since the epoch), all little-endian, then filler up to the size.
"""

import contextlib
import json
import logging
import mmap
import sys
import threading
import time
from array import array
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

HEAD_BYTES = 16
_place = Struct("<II").unpack_from
_head = Struct("<IIQ").unpack_from


class Spec(NamedTuple):
    """One order of the harness."""

    arm: str
    workload: str
    bootstrap: str
    topic: str
    partitions: int
    group: str
    folder: str
    records: int
    keys: int
    output: str = ""
    handler_ms: float = 0.0
    spin_us: float = 0.0
    in_flight: int = 1_000
    commit_ms: int = 0
    stuck: int = -1
    counters: str = ""
    expected: str = ""
    sample_s: float = 0.0

    @property
    def is_timed(self) -> bool:
        """Whether values carry the time at which they were to be sent."""
        return self.workload == "W7"

    @property
    def returning(self) -> int:
        """How many handlers will return."""
        return self.records - (self.stuck >= 0)


def read_spec() -> Spec:
    """The order that the command line names; what this driver does not know is for others."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    order: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return Spec(**{name: order[name] for name in Spec._fields if name in order})


class Tally:
    """The witness: sees the begin and the end of each handler, and keeps the clock from the first to the last one.

    ``begin`` gives what ``end`` takes. A record that begins out of turn, or before the one before it of its key has
    ended, is out of order. ``on_all`` is called after the last expected record's end. Closures over a few locals: some
    tenths of a microsecond a record, the same in all Python arms. With ``is_threaded`` a lock keeps the sums right, and
    ``on_all`` is called with it held.
    """

    def __init__(self, spec: Spec, on_all: Callable[[], None], *, is_threaded: bool = False) -> None:
        self.spec = spec
        self.next: list[int] | memoryview[int] = [0] * spec.keys
        self.out_of_order = self.peak = 0
        self.ended_ns = self.ended_cpu_s = 0.0
        self.latencies = array("Q", bytes(8 * spec.records)) if spec.is_timed else array("Q")
        self._began: list[tuple[int, float, int]] = []
        self._counters = _counters(spec.counters)
        self._on_all = on_all
        self.begin, self.end = self._with_more(is_threaded) if spec.counters or is_threaded else self._alone()

    def _start(self) -> None:
        if not self._began:
            self._began.append((time.monotonic_ns(), time.process_time(), time.time_ns()))

    def _finish(self, peak: int, out_of_order: int) -> None:
        self.ended_ns, self.ended_cpu_s = time.monotonic_ns(), time.process_time()
        self.peak, self.out_of_order = peak, self.out_of_order + out_of_order
        self._on_all()

    def _alone(self) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        return self._timed() if self.spec.is_timed else self._plain()

    def _plain(self) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        turn, place, records = self.next, _place, self.spec.returning
        running = peak = handled = late = 0

        def begin(value: bytes) -> int:
            nonlocal running, peak, late
            key: int
            key, number = place(value)
            if turn[key] != number:
                late += 1
            running += 1
            if running > peak:
                peak = running
                if peak == 1:
                    self._start()
            return key

        def end(key: int) -> None:
            nonlocal running, handled
            turn[key] += 1
            running -= 1
            handled += 1
            if handled == records:
                self._finish(peak, late)

        return begin, end

    def _timed(self) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        """The same, and how long after its time a record was through."""
        turn, head, records, latencies, clock = self.next, _head, self.spec.returning, self.latencies, time.time_ns
        running = peak = handled = late = 0

        def begin(value: bytes) -> tuple[int, int]:
            nonlocal running, peak, late
            key: int
            key, number, due_ns = head(value)
            if turn[key] != number:
                late += 1
            running += 1
            if running > peak:
                peak = running
                if peak == 1:
                    self._start()
            return key, due_ns

        def end(token: tuple[int, int]) -> None:
            nonlocal running, handled
            key, due_ns = token
            latencies[handled] = max(clock() - due_ns, 0)
            turn[key] += 1
            running -= 1
            handled += 1
            if handled == records:
                self._finish(peak, late)

        return begin, end

    def _with_more(self, is_threaded: bool) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        """With counters of single records, or for threads."""
        begin_alone, end_alone = self._alone()
        head, counters, stuck = _head, self._counters, self.spec.stuck
        lock = threading.Lock() if is_threaded else contextlib.nullcontext()

        def begin(value: bytes) -> tuple[Any, int]:
            with lock:
                third = head(value)[2]
                if third == stuck and counters is not None:
                    counters[third] += 1  # it never ends: that it began is what can be counted
                return begin_alone(value), third

        def end(token: tuple[Any, int]) -> None:
            with lock:
                if counters is not None:
                    counters[token[1]] += 1
                end_alone(token[0])

        return begin, end

    def wants(self, value: bytes) -> bool:
        """Whether the record belongs to this run, which may handle only the first ones of its topic."""
        return self.spec.is_timed or _head(value)[2] < self.spec.records

    def is_stuck(self, value: bytes) -> bool:
        """Whether this is the record that shall never return."""
        return self.spec.stuck >= 0 and not self.spec.is_timed and _head(value)[2] == self.spec.stuck

    def result(self) -> dict[str, Any]:
        """The event of a run that is through."""
        began_ns, began_cpu_s, began_at_ns = self._began[0]
        found: dict[str, Any] = {
            "event": "result",
            "records": self.spec.returning,
            "seconds": (self.ended_ns - began_ns) / 1e9,
            "began_at_s": began_at_ns / 1e9,
            "cpu_us_per_record": (self.ended_cpu_s - began_cpu_s) / self.spec.returning * 1e6,
            "rss_peak_bytes": rss_peak_bytes(),
            "concurrency_peak": self.peak,
            "out_of_order": self.out_of_order,
        }
        if self.spec.expected:
            expected = array("I", Path(self.spec.expected).read_bytes())
            found["incomplete_keys"] = sum(seen != wanted for seen, wanted in zip(self.next, expected, strict=True))
        if self.spec.is_timed:
            path = Path(self.spec.folder) / "latency"
            path.write_bytes(self.latencies.tobytes())
            found["latency_ns"] = str(path)
        return found


def _counters(path: str) -> memoryview | None:
    """The counters of all records, in memory that outlives this process."""
    if not path:
        return None
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("I")


def rss_peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process had, since its program was started."""
    return _status_bytes("VmHWM", process)


def rss_bytes() -> int:
    """The memory that this process has now."""
    return _status_bytes("VmRSS", "self")


def _status_bytes(name: str, process: int | str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def spin(microseconds: float) -> None:
    """Use the processor for so long: the time of this thread counts, not the time in which it waits for others."""
    until = time.thread_time_ns() + int(microseconds * 1_000)
    while time.thread_time_ns() < until:
        pass


def transform(value: bytes) -> bytes:
    """What W4 makes of a value: the bytes after its head in reverse."""
    return value[:HEAD_BYTES] + value[: HEAD_BYTES - 1 : -1]


def say(event: dict[str, Any]) -> None:
    """Tell the harness."""
    print(json.dumps(event), flush=True)


def versions(*packages: str) -> dict[str, str]:
    """Of Python and some packages."""
    return {"python": sys.version.split()[0], **{name: version(name) for name in packages}}
