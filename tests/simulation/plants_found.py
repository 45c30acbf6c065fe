"""Which seed finds which planted defect: what is known is tried first, so that the test of a defect runs one plan.

``python -m tests.simulation.plants_found`` looks at every defect that seeds are to find. Where the known seed does not
find it any more, or none is known, it searches on from seed 0; what it finds is written down.
"""

import logging
import multiprocessing
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from ..stage.planting import Planting
from .plants import Plant
from .world import run_plan

FILE = Path(__file__).with_name("plants_found.json")
PLANS_SEARCHED = 250
"""Of one defect. What needs more is found by luck; give it a plan that brings about what it takes, or a test."""


def known() -> dict[str, int]:
    """The seeds, by name of the defect."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, int]) if FILE.exists() else {}


def search(plant: Plant, first: int | None) -> tuple[int, int, str] | None:
    """The seed that finds a defect, how many plans were run for it, and what they say; None: no plan finds it."""
    with pytest.MonkeyPatch.context() as patch:
        plant.put(Planting(patch))
        for number, plan in enumerate(islice(plant.plans(first), PLANS_SEARCHED), 1):
            if said := plant.found(partial(run_plan, plan)):
                return plan.seed, number, said
    return None


def _search(name: str) -> tuple[str, int | None, str]:
    from .test_planted import BY_SEEDS

    logging.disable(logging.CRITICAL)
    began_s = time.process_time()
    found = search(next(plant for plant in BY_SEEDS if plant.name == name), known().get(name))
    told = f"seed {found[0]}, plan {found[1]}: {found[2]:.90}" if found else "not found"
    return name, found and found[0], f"{time.process_time() - began_s:6.1f} s  {name}: {told}"


def main() -> int:
    """Look at all of them, by all cores; 1 when one is not found."""
    from .test_planted import BY_SEEDS

    names = [plant.name for plant in BY_SEEDS]
    seeds: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool() as pool:
        for name, seed, told in pool.imap_unordered(_search, names):
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
            if seed is not None:
                seeds[name] = seed
    FILE.write_bytes(
        msgspec.json.format(msgspec.json.encode({name: seeds[name] for name in names if name in seeds})) + b"\n"
    )
    return 0 if len(seeds) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
