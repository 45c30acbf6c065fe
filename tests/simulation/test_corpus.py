"""Plans that once found something run first: each fails with the defect that it found, and not without it.

A defect is a planted one. Where no plan of today meets what an earlier one found, a test that is made for it does, and
is named with the defect in ``plants_*.py``.
"""

import logging
from functools import partial
from pathlib import Path

import pytest

from ..stage.planting import Planting
from ..tiers.marks import tier
from .corpus import FOLDER, load, paths
from .world import run_plan

pytestmark = tier("check")


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    """The plan runs without a failure, and says in one line what it found."""
    case = load(path)
    assert case.found.strip()
    assert len(case.found.splitlines()) == 1
    run_plan(case.plan)


@tier("test")
@pytest.mark.interpreted
@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_plan_finds_its_defect_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defect it fails in the words that are stated."""
    from .test_planted import BY_SEEDS  # here: it loads half of the other tests

    monkeypatch.setattr(logging.getLogger("keylanes"), "disabled", True)
    case = load(path)
    plants = {plant.name: plant for plant in BY_SEEDS}
    assert case.defect in plants, "plant what was mended, undone, and name it in the plan's file"
    plant = plants[case.defect]
    plant.put(Planting(monkeypatch))
    assert plant.found(partial(run_plan, case.plan)), f"not found, or not as {plant.finding!r}"


def test_there_is_a_corpus() -> None:
    """The folder is where it is looked for."""
    assert paths(), f"no plan in {FOLDER}"
