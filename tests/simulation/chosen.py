"""The seeds of ``make test``: sixty groups and single processes that meet every kind of fault at every step.

``python -m tests.simulation.chosen`` chooses them anew, by all cores, and writes ``chosen.json``. A new kind of fault
comes among the same number of seeds by that: what is to be met is listed here.
"""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from .deposing import LED
from .happenings import ASKED, ROLES
from .plan import KINDS, RANGE_KINDS, Plan, draw_plan, made
from .plants import focused
from .process import STEPS
from .soak_pool import Pool
from .soak_worker import Answer, Task, encode
from .steps import STRIKES, Strike, can_meet

FILE: Final = Path(__file__).with_name("chosen.json")
SEEDS_MAX: Final = 60
CHOSEN_MAX: Final = 52
"""So many are chosen. The others are planned for what those do not meet any more: a change of the code moves all."""
TIMES_MAX: Final = 4
"""So often each thing is met in the end, if so many seeds can do it."""

STEP_KINDS: Final = ("coordinator dies", "coordinator pauses", "coordinator cut")
DEPOSED_KINDS: Final = ("deposed", "deposed", "rack", "crash", "pause", STEP_KINDS[0], "restart", "move", "unknown")
RATE_KINDS: Final = ("crash", "rival", "rivals", "pause", "slow", *STEP_KINDS, "stop")
STRIKES_A_PLAN: Final = 9
"""So many strikes one after the other."""
DECIDED: Final = "decided while an old leader answers"

APPLICATION: Final = """
intervals between commits, dropped, caught up, trimmed, out, audit, dead, SnapshotTaken, RangesReleased, PlanMade,
EndsPinned, MemberRefused, expelled: silent, expelled: left, WorkerSplit, WorkersMerged, StateChanged,
entries in copies, changes copied, changes below a raised marker, answered by a copy, NoKey, ValueError, DecodeFailed,
HandlerTimeout
"""
"""What the application does and writes."""
EFFECTS: Final = """
coordinator_away, not_sent, request_lost, reply_lost, reply_slow, request_late, request held, arrived_late,
marker_late, transact_aborted, transact_unknown, transaction_timed_out, commit_not_carried_out, old leader told,
old records read, old coordinator told, leader not confirmed, no answer, cut from a node, connection_broken, fenced,
open_transaction_fenced, writes lost with power, wrote to a full disk, range passed on, two bear one name,
two have each other's names, copy asked: standby, copy promoted: learner, copy promoted: standby,
handled behind a whole copy, an answer lost at a step, withdrawn: deadline, plan: request, plan: halves,
asked for a split, asked for a merge, split as hot, merged as cold, expelled: superseded, ended at its level,
ended with FencedError, ended with Expelled, ended with BrokerUnavailable, ended with StoreError, OutputRefused,
TransactionRefused
"""
"""What comes of the happenings: a kind of happening is counted before anything happens."""
MET: Final = tuple(
    dict.fromkeys(
        (
            *KINDS,
            *RANGE_KINDS,
            "deal",
            *(name.strip() for name in f"{APPLICATION},{EFFECTS}".split(",")),
            ASKED,
            DECIDED,
            *(f"deposed: {what}" for what in LED),
            *(f"died at {step}" for step in STEPS),
            *ROLES,
            *STRIKES,
        )
    )
)
"""What seeds have to meet, the sixty and the many of the proof: also each fault at each step of a coordinator, and each
strike at each step of a hand-over.
"""


class Case(NamedTuple):
    """One seed of a sort (see ``SORTS``), or one with these strikes."""

    sort: str
    seed: int
    strikes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.sort} {self.seed}"

    @property
    def plan(self) -> Plan:
        """What happens with it."""
        return made(self.seed, self.strikes) if self.strikes else SORTS[self.sort](self.seed)


# --- sorts of plans --------------------------------------------------------------------------------------------------


def deposed(seed: int) -> Plan:
    """Leaders and coordinators that are cut off tell what was, some or all hear it, and much else goes wrong."""
    return focused(draw_plan(seed), DEPOSED_KINDS)


def election(seed: int) -> Plan:
    """Nothing else than an old leader that answers: within a session and three seconds of an election somebody who
    comes is let in, and who was killed is expelled, or the world says so.
    """
    return focused(draw_plan(seed), ("election",))


def about_steps(seed: int) -> Plan:
    """With nothing but what befalls coordinators."""
    return focused(_group(seed), STEP_KINDS)


def outage(seed: int) -> Plan:
    """Members hear nothing of each other for longer than a session, several times: none that lives is taken for silent,
    or the world says so.
    """
    plan = focused(_group(seed), ("signals away",))
    mix = msgspec.structs.replace(plan.mix, dying=False, differing=0.0, offsets_unknown=0.0, until_level=0.0)
    return msgspec.structs.replace(plan, mix=mix)


def rated(seed: int) -> Plan:
    """Fewer attempts a second than there are records for: members die, are replaced while they stand still, and come
    back, and nobody begins more than the group may, or the world says so.
    """
    plan = focused(_group(seed), RATE_KINDS)
    rate = random.Random(f"rate {seed}").choice((30.0, 100.0))
    return msgspec.structs.replace(plan, mix=msgspec.structs.replace(plan.mix, rate_per_s=rate))


SORTS: Final[Mapping[str, Callable[[int], Plan]]] = {
    "drawn": draw_plan,
    "deposed": deposed,
    "election": election,
    "steps": about_steps,
    "outage": outage,
    "rated": rated,
}
CANDIDATES: Final = {"drawn": 160, "deposed": 24, "election": 6, "steps": 30, "outage": 1, "rated": 1}
"""So many seeds of each sort are looked at for the choice, beside those with strikes."""
STRUCK: Final = "struck"
STRIKE_ROUNDS_MAX: Final = 8
"""So often strikes that are still missing are planned again."""
SPARE: Final = 1_000
"""The first seed of those that are planned for what is missing."""
ALWAYS: Final = (Case("outage", 0), Case("rated", 0))
"""What these are about is judged by the world, and met by nothing that could be counted."""


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


def _group(number: int) -> Plan:
    """The plan of a seed that begins with several members."""
    return next(islice(plans_with(several=True), number, None))


def plans_with(*, several: bool, first: int = 0) -> Iterator[Plan]:
    """Plans that begin with several members, or with one."""
    return (plan for plan in map(draw_plan, count(first)) if (plan.mix.members > 1) == several)


def planned_for(missing: Iterable[str], strikes: Strikes, others: Iterator[Plan], most: int) -> list[Plan]:
    """So many plans at most that are to meet what is missing: first strikes, then what befalls coordinators, then
    ``others``.
    """
    if plans := strikes.plans({name: name in missing for name in STRIKES}):
        return plans[:most]
    kinds = tuple(kind for kind in STEP_KINDS if any(what in ROLES and what.startswith(kind) for what in missing))
    return [focused(plan, kinds) if kinds else plan for plan in islice(others, most)]


# --- the choice ------------------------------------------------------------------------------------------------------


def choose(met_by: Mapping[Case, AbstractSet[str]], wanted: Sequence[str] = MET) -> list[Case]:
    """As few as meet everything once: each time, of those that meet what the fewest meet, the one that meets most of
    what is missing. Then as many as there may be that meet it a second time, and so on.
    """
    chosen = [case for case in met_by if case in ALWAYS]
    times = Counter(what for case in chosen for what in met_by[case])
    for wanted_times in range(1, TIMES_MAX + 1):
        while len(chosen) < CHOSEN_MAX:
            others = {case: met for case, met in met_by.items() if case not in chosen}
            rare = {what for what in wanted if times[what] < wanted_times}
            able = Counter(what for met in others.values() for what in met & rare)
            if not able:
                break
            rarest = min((what for what in wanted if able[what]), key=able.__getitem__)
            best = max((case for case in others if rarest in others[case]), key=lambda case: len(others[case] & rare))
            chosen.append(best)
            times.update(met_by[best])
    return sorted(chosen, key=[*met_by].index)


def chosen_cases() -> list[Case]:
    """Those that are written down."""
    found = msgspec.json.decode(FILE.read_bytes())
    struck = [Case(STRUCK, int(seed), tuple(strikes)) for seed, strikes in found.pop(STRUCK).items()]
    return [*(Case(sort, seed) for sort, seeds in found.items() for seed in seeds), *struck]


def write(chosen: Sequence[Case]) -> None:
    """Write them down: a line for each sort, and for each seed with strikes."""
    lines = [f'  "{sort}": {[case.seed for case in chosen if case.sort == sort]}' for sort in SORTS]
    struck = [f'    "{case.seed}": {msgspec.json.encode(case.strikes).decode()}' for case in chosen if case.strikes]
    lines.append(f'  "{STRUCK}": {{\n' + ",\n".join(struck) + "\n  }")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def struck(plan: Plan) -> Case:
    """That of a plan with strikes."""
    return Case(STRUCK, plan.seed, tuple(happening.kind for happening in plan.happenings if happening.kind in STRIKES))


def task_of(case: Case) -> Task:
    """Of a worker that runs plans for others."""
    return Task(case.seed, str(case), encode(case.plan))


def main() -> int:
    """Run all candidates, choose, and write the choice down; 1: something failed, or is not met."""
    met_by: dict[Case, set[str]] = {}
    failed: list[str] = []

    async def look(pool: Pool, cases: Sequence[Case]) -> None:
        named = {str(case): case for case in cases}

        def hear(answer: Answer) -> None:
            met_by[named[answer.name]] = {*answer.reached, *answer.faults}
            failed.extend([answer.name] if answer.failure else [])

        met_by.update((case, set()) for case in cases)  # in their order, not in that of the answers
        await pool.run(map(task_of, cases), hear)

    async def run() -> None:
        strikes = Strikes()
        async with Pool(os.cpu_count() or 1) as pool:
            await look(pool, [Case(sort, seed) for sort, seeds in CANDIDATES.items() for seed in range(seeds)])
            for _ in range(STRIKE_ROUNDS_MAX):
                met = set[str]().union(*met_by.values())
                await look(pool, [struck(plan) for plan in strikes.plans({name: name not in met for name in STRIKES})])

    asyncio.run(run())
    chosen = choose(met_by)
    write(chosen)
    missing = set(MET).difference(*(met_by[case] for case in chosen))
    sys.stdout.write(f"{len(chosen)} of {len(met_by)} seeds; failed: {failed}; met by none: {sorted(missing)}\n")
    return bool(failed or missing)


if __name__ == "__main__":
    sys.exit(main())
