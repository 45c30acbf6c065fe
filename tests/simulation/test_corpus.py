"""Plans that once found something run first, each by what it found."""

from pathlib import Path

import pytest

from .corpus import FOLDER, load, paths
from .world import run_plan


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    """The plan runs without a failure, and says in one line what it found."""
    case = load(path)
    assert case.found.strip()
    assert len(case.found.splitlines()) == 1
    run_plan(case.plan)


def test_there_is_a_corpus() -> None:
    """The folder is where it is looked for."""
    assert paths(), f"no plan in {FOLDER}"
