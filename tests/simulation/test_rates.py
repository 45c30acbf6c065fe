"""Groups whose handlers have a limited rate, seed by seed: it is never passed, and no record is lost."""

import random
from itertools import islice

import msgspec

from .plan import Plan, draw_plan
from .plants import focused
from .test_seeds import seeds_with
from .world import run_plan

SEEDS, SEEDS_MORE = 4, 16
FAULTS = (
    "crash",
    "rival",
    "rivals",
    "pause",
    "slow",
    "coordinator dies",
    "coordinator pauses",
    "coordinator cut",
    "stop",
)


def limited(seed: int) -> Plan:
    """A group to which much happens that moves shares, with fewer attempts a second than it has records for."""
    plan = focused(draw_plan(seed), FAULTS)
    rate = random.Random(f"rate {seed}").choice((30.0, 100.0))
    return msgspec.structs.replace(plan, mix=msgspec.structs.replace(plan.mix, rate_per_s=rate))


def test_no_more_attempts_begin_than_the_rate_allows() -> None:
    """Members die, are replaced while they stand still, and come back; nobody begins more than the group may."""
    for seed in islice(seeds_with(several=True), SEEDS):
        run_plan(limited(seed))


def test_no_more_attempts_begin_in_many_more_groups() -> None:
    """The same for longer."""
    for seed in islice(seeds_with(several=True), SEEDS, SEEDS_MORE):
        run_plan(limited(seed))
