"""Plans that once found something run first: each fails with the defect that it found, and not without it.

A defect is a planted one, or what was mended when the plan had found it, undone.
"""

import logging
from functools import partial
from pathlib import Path

import pytest

from keylanes.runtime.member import Member

from ..stage.planting import Planting, changed
from .corpus import FOLDER, load, paths
from .loop import PausingLoop
from .plants import Plant
from .world import run_plan

DAMAGE = "(LogError, SourceError, StateError)"
"""What a process that finds damage takes for its own expulsion, when there was one."""
MENDED = (
    Plant(
        "records that retention took are missed by one that was expelled",
        "a process that is to go tells of lost records",
        changed(Member, "_run", (DAMAGE, "(LogError, StateError)")),
        finding="SourceError: .*records that were not processed",
    ),
    Plant(
        "newer state is damage for one that was expelled",
        "a process that is to go tells of a damaged changelog",
        changed(Member, "_run", (DAMAGE, "(LogError, SourceError)")),
        finding="StateError: the changelog .* can't be used",
    ),
    Plant(
        "a log that was trimmed is damage for one that was expelled",
        "a process that is to go tells of a damaged offset log",
        changed(Member, "_run", (DAMAGE, "(SourceError, StateError)")),
        finding="HistoryTrimmed: ",
    ),
    Plant(
        "a stop takes from the queue that a pass has counted",
        "the simulation itself ends with an error",
        changed(
            PausingLoop,
            "pause",
            ("in enumerate(self._ready)", "in enumerate(list(self._ready))"),
            ("self._ready[place] = self._nothing()", "self._ready.remove(handle)"),
        ),
        finding="pop from an empty deque",
        raised=IndexError,
    ),
)
"""What was mended once, undone."""


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    """The plan runs without a failure, and says in one line what it found."""
    case = load(path)
    assert case.found.strip()
    assert len(case.found.splitlines()) == 1
    run_plan(case.plan)


@pytest.mark.slow
@pytest.mark.interpreted
@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_a_plan_finds_its_defect_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defect, or with what was mended undone, it fails in the words that are stated."""
    from .test_planted import BY_SEEDS  # here: it loads half of the other tests

    monkeypatch.setattr(logging.getLogger("keylanes"), "disabled", True)
    case = load(path)
    plants = {plant.name: plant for plant in (*BY_SEEDS, *MENDED)}
    assert case.defect in plants, "plant what was mended, undone, in MENDED, and name it in the plan's file"
    plant = plants[case.defect]
    plant.put(Planting(monkeypatch))
    assert plant.found(partial(run_plan, case.plan)), f"not found, or not as {plant.finding!r}"


@pytest.mark.slow
def test_each_mend_has_a_plan() -> None:
    """Whatever was mended is found again when it is undone."""
    assert not {plant.name for plant in MENDED} - {load(path).defect for path in paths()}


def test_there_is_a_corpus() -> None:
    """The folder is where it is looked for."""
    assert paths(), f"no plan in {FOLDER}"
