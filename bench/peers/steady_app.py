"""keylanes under a steady load: each record is counted in the state of its key and goes out changed, and every
``sample_s`` seconds the process tells what it holds.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from _driver import Spec, Tally, read_spec, rss_bytes, say, transform
from keylanes.runtime.handlers.stores import State
from keylanes_app import Wrong, app_of, counting_handler, figures_of, stop_in_order, tell_ready

DUE_NS = slice(8, 16)
"""Of a value: when it was to be sent."""


def every(seconds: float, do: Callable[[], None]) -> None:
    """In a thread: what blocks the loop delays no sample."""

    def work() -> None:
        due_s = time.monotonic() + seconds
        while True:
            time.sleep(max(due_s - time.monotonic(), 0.0))
            do()
            due_s += seconds

    threading.Thread(target=work, daemon=True).start()


def steady(spec: Spec) -> None:
    """Run until all records are handled; tell a sample now and then."""
    app, wrong, latest = app_of(spec), Wrong(), b""
    began_s = time.monotonic()

    def on_all() -> None:
        say({**tally.result(), **figures_of(app), "wrong_states": wrong.count})
        stop_in_order()

    tally = Tally(spec, on_all)
    count = counting_handler(tally, wrong)

    def sample() -> None:
        seen = app.statistics()
        due_ns = int.from_bytes(latest[DUE_NS], "little")
        found: dict[str, Any] = {
            "event": "sample",
            "at_s": time.monotonic() - began_s,
            "records": seen.records_done,
            "rss_bytes": rss_bytes(),
            "handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "late_ms": max(time.time_ns() - due_ns, 0) / 1e6 if latest else 0.0,
            "commits": seen.commits,
            "event_bytes": seen.event_bytes,
            "queued_bytes": sum(p.queued_bytes for p in seen.partitions),
            "workers": sum(p.workers for p in seen.partitions),
            "cpu_s": time.process_time(),
        }
        say(found)

    @app.handler(spec.topic, to=spec.output, parallelising_factor=spec.in_flight)
    async def handle(value: bytes, seen: State[int]) -> bytes:
        nonlocal latest
        latest = value
        await count(value, seen)
        return transform(value)

    tell_ready(app)
    every(spec.sample_s, sample)
    app.run()


if __name__ == "__main__":
    steady(read_spec())
