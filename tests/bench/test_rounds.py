from typing import Any

import pytest

from rig.rounds import run_rounds

from ..tiers.marks import tier

pytestmark = tier("check")

ARMS = ("fast", "slow")


def run(arm: str, suffix: str) -> dict[str, Any]:
    """The figures of a run that knows its suffix."""
    return {"per_second": 1_000.0 if arm == "fast" else 10.0, "suffix": suffix}


def rate_said(figures: dict[str, Any]) -> str:
    """The rate, for a person."""
    return f"{figures['per_second']:,.0f} records/s"


def test_every_arm_runs_in_every_round() -> None:
    """Every other round runs backwards. Figures come with their round and arm, in the order of the runs; an arm keeps
    its place in the suffix.
    """
    rounds = run_rounds(3, ARMS, run, rate_said)
    assert [(r["round"], r["arm"]) for r in rounds] == [
        *((0, "fast"), (0, "slow"), (1, "slow"), (1, "fast"), (2, "fast"), (2, "slow"))
    ]
    assert [r["suffix"] for r in rounds] == ["0-0", "0-1", "1-1", "1-0", "2-0", "2-1"]


def test_a_run_is_told_as_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each run: its round, its arm, and what its figures say."""
    run_rounds(1, ARMS, run, rate_said)
    assert capsys.readouterr().out.splitlines() == [
        "  round 0: fast: 1,000 records/s",
        "  round 0: slow: 10 records/s",
    ]
