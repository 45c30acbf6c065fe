"""The group in small, through every interleaving of small worlds and by long walks through a large one: what is decided
there is decided by the production. And what it finds when a rule of the protocol is left out.
"""

from collections import Counter

import pytest

from ..stage.planting import Planting
from ..tiers.marks import tier
from .model import Model, searched, walk
from .model_plants import PLANTS, Plant
from .model_probes import PROBES, watch
from .model_world import ANYTHING, NO_END, STUCK
from .model_worlds import DEALT, LARGE, LONG, SMALL, Design, Small

WALKS = 250
WALKS_DEALT = 50
WALKS_LONG = 10
"""The soak walks by the hour."""
WORLDS_QUICK = 5_000
"""More than so many take more than a second."""
SEARCHES = [
    pytest.param(small, id=name, marks=tier("proof", "group-model") if small.worlds > WORLDS_QUICK else ())
    for name, small in SMALL.items()
]
SLOW_TO_FIND = {
    "a batch is taken for read back when its first decision is",
    "a successor does not repeat FENCE",
    "a successor that trusts a told end",
    "an epoch is taken up while the own release of its points is not through",
    "a snapshot without what waits",
    "who waits for an answer decides otherwise",
    "READ for an epoch counts for later ones",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("small", SEARCHES)
def test_every_interleaving_of_a_small_world_is_right(small: Small) -> None:
    """Nothing is wrong in any world, at every end all is as it should be, and there are as many worlds as there were:
    when the rules change on purpose, so does this number.
    """
    found = searched(Model(small.design))
    assert not found.wrong, str(found)
    assert found.worlds == small.worlds
    assert found.ends


def walked(design: Design, seeds: range, noisy: int) -> Counter[str]:
    """What walks reached; each comes to rest, and nothing is wrong in it."""
    reached, model = Counter[str](), Model(design)
    for seed in seeds:
        way = walk(model, seed, noisy=noisy, watch=watch)
        assert not way.wrong, "\n".join((way.wrong, f"seed {seed}", *way.path))
        reached += way.reached
    return reached


def test_some_walks_come_to_rest() -> None:
    """All faults, then none: all is granted, taken up and done, and nothing more happens."""
    reached = walked(LARGE, range(40), noisy=120) + walked(DEALT, range(10), noisy=120)
    assert len(reached) > len(PROBES) // 2
    walked(LONG, range(2), noisy=500)


@tier("proof", "group-model")
@pytest.mark.timeout(600)
def test_walks_come_to_rest_and_reach_what_is_worth_it() -> None:
    """The same by many more, and some with many more faults. Each probe is reached."""
    reached = walked(LARGE, range(WALKS), noisy=120) + walked(DEALT, range(WALKS_DEALT), noisy=120)
    assert not PROBES.keys() - reached.keys()
    walked(LONG, range(WALKS_LONG), noisy=500)


def found_with(plant: Plant) -> str:
    """What is found where a rule is left out."""
    model = Model(plant.design, tuple(name for name in plant.finds if name in ANYTHING) or ANYTHING)
    if not plant.walks:
        return searched(model).wrong
    return next((way.wrong for way in (walk(model, seed) for seed in range(plant.walks)) if way.wrong), "")


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, id=plant.name, marks=tier("proof", "group-model") if plant.name in SLOW_TO_FIND else ())
        for plant in PLANTS
    ],
)
def test_a_rule_that_is_left_out_is_missed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that says what comes of it."""
    plant.put(Planting(monkeypatch))
    assert found_with(plant).startswith(plant.finds)


def test_the_slow_plants_are_there() -> None:
    """Each name is of a plant; no two plants have one name; every violation is what some plant is to be found as."""
    names = [plant.name for plant in PLANTS]
    assert len(set(names)) == len(names)
    assert {*names} >= SLOW_TO_FIND
    assert {*ANYTHING, STUCK, NO_END} - {name for plant in PLANTS for name in plant.finds} == set()


def test_a_probe_that_nothing_reaches_is_noticed() -> None:
    """Without faults a walk reaches few of them."""
    reached = walked(Design(), range(5), noisy=20)
    assert len(PROBES.keys() - reached.keys()) > len(PROBES) // 2
