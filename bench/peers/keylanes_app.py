"""keylanes as a user writes it: ``App.run`` with one handler, exactly once, committed every ``commit_ms``.

Settings are the defaults, but for the commit interval, a folder for state, and a stuck record's right to be stuck; and
nothing is compressed, as in the other arms.
"""

import asyncio
import os
import signal
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from _driver import Spec, Tally, read_spec, rss_bytes, say, spin, transform, versions
from keylanes import IS_COMPILED, App, Settings, __version__
from keylanes.runtime.handlers.stores import State

STUCK_MS = 3_600_000
BARE_HANDLERS = 200
LIBRARIES = ("aiokafka", "msgspec", "rocksdict", "uvloop", "xxhash")
STATEFUL = ("W3", "steady")

Handler = Callable[..., Awaitable[Any]] | Callable[..., Any]


class Wrong:
    """How often the state did not hold what it had to."""

    def __init__(self) -> None:
        self.count = 0


def plain_handler(spec: Spec, tally: Tally) -> Handler:
    """W1, W2, W5, W6: wait, or don't."""
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000

    async def handle(value: bytes) -> None:
        token = begin(value)
        await asyncio.sleep(seconds)
        end(token)

    async def drain(value: bytes) -> None:
        end(begin(value))

    return handle if seconds else drain


def sending_handler(spec: Spec, tally: Tally) -> Handler:
    """W4 and W7 to visible: the value goes out changed; W6: there may be a record that never returns."""
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000

    async def handle(value: bytes) -> bytes:
        token = begin(value)
        if seconds:
            await asyncio.sleep(seconds)
        if tally.is_stuck(value):
            await asyncio.Event().wait()
        end(token)
        return transform(value)

    async def pass_on(value: bytes) -> bytes:
        token = begin(value)
        changed = transform(value)
        end(token)
        return changed

    return handle if seconds or spec.stuck >= 0 else pass_on


def counting_handler(tally: Tally, wrong: Wrong) -> Callable[[bytes, State[int]], Awaitable[None]]:
    """W3: the count before a record is its number within its key."""
    begin, end, turn = tally.begin, tally.end, tally.next

    async def handle(value: bytes, seen: State[int]) -> None:
        token = begin(value)
        count = seen.get() or 0
        if count != turn[token]:
            wrong.count += 1
        seen.put(count + 1)
        end(token)

    return handle


def spinning_handler(spec: Spec, tally: Tally) -> Handler:
    """W8: on threads."""
    begin, end, microseconds = tally.begin, tally.end, spec.spin_us

    def handle(value: bytes) -> None:
        token = begin(value)
        spin(microseconds)
        end(token)

    return handle


def handler(spec: Spec, tally: Tally, wrong: Wrong) -> Handler:
    """The workload's."""
    if spec.spin_us:
        return spinning_handler(spec, tally)
    if spec.workload == "W3":
        return counting_handler(tally, wrong)
    return sending_handler(spec, tally) if spec.output else plain_handler(spec, tally)


class Commits:
    """How long the longest transaction took, told at once: a process that is killed tells nothing afterwards."""

    def __init__(self) -> None:
        self.began_s = self.longest_s = 0.0

    def on_step(self, step: str) -> None:
        """Hears the commit cycle: from a transaction's first request to its last answer."""
        now = time.monotonic()
        if step == "transact":
            self.began_s = now
        elif step == "committed" and now - self.began_s > self.longest_s:
            self.longest_s = now - self.began_s
            say({"event": "commits", "transaction_s_max": self.longest_s})


def tell_ready(app: App) -> None:
    """Say when the first records may be handled; ``run`` gives no sign of it."""

    def watch() -> None:
        while app.health().state not in ("running", "failed", "stopped"):
            time.sleep(0.005)
        say({"event": "ready"})

    threading.Thread(target=watch, daemon=True).start()


async def bare_seconds(seconds: float) -> float:
    """What a handler takes when nothing else runs: the median of many, one after the other."""
    taken = []
    for _ in range(BARE_HANDLERS):
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def bare_handler_ms(spec: Spec) -> float:
    """``bare_seconds`` on the loop that an application gets."""
    import uvloop

    return uvloop.run(bare_seconds(spec.handler_ms / 1_000)) * 1_000


def app_of(spec: Spec) -> App:
    """The application, without its handler."""
    settings = Settings(
        commit_interval_ms=spec.commit_ms or 100,
        compression_type=None,
        state_folder=spec.folder if spec.workload in STATEFUL else None,
        handler_timeout_ms=STUCK_MS if spec.stuck >= 0 else Settings().handler_timeout_ms,
    )
    return App(spec.group, broker=f"kafka://{spec.bootstrap}", settings=settings)


def figures_of(app: App) -> dict[str, Any]:
    """What the application tells of its run so far, and what it ran on."""
    seen = app.statistics()
    return {
        "commits": seen.commits,
        "tiles": seen.tiles,
        "event_bytes": seen.event_bytes,
        "splits": seen.splits,
        "workers_at_end": sum(p.workers for p in seen.partitions),
        "versions": {
            "keylanes": f"{__version__} {'compiled' if IS_COMPILED else 'interpreted'}",
            **versions(*LIBRARIES),
        },
    }


def stop_in_order() -> None:
    """Also from a handler's thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def main(spec: Spec) -> None:
    """Run until all expected records are handled, then stop in order."""
    more: dict[str, Any] = {"rss_base_bytes": rss_bytes()}
    if spec.workload == "W5":
        more["bare_handler_ms"] = bare_handler_ms(spec)
    app, wrong, commits = app_of(spec), Wrong(), Commits()

    def on_all() -> None:
        say({**tally.result(), **more, **figures_of(app), "wrong_states": wrong.count})
        if spec.stuck < 0:
            stop_in_order()

    tally = Tally(spec, on_all, is_threaded=bool(spec.spin_us))
    app.handler(spec.topic, to=spec.output or None, parallelising_factor=spec.in_flight)(handler(spec, tally, wrong))
    tell_ready(app)
    app.run(on_step=commits.on_step if spec.stuck >= 0 else lambda _: None)


if __name__ == "__main__":
    main(read_spec())
