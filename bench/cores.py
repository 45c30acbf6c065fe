"""What do several processes on one machine make of handlers that compute? ``app.run(processes=…)`` on one real Kafka.

The topics are filled beforehand. A run lasts from the first record that begins to the last that ends, over all
processes, and has figures only when every record was handled once and in order per key. Every run is written down as it
ends, and a second start goes on; the arms of a round follow each other.

    --full       full sizes; else quick ones, about four minutes
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
PROCESSES = (1, 2, 4, 8)
PARTITIONS = (4, 1)
RECORDS = {"full": {1_000: 30_000, 100: 200_000}, "quick": {1_000: 6_000, 100: 40_000}}
"""By size and µs of processor time per record."""
ROUNDS = {"full": 3, "quick": 1}
TIMES_MIN, OF_US = 1.6, 1_000
"""So many times the rate of one process two have to reach, of such a handler, where there are two cores."""
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
    return [Arm(us, partitions, n) for us in RECORDS["full"] for partitions in PARTITIONS for n in PROCESSES]


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
    rows: list[list[Any]] = []
    rates: dict[Arm, float] = {}
    for arm in arms():
        runs = [r["figures"] for r in content["runs"] if r["arm"] == arm.name and "figures" in r]
        if not runs:
            continue
        rates[arm] = median(one["per_second"] for one in runs)
        alone_ = rates.get(arm._replace(processes=1))
        spread = f"{min(one['per_second'] for one in runs):,.0f} to {max(one['per_second'] for one in runs):,.0f}"
        times = f"{rates[arm] / alone_:.2f} ×" if alone_ else ""
        cpu, peak = (median(one[name] for one in runs) for name in ("cpu_us_per_record", "peak_bytes"))
        least = min(min(one["shares"]) for one in runs)
        rows.append([arm.name, rates[arm], spread, times, cpu, peak / MIB, f"{least:.0%}", len(runs)])
    columns = ("", "records/s", "from, to", "of one", "CPU µs/record", "peak MiB", "least share", "runs")
    print_table("Handlers that compute, in several processes of one parent; medians", columns, rows)
    failed = [r for r in content["runs"] if "failed" in r]
    for one in failed:
        print(f"failed: {one['arm']}, round {one['round'] + 1}: {one['failed']}")
    held = []
    for partitions in PARTITIONS:
        pair = [rates.get(Arm(OF_US, partitions, n)) for n in (1, 2)]
        if pair[0] and pair[1]:
            reached = pair[1] / pair[0]
            where = f"{OF_US:,} µs of processor time per record, {partitions} partition(s)"
            text = f"{where}: two processes reach {reached:.2f} times the rate of one; required {TIMES_MIN:g}"
            held.append(verdict(text, reached >= TIMES_MIN))
    return all(held) and not failed


if __name__ == "__main__":
    sys.exit(main())
