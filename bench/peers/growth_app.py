"""keylanes for "how cost grows": one record that is stuck while all others go on, and a steady load for a long time.

Drift: everything but the stuck record is handled first; figures are of a window, from one number of handled records to
another. Then the stuck one is let go, so that nothing is missing in the end. Steady: each record is counted in the
state of its key and goes out changed; every some seconds the process tells what it holds.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from _driver import Spec, Tally, read_spec, rss_bytes, rss_peak_bytes, say, transform
from keylanes import App
from keylanes.runtime.handlers.stores import State
from keylanes_app import Wrong, app_of, counting_handler, figures_of, stop_in_order, tell_ready

DUE_NS = slice(8, 16)
"""Of a value: when it was to be sent."""


# --- drift ---------------------------------------------------------------------------------------------------------


def looked_at(app: App) -> dict[str, float]:
    """What grows, as it is now."""
    seen = app.statistics()
    return {
        "at_s": time.monotonic(),
        "cpu_s": time.process_time(),
        "commits": seen.commits,
        "tiles": seen.tiles,
        "event_bytes": seen.event_bytes,
        "rss_bytes": rss_bytes(),
        "rss_peak_bytes": rss_peak_bytes(),
        "drift_offsets": sum(p.front - p.offset_least for p in seen.partitions),
        "queued_bytes": sum(p.queued_bytes for p in seen.partitions),
        "lagging_workers": sum(p.lagging_workers for p in seen.partitions),
        "dropped": sum(p.dropped for p in seen.partitions),
    }


def window_of(first: dict[str, float], last: dict[str, float], records: int) -> dict[str, float]:
    """The figures of a window, from looks at its two ends."""
    passed = {name: last[name] - first[name] for name in first}
    commits = max(passed["commits"], 1)
    now = ("rss_bytes", "drift_offsets", "queued_bytes", "lagging_workers", "dropped")
    return {
        "window_s": passed["at_s"],
        "window_commits": passed["commits"],
        "cpu_us_per_record": passed["cpu_s"] / records * 1e6,
        "event_bytes_per_commit": passed["event_bytes"] / commits,
        "tiles_per_commit": passed["tiles"] / commits,
        "event_bytes_per_record": passed["event_bytes"] / records,
        "rss_peak_bytes": last["rss_peak_bytes"],
        **{name: last[name] for name in now},
    }


def drift(spec: Spec) -> None:
    """Run until all others are handled, let the stuck record go, then stop in order."""
    base, app, released = rss_bytes(), app_of(spec), asyncio.Event()
    looks: list[dict[str, float]] = []
    tally = Tally(spec, released.set)
    first, last = spec.window
    handled = 0

    def tell() -> None:
        """All is through, the stuck record too. The peak after the window is that of catching up."""
        caught_up = sum(p.caught_up for p in app.statistics().partitions)
        whole = {**tally.result(), **figures_of(app), "rss_base_bytes": base, "caught_up": caught_up}
        tail = {"tail_s": tally.ended_ns / 1e9 - looks[1]["at_s"], "rss_peak_to_the_end": rss_peak_bytes()}
        say({**whole, **tail, **window_of(looks[0], looks[1], last - first)})
        stop_in_order()

    @app.handler(spec.topic, parallelising_factor=spec.in_flight)
    async def handle(value: bytes) -> None:
        nonlocal handled
        token = tally.begin(value)
        if tally.is_stuck(value):
            await released.wait()
        tally.end(token)
        handled += 1
        if handled in (first, last):
            looks.append(looked_at(app))
        if handled == spec.records:
            tell()

    tell_ready(app)
    app.run()


# --- steady --------------------------------------------------------------------------------------------------------


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
    order = read_spec()
    (drift if order.workload == "drift" else steady)(order)
