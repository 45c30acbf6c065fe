"""``make proof``: every part that parts.py lists, one after the other. It goes on where it was stopped.

    python3 dev.py proof                     all parts that have not passed at this revision
    python3 dev.py proof --list              the parts
    python3 dev.py proof --only many-seeds   some parts; repeat
    python3 dev.py proof --slice --since BASE --minutes 8
                                             parts whose rooms changed since BASE, then others, as many as fit

What passed, at which revision and how long it took, stands in .keylanes/proof.json. A part that can't run on this
machine is *not run*: the proof is not green then, and a slice passes over that part. Exit code 1: a part failed, or was
not run.
"""

import argparse
import math
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from .parts import MINUTES_MAX, PARTS, Part
from .processes import ROOT, environment, git, started, stoppable

BOOK: Final = ROOT / ".keylanes" / "proof.json"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
CANT_RUN: Final = 77
"""The exit code of a part that can't run on this machine, as Automake and Meson have it; its last line says why."""
LIMIT_MINUTES: Final = 3 * MINUTES_MAX
"""A part that takes so long hangs: it is ended, and has failed."""
WIDTH: Final = 160
"""Of what is printed where there is no terminal."""


class Result(msgspec.Struct, frozen=True):
    """What became of a part. ``revision``: of the commit, and of what was changed since."""

    outcome: str
    revision: str
    seconds: float
    why: str = ""


class Book:
    """The results, by the name of the part, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.results = msgspec.json.decode(path.read_bytes(), type=dict[str, Result])
        except (OSError, msgspec.DecodeError):
            self.results = {}

    def put(self, name: str, result: Result) -> None:
        """Write a result down."""
        self.results[name] = result
        self._path.parent.mkdir(exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self.results)) + b"\n")
        partial.replace(self._path)

    def has_passed(self, part: Part, revision: str) -> bool:
        """Whether the part needs no run at a revision."""
        known = self.results.get(part.name)
        return known is not None and known.outcome == PASSED and known.revision == revision


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    options = parse(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    book, now = Book(BOOK), revision()
    if options.list:
        console.print(table(PARTS, book, now))
        return 0
    shown = [part for part in PARTS if not options.only or part.name in options.only]
    if options.slice:
        changed = rooms_changed(options.since)
        told = "all rooms" if changed is None else ", ".join(sorted(changed)) or "nothing"
        console.print(f"a slice of the proof, {options.minutes:g} min; changed since {options.since}: {told}")
        wanted, minutes = in_order(PARTS, changed, now), options.minutes
    else:
        wanted = [part for part in shown if options.only or not book.has_passed(part, now)]
        minutes = math.inf
    with stoppable():
        ran = run_parts(wanted, book, now, console, minutes)
    console.print(table(ran if options.slice else shown, book, now))
    if options.slice:
        console.print(f"a slice of the proof: {len(ran)} of {len(PARTS)} parts were run")
    outcomes = {book.results[part.name].outcome for part in ran}
    return int(FAILED in outcomes or (NOT_RUN in outcomes and not options.slice))


def run_parts(parts: Sequence[Part], book: Book, now: str, console: Console, minutes: float) -> list[Part]:
    """Run parts one after the other, those that fit into the time that is left, and write down what became of each.

    Returns the parts that were run.
    """
    began, ran = time.monotonic(), list[Part]()
    for number, part in enumerate(parts, 1):
        if time.monotonic() - began + part.minutes * 60 > minutes * 60:
            continue
        console.print(f"== {number} of {len(parts)}: {part.name}, about {part.minutes:g} min: {part.proves}")
        ran.append(part)
        result = run_part(part, now)
        book.put(part.name, result)
        console.print(f"== {part.name}: {result.outcome}, {result.seconds:.0f} s{result.why and f': {result.why}'}")
        if result.outcome == FAILED:
            console.print(f"   alone: python3 dev.py proof --only {part.name}")
    return ran


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options. Exits with code 2 for those that don't fit."""
    parser = argparse.ArgumentParser(
        prog="dev.py proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show the parts, and what became of them")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this part, also if it has passed; repeat")
    parser.add_argument("--slice", action="store_true", help="run as many as fit, the most concerned first")
    parser.add_argument("--since", metavar="BASE", default="main", help="a revision: what has changed since (main)")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long a slice may take (8)")
    options = parser.parse_args(arguments)
    known = {part.name for part in PARTS}
    for name in options.only or ():
        if name not in known:
            parser.error(f"no part of the proof is named {name!r}; --list shows them")
    return options


def run_part(part: Part, now: str) -> Result:
    """Run one part to its end."""
    began = time.monotonic()
    code = run_to_end(part)
    seconds = round(time.monotonic() - began, 1)
    if code in (0, CANT_RUN):
        return Result(NOT_RUN if code else PASSED, now, seconds)
    return Result(
        FAILED, now, seconds, f"no end within {LIMIT_MINUTES} minutes" if code is None else f"exit code {code}"
    )


def run_to_end(part: Part) -> int | None:
    """The exit code of a part; None when it did not end in time."""
    with started([sys.executable, *part.words], environment(on_sources=part.on_sources)) as child:
        try:
            return child.wait(LIMIT_MINUTES * 60)
        except subprocess.TimeoutExpired:
            return None


# What is to be run


def revision() -> str:
    """Of the checkout: its commit, with a digest of what was changed since; "unknown" where there is no git."""
    commit = git("rev-parse", "--short=12", "HEAD")
    changed = git("diff", "HEAD") if commit else ""
    return f"{commit or 'unknown'}{f'+{random.Random(changed).getrandbits(32):08x}' if changed else ''}"


def rooms_changed(since: str) -> set[str] | None:
    """The rooms in which something differs from where the work on a revision began; None: nobody knows, so all."""
    base = git("merge-base", since, "HEAD")
    if not base:
        return None
    return {room for path in git("diff", "--name-only", base).split("\n") if (room := room_of(path))}


def room_of(path: str) -> str:
    """The room that a file belongs to; tests/group/test_world.py belongs to ``group``."""
    parts = path.split("/")
    return (parts[1] if len(parts) > 2 else "tests") if parts[0] == "tests" else parts[0] if len(parts) > 1 else ""


def in_order(parts: Sequence[Part], changed: set[str] | None, drawn_from: str) -> list[Part]:
    """The parts whose rooms changed first, then the others; each of the two groups in an order that is drawn."""
    drawn = list(parts)
    random.Random(drawn_from).shuffle(drawn)
    return sorted(drawn, key=lambda part: changed is not None and not part.concerns(changed))


def table(parts: Sequence[Part], book: Book, now: str) -> Table:
    """The parts, and what became of each."""
    shown = Table("part", "proves", "usual", "outcome", "took", "at", box=None)
    for part in parts:
        result = book.results.get(part.name)
        told = ("", "", "") if result is None else (result.outcome, f"{result.seconds:.0f} s", result.revision)
        is_old = result is not None and result.revision != now
        shown.add_row(part.name, part.proves, f"{part.minutes:g} min", told[0] + " (older)" * is_old, *told[1:])
    return shown


if __name__ == "__main__":
    sys.exit(main())
