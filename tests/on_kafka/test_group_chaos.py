"""Chaos in a group: each record counts once, and nobody is expelled but whom a fault meets, while ranges move."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..tiers.marks import tier
from .chaos_process import say
from .group_chaos import GroupRound, run_group_round
from .group_chaos_plan import ROLES, draw

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_800)]

RECORDS_MIN = 1_500
MOVES_MIN = 10
EIGHT_ON_ONE = GroupRound(seed=1, members=8, partitions=1, rate=20.0, busy_ms=20.0, is_moving=True)
"""Members whose processes are killed, suspended, stopped and join."""
SIX_ON_FOUR = GroupRound(seed=3, members=6, partitions=4, rate=20.0, busy_ms=20.0, is_moving=True, nodes=3, standbys=1)
"""The leaders of the group's logs go, too, and members keep copies of each other's state."""


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "round_",
    [
        pytest.param(EIGHT_ON_ONE, id="8 on 1", marks=tier("proof", "group-chaos")),
        pytest.param(SIX_ON_FOUR, id="6 on 4"),
    ],
)
def test_a_round_in_a_group(round_: GroupRound, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Ranges of the partitions move all the time; of each fault the control log shows what it should, and no more."""
    figures = run_group_round(round_, tmp_path / "round", say)
    record_property("figures", str(figures))
    say(figures.table())
    say(str(figures))
    assert figures.records >= RECORDS_MIN
    assert figures.dead_letters > 0
    silent = sum(fault.causes.count("silent") for fault in draw(round_))
    assert silent >= 2 * (round_.nodes == 1)
    assert figures.moves.get("request", 0) >= MOVES_MIN
    assert figures.keys_of_copies > 0
    assert set(figures.found.values()) == {0}
    assert figures.checked == {}
    assert not (tmp_path / "round").exists(), "nothing stays on the disk"


def test_a_round_is_drawn_from_its_seed() -> None:
    """The same seed makes the same plan; a whole one has every deed on everybody."""
    assert draw(GroupRound(seed=5)) == draw(GroupRound(seed=5)) != draw(GroupRound(seed=6))
    whole = draw(GroupRound(seed=1, nodes=3, is_whole=True))
    for deed in ("killed", "killed and away", "paused", "paused and expelled", "stopped"):
        assert {fault.role for fault in whole if fault.deed == deed} == set(ROLES)
    for deed in ("leaders killed", "leaders paused"):
        assert {fault.topics for fault in whole if fault.deed == deed} == {
            ("signals",),
            ("control",),
            ("signals", "control"),
        }
    for seed in range(5):
        short = draw(GroupRound(seed=seed))
        assert {fault.deed for fault in short} == {
            "killed",
            "killed and away",
            "paused",
            "paused and expelled",
            "stopped",
            "joined",
        }
        assert {fault.role for fault in short if "silent" in fault.causes} == set(ROLES)
