"""A bench of several parts, each with arms and rounds. A book keeps the figures: every run is written down as it ends,
and a second start goes on.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from keylanes.brokers.protocol import BrokerError
from rig.book import Book, alone
from rig.broker import running_broker
from rig.errors import Skipped, WrongRun
from rig.figures import Content
from rig.ground import Ground
from rig.machine import Processors
from rig.pages import write_between
from rig.places import FOLDER, ROOT
from rig.results import print_table, verdict
from rig.steps import Steps

S = TypeVar("S")
Wanted = tuple[str, str, int]
"""Part, arm, round."""
OPTIONS = """\
    --parts PART …   some parts                 --full     full sizes; else quick ones
    --rounds 5       another number             --tiny     the least that runs through: figures mean nothing
    --again          begin afresh; the book before it is kept
    --report         no run: the tables and verdicts of what was written down
    --docs           the same, and the part of docs/benchmarks.md
"""


class Table(NamedTuple):
    """What a person reads of a part; its rows may be empty."""

    part: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Verdict(NamedTuple):
    """Whether a bar of a part holds. ``text``: what is required, with the figures."""

    part: str
    text: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Parts(Generic[S]):
    """``runs``: what runs an arm of a part, given the ground, the arm, a suffix that no other run has, and the size.
    ``sizes``: "tiny", "quick" and "full". ``rounds_of``: how often each arm runs at a size.
    """

    name: str
    doc: str | None
    runs: Mapping[str, Callable[[Ground, str, str, S], dict[str, Any]]]
    sizes: Mapping[str, S]
    arms: Callable[[str, S], list[str]]
    rounds_of: Callable[[str, S], int]
    tables: Callable[[Content], Sequence[Table]]
    judge: Callable[[Content], Sequence[Verdict]]

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
        if parsed.docs:
            write_between(ROOT / "docs" / "benchmarks.md", self.name, self.page(book.content))
        return 0 if is_good else 1

    def arguments(self) -> argparse.Namespace:
        """What the command line asks for."""
        doc = f"{self.doc}\n{OPTIONS}"
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            for number in range(rounds or self.rounds_of(part, size)):
                turned = self.arms(part, size)[:: -1 if number % 2 else 1]
                wanted += [(part, arm, number) for arm in turned if not book.has(part, arm, number)]
        return wanted

    def run_missing(self, book: Book, wanted: Sequence[Wanted], size: S) -> None:
        """Run them on one broker."""
        if not wanted:
            return
        with running_broker(self.name) as bootstrap, Steps(len(wanted)) as steps:
            ground = Ground(bootstrap, FOLDER / f"{self.name}-runs")
            for number, (part, arm, round_) in enumerate(wanted):
                steps.begin(f"{part}, {arm}, round {round_ + 1}")
                began_s, processors = time.monotonic(), Processors()
                try:
                    figures = self.runs[part](ground, arm, f"{number}-{round_}", size)
                except Skipped as reason:
                    book.skip({arm: str(reason)})
                    steps.end(f"left out: {reason}")
                except (WrongRun, TimeoutError, BrokerError) as error:
                    book.add(part, arm, round_, failed=str(error) or type(error).__name__)
                    steps.end(f"FAILED: {error}")
                else:
                    took_s = time.monotonic() - began_s
                    figures["stolen_share"] = processors.stolen_share()
                    book.add(part, arm, round_, figures=figures, took_s=took_s)
                    steps.end(f"{took_s:.0f} s")

    def report(self, content: Content, parts: Sequence[str]) -> bool:
        """The tables and the verdicts of some parts; whether every run came to its end and every bar holds."""
        for table in self.tables(content):
            if table.part in parts and table.rows:
                print_table(f"{table.part}: {table.title}", table.columns, table.rows)
        failed = [run for run in content["runs"] if "failed" in run and run["workload"] in parts]
        for run in failed:
            print(f"failed: {run['workload']}, {run['arm']}, round {run['round'] + 1}: {run['failed']}")
        held = [verdict(f"{one.part}: {one.text}", one.holds) for one in self.judge(content) if one.part in parts]
        return all(held) and not failed

    def page(self, content: Content) -> str:
        """All tables and verdicts, as Markdown."""
        size, machine = content["settings"]["size"], content["machine"]
        head = f"Measured on {content['when'][:10]} at commit {content['commit'][:10]}"
        head += "" if size == "full" else f" ({size} sizes)"
        head += f" on {machine['cores']} cores ({machine['processor']}), which the broker, the load and all processes "
        lines = [f"{head}shared, with kafka {content['versions']['kafka']}.", ""]
        found = [table for table in self.tables(content) if table.rows]
        for table in found:
            lines += [f"{table.title}:", "", *_markdown(table), ""]
        lines += [f"- {'holds' if one.holds else '**Missed**'}: {one.text}." for one in self.judge(content)]
        if missing := [part for part in self.runs if part not in {table.part for table in found}]:
            lines.append(f"- not measured in this run: {', '.join(missing)}.")
        return "\n".join(lines)


def figures(content: Content, part: str, arm: str = "") -> list[dict[str, Any]]:
    """Of the runs of a part, or of one arm of it, that ended well, in the order of the rounds."""
    runs = [run for run in content["runs"] if run["workload"] == part and "figures" in run]
    return [run["figures"] for run in sorted(runs, key=lambda run: run["round"]) if arm in ("", run["arm"])]


def _markdown(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.columns)} |"
    yield "|---|" + "---:|" * (len(table.columns) - 1)
    for row in table.rows:
        yield f"| {' | '.join(map(_figure, row))} |"


def _figure(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
