"""How large is a commit with many busy workers? Tiles per commit, and bytes in the offset log per source record.

Arms: 1,000 and 3,000 workers, each with a backlog that keeps all of them full, and with a producer that writes at a
fixed pace whatever the application does (open loop), at 60 % of what that backlog was worked off with. All from the
offset log, read back afterwards: the first and last tenth of the commits are left out of the distribution, not out of
the totals. ``behind`` are workers that did not reach the line of their commit, so each of them may cost two tiles more;
``busy`` are workers that ran at least one record between two commits. Whether the application kept up with the producer
is judged by the time from a record's append to its end.
"""

import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import product
from multiprocessing.synchronize import Event
from typing import Any

from keylanes import App, Context, Settings
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.offsets.events import Committed
from rig.broker import committed_events, connected, create, fill, running_broker
from rig.child import beside, in_child, run_coroutine
from rig.machine import surroundings
from rig.records import SEED, VALUE_BYTES, key_bytes, source_records, uniform_keys
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, run_rounds
from rig.witness import Witness

BACKLOG = "commit-size-backlog"
LOADS = ("backlog", "paced")
PACE = 0.6
PACE_TICK_S = 0.01
SAMPLED_EVERY = 16
KEPT_UP_MS = 1_000.0
"""The median of the last tenth of the latencies: above it the records queue up."""
FIGURES = ("tiles_median", "bytes_per_record", "tiles_per_record")


class Observed:
    """What is seen from inside while it runs: busy workers per commit, records that are being handled."""

    def __init__(self, app: App, workers: int, keys: int) -> None:
        self.app = app
        self.worker_of = [point_of_key(key_bytes(key)) * workers // SPACE_END for key in range(keys)]
        self.active: set[int] = set()
        self.busy: list[int] = []
        self.running: list[int] = []
        self.latencies_ms: list[float] = []
        self.may_begin: threading.Event | Event = threading.Event()

    def on_step(self, step: str) -> None:
        """Hears the commit cycle."""
        if step == "take":
            self.running.append(self.app.statistics().running)
            self.busy.append(len(self.active))
            self.active.clear()
            self.may_begin.set()


def run_arm(address: str, app_name: str, load_kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """One run of all records."""
    keys, workers = uniform_keys(options["records"], options["keys"]), options["workers"]
    topic = f"{app_name}-source" if load_kind == "paced" else BACKLOG
    witness = Witness(keys)
    names = ("commit_lead_ms", "commit_interval_ms", "buffer_bytes_max")
    # The number of workers stays what it is.
    settings = Settings(**{name: options[name] for name in names}, split_hot_ranges=False)
    app = App(app_name, broker=address, settings=settings)
    observed = Observed(app, workers, options["keys"])
    pause = options["handler_ms"] / 1_000

    @app.handler(topic, parallelising_factor=workers)
    async def handle(value: bytes, context: Context) -> None:
        key = witness.begin(value)
        await asyncio.sleep(pause)
        witness.end(key)
        observed.active.add(observed.worker_of[key])
        if witness.handled % SAMPLED_EVERY == 0:
            observed.latencies_ms.append(time.time() * 1_000 - context.timestamp)
        if witness.handled == len(keys):
            app.stop()

    with paced(address, topic, observed, options) if load_kind == "paced" else contextlib.nullcontext():
        app.run(on_step=observed.on_step)
    witness.check()
    latencies = observed.latencies_ms
    return {
        "records": witness.handled,
        "seconds": witness.seconds,
        "per_second": witness.handled / witness.seconds,
        **log_figures(run_coroutine(read_log(address, app_name)), witness.handled),
        "running_median": statistics.median(middle(observed.running)),
        "busy_median": statistics.median(middle(observed.busy)),
        "dropped": app.statistics().partitions[0].dropped,
        "caught_up": app.statistics().partitions[0].caught_up,
        "latency_ms_median": statistics.median(latencies),
        "latency_ms_p99": quantile(latencies, 0.99),
        "latency_ms_last_tenth": statistics.median(latencies[-(len(latencies) // 10 + 1) :]),
        "loop_lag_ms_max": app.statistics().loop_lag_ms_max,
    }


async def read_log(address: str, app_name: str) -> list[tuple[int, Committed]]:
    """The commit events of a run."""
    async with connected(address) as broker:
        return await committed_events(broker, app_name)


def log_figures(log: Sequence[tuple[int, Committed]], records: int) -> dict[str, Any]:
    """Totals over all commits, and how the middle ones are distributed."""
    tiles = [len(event.tiles) for _, event in log]
    steady = middle(log)
    behind = []
    for _, event in steady:
        line = max(tile.offset_to for tile in event.tiles)
        behind.append(sum(tile.count for tile in event.tiles if tile.offset_to < line))
    seen = [len(event.tiles) for _, event in steady]
    return {
        "commits": len({event.transaction for _, event in log}),
        "tiles": sum(tiles),
        "event_bytes": sum(size for size, _ in log),
        "tiles_per_record": sum(tiles) / records,
        "bytes_per_record": sum(size for size, _ in log) / records,
        "records_per_commit": records / len(log),
        "tiles_median": statistics.median(seen),
        "tiles_tenth": quantile(seen, 0.1),
        "tiles_nine_tenths": quantile(seen, 0.9),
        "tiles_max": max(seen),
        "behind_median": statistics.median(behind),
    }


def middle(values: Sequence[Any]) -> Sequence[Any]:
    """Without the first and the last tenth."""
    cut = len(values) // 10
    return values[cut : len(values) - cut]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --- the producer with a pace of its own ---------------------------------------------------------------------------


@contextlib.contextmanager
def paced(address: str, topic: str, observed: Observed, options: dict[str, Any]) -> Iterator[None]:
    """A producer that begins when the application commits for the first time."""
    create(address, topic)
    if not address.startswith("embedded:"):
        observed.may_begin = multiprocessing.get_context("spawn").Event()
    producer = beside(address, produce, topic, observed.may_begin, options)
    try:
        yield
    finally:
        producer.join()


def produce(address: str, topic: str, begin: threading.Event | Event, options: dict[str, Any]) -> None:
    """Write all records at ``options["rate"]`` a second, however long it takes to handle them."""
    records = list(source_records(topic, uniform_keys(options["records"], options["keys"])))

    async def work() -> None:
        async with connected(address) as broker:
            await asyncio.to_thread(begin.wait)
            appender = broker.appender()
            began, sent = time.perf_counter(), 0
            while sent < len(records):
                due = min(len(records), int((time.perf_counter() - began) * options["rate"]))
                if due > sent:
                    await appender.append(records[sent:due])
                    sent = due
                await asyncio.sleep(PACE_TICK_S)

    run_coroutine(work())


# --- the rounds ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the rounds; 0 when every run was complete and in order."""
    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1_000, 3_000])
    parser.add_argument("--records", type=int, help="records of a run (default 100,000; with --full 300,000)")
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--handler-ms", type=float, nargs="+", help="default 5; with --full 5 and 50")
    parser.add_argument("--commit-lead-ms", type=int, default=Settings().commit_lead_ms)
    parser.add_argument("--commit-interval-ms", type=int, default=Settings().commit_interval_ms)
    parser.add_argument("--buffer-mib", type=int, default=16, help="buffer_bytes_max: less than a backlog takes")
    parser.add_argument("--rate", type=float, help=f"records/s of the paced arms (default {PACE:g} of the backlog's)")
    parsed = parser.parse_args()
    options = {
        "records": parsed.records or (300_000 if parsed.full else 100_000),
        "keys": parsed.keys,
        "value_bytes": VALUE_BYTES,
        "seed": SEED,
        "commit_lead_ms": parsed.commit_lead_ms,
        "commit_interval_ms": parsed.commit_interval_ms,
        "buffer_bytes_max": parsed.buffer_mib * 1024 * 1024,
        "broker": parsed.broker,
    }
    handler_ms = parsed.handler_ms or ([5.0, 50.0] if parsed.full else [5.0])
    arms = [
        {"workers": workers, "handler_ms": pause, "load": load}
        for workers, pause, load in product(parsed.workers, handler_ms, LOADS)
    ]
    where = surroundings()
    with running_broker(parsed.broker, "commit_size") as address:
        in_child(fill, address, BACKLOG, uniform_keys(options["records"], options["keys"]))
        rounds = run_arms(address, parsed.rounds, arms, {**options, "rate": parsed.rate})
    summary = summarise(rounds)
    write_result("commit_size", {**where, "settings": options, "rounds": rounds, "summary": summary})
    return report(options, rounds, summary)


def run_arms(address: str, count: int, arms: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """All rounds. A producer without a rate gets a part of the one at which the backlog before it was worked off."""
    by_name = {arm_name(arm): arm for arm in arms}
    of_backlog = 0.0

    def run(name: str, suffix: str) -> dict[str, Any]:
        nonlocal of_backlog
        arm = by_name[name]
        rate = (options["rate"] or PACE * of_backlog) if arm["load"] == "paced" else None
        figures = in_child(run_arm, address, f"commit-size-{suffix}", arm["load"], {**options, **arm, "rate": rate})
        of_backlog = figures["per_second"]
        return {**arm, "rate": rate, **figures}

    return run_rounds(count, list(by_name), run, lambda seen: f"{seen['tiles_median']:,.0f} tiles per commit")


def arm_name(figures: dict[str, Any]) -> str:
    """An arm, for people."""
    return f"{figures['workers']:,} workers, {figures['handler_ms']:g} ms, {figures['load']}"


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and spread of the main figures per arm."""
    arms = dict.fromkeys(r["arm"] for r in rounds)
    return {arm: {figure: spread([r[figure] for r in rounds if r["arm"] == arm]) for figure in FIGURES} for arm in arms}


def report(options: dict[str, Any], rounds: list[dict[str, Any]], summary: dict[str, Any]) -> int:
    """The table: medians over the rounds."""
    columns = ["arm", "records/s", "busy", "running", "records per commit", "tiles per commit", "10 %, 90 %", "behind"]
    columns += ["tiles per record", "log bytes per record", "latency ms, p99"]
    rows = []
    for arm in summary:
        mine = [r for r in rounds if r["arm"] == arm]

        def of(figure: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(statistics.median(r[figure] for r in mine))

        load_figures = [of("per_second"), of("busy_median"), of("running_median"), of("records_per_commit")]
        tiles = [of("tiles_median"), f"{of('tiles_tenth'):.0f}, {of('tiles_nine_tenths'):.0f}", of("behind_median")]
        latency = f"{of('latency_ms_median'):.0f}, {of('latency_ms_p99'):.0f}" if arm.endswith("paced") else ""
        rows.append([arm, *load_figures, *tiles, of("tiles_per_record"), of("bytes_per_record"), latency])
    lead, interval = options["commit_lead_ms"], options["commit_interval_ms"]
    title = f"{options['keys']:,} keys, {options['broker']}; commits every {interval} ms, line {lead} ms before"
    print_table(title, columns, rows)
    late = sorted({r["arm"] for r in rounds if r["load"] == "paced" and r["latency_ms_last_tenth"] > KEPT_UP_MS})
    verdict("paced workers kept up with their producer" + "".join(f"; not: {arm}" for arm in late), not late)
    return 0


if __name__ == "__main__":
    sys.exit(main())
