"""What do several processes on one machine make of handlers that compute? ``app.run(processes=…)`` on one real Kafka.

The topics are filled beforehand. A run lasts from the first record that begins to the last that ends, over all
processes, and has figures only when every record was handled once and in order per key. Its *steady* part is from when
all were at work until the first of them has nothing left. On one partition the last records are handled while parts of
it are handed over. Every run is written down as it ends, and a second start goes on; the arms of a round follow each
other.

    --full       full sizes, within 20 minutes; else quick ones, within five
    --rounds 5   another number
    --again      begin afresh; the book before it is kept
    --report     no run: the table, the verdicts and the picture of what was written down
"""

import argparse
import sys
import time
from statistics import median
from typing import Any

from keylanes.brokers.protocol import BrokerError
from rig.book import Book, alone
from rig.broker import running_broker
from rig.figures import Content
from rig.ground import Ground
from rig.places import FOLDER, ROOT
from rig.results import picture, print_table, verdict
from rig.steps import Steps
from rig.witness import WrongRun
from spreading.run import Arm, run

NAME = "cores"
PROCESSES = {1_000: (1, 2), 100: (1, 2, 4, 8)}
"""By µs of processor time per record. More than there are cores show what they cost: where the rest is cheap."""
PARTITIONS = (4, 1)
RECORDS = {"full": {1_000: 20_000, 100: 200_000}, "quick": {1_000: 8_000, 100: 100_000}}
"""By size and µs of processor time per record."""
ROUNDS = {"full": 3, "quick": 1}
TIMES_MIN, OF_US = 1.6, 1_000
"""So many times the rate of one process two have to reach, of such a handler, where there are two cores."""
COLUMNS = (
    "", "records/s", "of one", "steady", "of one", "all at work s", "at work", "read", "CPU µs", "MiB",
    "handed over ms", "longest", "runs",
)  # fmt: skip
MIB = 1024 * 1024


def main() -> int:
    """Run what is missing, then report; 0 when every run came to its end and every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int)
    for option in ("--full", "--again", "--report"):
        parser.add_argument(option, action="store_true")
    parsed = parser.parse_args()
    size = "full" if parsed.full else "quick"
    book = Book(FOLDER / f"{NAME}-{size}.json")
    if parsed.report:
        book.content = book.read()
        if not book.content:
            raise SystemExit(f"nothing was written down yet: {book.path}")
    else:
        with alone():
            goes_on = book.open({"size": size}, again=parsed.again)
            print(f"{'goes on with' if goes_on else 'begins'} {book.path.relative_to(ROOT)}", flush=True)
            run_missing(book, size, parsed.rounds or ROUNDS[size])
    is_good = report(book.content)
    picture("spreading.plot", book.content, book.path.with_suffix(".png"))
    return 0 if is_good else 1


def arms() -> list[Arm]:
    """All of them."""
    return [Arm(us, partitions, n) for us in PROCESSES for partitions in PARTITIONS for n in PROCESSES[us]]


def run_missing(book: Book, size: str, rounds: int) -> None:
    """In rounds of all arms; each other round begins with the last one."""
    wanted = [(arm, number) for number in range(rounds) for arm in arms()[:: -1 if number % 2 else 1]]
    wanted = [(arm, number) for arm, number in wanted if not book.has(NAME, arm.name, number)]
    if not wanted:
        return
    with running_broker("kafka", NAME) as address, Steps(len(wanted)) as steps:
        ground = Ground(address.removeprefix("kafka://"), FOLDER / f"{NAME}-runs")
        for place, (arm, number) in enumerate(wanted):
            steps.begin(f"{arm.name}, round {number + 1}")
            began_s = time.monotonic()
            try:
                found = run(ground, arm, RECORDS[size][arm.spin_us], f"{place}-{number}")
            except (WrongRun, TimeoutError, BrokerError) as error:
                book.add(NAME, arm.name, number, failed=str(error) or type(error).__name__)
                steps.end(f"FAILED: {error}")
                continue
            book.add(NAME, arm.name, number, figures={**found, "arm": [*arm]}, took_s=time.monotonic() - began_s)
            steps.end(f"{found['per_second']:,.0f} records/s")


def report(content: Content) -> bool:
    """The table and the verdicts; whether every run came to its end and every bar holds."""
    found = {arm: runs for arm in arms() if (runs := figures_of(content, arm))}
    title = "Handlers that compute, in several processes of one parent; medians, per record, of all processes"
    print_table(title, COLUMNS, [row(found, arm) for arm in found])
    failed = [r for r in content["runs"] if "failed" in r]
    for one in failed:
        print(f"failed: {one['arm']}, round {one['round'] + 1}: {one['failed']}")
    held = []
    for partitions in PARTITIONS:
        one, two = Arm(OF_US, partitions, 1), Arm(OF_US, partitions, 2)
        if one in found and two in found:
            reached, in_all = (times(found, two, name) or 0.0 for name in ("steady_per_second", "per_second"))
            where = f"{OF_US:,} µs of processor time per record, {partitions} partition(s)"
            seen = f"two processes reach {reached:.2f} times the rate of one, {in_all:.2f} times over the whole run"
            held.append(verdict(f"{where}: {seen}; required {TIMES_MIN:g}", reached >= TIMES_MIN))
    return all(held) and not failed


def figures_of(content: Content, arm: Arm) -> list[dict[str, Any]]:
    """Of all runs of an arm that ended well."""
    return [r["figures"] for r in content["runs"] if r["arm"] == arm.name and "figures" in r]


def middle(runs: list[dict[str, Any]], name: str) -> float | None:
    """The median of a figure; None where no run has it."""
    known = [one[name] for one in runs if one[name] is not None]
    return median(known) if known else None


def times(found: dict[Arm, list[dict[str, Any]]], arm: Arm, name: str) -> float | None:
    """How many times that of one process a figure is."""
    of_one = middle(found.get(arm._replace(processes=1), []), name)
    own = middle(found[arm], name)
    return own / of_one if own is not None and of_one else None


def row(found: dict[Arm, list[dict[str, Any]]], arm: Arm) -> list[Any]:
    """Of an arm, as it is shown."""
    runs = found[arm]
    cells: list[Any] = [arm.name]
    for name in ("per_second", "steady_per_second"):
        reached = times(found, arm, name)
        cells += [middle(runs, name) or "", "" if reached is None else f"{reached:.2f} ×"]
    cells += [middle(runs, name) for name in ("spread_s", "at_work", "read", "cpu_us_per_record")]
    cells.append((middle(runs, "memory_bytes") or 0) / MIB)
    still = [ms for one in runs for ms in one["handed_over_ms"]]
    return [*cells, median(still) if still else "", max(still, default=""), len(runs)]


if __name__ == "__main__":
    sys.exit(main())
