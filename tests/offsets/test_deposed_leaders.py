"""Leaders and coordinators of transactions that were deposed and still answer: no decision rests on what they tell.

A READ may come to any earlier end. What it has to come to is the offset of an append that was acknowledged after the
question came up, because only the true leader acknowledges. Each row of a wrong design differs from the chosen rules by
what its name says.
"""

from typing import Any

import pytest

from .fencing_model import DOUBLE, GAP, HANGING, Design
from .fencing_programs import (
    COORDINATOR,
    MEMBER,
    READS_BACK,
    RECOVER,
    RECOVER_BY_OFFSET,
    SUCCESSOR,
    A,
    M,
    N,
    V,
    assert_none_is_stuck,
    assert_right,
    assert_wrong,
    group,
    stuck,
    without,
)
from .fencing_steps import explore
from .search import LARGE, params

NOBODY = ()
"""In place of the coordinator's program: nobody is expelled."""

RECOVER_WITH_ABORT = ("abort", *RECOVER)
_TWO: dict[str, Any] = {"successor": SUCCESSOR, "inits": (0, 0, 0), "edge_max": 1}

# --- each rule left out ----------------------------------------------------------------------------------------------

_LEFT_OUT = {
    "the coordinator reads to a told end": group(without(COORDINATOR, "end"), inits=(0, 0, 0)),
    "a successor that reads to a told end": group(**{**_TWO, "successor": without(SUCCESSOR, "end")}),
    "own append before the fence": group(("expel 0", "end", "fence 0", "fenced 0", "read", "grant"), inits=(0, 0, 0)),
    "READ before the own append": group(("expel 0", "fence 0", "fenced 0", "read", "end", "grant"), inits=(0, 0, 0)),
    "GRANT before the READ": group(("expel 0", "fence 0", "fenced 0", "end", "grant", "read"), inits=(0, 0, 0)),
    "READ behind an INIT to a told end": group(inits=(1, 0, 0), recover=without(RECOVER, "declare")),
    "READ to an own append in front of the INIT": group(
        inits=(1, 0, 0), recover=("declare", *without(RECOVER, "declare"))
    ),
    "READ behind the first INIT to a told end": group(member=without(MEMBER, "declare"), **_TWO),
    "own outcome to a told end": group(NOBODY, inits=(1, 0, 0), recover=without(RECOVER, "end")),
    "EndTxn at another node than INIT's": group(NOBODY, inits=(1, 0, 0), deposes=True, one_node=False, edge_max=3),
}


@pytest.mark.parametrize("design", _LEFT_OUT.values(), ids=_LEFT_OUT.keys())
def test_every_rule_against_old_ends_is_needed(design: Design) -> None:
    """Without the rule a tile is committed twice; a producer that speaks to two nodes loses records."""
    assert_wrong(design, DOUBLE if design.one_node else GAP)


def test_the_way_to_a_double_tile_of_a_fenced_member_can_be_read() -> None:
    """INIT gives the expelled member a good producer again; an old end of the control log leaves it in office."""
    assert explore(_LEFT_OUT["READ behind an INIT to a told end"], (DOUBLE,)).trace == (
        "V append: [0, 1) epoch 1, answer lost",
        "N init",
        "A expel V",
        "A fence V",
        "V init",
        "V look: to an old end, 1 behind",
        "A fenced V",
        "V append: [0, 1) epoch 1",
        "V commit",
        "A read: edge 0",
        "A grant: epoch 2 from 0 to N",
        "N wait_grant",
        "N append: [0, 1) epoch 2",
        "N commit",
    )


def test_the_way_to_lost_records_can_be_read() -> None:
    """The deposed node's last word on this producer is 'committed'; at the new node the transaction is aborted."""
    assert explore(_LEFT_OUT["EndTxn at another node than INIT's"], (GAP,)).trace == (
        "V append: [0, 1) epoch 1",
        "V commit",
        "broker marks V",
        "broker deposes the coordinator of transactions",
        "V append: [1, 2) epoch 1",
        "V commit: told 'committed' by the deposed node",
        "V append: [2, 3) epoch 1, answer lost",
        "V init",
        "V look",
        "V append: [2, 3) epoch 1",
        "V commit",
    )


# --- the chosen rules, and what is as good ---------------------------------------------------------------------------

_RIGHT = {
    "the coordinator reads back what it wrote": (group(READS_BACK, inits=(2, 1, 0)), 8_298, {V, N}),
    "it reads back, two coordinators": (group(READS_BACK, **_TWO), 5_694, {V, N, M}),
    "the old owner and the new one init": (group(inits=(2, 1, 0)), 7_534, {V, N}),
    "nobody is expelled, a stranger fences twice": (group(NOBODY, strangers_victims=(V, V)), 544, {V}),
    "a stranger fences twice": (group(strangers_victims=(V, V)), 13_364, {V, N}),
    "a stranger fences, two coordinators": (group(strangers_victims=(V,), **_TWO), 8_726, {V, N, M}),
    "a stranger fences the old owner and the new one": (
        group(strangers_victims=(V, N), inits=(1, 1, 0)),
        14_760,
        {V, N},
    ),
    "the coordinator of transactions is deposed": (group(deposes=True), 10_975, {V, N}),
    "own outcome to the offset of the own Produce": (
        group(inits=(2, 1, 0), by_own_offset=True, recover=RECOVER_BY_OFFSET),
        6_386,
        {V, N},
    ),
    "own outcome to that offset, the coordinator of transactions is deposed": (
        group(deposes=True, by_own_offset=True, recover=RECOVER_BY_OFFSET),
        10_135,
        {V, N},
    ),
}


@pytest.mark.parametrize(("design", "worlds", "workers"), params(_RIGHT))
def test_a_read_to_an_own_append_is_enough(design: Design, worlds: int, workers: set[int]) -> None:
    """Whatever the other READs are told, whoever fences, and whichever node coordinates: nothing is wrong."""
    assert_right(design, worlds, workers)


# --- late batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifies", [True, False], ids=["from 3.6 on", "below 3.6"])
def test_a_late_batch_is_refused_when_init_aborts_its_transaction(verifies: bool) -> None:
    """The marker of that abort has a newer epoch, so the leader of the partition refuses the batch by itself."""
    assert_right(group(late_batches=True, verifies=verifies), 4_274, {V, N})


_ALL: dict[str, Any] = {"deposes": True, "late_batches": True, "verifies": False, "strangers_victims": (V,)}
"""All that may happen on brokers below 3.6."""


@LARGE
@pytest.mark.parametrize("version", [1, 2])
def test_the_version_of_transactions_makes_no_difference(version: int) -> None:
    """No INIT repeats its own epoch, nothing is asked of another node, INIT aborts: the worlds are the same."""
    assert_right(group(**_ALL, version=version), 23_548, {V, N})


_RULES: dict[str, tuple[dict[str, Any], int]] = {
    "no INIT": ({"inits": (0, 0, 0), "edge_max": 2}, 51_459),
    "the first new owner inits": ({"inits": (0, 1, 0), "edge_max": 1}, 48_455),
    "the old owner inits": ({"inits": (1, 0, 0), "edge_max": 1, "deposes": False}, 223_911),
}


@pytest.mark.parametrize(("rules", "worlds"), params(_RULES))
def test_a_successor_need_not_fence_anew_whatever_else_happens(rules: dict[str, Any], worlds: int) -> None:
    """Late batches that no broker verifies, a stranger's fence, a deposed node: an own append and a READ are enough."""
    assert_right(group(successor=SUCCESSOR, **{**_ALL, **rules}), worlds, {V, N, M})


def test_a_late_batch_behind_an_asked_abort_doubles_a_tile_below_3_6() -> None:
    """EndTxn(abort) keeps the epoch: the batch lands behind the marker, and the next transaction commits it."""
    assert_wrong(group(late_batches=True, verifies=False, recover=RECOVER_WITH_ABORT), DOUBLE)


@pytest.mark.parametrize(
    ("verifies", "version", "worlds"),
    [
        pytest.param(True, 1, 5_677, id="from 3.6 on"),
        pytest.param(False, 2, 4_757, id="version 2 of transactions"),
    ],
)
def test_a_late_batch_behind_an_asked_abort_is_refused_elsewhere(verifies: bool, version: int, worlds: int) -> None:
    """Brokers that verify ask for the open transaction; an abort of version 2 raises the epoch."""
    design = group(late_batches=True, verifies=verifies, version=version, recover=RECOVER_WITH_ABORT)
    assert_right(design, worlds, {V, N})


# --- nobody waits for ever -------------------------------------------------------------------------------------------

_BELOW_3_6: dict[str, Any] = {"late_batches": True, "verifies": False}


@pytest.mark.parametrize(
    "design",
    [
        pytest.param(group(), id="one coordinator"),
        pytest.param(group(deposes=True, edge_max=1), id="the coordinator of transactions is deposed"),
        pytest.param(group(**_TWO), id="two coordinators"),
        pytest.param(group(strangers_victims=(V,), **_TWO), id="two coordinators, a stranger fences"),
        pytest.param(group(**_BELOW_3_6), id="late batches below 3.6"),
        pytest.param(group(**_BELOW_3_6, **_TWO), id="late batches below 3.6, two coordinators"),
        pytest.param(group(**_ALL, edge_max=1), id="all of it, one coordinator", marks=LARGE),
    ],
)
def test_no_world_is_stuck(design: Design) -> None:
    """From every world there is a way to an end at which all is done. INIT aborts, so no batch hangs."""
    assert_none_is_stuck(design)


def test_who_reads_past_a_batch_that_hangs_is_stuck() -> None:
    """Below 3.6 V asks for an abort and dies: its batch lands outside of any transaction, and no time limit ends it.

    The coordinator's own append ends it neither: readers stand in front of it for ever. So keylanes asks for no abort.
    """
    worlds = stuck(group(inits=(1, 0, 0), recover=("abort",), edge_max=1, **_BELOW_3_6))
    reading = [world for world in worlds if world.processes[A].todo == ("read", "grant")]
    assert any(entry.status == HANGING for world in reading for entry in world.log)
