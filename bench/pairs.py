"""Is a change slower? Processor time per record of keylanes, of the checkout as it is and of revision BASE, in pairs.

    python3 dev.py bench pairs BASE

BASE is built in a clone of its own. Both packages run compiled, with the programs, the workloads and the libraries of
this checkout, on one real Kafka. The workloads are W1-2ms, W2-1p, W3 and W4 of ``compare.py``. A round of a workload is
three runs: the checkout, BASE, and BASE again. The checkout is no slower when the median of current / BASE is at most
1.02, or lies in the range of BASE against itself; ``pairing/ratios.py`` has this rule and the order of the runs.

*Processor time* is user and system time of the process that runs keylanes, with all its threads, from the begin of the
first handler to the end of the last one, divided by the number of records. Not counted are the start of the process,
the join and the first fetch, and behind the last handler the last commit and the stop. Every run checks that each
record was handled once and in the order of its key. A round in which a run failed counts for nothing. Every round is
written down as it ends, and a second start of the same comparison goes on.

    --pairs 7         rounds: each gives a pair of current and BASE, and one of BASE and BASE
    --workload W1     only this workload; may be given again
    --quick           fewer records, to see that all works
    --again           begin afresh; the book before it is kept

With fewer than 7 rounds, or fewer records, the verdict is shown and does not count.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from comparison import rate
from comparison.workloads import OURS, WORKLOADS, Workload
from keylanes import IS_COMPILED
from pairing.ratios import BASE, CURRENT, MEDIAN_MAX, ROUNDS_MIN, SIDES, Finding, Round, findings, rounds_of
from pairing.revision import NoBase, commit_of, environment, is_compiled, package_of
from rig.book import Book, alone
from rig.broker import running_broker
from rig.errors import WrongRun
from rig.ground import Ground
from rig.machine import git, surroundings
from rig.places import FOLDER
from rig.results import print_table, verdict
from rig.steps import Steps

NAME = "pairs"
PAIRED = {"W1": "W1-2ms", "W2": "W2-1p", "W3": "W3", "W4": "W4"}
"""The workloads, by what the command line calls them."""
RECORDS_MAX = 500_000
"""Half of what ``compare.py`` takes at full size, so that the runs of a round lie near each other."""
COLUMNS = (
    "workload", "records", "BASE µs", "current µs", "current / BASE", "least", "greatest", "BASE / BASE", "least",
    "greatest", "rounds",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Build BASE, run what is missing, then report; 0 when no run failed and no workload is slower by a verdict that
    counts.
    """
    parsed = arguments(words)
    size = "quick" if parsed.quick else "full"
    workloads = paired(parsed.workload or [*PAIRED])
    rounds = rounds_of(parsed.pairs, [workload.name for workload in workloads])
    book = Book(FOLDER / f"{NAME}-{size}.json")
    try:
        commit = commit_of(parsed.base)
        with alone():
            tell(parsed.base, commit)
            package = built(parsed.base, commit)
            goes_on = book.open({"size": size, "base": commit, "records_max": RECORDS_MAX}, again=parsed.again)
            print(f"{'goes on with' if goes_on else 'begins'} {book.path.name}", flush=True)
            run_missing(book, workloads, rounds, size, package)
    except NoBase as error:
        raise SystemExit(f"{NAME}: {error}") from None
    is_good = report(workloads, size, findings(rounds, book.content["runs"]))
    for failure in book.content["failures"]:
        print(f"failed: {failure}")
    return 0 if is_good and not book.content["failures"] else 1


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="a commit, a branch or a tag of this repository")
    parser.add_argument("--pairs", type=count, default=7, metavar="N")
    parser.add_argument("--workload", action="append", choices=PAIRED)
    for option in ("--quick", "--again"):
        parser.add_argument(option, action="store_true")
    return parser.parse_args(words)


def paired(names: Sequence[str]) -> list[Workload]:
    """The workloads that the command line calls so, with at most RECORDS_MAX records."""
    wanted = {PAIRED[name] for name in names}
    return [replace(w, full=min(w.full, RECORDS_MAX)) for w in WORKLOADS if w.name in wanted]


def count(word: str) -> int:
    """A number of rounds."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"seen {word!r}, allowed are whole numbers from 1 on")
    return int(word)


def built(revision: str, commit: str) -> Path:
    """The package of BASE. Raises NoBase, also where only one of the two packages is compiled."""
    package = package_of(commit)
    is_base_compiled = is_compiled(package)
    if IS_COMPILED and not is_base_compiled:
        raise NoBase(f"the hot modules of {revision} do not compile here, those of the checkout do")
    if is_base_compiled and not IS_COMPILED:
        raise NoBase(f"the checkout is not compiled, BASE is; this compiles it: python3 dev.py bench {NAME} {revision}")
    return package


def tell(revision: str, commit: str) -> None:
    """Say what is compared, and on what machine."""
    where = surroundings()
    changes = git("status", "--porcelain").splitlines()
    dirty = f", with changes that are not committed in {len(changes)} file(s)" if changes else ""
    print(f"current: this checkout as it is, commit {where['commit'][:10]}{dirty}")
    print(f"BASE: {revision}, commit {commit[:10]}")
    if git("diff", "--name-only", commit, "--", "requirements/full.txt"):
        print("BASE pins other libraries; both run with those of this checkout")
    machine, versions = where["machine"], where["versions"]
    memory, load = machine["memory_bytes"] / 2**30, machine["load_average_before"][0]
    print(f"{machine['cores']} cores ({machine['processor']}, {memory:.0f} GiB), load average {load:.1f}")
    ran = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{ran}, {'compiled' if IS_COMPILED else 'interpreted'}", flush=True)


@dataclass(frozen=True)
class Stage:
    """What every run needs: a broker, a line for the reader, the size of the workloads, and the package of BASE."""

    ground: Ground
    steps: Steps
    size: str
    package: Path

    def run(self, workload: Workload, side: str, when: str) -> dict[str, Any]:
        """The figures of one run. Raises WrongRun with the name of the run."""
        name = f"{workload.name}, {when}: {side}"
        self.steps.begin(name)
        try:
            rate.prepare(workload, self.size, self.ground)
            env = None if side == CURRENT else environment(self.package)
            figures = rate.run(workload, OURS, self.size, self.ground, env)
        except WrongRun as error:
            self.steps.end(f"FAILED: {error}")
            raise WrongRun(f"{name}: {error}") from error
        self.steps.end(f"{figures['cpu_us_per_record']:.3f} µs")
        return figures


def run_missing(book: Book, workloads: Sequence[Workload], rounds: Sequence[Round], size: str, package: Path) -> None:
    """Run the rounds that the book lacks. Raises NoBase when a side can't run a workload."""
    wanted = [one for one in rounds if not all(book.has(one.workload, side, one.number) for side in SIDES)]
    if not wanted:
        return
    by_name = {workload.name: workload for workload in workloads}
    cold = [(by_name[name], side) for name in dict.fromkeys(one.workload for one in wanted) for side in (CURRENT, BASE)]
    count = len(cold) + len(wanted) * len(SIDES)
    with running_broker(NAME) as bootstrap, Steps(count) as steps:
        stage = Stage(Ground(bootstrap, FOLDER / f"{NAME}-runs"), steps, size, package)
        try:
            for workload, side in cold:
                stage.run(workload, side, "to warm the broker up")
        except WrongRun as error:
            raise NoBase(f"there is nothing to compare: {error}") from error
        for one in wanted:
            run_round(book, stage, one, by_name[one.workload])


def run_round(book: Book, stage: Stage, one: Round, workload: Workload) -> None:
    """Run a round and write it down: whole, or as failed with its first run that failed."""
    try:
        found = {side: stage.run(workload, side, f"round {one.number + 1}") for side in one.sides}
    except WrongRun as error:
        book.fail(str(error))
        return
    for side, figures in found.items():
        book.add(workload.name, side, one.number, figures=figures)


def report(workloads: Sequence[Workload], size: str, found: Mapping[str, Finding]) -> bool:
    """The table and the verdicts; False when one that counts fails, or when a workload has no whole round."""
    rows = [row(w.name, w.records(size), found[w.name]) for w in workloads if w.name in found]
    print_table("Processor time per record: medians, and the ratios of the rounds", COLUMNS, rows)
    held = [judge(w.name, size, found.get(w.name)) for w in workloads]
    return all(held)


def row(name: str, records: int, one: Finding) -> list[Any]:
    """A workload, as it is shown."""
    current, base, _ = (median(times) for times in zip(*one.rounds, strict=True))
    ratios = [value for of in (one.ratios, one.again) for value in (median(of), min(of), max(of))]
    return [name, records, *(f"{value:.3f}" for value in (base, current, *ratios)), len(one.rounds)]


def judge(name: str, size: str, one: Finding | None) -> bool:
    """Say the verdict of a workload; True also when it does not count."""
    if one is None:
        return verdict(f"{name}: a round in which no run failed", holds=False)
    seen = f"median {median(one.ratios):.3f} of current / BASE"
    noise = f"{min(one.again):.3f} to {max(one.again):.3f}, the range of BASE against itself"
    bar = f"{name} is no slower: {seen}; at most {MEDIAN_MAX:g}, or within {noise}"
    if size == "full" and len(one.rounds) >= ROUNDS_MIN:
        return verdict(bar, one.is_no_slower)
    print(f"does not count (it takes {ROUNDS_MIN} rounds at full size): {bar}")
    return True


if __name__ == "__main__":
    sys.exit(main())
