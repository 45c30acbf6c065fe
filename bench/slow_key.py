"""What do other keys wait beside a key that takes 1 s a record? Records come at a fixed rate, whatever is handled.

Arms, one after the other in each round: without the slow key, with it, and with it while splitting is off. The slow key
gets more records than one worker can handle, so its queue grows all the time. A generator in a process of its own
writes by a timetable that is the same for all arms. Latency is counted from the moment a record was due by the
timetable, so what the generator and the broker add is in it: until its handler was done, and until that was committed.
At first the slow key's range is not split off: the figures stand with these first seconds and without. Every record
of every key, the slow one's too, is handled before an arm ends, once and in order.
Required: p99 of the other keys at most twice that of the arm without the slow key.
"""

import asyncio
import contextlib
import multiprocessing
import random
import statistics
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from keylanes import App, Context, Settings
from keylanes.keyrange.hashing import point_of_key
from rig.broker import connected, create, running_broker
from rig.child import beside, in_child, run_coroutine
from rig.machine import surroundings
from rig.records import SEED, VALUE_BYTES, key_bytes, source_records
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, run_rounds
from rig.witness import Witness, WrongRun

ARMS = ("without", "slow key", "slow key, splitting off")
REQUIRED = 2.0
TICK_S = 0.005
"""The generator's; what falls due within one is written together."""
AHEAD_S = 0.5
"""From the first commit to the first record."""
LATE_MS_MAX = 50.0
"""A generator that is later than that for one record in a hundred was itself what is slow."""
PHASES = ("all", "after the first seconds")


# --- the timetable and its generator -------------------------------------------------------------------------------


class Timetable:
    """When which key's records fall due, in seconds from the start. The slow key has the highest number."""

    def __init__(self, options: dict[str, Any], has_slow: bool) -> None:
        self.slow = options["keys"]
        draw = random.Random(SEED)
        rows = [
            (i / options["rate"], draw.randrange(self.slow)) for i in range(int(options["seconds"] * options["rate"]))
        ]
        if has_slow:
            count = int(options["seconds"] * options["slow_rate"])
            rows = sorted(rows + [(i / options["slow_rate"], self.slow) for i in range(count)])
        self.due_s = [due for due, _ in rows]
        self.keys = array("I", (key for _, key in rows))
        self.of_key: list[list[int]] = [[] for _ in range(self.slow + 1)]
        """The places of each key's records."""
        for place, key in enumerate(self.keys):
            self.of_key[key].append(place)


class Start:
    """When the timetable begins, in seconds of the performance counter, which all processes of a machine share."""

    def __init__(self, across_processes: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.event = context.Event() if across_processes else threading.Event()
        self.at = context.Value("d", 0.0)

    def begin(self) -> None:
        """Begin soon; a second call does nothing."""
        if not self.event.is_set():
            self.at.value = time.perf_counter() + AHEAD_S
            self.event.set()


def generate(address: str, topic: str, start: Start, options: dict[str, Any], has_slow: bool) -> None:
    """Write each record when it is due, or as soon as the broker has taken the ones before it."""
    timetable = Timetable(options, has_slow)
    records = list(source_records(topic, timetable.keys))

    async def work() -> None:
        async with connected(address) as broker:
            await asyncio.to_thread(start.event.wait)
            appender = broker.appender()
            began, sent = float(start.at.value), 0
            while sent < len(records):
                due = bisect_right(timetable.due_s, time.perf_counter() - began)
                if due > sent:
                    await appender.append(records[sent:due])
                    sent = due
                await asyncio.sleep(TICK_S)

    run_coroutine(work())


@contextlib.contextmanager
def generator(address: str, topic: str, start: Start, options: dict[str, Any], has_slow: bool) -> Iterator[None]:
    """A generator that waits for the start."""
    running = beside(address, generate, topic, start, options, has_slow)
    try:
        yield
    finally:
        start.begin()  # nobody waits for a run that failed
        running.join(options["seconds"] + 60)


# --- an arm --------------------------------------------------------------------------------------------------------


class Latencies:
    """Of each record of the other keys: when it was done and when that was committed, after it was due."""

    def __init__(self, app: App, timetable: Timetable, start: Start) -> None:
        self.app, self.timetable, self.start = app, timetable, start
        self.points = [point_of_key(key_bytes(key)) for key in range(timetable.slow + 1)]
        self.done_s: dict[int, float] = {}
        self.committed_s: dict[int, float] = {}
        self.late_s: list[float] = []
        self.splits = 0
        self.last_split_s = 0.0
        self._waiting: list[tuple[int, int]] = []
        self._wall_s = time.time() - time.perf_counter()

    def done(self, place: int, context: Context) -> None:
        """The handler of the record at this place is done."""
        due_s = self.start.at.value + self.timetable.due_s[place]
        self.done_s[place] = time.perf_counter() - due_s
        self.late_s.append(context.timestamp / 1_000 - self._wall_s - due_s)
        self._waiting.append((place, context.offset))

    def on_step(self, step: str) -> None:
        """Hears the commit cycle."""
        if step == "take":
            self.start.begin()
        if step != "applied":
            return
        assert self.app._member is not None, "it runs"
        now, workers = time.perf_counter(), self.app._member.runs[0].dispatch.workers
        firsts, waiting = [worker.first for worker in workers], []
        for place, offset in self._waiting:
            point = self.points[self.timetable.keys[place]]
            if workers[bisect_right(firsts, point) - 1].edge > offset:
                self.committed_s[place] = now - self.start.at.value - self.timetable.due_s[place]
            else:
                waiting.append((place, offset))
        self._waiting = waiting
        if (splits := self.app.statistics().splits) > self.splits:
            self.splits, self.last_split_s = splits, now - self.start.at.value

    def figures(self, warm_up_s: float) -> dict[str, Any]:
        """By phase, until done and until committed."""
        if self._waiting:
            raise WrongRun(f"{len(self._waiting)} records were handled and not committed")
        due_s = self.timetable.due_s
        return {
            phase: {
                "done": quantiles([s for place, s in self.done_s.items() if due_s[place] >= least]),
                "committed": quantiles([s for place, s in self.committed_s.items() if due_s[place] >= least]),
            }
            for phase, least in zip(PHASES, (0.0, warm_up_s), strict=True)
        }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """In ms."""
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in shares.items()}
    return {"records": len(ordered)} | {name: 1_000 * s for name, s in {**found, "max": ordered[-1]}.items()}


def run_arm(address: str, app_name: str, arm: str, options: dict[str, Any]) -> dict[str, Any]:
    """One timetable, to the end."""
    has_slow, topic = arm != ARMS[0], f"{app_name}-source"
    timetable, slow = Timetable(options, has_slow), options["keys"]
    witness, start = Witness(timetable.keys), Start(not address.startswith("embedded:"))
    app = App(app_name, broker=address, settings=Settings(split_hot_ranges=arm != ARMS[2]))
    latencies = Latencies(app, timetable, start)
    seconds, slow_seconds = options["handler_ms"] / 1_000, options["slow_ms"] / 1_000

    @app.handler(topic, parallelising_factor=options["workers"])
    async def handle(value: bytes, context: Context) -> None:
        key = witness.begin(value)
        await asyncio.sleep(slow_seconds if key == slow else seconds)
        place = timetable.of_key[key][witness.next[key]]
        witness.end(key)
        if key != slow:
            latencies.done(place, context)
        if witness.handled == len(timetable.keys):
            app.stop()

    create(address, topic)
    with generator(address, topic, start, options, has_slow):
        app.run(on_step=latencies.on_step)
    witness.check()
    seen = app.statistics()
    return {
        **latencies.figures(options["warm_up_s"]),
        "generator_late_ms": quantiles(latencies.late_s),
        "slow_records": len(timetable.of_key[slow]),
        "splits": seen.splits,
        "merges": seen.merges,
        "last_split_s": latencies.last_split_s if latencies.splits else None,
        "cpu_us_per_record": witness.cpu_us_per_record(),
        "loop_lag_ms_max": seen.loop_lag_ms_max,
        "commits": seen.commits,
        "dropped": seen.partitions[0].dropped,
    }


# --- the rounds ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the rounds; 0 when the requirements hold."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, help="of the timetable (default 16; with --full 60)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="the first seconds (default 5)")
    parser.add_argument("--rate", type=float, default=1_000.0, help="records/s of the other keys (default 1,000)")
    parser.add_argument("--slow-rate", type=float, default=1.25, help="records/s of the slow key (default 1.25)")
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument(
        "--workers", type=int, default=64, help="the parallelising factor that is declared (default 64)"
    )
    parser.add_argument("--handler-ms", type=float, default=2.0, help="of the other keys (default 2)")
    parser.add_argument("--slow-ms", type=float, default=1_000.0)
    parsed = parser.parse_args()
    options = {
        "seconds": parsed.seconds or (60.0 if parsed.full else 16.0),
        "warm_up_s": parsed.warm_up,
        "rate": parsed.rate,
        "slow_rate": parsed.slow_rate,
        "keys": parsed.keys,
        "value_bytes": VALUE_BYTES,
        "seed": SEED,
        "workers": parsed.workers,
        "handler_ms": parsed.handler_ms,
        "slow_ms": parsed.slow_ms,
        "commit_interval_ms": Settings().commit_interval_ms,
        "balance_interval_ms": Settings().balance_interval_ms,
        "broker": parsed.broker,
    }
    where = surroundings()
    with running_broker(parsed.broker, "slow_key") as address:

        def run(arm: str, suffix: str) -> dict[str, Any]:
            return in_child(run_arm, address, f"slow-key-{suffix}", arm, options)

        rounds = run_rounds(parsed.rounds, ARMS, run, p99_said, turned=True)
    summary = summarise(rounds)
    write_result("slow_key", {**where, "settings": options, "rounds": rounds, "summary": summary})
    return report(options, rounds, summary)


def p99_said(figures: dict[str, Any]) -> str:
    """The p99 of each phase, for a person."""
    return "p99 " + ", ".join(f"{phase} {figures[phase]['done']['p99']:.1f} ms" for phase in PHASES)


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The spread of each figure, and of the ratio of each round's p99 to that of its arm without the slow key."""
    summary: dict[str, Any] = {}
    for phase in PHASES:
        for until in ("done", "committed"):
            by_arm = {arm: [r[phase][until] for r in rounds if r["arm"] == arm] for arm in ARMS}
            summary[f"{phase}, {until}"] = {
                arm: {
                    **{name: spread([s[name] for s in seen]) for name in ("p50", "p99", "p99.9", "max")},
                    "ratio": spread([s["p99"] / w["p99"] for s, w in zip(seen, by_arm[ARMS[0]], strict=True)]),
                }
                for arm, seen in by_arm.items()
            }
    return summary


def report(options: dict[str, Any], rounds: list[dict[str, Any]], summary: dict[str, Any]) -> int:
    """The tables and the verdicts."""
    rows = []
    for title, by_arm in summary.items():
        for arm, seen in by_arm.items():
            p99, ratio = seen["p99"], seen["ratio"]
            row = [
                f"{title}: {arm}",
                seen["p50"]["median"],
                p99["median"],
                f"{p99['least']:.3g} to {p99['greatest']:.3g}",
            ]
            row += [seen["p99.9"]["median"], seen["max"]["median"], f"{ratio['median']:.2f}"]
            rows.append([*row, f"{ratio['least']:.2f} to {ratio['greatest']:.2f}"])
    print_table(
        f"{options['rate']:,.0f} records/s of {options['keys']:,} keys, handler {options['handler_ms']:g} ms; the slow "
        f"key {options['slow_rate']:g}/s, {options['slow_ms']:g} ms; {options['workers']} workers declared, "
        f"{options['broker']}: ms after a record was due, medians of {rounds[-1]['round'] + 1} rounds",
        ["until, arm", "p50", "p99", "p99 of rounds", "p99.9", "max", "p99 ratio", "ratio of rounds"],
        rows,
    )
    split = [r["last_split_s"] for r in rounds if r["arm"] == ARMS[1] and r["last_split_s"] is not None]
    if split:
        print(f"Last split after {statistics.median(split):.1f} s ({min(split):.1f} to {max(split):.1f}).")
    late = max(r["generator_late_ms"]["p99"] for r in rounds)
    steady, whole = (summary[f"{phase}, done"][ARMS[1]]["ratio"]["median"] for phase in PHASES[::-1])
    results = [
        verdict(f"the generator kept to its timetable (p99 {late:.1f} ms late at most)", late <= LATE_MS_MAX),
        verdict(f"p99 after the first seconds at most {REQUIRED:g} times ({steady:.2f})", steady <= REQUIRED),
        verdict(f"p99 with the first seconds at most {REQUIRED:g} times ({whole:.2f})", whole <= REQUIRED),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
