"""Chaos in a group of three processes: each record counts once, and nobody is expelled but whom a fault meets."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .group_chaos import GroupRound, run_group_round, table
from .group_chaos_plan import ROLES, draw

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RATE, RECORDS_MIN = 20.0, 2_000


def say(line: str) -> None:
    """What happens, for whoever looks on (pytest -s)."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_round_in_a_group(nodes: int, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """On one node processes are killed, suspended and restarted; on three the leaders of the group's logs are."""
    round_ = GroupRound(seed=nodes, nodes=nodes, rate=RATE)
    figures = run_group_round(round_, tmp_path / "round", say)
    record_property("figures", str(figures))
    say(table(figures))
    say(str(figures))
    assert figures.records >= RECORDS_MIN
    assert figures.dead_letters > 0
    silent = sum(fault.causes.count("silent") for fault in draw(round_))
    assert figures.expelled.get("silent", 0) == silent >= 3 * (nodes == 1)
    assert set(figures.found.values()) == {0}
    assert figures.checked == {}
    assert not (tmp_path / "round").exists(), "nothing stays on the disk"


def test_a_round_is_drawn_from_its_seed() -> None:
    """The same seed makes the same plan; a whole one has every deed on everybody."""
    assert draw(GroupRound(seed=5)) == draw(GroupRound(seed=5)) != draw(GroupRound(seed=6))
    whole = draw(GroupRound(seed=1, nodes=3, is_whole=True))
    for deed in ("killed", "killed and away", "paused", "paused and expelled"):
        assert {fault.role for fault in whole if fault.deed == deed} == set(ROLES)
    for deed in ("leaders killed", "leaders paused"):
        assert {fault.topics for fault in whole if fault.deed == deed} == {
            ("signals",),
            ("control",),
            ("signals", "control"),
        }
