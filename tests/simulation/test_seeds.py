"""The whole runtime, seed by seed: whatever happens to it, every record is processed exactly once, in order of its key.

A failing seed prints its plan and story made small. A drawn one runs again with ``python3 dev.py soak --seed N``, or
here: ``python -m pytest tests/simulation --first-seed N --seeds 1``.
"""

import asyncio
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import pytest
from rich.console import Console

from ..tiers.marks import tier
from . import corpus, soak
from .chosen import (
    ALWAYS,
    CHOSEN_MAX,
    DECIDED,
    MET,
    SEEDS_MAX,
    SPARE,
    Case,
    Strikes,
    choose,
    chosen_cases,
    planned_for,
    plans_with,
    task_of,
)
from .happenings import ROLES
from .plan import Plan
from .shrink import kind_of, parts_of, shrink
from .soak_pool import Pool, Worker
from .soak_worker import Answer, Task, encode
from .steps import STRIKES
from .world import Outcome, run_plan

pytestmark = tier("check")

GROUP_SEEDS, SINGLE_SEEDS = 65, 20
"""Of the many: with several members from the beginning, with one."""
MANY: dict[str, int] = {"steps": 50, "deposed": 48, "election": 12, "outage": 4, "rated": 16}
"""So many of other sorts."""
MORE_SEEDS, ROUNDS_MAX = 10, 20
"""So many more, so often, as long as something was not met."""
SPARES_AT_ONCE = 3
"""Of the sixty, as long as something was not met."""
FAULTS_MIN = 1_500
DECIDED_MIN = 6
"""So many elections nothing else befalls, so that they are judged."""
REPEATED = 3
SHRINK_RUNS = 60
STORIES_MAX = 3

outcomes: dict[Case, Outcome] = {}


def outcome_of(case: Case) -> Outcome:
    """What a seed came to; it is run once."""
    if case not in outcomes:
        plan = case.plan
        try:
            outcomes[case] = run_plan(plan)
        except Exception as error:
            error.add_note(made_small(plan, kind_of(error)))
            raise
    return outcomes[case]


def test_every_record_is_processed_exactly_once(case: Case) -> None:
    """Crashes, stops, rivals, faults, changed cuts: the logs are right in the end, and nothing is left to be done."""
    outcome_of(case)


@tier("test")
@pytest.mark.timeout(900)
def test_sixty_seeds_meet_every_fault_at_every_step() -> None:
    """What many seeds are asked to meet the seeds of `make test` meet: those that are chosen, and some that are planned
    for what is missing.
    """
    met, left = Counter[str](), SEEDS_MAX
    plans: list[Case | Plan] = [*chosen_cases()]
    strikes, others = Strikes(), plans_with(several=True, first=SPARE)
    while plans:
        for plan in plans:
            outcome = outcome_of(plan) if isinstance(plan, Case) else run_plan(plan)
            met += outcome.reached + outcome.faults
        left -= len(plans)
        missing = [what for what in MET if not met[what]]
        plans = [*planned_for(missing, strikes, others, min(left, SPARES_AT_ONCE))] if missing else []
    assert not missing, f"not met: {missing}. Choose other seeds: python -m tests.simulation.chosen"


def test_a_choice_meets_all_that_can_be_met() -> None:
    """Each thing once before any is met again; what is always there is; nothing is chosen that meets nothing."""
    one, two, both, none = (Case("drawn", seed) for seed in range(4))
    met_by = {one: {"a"}, two: {"b", "c"}, both: {"a", "b", "d"}, none: {"other"}, ALWAYS[0]: set[str]()}
    assert choose(met_by, "abcd") == [one, two, both, ALWAYS[0]]
    assert choose({case: met_by[case] for case in (one, two)}, "ab") == [one, two]
    many = {Case("drawn", seed): {f"{seed}"} for seed in range(SEEDS_MAX)}
    assert len(choose(many, [what for met in many.values() for what in met])) == CHOSEN_MAX


@pytest.mark.parametrize("repeated", range(5))
def test_the_same_seed_gives_the_same_bytes(repeated: int) -> None:
    """Every offset of every log, and the time at the end, come from the seed alone."""
    case = Case("drawn", repeated)
    assert run_plan(case.plan).trace == outcome_of(case).trace


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    """Also where sets are walked in another order: each worker has its own PYTHONHASHSEED."""
    seeds = range(REPEATED)
    here = [outcome_of(Case("drawn", seed)).trace for seed in seeds]

    async def run() -> list[list[Answer]]:
        async with Pool(2) as pool:
            return await asyncio.gather(*(run_in_order(worker, seeds) for worker in pool.workers))

    for answers in asyncio.run(run()):
        assert [answer.trace for answer in answers] == here


@tier("proof", "many-seeds")
@pytest.mark.timeout(1_200)
def test_many_seeds_over_all_cores(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups and single processes, with thousands of faults: none loses, doubles or disorders anything, none hangs;
    each fault meets the coordinator at each of its steps, and giver, taker and coordinator at each step of a hand-over.
    """
    failed: list[Answer] = []
    faults: Counter[str] = Counter()
    came_across: Counter[str] = Counter()
    seconds = 0.0

    def hear(answer: Answer) -> None:
        nonlocal seconds
        seconds += answer.seconds
        faults.update(answer.faults)
        came_across.update(answer.reached)
        failed.extend([answer] if answer.failure else [])

    def is_over() -> bool:
        return len(failed) >= STORIES_MAX

    def missing() -> list[str]:
        return [what for what in MET if not came_across[what] + faults[what]]

    async def run() -> tuple[int, str]:
        others = plans_with(several=True)
        tasks = [*many_tasks(others)]
        seeds = len(tasks)
        async with Pool(os.cpu_count() or 1) as pool:
            await pool.run(tasks, hear, is_over)
            strikes = Strikes()
            for _ in range(ROUNDS_MAX):
                # All are through before it is counted what is missing, so the same plans run each time.
                if failed or not missing():
                    break
                plans = planned_for(missing(), strikes, others, MORE_SEEDS)
                seeds += len(plans)
                await pool.run(map(planned, plans), hear, is_over)
            return seeds, await told_of(pool, failed)

    seeds, told = asyncio.run(run())
    assert not failed, told
    steps = {role: came_across[role] for role in (*ROLES, *STRIKES)}
    with capsys.disabled():
        print(  # noqa: T201  # figures
            f"\n{seeds - SINGLE_SEEDS} group seeds, {SINGLE_SEEDS} single ones, {seconds:,.0f} s; "
            f"{faults.total():,} faults: {dict(faults.most_common())}; by step: {steps}"
        )
    assert faults.total() >= FAULTS_MIN
    assert not missing(), f"no seed met {missing()}"
    assert came_across[DECIDED] >= DECIDED_MIN


def many_tasks(others: Iterator[Plan]) -> Iterator[Task]:
    """Those of the many seeds. ``others``: with several members; the first of them are taken."""
    yield from map(planned, islice(others, GROUP_SEEDS))
    yield from map(planned, islice(plans_with(several=False), SINGLE_SEEDS))
    yield from (task_of(Case(sort, seed)) for sort, seeds in MANY.items() for seed in range(seeds))


def planned(plan: Plan) -> Task:
    """Of a worker that runs plans for others."""
    return Task(plan.seed, plan=encode(plan))


async def run_in_order(worker: Worker, seeds: Iterable[int]) -> list[Answer]:
    """Seeds one after the other, in one process."""
    return [await worker.run(Task(seed)) for seed in seeds]


async def told_of(pool: Pool, failed: list[Answer]) -> str:
    """The seeds that failed; of the first one its plan made smaller, and the story of that."""
    text = io.StringIO()
    console = Console(file=text, soft_wrap=True, highlight=False, markup=False)
    for answer in failed:
        assert answer.failure is not None, "it failed"
        console.print(f"seed {answer.seed} failed: {answer.failure.kind}")
    if failed:
        await soak.explain(pool, failed[0], SHRINK_RUNS, console)
    return text.getvalue()


def made_small(plan: Plan, kind: str) -> str:
    """A failing plan made smaller, as JSON, and its story: what a failing test tells beside its reason."""
    story: list[str] = []

    def failure(smaller: Plan) -> str | None:
        try:
            run_plan(smaller)
        except Exception as error:  # noqa: BLE001  # any other failure is told from this one by its kind
            story[:] = getattr(error, "__notes__", []) if kind_of(error) == kind else story
            return kind_of(error)
        return None

    shrunk = shrink(plan, kind, failure, SHRINK_RUNS)
    head = f"seed {plan.seed}; of {parts_of(plan)} parts of its plan {parts_of(shrunk.plan)} are left:"
    return "\n".join([head, corpus.as_json(shrunk.plan).decode(), "the story of these:", *story])
