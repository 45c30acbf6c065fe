"""The whole runtime, seed by seed: whatever happens to it, every record is processed exactly once, in order of its key.

A failing seed prints itself, and its plan and story made small. It runs again with ``python3 dev.py soak --seed N``, or
here: ``python -m pytest tests/simulation --first-seed N --seeds 1``.
"""

import asyncio
import io
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice

import msgspec
import pytest
from rich.console import Console

from ..tiers.marks import tier
from . import corpus, soak
from .deposing import LED
from .happenings import ASKED, ROLES
from .plan import KINDS, RANGE_KINDS, Plan, draw_plan, made
from .plants import focused
from .process import STEPS
from .shrink import kind_of, parts_of, shrink
from .soak_pool import Pool, Worker
from .soak_worker import Answer, Task, encode
from .steps import STRIKES, Strike, can_meet
from .world import run_plan, run_seed

pytestmark = tier("check")

GROUP_SEEDS, SINGLE_SEEDS, STEP_PLANS = 65, 20, 50
"""Of the many: with several members from the beginning, with one, and with nothing but what befalls coordinators."""
MORE_SEEDS, MORE_ROUNDS_MAX = 10, 12
"""So many more with several members, so often, as long as something was not met that no plan can ask for."""
STEPS_MIN = 1
"""So often each fault meets the coordinator at each of its steps, and each strike a hand-over."""
STRIKES_A_PLAN, STRIKE_ROUNDS_MAX = 9, 8
"""So many strikes one after the other; so often those that are still missing are planned again."""
FAULTS_MIN = 1_500
DEPOSED_SEEDS, ELECTIONS = 48, 12
"""With leaders and coordinators that were deposed and still answer, among other troubles; and with nothing else."""
ELECTIONS_MIN = 6
"""So many of them nothing else befalls, so that they are judged."""
OUTAGES = 4
"""Plans in which nothing but the signals is away."""
REPEATED = 3
SHRINK_RUNS = 60
STORIES_MAX = 3

traces: dict[int, str] = {}

DEPOSED_KINDS = ("deposed", "deposed", "rack", "crash", "pause", "coordinator dies", "restart", "move", "unknown")
STEP_KINDS = ("coordinator dies", "coordinator pauses", "coordinator cut")
MUST_BE_REACHED = (
    *KINDS,
    *RANGE_KINDS,
    "deal",
    "intervals between commits",
    "dropped",
    "caught up",
    "trimmed",
    "out",
    "audit",
    "dead",
    "SnapshotTaken",
    "RangesReleased",
    "PlanMade",
    ASKED,
    "EndsPinned",
    "MemberRefused",
    "expelled: silent",
    "expelled: left",
    "WorkerSplit",
    "WorkersMerged",
    "StateChanged",
    "entries in copies",
    "changes copied",
    "changes below a raised marker",
    "answered by a copy",
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
    "old leader told",
    "old records read",
    "old coordinator told",
    "leader not confirmed",
    "no answer",
    "cut from a node",
    *(f"deposed: {what}" for what in LED),
    "connection_broken",
    "fenced",
    "open_transaction_fenced",
    *(f"died at {step}" for step in STEPS),
    "writes lost with power",
    "wrote to a full disk",
    "range passed on",
    "two bear one name",
    "two have each other's names",
    "copy asked: standby",
    "copy promoted: learner",
    "copy promoted: standby",
    "handled behind a whole copy",
    "an answer lost at a step",
    "withdrawn: deadline",
    "plan: request",
    "plan: halves",
    "asked for a split",
    "asked for a merge",
    "split as hot",
    "merged as cold",
    "expelled: superseded",
    "ended at its level",
    "ended with FencedError",
    "ended with Expelled",
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
        traces[seed] = run_plan(plan).trace
    except Exception as error:
        error.add_note(made_small(plan, kind_of(error)))
        raise


@pytest.mark.parametrize("deposed", range(DEPOSED_SEEDS))
def test_nobody_is_deceived_by_who_was_deposed(deposed: int) -> None:
    """Leaders and coordinators that are cut off tell what was, some or all hear it, and much else goes wrong."""
    plan = focused(draw_plan(deposed), DEPOSED_KINDS)
    try:
        run_plan(plan)
    except Exception as error:
        error.add_note(made_small(plan, kind_of(error)))
        raise


def test_the_group_decides_while_an_old_leader_answers() -> None:
    """Within a session and three seconds of an election somebody who comes is let in, and who was killed is expelled,
    or the world would say so.
    """
    reached: Counter[str] = Counter()
    for seed in range(ELECTIONS):
        reached += run_plan(focused(draw_plan(seed), ("election",))).reached
    assert reached["decided while an old leader answers"] >= ELECTIONS_MIN


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
        return [what for what in (*MUST_BE_REACHED, *EFFECTS) if not came_across[what] + faults[what]]

    def rare() -> list[str]:
        return [role for role in (*ROLES, *STRIKES) if came_across[role] < STEPS_MIN]

    async def run() -> tuple[int, str]:
        seeds, others = GROUP_SEEDS + SINGLE_SEEDS + STEP_PLANS, seeds_with(several=True)
        async with Pool(os.cpu_count() or 1) as pool:
            await pool.run(many_tasks(others), hear, is_over)
            strikes = Strikes()
            for _ in range(STRIKE_ROUNDS_MAX):
                # All are through before it is counted what is missing, so the same plans run each time.
                if failed or not (plans := strikes.plans({name: STEPS_MIN - came_across[name] for name in STRIKES})):
                    break
                seeds += len(plans)
                await pool.run([Task(plan.seed, plan=encode(plan)) for plan in plans], hear, is_over)
            for _ in range(MORE_ROUNDS_MAX):
                if failed or not (missing() or rare()):
                    break
                seeds += MORE_SEEDS
                kinds = [kind for kind in STEP_KINDS if any(role.startswith(kind) for role in rare())]
                more = islice(others, MORE_SEEDS)
                await pool.run([about_steps(seed, kinds) if kinds else Task(seed) for seed in more], hear, is_over)
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
    assert not missing(), f"no seed reached {missing()}"
    assert not rare(), f"met less than {STEPS_MIN} times: {rare()}"


def many_tasks(others: Iterator[int]) -> Iterator[Task]:
    """Those of the many seeds. ``others``: with several members; the first of them are taken."""
    yield from (Task(seed) for seed in islice(others, GROUP_SEEDS))
    yield from (Task(seed) for seed in islice(seeds_with(several=False), SINGLE_SEEDS))
    yield from map(about_steps, islice(seeds_with(several=True), STEP_PLANS))


def about_steps(seed: int, kinds: Sequence[str] = STEP_KINDS) -> Task:
    """With nothing but what befalls coordinators."""
    return Task(seed, plan=encode(focused(draw_plan(seed), tuple(kinds))))


class Strikes:
    """Makes plans in which hand-overs are struck: each strike where it can meet one, with state or without."""

    def __init__(self) -> None:
        self._rng, self._seeds = random.Random("struck"), count()

    def plans(self, missing: Mapping[str, int]) -> list[Plan]:
        """Plans in which each strike comes as often as it is missing."""
        made_now = list[Plan]()
        for wanted in (None, True, False):
            met = {stateful for stateful in (False, True) if wanted in (None, stateful)}
            waiting = [name for name, strike in STRIKES.items() if _met_in(strike) == met for _ in range(missing[name])]
            self._rng.shuffle(waiting)
            while waiting:
                plan = made(next(self._seeds), waiting[:STRIKES_A_PLAN])
                if plan.mix.stateful in met:
                    made_now.append(plan)
                    del waiting[:STRIKES_A_PLAN]
        return made_now


def _met_in(strike: Strike) -> set[bool]:
    """Whether a strike can meet a hand-over with state (True), without (False)."""
    return {stateful for stateful in (False, True) if can_meet(strike, stateful=stateful)}


def seeds_with(*, several: bool) -> Iterator[int]:
    """Seeds whose plans begin with several members, or with one."""
    return (seed for seed in count() if (draw_plan(seed).mix.members > 1) == several)


def test_an_outage_of_the_signals_expels_nobody() -> None:
    """Members hear nothing of each other for longer than a session, several times: none that lives is taken for silent,
    or the world would say so.
    """
    outages: Counter[str] = Counter()
    for seed in islice(seeds_with(several=True), OUTAGES):
        plan = focused(draw_plan(seed), ("signals away",))
        mix = msgspec.structs.replace(plan.mix, dying=False, differing=0.0, offsets_unknown=0.0, until_level=0.0)
        outages += run_plan(msgspec.structs.replace(plan, mix=mix)).faults
    assert outages["signals away"] >= 10 * OUTAGES


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
