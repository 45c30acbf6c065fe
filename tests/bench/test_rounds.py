from typing import Any

import pytest

from rig.rounds import rate_said, run_rounds

from ..tiers.marks import tier

pytestmark = tier("check")

ARMS = ("fast", "slow")


def run(arm: str, suffix: str) -> dict[str, Any]:
    """The figures of a run that knows its suffix."""
    return {"per_second": 1_000.0 if arm == "fast" else 10.0, "suffix": suffix}


def test_every_arm_runs_in_every_round() -> None:
    """Figures come with their round and arm, in the order of the runs, each with a suffix of its own."""
    rounds = run_rounds(2, ARMS, run, rate_said)
    assert [(r["round"], r["arm"]) for r in rounds] == [(0, "fast"), (0, "slow"), (1, "fast"), (1, "slow")]
    assert [r["suffix"] for r in rounds] == ["0-0", "0-1", "1-0", "1-1"]


def test_rounds_that_turn_begin_with_the_other_end() -> None:
    """Every other round runs backwards; an arm keeps its place in the suffix."""
    rounds = run_rounds(3, ARMS, run, rate_said, turned=True)
    assert [r["arm"] for r in rounds] == ["fast", "slow", "slow", "fast", "fast", "slow"]
    assert [r["suffix"] for r in rounds[2:4]] == ["1-1", "1-0"]


def test_a_run_is_told_as_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each run: its round, its arm, and what its figures say."""
    run_rounds(1, ARMS, run, rate_said)
    assert capsys.readouterr().out.splitlines() == [
        "  round 0: fast: 1,000 records/s",
        "  round 0: slow: 10 records/s",
    ]
