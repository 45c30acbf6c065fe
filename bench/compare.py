"""How fast is keylanes beside the others? Its raw limits and its peers, run for real, on the same topics.

A real Kafka is started and each topic is produced once; all arms of a workload run on it, interleaved, in rounds, with
a fresh group each. Every arm checks the order of each key and that all records came; a run that fails the check has no
figures. keylanes runs exactly once in every row; in W3-4p and W4-4p in two processes, beside Kafka Streams with two
threads. Every run is written down as it ends, and a second start goes on.

    --workloads W1 W4   only these           --full      full sizes, three rounds (five of W7); else quick ones, one
    --arms keylanes …   only these           --report    no run: tables of what was written down
    --rounds 5          another number       --docs      the same, and the README's table and docs/benchmarks.md
    --again             begin afresh; the book before it is kept
"""

import argparse
import sys
import time
from typing import Any

from comparison import kill, latency, rate
from comparison.arms import ARMS, ready
from comparison.bars import own_failures
from comparison.markdown import benchmark_tables, summary_table
from comparison.report import latency_rate, report
from comparison.workloads import WORKLOADS, Workload, chosen
from rig.book import Book, alone
from rig.broker import running_broker
from rig.errors import WrongRun
from rig.ground import Ground
from rig.machine import Processors
from rig.pages import write_between
from rig.places import FOLDER, ROOT
from rig.results import picture, print_table
from rig.steps import Steps

MARKERS = "bench"
"""Of what is written into pages."""


def main() -> int:
    """Run what is missing, then report; 0 when no counted bar fails and no run of keylanes did."""
    parsed = arguments()
    size = "full" if parsed.full else "quick"
    book = Book(FOLDER / f"compare-{size}.json")
    workloads = chosen(parsed.workloads)
    if any(w.kind == "latency" for w in workloads) and all(w.name != "W1-2ms" for w in workloads):
        workloads = [*chosen(["W1-2ms"]), *workloads]  # it sets the rate
    if parsed.report or parsed.docs:
        book.content = book.read()
        if not book.content:
            raise SystemExit(f"nothing was written down yet: {book.path}")
    else:
        settings = {"size": size, "records": {w.name: w.records(size) for w in WORKLOADS}}
        with alone():
            goes_on = book.open(settings, again=parsed.again)
            print(f"{'goes on with' if goes_on else 'begins'} {book.path.relative_to(ROOT)}", flush=True)
            rounds = {w.name: parsed.rounds or w.rounds_at(size) for w in workloads}
            run_missing(book, plan(book, workloads, parsed.arms, rounds), size)
    fails = report(book.content, workloads, print_table)
    picture("comparison.plot", book.content, book.path.with_suffix(".png"))
    if parsed.docs:
        write_between(ROOT / "README.md", MARKERS, summary_table(book.content))
        write_between(ROOT / "docs" / "benchmarks.md", MARKERS, benchmark_tables(book.content))
    return 1 if fails or own_failures(book.content) else 0


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=[], metavar="W1")
    parser.add_argument("--arms", nargs="+", default=[], metavar="ARM", choices=sorted(ARMS))
    parser.add_argument("--rounds", type=int)
    for option in ("--full", "--report", "--docs", "--again"):
        parser.add_argument(option, action="store_true")
    return parser.parse_args()


def plan(
    book: Book, workloads: list[Workload], arms: list[str], rounds: dict[str, int]
) -> list[tuple[Workload, str, int]]:
    """The runs that are missing, in order: workload by workload, interleaved in rounds, each beginning elsewhere.

    ``rounds``: by workload.
    """
    wanted = []
    for workload in workloads:
        names = [arm for arm in workload.arms if not arms or arm in arms]
        for number in range(rounds[workload.name]):
            turned = names[number % len(names) :] + names[: number % len(names)] if names else []
            wanted += [(workload, arm, number) for arm in turned if not book.has(workload.name, arm, number)]
    return wanted


def run_missing(book: Book, wanted: list[tuple[Workload, str, int]], size: str) -> None:
    """Run them on one broker."""
    skipped = dict(ready(sorted({arm for _, arm, _ in wanted})))
    book.skip(skipped)
    wanted = [(workload, arm, number) for workload, arm, number in wanted if not skipped[arm]]
    if not wanted:
        return
    cold = warm_ups(wanted, size)
    with running_broker("compare") as bootstrap, Steps(len(wanted) + sum(map(len, cold.values()))) as steps:
        ground = Ground(bootstrap, FOLDER / "runs")
        for workload, arm, number in wanted:
            for first in cold.pop(workload.name, ()):
                steps.begin(f"{workload.name}, to warm the broker up: {first}")
                steps.end(warm_up(book, ground, workload, first, size))
            steps.begin(f"{workload.name}, round {number + 1}: {arm}")
            steps.end(run_one(book, ground, workload, arm, number, size))


def warm_ups(wanted: list[tuple[Workload, str, int]], size: str) -> dict[str, list[str]]:
    """The arms that warm the broker up before a workload is measured whose tails count: what its compiler has to do
    differs from arm to arm. Of quick sizes the first one alone, for time's sake.
    """
    arms: dict[str, dict[str, None]] = {}
    for workload, arm, _ in wanted:
        if workload.kind == "latency" and (size == "full" or workload.name not in arms):
            arms.setdefault(workload.name, {})[arm] = None
    return {name: list(found) for name, found in arms.items()}


def warm_up(book: Book, ground: Ground, workload: Workload, arm: str, size: str) -> str:
    """A run that is not written down: else the first arm waits while the broker's compiler meets small requests."""
    try:
        figures_of(book, ground, workload, arm, size)
    except WrongRun as error:
        book.fail(f"{workload.name}, a warm-up, {arm}: {error}")
        return f"FAILED: {error}"
    return "done"


def run_one(book: Book, ground: Ground, workload: Workload, arm: str, number: int, size: str) -> str:
    """Run one arm once and write it down; what came of it, for a person."""
    began_s, processors = time.monotonic(), Processors()
    try:
        figures = figures_of(book, ground, workload, arm, size)
    except WrongRun as error:
        book.add(workload.name, arm, number, failed=str(error))
        return f"FAILED: {error}"
    figures["stolen_share"] = processors.stolen_share()
    book.add(workload.name, arm, number, figures=figures, took_s=time.monotonic() - began_s)
    if workload.kind == "latency":
        return f"p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms"
    again = f", {figures['again']:,} run again" if workload.kind == "kill" else ""
    return f"{figures['per_second']:,.0f} records/s{again}"


def figures_of(book: Book, ground: Ground, workload: Workload, arm: str, size: str) -> dict[str, Any]:
    """One run by the kind of its workload. Raises WrongRun."""
    if workload.kind == "latency":
        try:
            per_second = latency_rate(book.content)
        except ValueError as error:
            raise WrongRun(str(error)) from error
        return latency.run(workload, arm, size, ground, per_second)
    rate.prepare(workload, size, ground)
    run = kill.run if workload.kind == "kill" else rate.run
    return run(workload, arm, size, ground)


if __name__ == "__main__":
    sys.exit(main())
