"""How many seeds: ``python -m pytest tests/simulation --seeds 1000``, from ``--first-seed`` on.

And which planted defects are looked for: ``--plants due``, ``all``, or ``1/3`` for the first of three shares.
"""

import pytest

from keylanes import IS_COMPILED

from ..stage.notes import note

SEEDS = 10 if IS_COMPILED else 30
"""The compiled package runs hundreds in one test, over all cores, and that looks at what they reach."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; when these tests are run among others, the defaults hold."""
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=SEEDS, help="how many seeds the simulation runs")
    group.addoption("--first-seed", type=int, default=0, help="the first of them")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed."""
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--first-seed", 0)
        metafunc.parametrize("seed", range(first, first + metafunc.config.getoption("--seeds", SEEDS)))


@pytest.hookimpl(trylast=True)  # when tests were chosen by their names and marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that look for a planted defect which is not due. Every test process comes to the same choice."""
    from . import plants_found  # here: the plants load half of the other tests

    looking = [item for item in items if isinstance(item, pytest.Function) and item.originalname in plants_found.TESTS]
    wanted = config.getoption("--plants")
    if not looking or IS_COMPILED or wanted == "all":
        return
    from .test_planted import ALL

    if wanted == "due":
        due = plants_found.due_now(ALL)
        chosen = {*due.changed, *due.in_turn}
        note(config, str(due))
    else:
        share, shares = map(int, wanted.split("/"))
        chosen = {plant.name for plant in ALL[share - 1 :: shares]}
    others = {plant.name for plant in ALL} - chosen
    left = {item for item in looking if getattr(item.callspec.params["plant"], "name", "") in others}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]
