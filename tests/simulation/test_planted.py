"""The suite's own test: every planted defect is found, by seeds of the simulation or by the tests that it names.

What the defects are: ``plants_*.py``.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest

from ..on_kafka.test_planted_kafka import TRAPPED, Trapped
from ..stage.complaints import Overdue, complaints
from ..stage.planting import Planting, Tripping
from ..tiers.marks import tier
from . import (
    plants_copies,
    plants_deposing,
    plants_fencing,
    plants_found,
    plants_lanes,
    plants_logs,
    plants_moves,
    plants_questions,
    plants_state,
)
from .plants import Plant, Test, label
from .world import run_plan

PLANS_TRIPPED = 3
"""As many show what comes of a defect that trips: mostly that no process starts, or that all are dead letters."""
LIMIT_S = 10.0
"""For each defect that is planted together with others in one test."""
ACCIDENTS = (
    "",
    "AssertionError: \nassert found",
    "TypeError: begin() takes 2 positional arguments but 3 were given\nbegin(self, offset, timestamp_ms)",
    "AttributeError: 'Scope' object has no attribute '_offset'\nself._offset",
    "AssertionError: sim-1 ended without trouble: TypeError('begin() takes 2 positional arguments but 3 were given')\n",
    (
        "AssertionError: orders[0]@0 b'{\"number\":0}' led to [('dead', b'k2', b'{\"number\":0}')], right is [["
        "Expected(topic='out', key=b'k2', value=b'returned 0 of 0 saw 1 [(0, 1)] []'), "
        "Expected(topic='audit', key=b'k2', value=b'sent 0 of 0')]]\nassert led in right"
    ),
)
"""What is said of a defect that does not fit the code any more."""
WANTED = (
    "no fence",
    "FENCED without a fence",
    "grant without FENCED",
    "granted without reading",
    "fenced process goes on",
    "INIT without READ",
    "decisions of an older term count",
    "a release that is only asked for",
    "a snapshot by anybody",
    "two of one name",
    "future not awaited",
    "same producer after an unknown EndTxn",
    "last+1 instead of the position",
    "child range off by one",
    "overlap at the hash maximum",
    "epoch unchecked",
    "state applied before the commit",
    "marker in another column family",
    "unknown event skipped",
    "dead letter outside the transaction",
    "catch-up reader stops one early",
    "overlay read across keys",
)
"""What every suite for such a system has to find, whatever else it finds."""
ALL = [
    *plants_fencing.PLANTS,
    *plants_deposing.PLANTS,
    *plants_moves.PLANTS,
    *plants_lanes.PLANTS,
    *plants_logs.PLANTS,
    *plants_state.PLANTS,
    *plants_copies.PLANTS,
    *plants_questions.PLANTS,
]
BY_SEEDS = [plant for plant in ALL if not plant.found_by]
BY_TESTS = [(plant, test) for plant in ALL for test in plant.found_by]

pytestmark = [pytest.mark.interpreted, tier("check")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What runs with a defect says a lot, and nobody reads it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@tier("test")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_defect_that_trips_is_found(pytestconfig: pytest.Config) -> None:
    """What is said when a defect raises a TypeError in its place is not what the plant states. Of those that are looked
    for: what trips is what is planted, so that it changes with the digest.
    """
    names, _ = plants_found.chosen(pytestconfig.getoption("--plants"))
    found = complaints([plant for plant in ALL if plant.name in names], trip, LIMIT_S)
    assert not found, listed(found)


def trip(plant: Plant, patch: pytest.MonkeyPatch) -> None:
    """Run what finds a defect, with one that trips. What waits for ever is not found, either."""
    plant.put(Tripping(patch))
    runs = plant.found_by or [partial(run_plan, plan) for plan in islice(plant.plans(), PLANS_TRIPPED)]
    with suppress(Overdue):
        for run in runs:
            assert not (said := plant.found(run)), said


@tier("test")
@pytest.mark.parametrize("plant", BY_SEEDS, ids=lambda plant: plant.name)
def test_seeds_find_a_planted_defect(
    plant: Plant, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """One of the plans fails with it, in the words that the plant states, and not without it."""
    record_property(plants_found.PLANT, plant.name)
    began = time.process_time()
    known = plants_found.known().get(plant.name)
    found = plants_found.search(plant, known.seed if known else None)
    assert found is not None, f"no plan found: {plant.name}"
    seed, number, said = found
    record_property(plants_found.SEED, seed)
    run_plan(next(plant.plans(seed)))
    spent = time.process_time() - began
    with capsys.disabled():
        sys.stdout.write(f"\n{plant.name}: seed {seed}, plan {number}, {spent:.1f} s: {said:.120}\n")


@tier("test")
@pytest.mark.parametrize(
    ("plant", "test"), BY_TESTS, ids=[f"{plant.name} - {label(test).rpartition('::')[2]}" for plant, test in BY_TESTS]
)
def test_a_test_finds_a_planted_defect(
    plant: Plant, test: Test, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The test fails with it, where the plant states it, and passes without it."""
    record_property(plants_found.PLANT, plant.name)
    plant.put(Planting(monkeypatch))
    assert plant.found(test), f"not found, or not as {plant.finding!r}"
    monkeypatch.undo()
    test()


def test_an_accident_is_not_what_a_defect_states() -> None:
    """A pattern is neither met by the errors of a defect that does not fit nor by the dead letters of them."""
    plants: list[Plant | Trapped] = [*ALL, *TRAPPED]
    found = [(p.name, said) for p in plants for said in ACCIDENTS if re.search(p.finding, said, re.DOTALL)]
    assert not found


def test_the_code_still_holds_what_defects_change() -> None:
    """Who changes a line or a signature that a defect replaces learns it within seconds; that it is found takes the
    slow tests.
    """
    plants: list[Plant | Trapped] = [*ALL, *TRAPPED]
    found = complaints(plants, lambda plant, patch: plant.put(Planting(patch)), LIMIT_S)
    assert not found, listed(found)


def listed(found: list[str]) -> str:
    """All that failed, a line for each."""
    return f"{len(found)} defects:\n" + "\n".join(found)


def test_an_accident_is_no_finding() -> None:
    """A defect that trips over itself is not found by that, nor one of which something else is said."""

    def trip(error: BaseException) -> Test:
        def run() -> None:
            raise error

        return run

    plant = Plant("a name", lambda patch: None, finding="covered twice")
    assert plant.found(trip(AssertionError("point 1 is covered twice"))).startswith("AssertionError: point 1")
    for error in (
        AssertionError("not level"),
        KeyError("covered twice"),
        ValueError("covered twice"),
        RuntimeError("covered twice"),
    ):
        assert not plant.found(trip(error))
    assert replace(plant, raised=ValueError).found(trip(ValueError("covered twice")))
    assert not plant.found(lambda: None)


def test_what_every_suite_has_to_find_is_planted() -> None:
    """Each name once, those that are wanted among them."""
    names = [plant.name for plant in ALL]
    assert len(set(names)) == len(names)
    assert not set(WANTED) - set(names)


def test_it_is_known_what_found_each() -> None:
    """``python -m tests.simulation.plants_found`` writes down the seeds, and digests of what each defect touches."""
    known = plants_found.known()
    assert {(name, found.seed is None) for name, found in known.items()} == {(p.name, bool(p.found_by)) for p in ALL}
    assert all(found.digest for found in known.values())
