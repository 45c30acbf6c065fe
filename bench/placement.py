"""What it costs to work out which member owns what, and to look at a group that is idle: time of the processor.

No broker. *A plan*: members that are level, of which a tenth have their load doubled; its figure is the time for each
step, which is one move or part of a partition, and for the whole plan. *A start*: nothing has an owner. *A look*: all
that a coordinator asks itself when nothing has happened (``decide`` and ``needs``), and the first look of a term. Each
partition has state, and a standby with a ready copy.

It runs on the interpreted package and on the compiled one; ends with 1 if a bar does not hold.
"""

import argparse
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Final

from keylanes import IS_COMPILED
from keylanes.group.coordinator import decide, needs
from keylanes.group.shares import NOBODY, PlanMember, Share
from keylanes.group.signals_fold import Heard
from keylanes.group.target import GAIN_US, solve
from keylanes.group.view import CoordinatorMemory, Rules, SourceFound, View
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.control import STANDBY
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    CopyAsked,
    MemberJoined,
    PartitionStarted,
    PlanMade,
    RangesGranted,
    StoreDeclared,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import Band, PlannedMove, Sourced, Span
from keylanes.offsets.events import Event, WorkersCut
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.signals import Copy
from rig.machine import surroundings
from rig.results import print_table, verdict, write_result

TOPIC: Final = "flights"
CELLS: Final = 8
"""Of the declared cut, in a range."""
PLANS: Final = ((10, 500), (50, 2_500), (200, 10_000), (1_000, 50_000))
"""Members, ranges."""
LOOKS: Final = ((16, 100), (16, 1_000), (256, 1_000), (50, 5_000))
"""Members, partitions."""
STEP_MS_MAX: Final = 5.0
LOOK_MS_MAX: Final = 1.0
LOOK_OF: Final = (16, 1_000)
"""The group for which the bar of a look is."""
GROWS_MAX: Final = 8.0
"""A step of the largest group takes at most so many times one of the smallest."""


def shares_of(members: int, ranges: int, *, is_owned: bool) -> list[Share]:
    """A quarter of a partition each, level over the members; of a tenth of these twice the load."""
    chance, cut = Random(7), even_bounds(4 * CELLS)
    found: list[Share] = []
    for n in range(ranges):
        owner, at = 1 + n % members, n % 4 * CELLS
        each = chance.randint(1_500, 2_500) * (2 if owner % 10 == 0 else 1)
        cells = tuple((first, each) for first in cut[at : at + CELLS])
        load = (False, each * CELLS, 10, 0, 0, cells)
        found.append(Share(TOPIC, n // 4, cut[at], cut[at + CELLS], owner if is_owned else NOBODY, *load))
    return found


def took_s(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def plan(members: int, ranges: int, rounds: int) -> dict[str, float]:
    """What a plan costs in a group of this size: the best of the rounds."""
    takers = [PlanMember(n, 1.0, frozenset({TOPIC})) for n in range(1, members + 1)]
    owned, homeless = (shares_of(members, ranges, is_owned=is_owned) for is_owned in (True, False))
    steps = len(solve(takers, owned, floor_us=GAIN_US))
    if not steps:
        raise SystemExit("nothing moved, though a tenth of the members have twice the load")
    plan_s = min(took_s(lambda: solve(takers, owned, floor_us=GAIN_US)) for _ in range(rounds))
    books_s = min(took_s(lambda: solve(takers, owned, balances=False)) for _ in range(rounds))
    start_s = min(took_s(lambda: solve(takers, homeless)) for _ in range(rounds))
    step_ms = (plan_s - books_s) / steps * 1_000
    sizes = {"members": members, "ranges": ranges, "steps": steps}
    return {**sizes, "step_ms": step_ms, "plan_s": plan_s, "start_s": start_s}


def begun(members: int, partitions: int) -> list[Event]:
    """The logs of a group in which every partition has its owner, and a copy of its state at the next member."""
    turn = Turn(1)
    events: list[Event] = [AppCreated("app", HASH_NAME, 64), CoordinatorElected(1, "", "birth 1", "birth 1")]
    events += [PartitionStarted(*turn.next(), TOPIC, p, 0, "earliest", partitions) for p in range(partitions)]
    for n in range(1, members + 1):
        topics = (Sourced(TOPIC, 8, "earliest", 0, 0.0),)
        ids = (f"app.{n}",)
        host = f"host {n}"
        joined = MemberJoined(*turn.next(), n, "", f"birth {n}", ids, host, "", 1.0, 1, topics, (), until_level=False)
        events.append(joined)
    events.append(StoreDeclared(*turn.next(), 0, "counts", TOPIC, "value", "", "int", "json"))
    moves = tuple(
        PlannedMove(p + 1, TOPIC, p, 0, SPACE_END, NOBODY, 1 + p % members, 0, 0.0, 0) for p in range(partitions)
    )
    events.append(PlanMade(*turn.next(), 1, partitions + members, "change", 0, 0, 1, moves))
    for p in range(partitions):
        owner, band, bands = 1 + p % members, (Band(0, SPACE_END, 0),), (Span(0, SPACE_END),)
        events.append(RangesGranted(*turn.next(), p + 1, owner, 1, TOPIC, p, band, (), ()))
        events.append(WorkersCut(owner, 1, 1, TOPIC, p, 0, (0, SPACE_END)))
        events.append(CopyAsked(*turn.next(), partitions + p + 1, 1 + owner % members, TOPIC, p, bands, STANDBY, 0))
    return events


def look(members: int, partitions: int, rounds: int) -> dict[str, float]:
    """What a look at an idle group costs."""
    ledger = evolve_all(Ledger(), begun(members, partitions))
    seat = CoordinatorMemory("app", "birth 1", 0, sources={TOPIC: SourceFound("", partitions)})
    heard, rules, turn = Heard(10_000, 1_000), Rules(standbys=1), Turn(1, ledger.control.number)
    for move, asked in ledger.control.moves.copies.items():
        heard.copies.setdefault(asked.incarnation, {})[move] = Copy(move, 9, 9, 0, is_ready=True)

    def looks() -> None:
        view = View(ledger, heard, seat, rules, 0, 100_000)
        batch = decide(view, turn)
        if batch.decisions or any(needs(view)):
            raise SystemExit(f"the group is not idle: {batch} {needs(view)}")

    first_ms = took_s(looks) * 1_000
    return {
        "members": members,
        "partitions": partitions,
        "first_ms": first_ms,
        "look_ms": min(took_s(looks) for _ in range(rounds)) * 1_000,
    }


def main() -> int:
    """Measure, show, and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parsed = parser.parse_args()
    how = "compiled" if IS_COMPILED else "interpreted"
    plans = [plan(members, ranges, parsed.rounds) for members, ranges in PLANS]
    looks = [look(members, partitions, parsed.rounds * 5) for members, partitions in LOOKS]
    columns = ["members", "ranges", "steps", "a step, ms", "a plan, s", "a start, s"]
    print_table(f"A plan, processor time, {how}", columns, [list(one.values()) for one in plans])
    columns = ["members", "partitions", "the first look, ms", "a look, ms"]
    print_table(f"A group that is idle, processor time, {how}", columns, [list(one.values()) for one in looks])
    content = {**surroundings(), "settings": {"rounds": parsed.rounds}, "plans": plans, "looks": looks}
    write_result(f"placement-{how}", content)
    steps_ms = [one["step_ms"] for one in plans]
    look_ms = next(one["look_ms"] for one in looks if (one["members"], one["partitions"]) == LOOK_OF)
    holds = [
        verdict(f"a step takes at most {STEP_MS_MAX} ms; took {max(steps_ms):.2f}", max(steps_ms) <= STEP_MS_MAX),
        verdict(
            f"a step of the largest group takes at most {GROWS_MAX:.0f} times one of the smallest",
            steps_ms[-1] <= GROWS_MAX * steps_ms[0],
        ),
        verdict(f"a look takes at most {LOOK_MS_MAX} ms; took {look_ms:.2f}", look_ms <= LOOK_MS_MAX),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
