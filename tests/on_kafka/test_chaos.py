"""Chaos on a real Kafka: whatever is killed, suspended, doubled or cut off, every record counts once, says Spark."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ..stage.proxy import Fault
from ..tiers.marks import tier
from . import chaos_plan as plan
from .chaos import ChaosError, Round, run_round
from .chaos_process import say

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_800)]

QUIET = Round(seed=1, kills=0, stops=0, pairs=0, broker_kills=0, broker_stops=0, restarts=0, fault_rate=0.0)
SHORT = Round(seed=7, records=50_000, kills=10, stops=5, broker_kills=1, broker_stops=1, faults=6)
"""Half of one that the soak runs."""
RECORDS_MIN, KILLS_MIN, STOPS_MIN = 50_000, 10, 5


@tier("proof", "chaos")
@pytest.mark.usefixtures("spark")
def test_a_round(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """At least 10 SIGKILLs and 5 SIGSTOPs over 50,000 records: 0 lost, doubled, out of order or torn, state right."""
    figures = run_round(SHORT, tmp_path / "round", say)
    record_property("figures", str(figures))
    say(str(figures))
    assert figures.records >= RECORDS_MIN
    assert figures.kills + figures.broker_kills >= KILLS_MIN
    assert figures.stops + figures.broker_stops >= STOPS_MIN
    assert figures.kills_in_transaction >= 2, "kills inside open transactions"
    assert figures.fenced >= 3, "processes that were taken over"
    assert figures.shared >= 1, "two at work side by side"
    assert sum(figures.faults.values()) >= SHORT.faults
    for armed in plan.ARMED:
        assert figures.faults.get(armed.name.lower(), 0) >= 1, f"no EndTxn met {armed.name}: {figures.faults}"
    assert min(figures.changes.values()) >= 10, "splits, merges, releases, grants"
    assert figures.dead_letters > 0
    assert figures.state_keys > 1_000
    assert set(figures.found.values()) == {0}
    assert not (tmp_path / "round").exists(), "nothing stays on the disk"


@tier("proof", "chaos-planted")
@pytest.mark.usefixtures("spark")
def test_planted_defects_are_caught(tmp_path: Path) -> None:
    """Commits that are sent again unread, an output that is not written, changes of state that are not: the audit names
    what each of them breaks.
    """
    # So many that each transaction has outputs: one that only passes over records of others doubles nothing but a tile.
    planted = replace(QUIET, records=40_000, planted=("resend", "lose", "forget"), armed="LOSE_REPLY")
    with pytest.raises(ChaosError, match="NOT exactly once") as caught:
        run_round(planted, tmp_path / "round", say)
    named = set(str(caught.value).partition(": ")[2].partition(": ")[0].split(", "))
    assert named >= {"output-once", "record-tile"}, "by the transaction that was sent again"
    assert named >= {"commit-outputs", "commit-digest"}, "by the output that is missing"
    assert "state" in named, "by the changes that are missing"


def test_faults_that_were_not_met_are_made_up_for() -> None:
    """First those of which there was none yet, then the rarest, until they are enough."""
    round_, met = Round(seed=1, faults=7), Counter(dict.fromkeys(plan.ARMED[1:], 1))
    made_up = []
    while (more := plan.one_more(round_, met)) is not None:
        made_up.append(more.armed)
        met[Fault[more.armed]] += 1
    assert made_up == [plan.ARMED[0].name, *(fault.name for fault in plan.ARMED[:2])]
    assert plan.one_more(QUIET, Counter()) is None


def test_a_round_is_drawn_from_its_seed() -> None:
    """The same seed makes the same plan, another one another; every kind of kill and stop is in one of some, and each
    fault that is armed is in each.
    """
    assert plan.draw(Round(seed=5)) == plan.draw(Round(seed=5)) != plan.draw(Round(seed=6))
    for seed in range(5):
        assert {happening.armed for happening in plan.draw(Round(seed=seed))} >= {fault.name for fault in plan.ARMED}
    kinds = {type(happening) for seed in range(5) for happening in plan.draw(Round(seed=seed))}
    assert kinds == {*plan.Happening.__subclasses__()} - {plan.Pass}
