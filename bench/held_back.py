"""What does a worker that is held back cost the others? One record of one key waits while 1,000,000 others pass.

Two arms on the same topic: with the held record and without it. Throughput is what was handled until the last of the
other workers' records, over the time from the first one on: the held worker's records count only where they were
handled. When the others are through, the held one is let go, catches up, and the application gets level. Beside
throughput: the memory of the process and the bytes that the application holds, and the bytes of each commit event over
time, read back from the offset log. One record in twenty of each key is published; the outputs are read back, complete
and in order.
Required: at least 0.95 of the throughput, memory within the settings, commit events that do not grow. Ranges are not
split, so that this is about one that is held back; with ``--splitting`` its other keys are read again and served while
the rest passes, which costs throughput that no bar is set for.
"""

import asyncio
import statistics
import sys
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from keylanes import App, Settings
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.events import Committed
from rig.broker import all_records, committed_events, connected, fill, running_broker
from rig.child import in_child, resident_bytes, run_coroutine
from rig.machine import surroundings
from rig.records import SEED, VALUE_BYTES, key_and_number, key_bytes, uniform_keys
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, rate_said, run_rounds
from rig.witness import Witness, WrongRun

TOPIC = "held-back-source"
ARMS = ("without", "held back")
REQUIRED = 0.95
GROWTH_MAX = 1.1
"""Last tenth over first tenth of the commits."""
WIDE_OFFSET = 1 << 16
"""From here on an offset takes five bytes in an event, up to 2**32: growth below is the numbers', not the commits'."""
PUBLISHED_EVERY = 20


def held_places(options: dict[str, Any]) -> dict[int, int]:
    """The records that are held, as key → number within the key: one in each worker that is held back.

    Further ones are held a little later, so that their workers' queues fill at different times.
    """
    lanes: dict[int, int] = {}
    for key in range(options["keys"]):
        lane = lane_of(key, options)
        if lane not in lanes.values():
            lanes[key] = lane
        if len(lanes) == options["held"]:
            break
    return {key: number for number, key in enumerate(lanes)}


def lane_of(key: int, options: dict[str, Any]) -> int:
    """Which worker has a key, counted by points."""
    return bisect_right(even_bounds(options["workers"]), point_of_key(key_bytes(key))) - 1


def other_keys(options: dict[str, Any]) -> list[bool]:
    """For each key whether it belongs to a worker that is not held back."""
    held = {lane_of(key, options) for key in held_places(options)}
    return [lane_of(key, options) not in held for key in range(options["keys"])]


def source_keys(options: dict[str, Any]) -> "array[int]":
    """The records' keys, the held one first: as many as it takes for ``options["others"]`` records of the others."""
    is_other = other_keys(options)
    keys = array("I", [next(iter(held_places(options)))])
    others = 0
    for key in uniform_keys(2 * options["others"] + 100, options["keys"]):
        keys.append(key)
        others += is_other[key]
        if others == options["others"]:
            break
    return keys


class Samples:
    """Taken when a commit was applied: memory, and what the application holds."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.resident: list[int] = []
        self.queued_bytes = self.done_bytes = self.lagging = 0

    def on_step(self, step: str) -> None:
        """Hears the commit cycle."""
        if step not in ("take", "applied"):
            return
        seen = self.app.statistics()
        self.done_bytes = max(self.done_bytes, seen.done_bytes)
        self.queued_bytes = max(self.queued_bytes, sum(p.queued_bytes for p in seen.partitions))
        self.lagging = max(self.lagging, sum(p.lagging_workers for p in seen.partitions))
        if step == "applied":
            self.resident.append(resident_bytes())


def run_arm(address: str, app_name: str, is_held: bool, options: dict[str, Any]) -> dict[str, Any]:
    """One run of all records, to the end."""
    keys, others, is_other = source_keys(options), options["others"], other_keys(options)
    witness, held = Witness(keys), held_places(options) if is_held else {}
    settings = Settings(
        buffer_bytes_max=options["buffer_bytes_max"], handler_timeout_ms=600_000, split_hot_ranges=options["splitting"]
    )
    app = App(app_name, broker=address, settings=settings)
    samples, released = Samples(app), asyncio.Event()
    pause = options["handler_ms"] / 1_000
    mark: dict[str, float] = {}
    seen_others = 0

    @app.handler(TOPIC, to=f"{app_name}.out", parallelising_factor=options["workers"])
    async def handle(value: bytes) -> bytes | None:
        nonlocal seen_others
        key = witness.begin(value)
        if held.get(key) == witness.next[key]:
            await released.wait()
        if pause:
            await asyncio.sleep(pause)
        number = witness.next[key]
        witness.end(key)
        if is_other[key]:
            seen_others += 1
            if seen_others == others:
                mark.update(passed_s=witness.ended_s, handled=witness.handled, transaction=transaction_of(app))
                mark.update(pause_s_max=witness.pause_s_max, cpu_us=witness.cpu_us_per_record())
                mark.update(resident=max([*samples.resident, resident_bytes()]), samples=len(samples.resident))
                released.set()
        return value if number % PUBLISHED_EVERY == 0 else None

    base = resident_bytes()
    app.run(until="level", on_step=samples.on_step)
    level_s = time.perf_counter()
    witness.check()
    member, seen = app._member, app.statistics()
    assert member is not None, "it has run"
    log = run_coroutine(check_outputs_and_read_log(address, app_name, witness))
    passed = mark["passed_s"] - witness.began_s
    return {
        "per_second": mark["handled"] / passed,
        "handled": mark["handled"],
        "seconds": passed,
        "cpu_us_per_record": mark["cpu_us"],
        "pause_ms_max": mark["pause_s_max"] * 1_000,
        "queued_bytes_max": samples.queued_bytes,
        "done_bytes_max": samples.done_bytes,
        "resident_bytes": {"base": base, "peak": mark["resident"], "peak_to_the_end": max(samples.resident)},
        "resident_bytes_first_tenth": _tenths(samples.resident[: int(mark["samples"])])[0],
        "resident_bytes_last_tenth": _tenths(samples.resident[: int(mark["samples"])])[1],
        "dropped": seen.partitions[0].dropped,
        "lagging_workers_max": samples.lagging,
        "caught_up": seen.partitions[0].caught_up,
        "passes": member.work.catch_up.passes,
        "catch_up_s": witness.ended_s - mark["passed_s"],
        "level_s": level_s - mark["passed_s"],
        **commit_figures(log, int(mark["transaction"])),
    }


def transaction_of(app: App) -> int:
    """The number of the last transaction that was begun."""
    assert app._member is not None, "it runs"
    return app._member.work.standing.transaction


async def check_outputs_and_read_log(address: str, app_name: str, witness: Witness) -> list[tuple[int, Committed]]:
    """(bytes, event) of each commit; raises WrongRun for outputs that are not all there, once and in order."""
    async with connected(address) as broker:
        following = [0] * len(witness.expected)
        async for record in all_records(broker, f"{app_name}.out"):
            key, number = key_and_number(record.value or b"")
            if number != following[key]:
                raise WrongRun(f"output {number} of key {key} came where {following[key]} was due")
            following[key] += PUBLISHED_EVERY
        for key, (due, count) in enumerate(zip(following, witness.expected, strict=True)):
            if due < count:
                raise WrongRun(f"output {due} of key {key} is missing")
        return await committed_events(broker, app_name)


def commit_figures(log: Sequence[tuple[int, Committed]], transaction: int) -> dict[str, float]:
    """Of the commits until the others were through, from where offsets have their full width: bytes and tiles."""
    passing = [
        (size, len(event.tiles))
        for size, event in log
        if event.transaction <= transaction and min(tile.offset_from for tile in event.tiles) >= WIDE_OFFSET
    ]
    if not passing:
        raise WrongRun(f"too few records: the others were through before the first commit above offset {WIDE_OFFSET}")
    first, last = _tenths([size for size, _ in passing])
    tiles_first, tiles_last = _tenths([tiles for _, tiles in passing])
    return {
        "commits": len(passing),
        "event_bytes_first_tenth": first,
        "event_bytes_last_tenth": last,
        "event_bytes_mean": statistics.fmean(size for size, _ in passing),
        "event_bytes_max": max(size for size, _ in passing),
        "tiles_first_tenth": tiles_first,
        "tiles_last_tenth": tiles_last,
    }


def _tenths(values: Sequence[float]) -> tuple[float, float]:
    size = max(1, len(values) // 10)
    return statistics.fmean(values[:size]), statistics.fmean(values[-size:])


def main() -> int:
    """Run the rounds; 0 when the requirements hold."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--others", type=int, default=1_000_000, help="records of the other workers")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=256, help="the parallelising factor (default 256)")
    parser.add_argument("--handler-ms", type=float, default=0.0, help="0: it does not suspend")
    parser.add_argument("--held", type=int, default=1, help="workers that are held back")
    parser.add_argument(
        "--buffer-mib", type=int, default=32, help="buffer_bytes_max: so small that records are dropped"
    )
    parser.add_argument("--splitting", action="store_true", help="split the held range, as by default settings")
    parsed = parser.parse_args()
    options = {
        "others": parsed.others,
        "splitting": parsed.splitting,
        "keys": parsed.keys,
        "value_bytes": VALUE_BYTES,
        "seed": SEED,
        "workers": parsed.workers,
        "held": parsed.held,
        "handler_ms": parsed.handler_ms,
        "buffer_bytes_max": parsed.buffer_mib * 1024 * 1024,
        "done_bytes_max": Settings().done_bytes_max,
        "published_every": PUBLISHED_EVERY,
        "broker": parsed.broker,
    }
    where = surroundings()
    with running_broker(parsed.broker, "held_back") as address:
        in_child(fill, address, TOPIC, source_keys(options))
        count = max(parsed.rounds, 5) if parsed.full else parsed.rounds

        def run(arm: str, suffix: str) -> dict[str, Any]:
            return in_child(run_arm, address, f"held-back-{suffix}", arm == "held back", options)

        rounds = run_rounds(count, ARMS, run, rate_said, turned=True)
    summary = summarise(rounds)
    write_result("held_back", {**where, "settings": options, "rounds": rounds, "summary": summary})
    return report(options, rounds, summary)


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread per arm, and of the ratio within each round."""
    rates = {arm: [r["per_second"] for r in rounds if r["arm"] == arm] for arm in ARMS}
    ratios = [held / free for free, held in zip(*rates.values(), strict=True)]
    growth = [r["event_bytes_last_tenth"] / r["event_bytes_first_tenth"] for r in rounds if r["arm"] == "held back"]
    cpu = {a: spread([r["cpu_us_per_record"] for r in rounds if r["arm"] == a]) for a in ARMS}
    by_arm = {a: spread(v) for a, v in rates.items()}
    return {**by_arm, "cpu_us_per_record": cpu, "ratio": spread(ratios), "event_growth": spread(growth)}


def report(options: dict[str, Any], rounds: list[dict[str, Any]], summary: dict[str, Any]) -> int:
    """The tables and the verdicts."""
    mib = 1024 * 1024
    columns = ["round, arm", "records/s", "CPU µs", "longest pause ms", "RSS peak MiB", "RSS first, last tenth"]
    columns += ["queued MiB", "done MiB", "event bytes first, last tenth", "tiles"]
    rows = []
    for r in rounds:
        rss = f"{r['resident_bytes_first_tenth'] / mib:.0f}, {r['resident_bytes_last_tenth'] / mib:.0f}"
        events = f"{r['event_bytes_first_tenth']:.0f}, {r['event_bytes_last_tenth']:.0f}"
        tiles = f"{r['tiles_first_tenth']:.1f}, {r['tiles_last_tenth']:.1f}"
        row = [
            f"{r['round']}, {r['arm']}",
            r["per_second"],
            r["cpu_us_per_record"],
            r["pause_ms_max"],
            r["resident_bytes"]["peak"] / mib,
            rss,
        ]
        rows.append([*row, r["queued_bytes_max"] / mib, r["done_bytes_max"] / mib, events, tiles])
    print_table(
        f"{options['others']:,} records pass, {options['workers']} workers, {options['keys']:,} keys, handler "
        f"{options['handler_ms']:g} ms, splitting {'on' if options['splitting'] else 'off'}, {options['broker']}",
        columns,
        rows,
    )
    held = [r for r in rounds if r["arm"] == "held back"]
    print_table(
        "When the held worker is let go",
        ["round", "it lacked", "caught up after s", "level after s", "passes"],
        [[str(r["round"]), r["caught_up"], r["catch_up_s"], r["level_s"], r["passes"]] for r in held],
    )
    ratio, growth = summary["ratio"], summary["event_growth"]
    print(
        f"Held back over without, in a round: {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['greatest']:.3f})."
    )
    within = all(
        r["queued_bytes_max"] <= options["buffer_bytes_max"] and r["done_bytes_max"] <= options["done_bytes_max"]
        for r in rounds
    )
    results = []
    if not options["splitting"]:
        results.append(verdict(f"at least {REQUIRED} of the throughput", ratio["median"] >= REQUIRED))
    results += [
        verdict("queued and done bytes within buffer_bytes_max and done_bytes_max", within),
        verdict(
            f"commit events do not grow (last tenth over first: {growth['median']:.2f})", growth["median"] <= GROWTH_MAX
        ),
        verdict("records were dropped and caught up", all(r["dropped"] and r["caught_up"] for r in held)),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
