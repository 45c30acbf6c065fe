"""How many seeds: ``python -m pytest tests/simulation --seeds 1000``, from ``--first-seed`` on."""

import pytest

from keylanes import IS_COMPILED

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
