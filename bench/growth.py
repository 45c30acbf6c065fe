"""How does cost grow? Throughput and memory over workers, keys, partitions, the size of values, and drift.

On each axis one thing becomes larger. A point is keylanes in a process of its own, exactly once, on one real Kafka, by
a handler that does nothing, and on some axes also by one that counts in its state. Every point checks that each record
was handled once and in order per key; without that it has no figures. Each is written down as it ends, and a second
start goes on. A curve that bends is a defect (then this ends with 1), or its reason is told. Where one run says that
throughput bends, that point and the best of its curve are run twice more, in turn, and the median run counts.

    --only workers keys …   some axes           --quick    few points, small ones
    --again                 begin afresh; the book before it is kept
    --report                no run: the tables and the picture of what was written down
"""

import argparse
import sys
import time
from typing import Any

from growing.bends import bends, doubtful
from growing.points import AXES, Axis, Point, points
from growing.run import run_point
from rig.book import Book, alone
from rig.broker import running_broker
from rig.figures import Content
from rig.ground import Ground
from rig.places import FOLDER, ROOT
from rig.results import picture, print_table
from rig.steps import Steps
from rig.witness import WrongRun

MIB = 1024 * 1024
RUNS = 3
"""Of a point that decides whether a curve bends."""
COLUMNS = ("", "handler", "records", "records/s", "MB/s", "CPU µs", "peak MiB", "before", "start s", "log B/record")
COLUMNS_OF = {"drift": ("B/commit", "tiles", "queued MiB", "caught up in s", "peak then")}
"""After the window of a drift the stuck key's neighbours catch up: how long it takes, and the memory until then."""
MORE_COLUMNS = ("B/commit", "tiles", "splits")


def main() -> int:
    """Run what is missing, then report; 0 when all points are there and nothing bends without a reason."""
    parsed = arguments()
    size = "quick" if parsed.quick else "full"
    book = Book(FOLDER / f"growth-{size}.json")
    axes = [axis for axis in AXES if not parsed.only or axis.name in parsed.only]
    if parsed.report:
        book.content = book.read()
        if not book.content:
            raise SystemExit(f"nothing was written down yet: {book.path}")
    else:
        with alone():
            goes_on = book.open({"size": size}, again=parsed.again)
            print(f"{'goes on with' if goes_on else 'begins'} {book.path.relative_to(ROOT)}", flush=True)
            run_missing(book, [point for axis in axes for point in points(axis, size)])
    is_good = report(book.content, axes)
    picture("growing.plot", book.content, book.path.with_suffix(".png"))
    return 0 if is_good else 1


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS", choices=[axis.name for axis in AXES])
    for option in ("--quick", "--again", "--report"):
        parser.add_argument(option, action="store_true")
    return parser.parse_args()


def missing(book: Book, wanted: list[Point]) -> list[Point]:
    """Those without figures, in order."""
    return [point for point in wanted if not book.has(point.axis, point.handler, point.x)]


def unsettled(book: Book, wanted: list[Point]) -> list[Point]:
    """Those that decide whether a curve bends, and were run once."""
    decide = doubtful(book.content)
    settled = {(run["workload"], run["arm"], run["round"]) for run in book.content["runs"] if "rates" in run}
    return [point for point in wanted if (point.axis, point.handler, point.x) in decide - settled]


def run_missing(book: Book, wanted: list[Point]) -> None:
    """Run them on one broker; then what is unsettled, until nothing is."""
    left = missing(book, wanted)
    if not left and not unsettled(book, wanted):
        return
    with running_broker("kafka", "growth") as address:
        ground = Ground(address.removeprefix("kafka://"), FOLDER / "grow-runs")
        with Steps(len(left)) as steps:
            while left:
                point = left.pop(0)
                steps.begin(str(point))
                steps.end(run_one(book, ground, point, all(point.topic != other.topic for other in left)))
        while again := unsettled(book, wanted):
            print(f"{len(again)} points decide whether throughput bends: run {RUNS - 1} times more", flush=True)
            with Steps((RUNS - 1) * len(again)) as steps:
                settle(book, ground, again, steps)


def run_one(book: Book, ground: Ground, point: Point, is_last_of_topic: bool) -> str:
    """Run a point and write it down; what came of it, for a person."""
    began_s = time.monotonic()
    try:
        figures = run_point(point, ground, is_last_of_topic)
    except WrongRun as error:
        book.add(point.axis, point.handler, point.x, failed=str(error))
        return f"FAILED: {error}"
    book.add(point.axis, point.handler, point.x, figures=figures, took_s=time.monotonic() - began_s)
    return outcome_of(figures)


def settle(book: Book, ground: Ground, again: list[Point], steps: Steps) -> None:
    """Run each some times more, in turn; of all of its runs the median one is written down."""
    runs = [[figures] for point in again if (figures := book.figures(point.axis, point.handler, point.x))]
    for number in range(1, RUNS):
        for point, seen in zip(again, runs, strict=True):
            steps.begin(str(point))
            try:
                seen.append(run_point(point, ground, is_last_of_topic=False))
            except WrongRun as error:
                book.add(point.axis, point.handler, point.x, failed=str(error), rates=rates_seen(seen))
                steps.end(f"FAILED: {error}")
            else:
                steps.end(f"{outcome_of(seen[-1])}, run {number + 1}")
    for point, seen in zip(again, runs, strict=True):
        if len(seen) == RUNS:
            book.add(point.axis, point.handler, point.x, figures=median_run(seen), rates=rates_seen(seen))


def median_run(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median throughput, of an odd number."""
    return sorted(seen, key=lambda figures: figures["per_second"])[len(seen) // 2]


def rates_seen(seen: list[dict[str, Any]]) -> list[float]:
    """The throughput of each run, in order."""
    return [figures["per_second"] for figures in seen]


def outcome_of(figures: dict[str, Any]) -> str:
    """A run that ended well, for a person."""
    return f"{figures['per_second']:,.0f} records/s, {figures['memory_bytes'] / MIB:,.0f} MiB"


# --- the report ----------------------------------------------------------------------------------------------------


def report(content: Content, axes: list[Axis]) -> bool:
    """The tables, and what bends; whether all is well."""
    names = [axis.name for axis in axes]
    runs = [run for run in content["runs"] if run["workload"] in names]
    for axis in axes:
        rows = table(content, axis)
        if rows:
            columns = (axis.unit, *COLUMNS[1:], *COLUMNS_OF.get(axis.name, MORE_COLUMNS))
            print_table(f"{axis.name}: {axis.title}", columns, rows)
    failed = [run for run in runs if "failed" in run]
    for run in failed:
        print(f"failed: {run['workload']} {run['round']:,}, {run['arm']}: {run['failed']}")
    for run in runs:
        if "rates" in run and "figures" in run:
            rates = ", ".join(f"{rate:,.0f}" for rate in run["rates"])
            print(f"the median run of {run['workload']} {run['round']:,}, {run['arm']}: of {rates} records/s")
    found = [bend for bend in bends(content) if bend.axis in names]
    for bend in found:
        print(bend)
    if len(runs) > len(failed) and not found:
        print("Nothing bends.")
    return not failed and all(bend.reason for bend in found)


def table(content: Content, axis: Axis) -> list[list[object]]:
    """A row for each point, in the order of the axis."""
    runs = [run for run in content["runs"] if run["workload"] == axis.name and "figures" in run]
    rows: list[list[object]] = []
    for run in sorted(runs, key=lambda run: (axis.handlers.index(run["arm"]), run["round"])):
        seen = run["figures"]
        row: list[object] = [f"{run['round']:,}", run["arm"], seen["records"], seen["per_second"]]
        row += [seen["megabytes_per_second"], seen["cpu_us_per_record"], round(seen["memory_bytes"] / MIB)]
        row += [round(seen["rss_base_bytes"] / MIB), seen["start_s"], seen["event_bytes_per_record"]]
        row += [seen["event_bytes_per_commit"], seen["tiles_per_commit"]]
        if axis.name == "drift":
            row += [seen["queued_bytes"] / MIB, seen["tail_s"], round(seen["rss_peak_to_the_end"] / MIB)]
        else:
            row.append(seen["splits"])
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
