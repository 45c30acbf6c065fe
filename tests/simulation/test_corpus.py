"""Plans that once found something run first, each by what it found: a real failure, or a planted defect."""

import logging
from pathlib import Path

import pytest

from .corpus import FOLDER, load, paths
from .plants import Plant
from .world import run_plan

DEFECTS = {path: load(path).defect for path in paths() if load(path).defect}


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    """The plan runs without a failure, and says in one line what it found."""
    case = load(path)
    assert case.found.strip()
    assert len(case.found.splitlines()) == 1
    run_plan(case.plan)


@pytest.mark.slow
def test_plans_still_find_the_defects_that_they_were_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most do: a change of the runtime's timing may take one its defect, and it stays as a plan that once failed."""
    from .test_planted import BY_SEEDS  # here: it loads half of the other tests

    monkeypatch.setattr(logging.getLogger("keylanes"), "disabled", True)
    plants = {plant.name: plant for plant in BY_SEEDS}
    finding = {path.stem for path, name in DEFECTS.items() if name in plants and fails_with(plants[name], path)}
    assert len(finding) * 2 > len(DEFECTS), f"only {sorted(finding)} still find their defects"


def fails_with(plant: Plant, path: Path) -> bool:
    """Whether a plan fails with a defect."""
    with pytest.MonkeyPatch.context() as patch:
        plant.put(patch)
        try:
            run_plan(load(path).plan)
        except Exception:  # noqa: BLE001  # whatever it is that finds it
            return True
    return False


def test_there_is_a_corpus() -> None:
    """The folder is where it is looked for."""
    assert paths(), f"no plan in {FOLDER}"
