"""Does anything grow under a steady load? Memory, file handles, bytes of log per record, over twenty minutes.

A loader sends at one rate, whatever the application does; keylanes counts each record in the state of its key and sends
it on changed, exactly once. It finds a backlog, so that its queues and buffers have been as full as they get before
anything is judged: later a moment in which the machine does something else fills them no higher. Every ten seconds it
is looked at: the memory and the file handles of the process, what was written to the offset log and to the changelog
for each record, the folder of the state, and how late the record is that is being handled. In the end every record must
have been handled once and in order per key, each count right, and the output complete, once and in order for a
committed reader. What grows over the last three quarters fails.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from keylanes.runtime.logs.reader import offsets_topic
from keylanes.state.changelog import changelog_topic
from rig.book import alone
from rig.broker import running_broker
from rig.counts import write_counts
from rig.drivers import READY_SECONDS_MAX, Driver, checked, run_peer
from rig.errors import WrongRun
from rig.ground import Ground
from rig.machine import surroundings
from rig.outputs import COMMIT_MS, HEADERS, check_output
from rig.places import FOLDER
from rig.records import counts_of, keys_of
from rig.results import picture, print_table, write_result
from rig.steps import Steps
from steadiness.slopes import MIB, Verdict, Written, judge, of_intervals

NAME = "steady"
KEYS, WORKERS = 10_000, 1_000
TICK_S = 0.005
"""Of the loader: what falls due within one is written together."""
BACKLOG_S = 30.0
"""For so long the loader's timetable has been running when it begins."""
LATE_SECONDS_MAX = 120.0
READ_PER_SECOND_MIN = 20_000
MINUTES_MIN = 10
ROWS = 30
"""A table has about so many; the file has all samples."""


def main() -> int:
    """Run, then report; 0 when nothing grows."""
    parsed = arguments()
    if parsed.minutes * 60 / parsed.every < 6:
        raise SystemExit("less than six samples show nothing: more --minutes, or a smaller --every")
    settings = {
        "minutes": parsed.minutes,
        "per_second": parsed.rate,
        "every_s": parsed.every,
        "backlog_s": BACKLOG_S,
        "keys": KEYS,
        "workers": WORKERS,
        "commit_ms": COMMIT_MS,
    }
    where = surroundings()
    try:
        with alone(), running_broker(NAME) as bootstrap:
            found = run(Ground(bootstrap, FOLDER / "steady-runs"), settings)
    except WrongRun as error:
        print(f"FAILED: {error}")
        return 1
    result = {**where, "settings": settings, **found}
    write_result(NAME, result)
    picture("steadiness.plot", result, FOLDER / f"{NAME}.png")
    return report(result)


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument("--rate", type=float, default=20_000.0, help="records/s (default 20,000)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples (default 10)")
    return parser.parse_args()


# --- the run -------------------------------------------------------------------------------------------------------


def run(ground: Ground, settings: dict[str, Any]) -> dict[str, Any]:
    """The samples and the result. Raises WrongRun."""
    records = int(settings["per_second"] * (settings["minutes"] * 60 + settings["backlog_s"]))
    with ground.scratch(NAME) as folder:
        counts = counts_of(keys_of("uniform", records, KEYS), KEYS)
        group = f"{NAME}-{os.urandom(4).hex()}"
        order = {
            "arm": "keylanes",
            "workload": NAME,
            "bootstrap": ground.bootstrap,
            "topic": f"{group}-source",
            "partitions": 1,
            "group": group,
            "output": f"{group}-output",
            "folder": str(folder / "own"),
            "records": records,
            "keys": KEYS,
            "in_flight": WORKERS,
            "commit_ms": COMMIT_MS,
            "sample_s": settings["every_s"],
            "is_paced": True,
            "header": HEADERS["keylanes"],
            "expected": write_counts(folder / "expected", counts),
        }
        Path(order["folder"]).mkdir()
        ground.make(order["topic"])
        ground.make(order["output"])
        load = {name: order[name] for name in ("topic", "records", "keys")} | {"tick_s": TICK_S}
        load |= {name: settings[name] for name in ("per_second", "backlog_s")}
        looks = Looks(order, FOLDER / f"{NAME}-kafka" / "data")
        with ground.loader(load) as loader:
            loader.event("backlog", settings["backlog_s"] + READY_SECONDS_MAX)
            with run_peer("steady_app.py", order, folder) as running:
                running.event("ready", READY_SECONDS_MAX)
                result = watch(running, looks, settings)
                running.end()
            loader.end()
        print("reading the output …", flush=True)
        check_output(order, "", ground, LATE_SECONDS_MAX + records / READ_PER_SECOND_MIN)
    figures = {name: value for name, value in checked(result).items() if name != "event"}
    return {"figures": figures, "samples": of_intervals(looks.samples)}


class Looks:
    """Samples: what the process tells, with what is on disk at that moment."""

    def __init__(self, order: dict[str, Any], data: Path) -> None:
        self.state, self.data = Path(order["folder"]), data
        self.samples: list[dict[str, float]] = []
        self._logs = {
            "offset_log_bytes": (f"{offsets_topic(order['group'])}-*", Written()),
            "changelog_bytes": (f"{changelog_topic(order['group'], order['topic'])}-*", Written()),
        }

    def take(self, told: dict[str, Any]) -> None:
        """One more."""
        sample = {name: float(value) for name, value in told.items() if name != "event"}
        for name, (pattern, written) in self._logs.items():
            files = self.data.glob(f"{pattern}/*.log")
            sample[name] = float(written.look({(path.parent.name, path.name): size_of(path) for path in files}))
        sample["state_bytes"] = float(sum(size_of(path) for path in self.state.rglob("*")))
        self.samples.append(sample)


def size_of(path: Path) -> int:
    """Of a file that may be gone by now, or a folder: 0."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def watch(running: Driver, looks: Looks, settings: dict[str, Any]) -> dict[str, Any]:
    """Take samples until the result is there. Raises WrongRun."""
    count = int(settings["minutes"] * 60 / settings["every_s"])
    deadline_s = time.monotonic() + settings["minutes"] * 60 + LATE_SECONDS_MAX
    with Steps(count) as steps:
        while True:
            steps.begin(f"sample {len(looks.samples) + 1}")
            told = running.event("result", max(deadline_s - time.monotonic(), 1.0), "sample")
            if told["event"] == "result":
                return told
            looks.take(told)
            steps.end(said(looks.samples))


def said(samples: list[dict[str, float]]) -> str:
    """The last sample, for a person."""
    last = samples[-1]
    rate = (last["records"] - samples[-2]["records"]) / (last["at_s"] - samples[-2]["at_s"]) if len(samples) > 1 else 0
    return (
        f"{rate:,.0f} records/s, {last['late_ms']:,.0f} ms late, {last['rss_bytes'] / MIB:,.0f} MiB, "
        f"{last['handles']:.0f} file handles"
    )


# --- the report ----------------------------------------------------------------------------------------------------

COLUMNS = ("minute", "records/s", "late ms", "CPU µs", "MiB", "handles", "offset log B/record", "changelog B/record")
MORE_COLUMNS = ("state folder MiB", "workers")


def report(result: dict[str, Any]) -> int:
    """The table and the verdicts."""
    settings, samples = result["settings"], result["samples"]
    print_table(
        f"{settings['per_second']:,.0f} records/s, {KEYS:,} keys, a count in the state and an output for each record, "
        f"committed every {COMMIT_MS} ms",
        (*COLUMNS, *MORE_COLUMNS),
        table(samples),
    )
    if settings["minutes"] < MINUTES_MIN:
        print(f"Below {MINUTES_MIN} minutes caches and buffers still fill up: a verdict on memory says little.")
    verdicts = list(judge(samples))
    for verdict in verdicts:
        print(verdict)
    return exit_code(verdicts)


def table(samples: list[dict[str, float]]) -> list[list[object]]:
    """Some of the samples, evenly taken, the last one among them."""
    step = max(1, -(-len(samples) // ROWS))
    rows: list[list[object]] = []
    for sample in samples[::-1][::step][::-1]:
        row: list[object] = [f"{sample['at_s'] / 60:.1f}", sample["per_second"], sample["late_ms"]]
        row += [sample["cpu_us_per_record"], sample["rss_bytes"] / MIB, int(sample["handles"])]
        row += [sample["offset_log_per_record"], sample["changelog_per_record"]]
        rows.append([*row, sample["state_bytes"] / MIB, int(sample["workers"])])
    return rows


def exit_code(verdicts: list[Verdict]) -> int:
    """1 when anything grows."""
    return 1 if any(verdict.grows for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
