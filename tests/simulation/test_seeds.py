"""The whole runtime, seed by seed: whatever happens to it, every record is processed exactly once, in order of its key.

A failing seed prints itself, and its plan and story made small. It runs again with ``python3 dev.py soak --seed N``, or
here: ``python -m pytest tests/simulation --first-seed N --seeds 1``.
"""

import asyncio
import io
import os
from collections import Counter
from collections.abc import Iterable

import pytest
from rich.console import Console

from . import corpus, soak
from .plan import KINDS, Plan, draw_plan
from .process import STEPS
from .shrink import kind_of, parts_of, shrink
from .soak_pool import Pool, Worker
from .soak_worker import Answer, Task
from .world import run_plan, run_seed

MANY_SEEDS, FAULTS_MIN = 1_500, 15_000
REPEATED = 6
SHRINK_RUNS = 60
STORIES_MAX = 3

reached: Counter[str] = Counter()
traces: dict[int, str] = {}

MUST_BE_REACHED = (
    *KINDS,
    "dropped",
    "caught up",
    "trimmed",
    "out",
    "audit",
    "dead",
    "SnapshotTaken",
    "RangesReleased",
    "WorkerSplit",
    "WorkersMerged",
    "StateChanged",
    "entries in copies",
    "NoKey",
    "ValueError",
    "DecodeFailed",
    "HandlerTimeout",
)
EFFECTS = (
    "coordinator_away",
    "not_sent",
    "request_lost",
    "reply_lost",
    "reply_slow",
    "request_late",
    "request held",
    "arrived_late",
    "marker_late",
    "transact_aborted",
    "transact_unknown",
    "transaction_timed_out",
    "commit_not_carried_out",
    "connection_broken",
    "fenced",
    "open_transaction_fenced",
    *(f"died at {step}" for step in STEPS),
    "writes lost with power",
    "wrote to a full disk",
    "range passed on",
    "asked for a split",
    "asked for a merge",
    "split as hot",
    "merged as cold",
    "ended with FencedError",
    "ended with BrokerUnavailable",
    "ended with StoreError",
    "OutputRefused",
    "TransactionRefused",
)
"""What comes of the happenings, within the many seeds: a kind of happening is counted before anything happens."""


def test_every_record_is_processed_exactly_once(seed: int) -> None:
    """Crashes, stops, rivals, faults, changed cuts: the logs are right in the end, and nothing is left to be done."""
    plan = draw_plan(seed)
    try:
        outcome = run_plan(plan)
    except Exception as error:
        error.add_note(made_small(plan, kind_of(error)))
        raise
    traces[seed] = outcome.trace
    reached.update(+outcome.reached)


@pytest.mark.parametrize("repeated", range(5))
def test_the_same_seed_gives_the_same_bytes(repeated: int) -> None:
    """Every offset of every log, and the time at the end, come from the seed alone."""
    first = traces.get(repeated) or run_seed(repeated)[0]
    assert run_seed(repeated)[0] == first


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    """Also where sets are walked in another order: each worker has its own PYTHONHASHSEED."""
    seeds = range(REPEATED)
    here = [traces.get(seed) or run_seed(seed)[0] for seed in seeds]

    async def run() -> list[list[Answer]]:
        async with Pool(2) as pool:
            return await asyncio.gather(*(run_in_order(worker, seeds) for worker in pool.workers))

    for answers in asyncio.run(run()):
        assert [answer.trace for answer in answers] == here


def test_the_seeds_reach_everything() -> None:
    """A mix that never drops, merges, trims or times out would prove nothing about it."""
    if len(traces) < 100:
        pytest.skip("with few seeds some things may not happen")
    missing = [what for what in MUST_BE_REACHED if not reached[what]]
    assert not missing, f"no seed reached {missing}"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.timeout(1_200)
def test_many_seeds_over_all_cores(capsys: pytest.CaptureFixture[str]) -> None:
    """1,500 seeds with 15,000 faults: none loses, doubles or disorders anything, none hangs."""
    failed: list[Answer] = []
    faults: Counter[str] = Counter()
    came_across: Counter[str] = Counter()

    def hear(answer: Answer) -> None:
        faults.update(answer.faults)
        came_across.update(answer.reached)
        failed.extend([answer] if answer.failure else [])

    async def run() -> str:
        async with Pool(os.cpu_count() or 1) as pool:
            await pool.run(map(Task, range(MANY_SEEDS)), hear, lambda: len(failed) >= STORIES_MAX)
            return await told_of(pool, failed)

    told = asyncio.run(run())
    assert not failed, told
    with capsys.disabled():
        print(f"\n{MANY_SEEDS:,} seeds, {faults.total():,} faults: {dict(faults.most_common())}")  # noqa: T201  # a figure
    assert faults.total() >= FAULTS_MIN
    came_across.update(faults)
    missing = [what for what in (*MUST_BE_REACHED, *EFFECTS) if not came_across[what]]
    assert not missing, f"no seed reached {missing}"


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
