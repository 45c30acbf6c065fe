"""Chaos on a cluster of three: nothing is lost, doubled or reordered, and no fault stops progress for long."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..tiers.marks import tier
from .chaos_app import PARTITIONS
from .chaos_process import say
from .cluster_chaos import ClusterRound, run_cluster_round
from .cluster_chaos_plan import STOP_S_MAX, TARGETS, Deed, Fault, draw

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_800)]

RECORDS_MIN = 12_000


@tier("proof", "cluster-chaos")
@pytest.mark.usefixtures("spark")
def test_a_round_on_a_cluster(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Leaders, coordinator, quorum and network fail under load: both judges find nothing, and each stop is short."""
    figures = run_cluster_round(ClusterRound(seed=3, hang_s=12.0), tmp_path / "round", say)
    record_property("figures", str(figures))
    say(figures.table())
    assert figures.records >= RECORDS_MIN
    assert figures.dead_letters > 0
    assert figures.state_keys > 500
    assert figures.gave_up == 0, "no fault makes the application end"
    assert set(figures.found.values()) == {0}
    assert figures.checked == {}
    assert not (tmp_path / "round").exists(), "nothing stays on the disk"


def test_a_round_is_drawn_from_its_seed() -> None:
    """The same seed makes the same plan; every deed to nodes is in each, and in a whole one on every target."""
    assert draw(ClusterRound(seed=5), PARTITIONS) == draw(ClusterRound(seed=5), PARTITIONS)
    assert draw(ClusterRound(seed=5), PARTITIONS) != draw(ClusterRound(seed=6), PARTITIONS)
    deeds: set[Deed] = {
        "kill",
        "hang",
        "stop",
        "cut",
        "quorum",
        "move",
        "application and leader",
    }
    for seed in range(5):
        assert {fault.deed for fault in draw(ClusterRound(seed=seed), PARTITIONS)} == deeds
    whole = draw(ClusterRound(seed=1, is_whole=True), PARTITIONS)
    for deed in ("kill", "hang", "stop"):
        assert {fault.target for fault in whole if fault.deed == deed} == set(TARGETS)


def test_a_cut_off_node_goes_on_leading() -> None:
    """So the application may stand as long as the cut lasts, and the usual time more."""
    assert Fault("cut", "source", 0, 8.0).allowed_s == STOP_S_MAX + 8.0
    assert Fault("hang", "source", 0, 20.0).allowed_s == STOP_S_MAX < 20.0
