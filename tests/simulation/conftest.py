"""Which seeds: ``python -m pytest tests/simulation --seeds 1000`` runs those of draws, from ``--first-seed`` on.

And which planted defects are looked for: ``--plants due``, ``all``, or ``1/3`` for the first of three shares.
"""

import pytest

from keylanes import IS_COMPILED

from ..stage.notes import note
from ..tiers.marks import CHECK, TEST, tier

QUICK = 10
"""So many of the chosen seeds are run by ``make check``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; when these tests are run among others, the defaults hold."""
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=0, help="run so many seeds instead of the chosen ones")
    group.addoption("--first-seed", type=int, default=0, help="the first of them")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed."""
    if "case" in metafunc.fixturenames:
        from .chosen import Case, chosen_cases  # here: it loads the simulation

        first, seeds = metafunc.config.getoption("--first-seed", 0), metafunc.config.getoption("--seeds", 0)
        cases = [Case("drawn", seed) for seed in range(first, first + seeds)] or chosen_cases()
        marks = [tier(CHECK if number < QUICK else TEST) for number in range(len(cases))]
        both = zip(cases, marks, strict=True)
        metafunc.parametrize("case", [pytest.param(case, id=str(case), marks=mark) for case, mark in both])


@pytest.hookimpl(trylast=True)  # when tests were chosen by their names and marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that look for a planted defect which is not due. Every test process comes to the same choice."""
    from . import plants_found  # here: the plants load half of the other tests

    looking = [item for item in items if isinstance(item, pytest.Function) and item.originalname in plants_found.TESTS]
    if not looking or IS_COMPILED:
        return
    names, said = plants_found.chosen(config.getoption("--plants"))
    if said:
        note(config, said)
    left = {item for item in looking if getattr(item.callspec.params["plant"], "name", "") not in names}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]
