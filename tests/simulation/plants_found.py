"""What found each planted defect last, and a digest of the code that the defect touches (``plants_found.json``).

A defect whose digest has changed is *due*: the tests look for it anew. Of the others some are due in turn, more with
each commit, so that all are looked for within some commits. ``--plants all`` looks for all of them. A known seed is
tried first, so the test of a defect mostly runs one plan.

``python -m tests.simulation.plants_found`` looks for every defect, by all cores, and writes down what it finds. It
hands its arguments to pytest: with ``-k fence`` all other lines of the file stay.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from ..stage.digests import UNKNOWN, digest_of
from ..stage.planting import Planting
from ..tiers.processes import git
from .plants import Plant
from .world import run_plan

FILE = Path(__file__).with_name("plants_found.json")
PLANS_SEARCHED = 250
"""Of one defect. What needs more is found by luck; give it a plan that brings about what it takes, or a test."""
CHANGED_MAX = 40
"""As many defects of which the code has changed are looked for in one run."""
IN_TURN = 15
"""As many others."""
TESTS = ("test_seeds_find_a_planted_defect", "test_a_test_finds_a_planted_defect")
"""The tests that look for a defect, in ``test_planted.py``."""
PLANT, SEED = "plant", "seed"
"""What such a test says of itself, for the file."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one defect: the digest of its code, and the seed that finds it unless tests do."""

    digest: str
    seed: int | None = None


class Due(NamedTuple):
    """Names of defects: those to look for, and those that have changed and are too many for one run."""

    changed: tuple[str, ...]
    in_turn: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        said = f"planted defects: {len(self.changed)} are looked for because their code has changed"
        said += f" ({'; '.join(self.changed)})" if self.changed else ""
        said += f", and {len(self.in_turn)} in turn; --plants all looks for all"
        if self.left_out:
            said += f"\n{len(self.left_out)} more have changed and are NOT looked for: {'; '.join(self.left_out)}"
        return said


def due(digests: Mapping[str, str], known: Mapping[str, Found], turn: int) -> Due:
    """Which defects to look for. With each ``turn`` those in turn move on by ``IN_TURN`` places in ``digests``."""
    stale = [name for name, now in digests.items() if now == UNKNOWN or name not in known or known[name].digest != now]
    changed, more = stale[:CHANGED_MAX], stale[CHANGED_MAX:]
    names = list(digests)
    first = turn * IN_TURN % max(1, len(names))
    in_turn = [name for name in names[first:] + names[:first] if name not in changed][:IN_TURN]
    return Due(tuple(changed), tuple(in_turn), tuple(name for name in more if name not in in_turn))


@cache
def chosen(wanted: str) -> tuple[frozenset[str], str]:
    """Which defects to look for, by name, and what is to be said of that. ``wanted``: those that are ``due`` with the
    code as it is and the number of commits as the turn, ``all``, or a share such as ``1/3``.
    """
    from .test_planted import ALL  # here: pytest rewrites the assertions of what it loads itself

    if wanted == "due":
        due_now = due(digests_of(ALL), known(), commits())
        return frozenset((*due_now.changed, *due_now.in_turn)), str(due_now)
    share, shares = map(int, ("1/1" if wanted == "all" else wanted).split("/"))
    return frozenset(plant.name for plant in ALL[share - 1 :: shares]), ""


def digests_of(plants: Iterable[Plant]) -> dict[str, str]:
    """The digests of the code as it is, by name of the defect."""
    return {plant.name: digest_of(plant.put) for plant in plants}


def commits() -> int:
    """How many commits lead to the one that is checked out; 0: there is no git."""
    return int(git("rev-list", "--count", "HEAD") or 0)


def known() -> dict[str, Found]:
    """What is known, by name of the defect."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Found]) if FILE.exists() else {}


def write(found: Mapping[str, Found]) -> None:
    """Write the file, a line for each defect."""
    lines = (
        f"  {msgspec.json.encode(name).decode()}: {msgspec.json.encode(one).decode()}" for name, one in found.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def search(plant: Plant, first: int | None) -> tuple[int, int, str] | None:
    """The seed that finds a defect, how many plans were run for it, and what they say; None: no plan finds it."""
    with pytest.MonkeyPatch.context() as patch:
        plant.put(Planting(patch))
        for number, plan in enumerate(islice(plant.plans(first), PLANS_SEARCHED), 1):
            if said := plant.found(partial(run_plan, plan)):
                return plan.seed, number, said
    return None


class Reports:
    """A plugin of pytest that gathers which defects were found, by which seed, and which were not."""

    def __init__(self) -> None:
        self.seeds: dict[str, int | None] = {}
        self.missed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One test is through, in whichever process."""
        said: dict[str, Any] = dict(report.user_properties)
        if report.failed:
            self.missed.add(said.get(PLANT, report.nodeid))
        elif report.when == "call":
            self.seeds[said[PLANT]] = said.get(SEED)


def updated(before: Mapping[str, Found], digests: Mapping[str, str], reports: Reports) -> dict[str, Found]:
    """The file's new content. A defect that was missed has no line any more; one that nobody looked for keeps its."""
    found = {}
    for name, digest in digests.items():
        if name in reports.missed:
            continue
        if name in reports.seeds:
            found[name] = Found(digest, reports.seeds[name])
        elif name in before:
            found[name] = before[name]
    return found


def main(arguments: list[str]) -> int:
    """Look for all defects, or for those that the arguments choose, by all cores; pytest's exit code."""
    file = Path(__file__).with_name("test_planted.py")
    options = ["--plants=all", "-n", "auto", "--no-loadscope-reorder", "--timeout=900", *arguments]
    reports = Reports()
    code = pytest.main([*(f"{file}::{test}" for test in TESTS), *options], plugins=[reports])
    from .test_planted import ALL  # here: pytest rewrites the assertions of what it loads itself

    write(updated(known(), digests_of(ALL), reports))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
