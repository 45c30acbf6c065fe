"""A bench of several parts, each with arms and rounds, that a book keeps: every run is written down as it ends, and a
second start goes on.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from keylanes.brokers.protocol import BrokerError
from rig.book import Book, alone
from rig.broker import running_broker
from rig.figures import Content
from rig.ground import Ground
from rig.machine import Processors
from rig.places import FOLDER, ROOT
from rig.results import picture, print_table, verdict
from rig.steps import Steps
from rig.witness import Skipped, WrongRun

S = TypeVar("S")
Wanted = tuple[str, str, int]
"""Part, arm, round."""


class Table(Protocol):
    """What a person reads of a part."""

    @property
    def part(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[Any]]: ...


class Verdict(Protocol):
    """Whether what is required of a part holds."""

    @property
    def part(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def holds(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Parts(Generic[S]):
    """``runs``: what runs an arm of a part. ``sizes``: "tiny", "quick" and "full". ``plot``: the module that draws.
    ``chosen``: the parts that run where none is named. ``write``: fills the pages of docs/ from a book.
    """

    name: str
    doc: str | None
    runs: Mapping[str, Callable[[Ground, str, str, S], dict[str, Any]]]
    sizes: Mapping[str, S]
    arms: Callable[[str, S], list[str]]
    rounds_of: Callable[[str, S], int]
    tables: Callable[[Content], Sequence[Table]]
    judge: Callable[[Content], Sequence[Verdict]]
    write: Callable[[Content], None]
    plot: str
    without_kafka: tuple[str, ...] = ()

    def main(self) -> int:
        """Run what is missing, then report; 0 when every run came to its end and every bar holds."""
        parsed = self.arguments()
        name = "full" if parsed.full else "tiny" if parsed.tiny else "quick"
        book = Book(FOLDER / f"{self.name}-{name}.json")
        if parsed.report or parsed.docs:
            book.content = book.read()
            if not book.content:
                raise SystemExit(f"nothing was written down yet: {book.path}")
        else:
            with alone():
                goes_on = book.open({"size": name}, again=parsed.again)
                print(f"{'goes on with' if goes_on else 'begins'} {book.path.relative_to(ROOT)}", flush=True)
                wanted = self.missing(book, parsed.parts, self.sizes[name], parsed.rounds)
                self.run_missing(book, wanted, self.sizes[name])
        is_good = self.report(book.content, parsed.parts)
        picture(self.plot, book.content, book.path.with_suffix(".png"))
        if parsed.docs:
            self.write(book.content)
        return 0 if is_good else 1

    def arguments(self) -> argparse.Namespace:
        """What the command line asks for."""
        parser = argparse.ArgumentParser(description=self.doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--parts", nargs="+", choices=[*self.runs], default=[*self.runs], metavar="PART")
        parser.add_argument("--rounds", type=int)
        sizes = parser.add_mutually_exclusive_group()
        for option in ("--full", "--tiny"):
            sizes.add_argument(option, action="store_true")
        for option in ("--again", "--report", "--docs"):
            parser.add_argument(option, action="store_true")
        return parser.parse_args()

    def missing(self, book: Book, parts: Sequence[str], size: S, rounds: int | None) -> list[Wanted]:
        """The runs without figures, part by part, in rounds of all arms; each other round begins with the last one."""
        wanted = []
        for part in parts:
            usual = self.rounds_of(part, size)
            for number in range(rounds if rounds and usual > 1 else usual):
                turned = self.arms(part, size)[:: -1 if number % 2 else 1]
                wanted += [(part, arm, number) for arm in turned if not book.has(part, arm, number)]
        return wanted

    def run_missing(self, book: Book, wanted: Sequence[Wanted], size: S) -> None:
        """Run them on one broker."""
        if not wanted:
            return
        needs_kafka = any(part not in self.without_kafka for part, _, _ in wanted)
        broker = running_broker("kafka", self.name) if needs_kafka else contextlib.nullcontext("")
        with broker as address, Steps(len(wanted)) as steps:
            ground = Ground(address.removeprefix("kafka://"), FOLDER / f"{self.name}-runs")
            for number, (part, arm, round_) in enumerate(wanted):
                label = part if arm == part else f"{part}, {arm}"
                steps.begin(f"{label}, round {round_ + 1}")
                print(f"  {label}", flush=True)
                began_s, processors = time.monotonic(), Processors()
                try:
                    figures = self.runs[part](ground, arm, f"{number}-{round_}", size)
                except Skipped as reason:
                    book.skip({arm: str(reason)})
                    steps.end(f"left out: {reason}")
                    continue
                except (WrongRun, TimeoutError, BrokerError) as error:
                    book.add(part, arm, round_, failed=str(error) or type(error).__name__)
                    steps.end(f"FAILED: {error}")
                    continue
                took_s = time.monotonic() - began_s
                figures["stolen_share"] = processors.stolen_share()
                book.add(part, arm, round_, figures=figures, took_s=took_s)
                steps.end(f"{took_s:.0f} s")

    def report(self, content: Content, parts: Sequence[str]) -> bool:
        """The tables and the verdicts of some parts; whether every run came to its end and every bar holds."""
        for table in self.tables(content):
            if table.part in parts:
                print_table(f"{table.part}: {table.title}", table.columns, table.rows)
        failed = [run for run in content["runs"] if "failed" in run and run["workload"] in parts]
        for run in failed:
            print(f"failed: {run['workload']}, {run['arm']}, round {run['round'] + 1}: {run['failed']}")
        held = [verdict(f"{one.part}: {one.text}", one.holds) for one in self.judge(content) if one.part in parts]
        return all(held) and not failed
