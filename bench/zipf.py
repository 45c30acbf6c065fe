"""How near do hot keys come to the best there is? Zipf-distributed keys, few declared workers, splitting on and off.

The records of one key run one after the other, so no run can be shorter than the hottest key's records take: that is
the bound. Its records are counted, and the time of a handler is measured bare, in the same process before the run: what
``asyncio.sleep`` really takes there. Beside it stands the bound by the handler times of the run itself. The clock runs
from the first record's begin to the last one's end, so it includes the time in which nothing is split yet.
Required: with splitting on at least 0.9 of the bound; that the same is missed without shows that the splits do it.
"""

import asyncio
import random
import statistics
import sys
import time
from array import array
from itertools import accumulate
from typing import Any

from keylanes import App, Settings
from rig.broker import fill, running_broker
from rig.child import in_child, run_coroutine
from rig.machine import surroundings
from rig.records import SEED, VALUE_BYTES
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, run_rounds
from rig.witness import Witness

TOPIC = "zipf-source"
ARMS = ("splitting on", "splitting off")
REQUIRED = 0.9
BARE_HANDLERS = 200
HOTTEST = 0
"""Keys are numbered by rank."""


def zipf_keys(options: dict[str, Any]) -> "array[int]":
    """Which key each record has: the one of rank r with a probability of 1 / r**exponent, about."""
    weights = list(accumulate(1 / (rank + 1) ** options["exponent"] for rank in range(options["keys"])))
    drawn = random.Random(SEED).choices(range(options["keys"]), cum_weights=weights, k=options["records"])
    return array("I", drawn)


async def bare_seconds(seconds: float) -> float:
    """What a handler takes when nothing else runs: the median of many, one after the other."""
    taken = []
    for _ in range(BARE_HANDLERS):
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


class Progress:
    """When splits were made, and how far the hottest key was then."""

    def __init__(self, app: App, witness: Witness) -> None:
        self.app, self.witness = app, witness
        self.splits = self.hottest = 0
        self.last_split_s = 0.0

    def on_step(self, step: str) -> None:
        """Hears the commit cycle."""
        if step == "applied" and (splits := self.app.statistics().splits) > self.splits:
            self.splits, self.hottest = splits, self.witness.next[HOTTEST]
            self.last_split_s = time.perf_counter()


def run_arm(address: str, app_name: str, is_on: bool, options: dict[str, Any]) -> dict[str, Any]:
    """All records, to the end."""
    keys, seconds = zipf_keys(options), options["handler_ms"] / 1_000
    bare_s = run_coroutine(bare_seconds(seconds))
    witness, hottest = Witness(keys), keys.count(HOTTEST)
    settings = Settings(split_hot_ranges=is_on, buffer_bytes_max=options["buffer_bytes_max"])
    app = App(app_name, broker=address, settings=settings)
    progress = Progress(app, witness)
    handler_s = hottest_ended_s = cpu_us = 0.0

    @app.handler(TOPIC, parallelising_factor=options["workers"])
    async def handle(value: bytes) -> None:
        nonlocal handler_s, hottest_ended_s, cpu_us
        began = time.perf_counter()
        key = witness.begin(value)
        await asyncio.sleep(seconds)
        witness.end(key)
        if key == HOTTEST:
            hottest_ended_s = witness.ended_s
            handler_s += hottest_ended_s - began
        if witness.handled == len(keys):
            cpu_us = witness.cpu_us_per_record()

    app.run(until="level", on_step=progress.on_step)
    witness.check()
    seen = app.statistics()
    since_s = progress.last_split_s or witness.began_s
    alone_s = (hottest - progress.hottest) * bare_s
    return {
        "records": len(keys),
        "hottest": hottest,
        "seconds": witness.seconds,
        "per_second": len(keys) / witness.seconds,
        "bare_handler_ms": bare_s * 1_000,
        "handler_ms": handler_s / hottest * 1_000,
        "bound_seconds": hottest * bare_s,
        "bound_per_second": len(keys) / (hottest * bare_s),
        "ratio": hottest * bare_s / witness.seconds,
        "ratio_in_run": handler_s / witness.seconds,
        "ratio_after_last_split": alone_s / (hottest_ended_s - since_s) if hottest_ended_s > since_s else None,
        "splits": seen.splits,
        "merges": seen.merges,
        "last_split_s": progress.last_split_s - witness.began_s if progress.splits else None,
        "hot_keys": len(seen.hot_keys),
        "cpu_us_per_record": cpu_us,
        "pause_ms_max": witness.pause_s_max * 1_000,
        "loop_lag_ms_max": seen.loop_lag_ms_max,
        "commits": seen.commits,
        "dropped": seen.partitions[0].dropped,
    }


def main() -> int:
    """Run the rounds; 0 when the requirements hold."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--records", type=int, help="records (default 20,000; with --full 100,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--exponent", type=float, default=1.0, help="of the distribution (default 1)")
    parser.add_argument(
        "--workers", type=int, default=32, help="the parallelising factor that is declared (default 32)"
    )
    parser.add_argument("--handler-ms", type=float, default=10.0)
    parser.add_argument("--buffer-kib", type=int, help="buffer_bytes_max: less than all records, and some are dropped")
    parsed = parser.parse_args()
    options = {
        "records": parsed.records or (100_000 if parsed.full else 20_000),
        "keys": parsed.keys,
        "exponent": parsed.exponent,
        "value_bytes": VALUE_BYTES,
        "seed": SEED,
        "workers": parsed.workers,
        "workers_max": parsed.workers * Settings().workers_factor_max,
        "buffer_bytes_max": 1024 * parsed.buffer_kib if parsed.buffer_kib else Settings().buffer_bytes_max,
        "balance_interval_ms": Settings().balance_interval_ms,
        "handler_ms": parsed.handler_ms,
        "broker": parsed.broker,
    }
    where = surroundings()
    with running_broker(parsed.broker, "zipf") as address:
        in_child(fill, address, TOPIC, zipf_keys(options))

        def run(arm: str, suffix: str) -> dict[str, Any]:
            return in_child(run_arm, address, f"zipf-{suffix}", arm == ARMS[0], options)

        rounds = run_rounds(parsed.rounds, ARMS, run, lambda seen: f"{seen['ratio']:.3f} of the bound", turned=True)
    summary = summarise(rounds)
    write_result("zipf", {**where, "settings": options, "rounds": rounds, "summary": summary})
    return report(options, rounds, summary)


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread per arm."""
    names = ("ratio", "ratio_in_run", "per_second", "bound_per_second")
    return {arm: {name: spread([r[name] for r in rounds if r["arm"] == arm]) for name in names} for arm in ARMS}


def report(options: dict[str, Any], rounds: list[dict[str, Any]], summary: dict[str, Any]) -> int:
    """The table and the verdicts."""
    columns = ["round, arm", "records/s", "the bound", "ratio", "ratio in run", "after last split"]
    columns += ["handler ms bare, in run", "splits", "last split after s", "CPU µs", "dropped"]
    rows = []
    for r in rounds:
        row = [f"{r['round']}, {r['arm']}", r["per_second"], r["bound_per_second"], f"{r['ratio']:.3f}"]
        after = r["ratio_after_last_split"]
        row += [f"{r['ratio_in_run']:.3f}", "" if after is None or not r["splits"] else f"{after:.3f}"]
        row += [f"{r['bare_handler_ms']:.2f}, {r['handler_ms']:.2f}", r["splits"]]
        rows.append([*row, "" if r["last_split_s"] is None else r["last_split_s"], r["cpu_us_per_record"]])
        rows[-1].append(r["dropped"])
    print_table(
        f"{options['records']:,} records of {options['keys']:,} keys, Zipf({options['exponent']:g}), "
        f"{options['workers']} workers declared, handler {options['handler_ms']:g} ms, {options['broker']}",
        columns,
        rows,
    )
    share = rounds[0]["hottest"] / rounds[0]["records"]
    print(f"The hottest key has {share:.1%} of the records; the bound is their number times the bare handler time.")
    on, off = (summary[arm]["ratio"] for arm in ARMS)
    for arm, ratio in zip(ARMS, (on, off), strict=True):
        own = summary[arm]["ratio_in_run"]["median"]
        print(
            f"{arm}: {ratio['median']:.3f} of the bound ({ratio['least']:.3f} to {ratio['greatest']:.3f}); {own:.3f} "
            "of the bound by the handler times of the run, which a busy machine makes longer."
        )
    results = [
        verdict(f"with splitting at least {REQUIRED} of the bound", on["median"] >= REQUIRED),
        verdict(f"without splitting less than {REQUIRED} of the bound", off["median"] < REQUIRED),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
