"""What does it cost that ranges move, and what do many members on few partitions cost? keylanes, on one real Kafka.

    amplification  one partition, 1 to 8 members: what they read, what it costs, whether each of them works
    moves          ranges are handed over one after the other under 20,000 records/s: how long each stands still
    skew           all traffic goes to one partition, or to a part of the keys, from a moment on: when is it even again
    join           a member joins under load: how long until it works
    held           1,000 moves beside a range that is held: whether a snapshot or a start grows (in process, no Kafka)

Members are processes of their own. Each notes the begin and the end of every record; a run has figures only when every
record was handled once and in order per key. Every run is written down as it ends, and a second start goes on. What is
required: see ``handing_over/verdicts.py``.

    --parts moves join …  some parts              --full    full sizes; else quick ones, about six minutes
    --rounds 5            another number          --tiny    the least that runs through: figures mean nothing
    --again               begin afresh; the book before it is kept
    --report              no run: the tables, verdicts and pictures of what was written down
    --docs                the same, and the part of docs/benchmarks.md and of the README
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from handing_over import amplification, held, joining, moving, skewing
from handing_over.sizes import PARTS, SIZES, Size, arms, rounds_of
from handing_over.tables import cell, page, tables
from handing_over.verdicts import judge
from keylanes.brokers.protocol import BrokerError
from rig.book import Book, alone
from rig.broker import running_broker
from rig.figures import Content
from rig.ground import Ground
from rig.machine import Processors
from rig.pages import write_between
from rig.places import FOLDER, ROOT
from rig.results import picture, print_table, verdict
from rig.steps import Steps
from rig.witness import WrongRun

NAME = "handover"
RUNS: dict[str, Callable[[Ground, str, str, Size], dict[str, Any]]] = {
    "amplification": amplification.run,
    "moves": moving.run,
    "skew": skewing.run,
    "join": joining.run,
    "held": held.run,
}
"""What runs an arm of a part."""
WITHOUT_KAFKA = ("held",)
Wanted = tuple[str, str, int]
"""Part, arm, round."""


def main() -> int:
    """Run what is missing, then report; 0 when every run came to its end and every bar holds."""
    parsed = arguments()
    name = "full" if parsed.full else "tiny" if parsed.tiny else "quick"
    book = Book(FOLDER / f"{NAME}-{name}.json")
    if parsed.report or parsed.docs:
        book.content = book.read()
        if not book.content:
            raise SystemExit(f"nothing was written down yet: {book.path}")
    else:
        with alone():
            goes_on = book.open({"size": name}, again=parsed.again)
            print(f"{'goes on with' if goes_on else 'begins'} {book.path.relative_to(ROOT)}", flush=True)
            run_missing(book, missing(book, parsed.parts, SIZES[name], parsed.rounds), SIZES[name])
    is_good = report(book.content, parsed.parts)
    picture("handing_over.plot", book.content, book.path.with_suffix(".png"))
    if parsed.docs:
        write_between(ROOT / "docs" / "benchmarks.md", NAME, page(book.content))
        write_between(ROOT / "README.md", NAME, cell(book.content), is_inline=True)
    return 0 if is_good else 1


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int)
    sizes = parser.add_mutually_exclusive_group()
    for option in ("--full", "--tiny"):
        sizes.add_argument(option, action="store_true")
    for option in ("--again", "--report", "--docs"):
        parser.add_argument(option, action="store_true")
    return parser.parse_args()


def missing(book: Book, parts: list[str], size: Size, rounds: int | None) -> list[Wanted]:
    """The runs without figures, part by part, in rounds of all arms; each other round begins with the last one."""
    wanted = []
    for part in parts:
        for number in range(rounds if rounds and rounds_of(part, size) > 1 else rounds_of(part, size)):
            turned = arms(part, size)[:: -1 if number % 2 else 1]
            wanted += [(part, arm, number) for arm in turned if not book.has(part, arm, number)]
    return wanted


def run_missing(book: Book, wanted: list[Wanted], size: Size) -> None:
    """Run them on one broker."""
    if not wanted:
        return
    needs_kafka = any(part not in WITHOUT_KAFKA for part, _, _ in wanted)
    broker = running_broker("kafka", NAME) if needs_kafka else contextlib.nullcontext("")
    with broker as address, Steps(len(wanted)) as steps:
        ground = Ground(address.removeprefix("kafka://"), FOLDER / f"{NAME}-runs")
        for number, (part, arm, round_) in enumerate(wanted):
            label = part if arm == part else f"{part}, {arm}"
            steps.begin(f"{label}, round {round_ + 1}")
            print(f"  {label}", flush=True)
            began_s, processors = time.monotonic(), Processors()
            try:
                figures = RUNS[part](ground, arm, f"{number}-{round_}", size)
            except (WrongRun, TimeoutError, BrokerError) as error:
                book.add(part, arm, round_, failed=str(error) or type(error).__name__)
                steps.end(f"FAILED: {error}")
                continue
            took_s = time.monotonic() - began_s
            figures["stolen_share"] = processors.stolen_share()
            book.add(part, arm, round_, figures=figures, took_s=took_s)
            steps.end(f"{took_s:.0f} s")


def report(content: Content, parts: list[str]) -> bool:
    """The tables and the verdicts of some parts; whether every run came to its end and every bar holds."""
    for table in tables(content):
        if table.part in parts:
            print_table(f"{table.part}: {table.title}", table.columns, table.rows)
    failed = [run for run in content["runs"] if "failed" in run and run["workload"] in parts]
    for run in failed:
        print(f"failed: {run['workload']}, {run['arm']}, round {run['round'] + 1}: {run['failed']}")
    held_ = [verdict(f"{one.part}: {one.text}", one.holds) for one in judge(content) if one.part in parts]
    return all(held_) and not failed


if __name__ == "__main__":
    sys.exit(main())
