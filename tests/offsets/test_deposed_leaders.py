"""Leaders and coordinators of transactions that were deposed and still answer: no decision rests on what they tell.

A READ may come to any earlier end. What it has to come to is the offset of an append that was acknowledged after the
question came up, because only the true leader acknowledges. Each row of a wrong design differs from the chosen rules by
what its name says.
"""

from typing import Any

import pytest

from .fencing_model import DOUBLE, GAP, Design
from .fencing_programs import (
    COORDINATOR,
    MEMBER,
    RECOVER,
    RECOVER_BY_OFFSET,
    SUCCESSOR,
    M,
    N,
    V,
    assert_none_is_stuck,
    assert_right,
    assert_wrong,
    group,
    without,
)
from .fencing_steps import explore
from .search import params

NOBODY = ()
"""In place of the coordinator's program: nobody is expelled."""

RECOVER_BY_RECORD = tuple("end" if step == "mark" else step for step in RECOVER)
RECOVER_WITH_ABORT = ("abort", *RECOVER)
BY_RECORD = ("expel 0", "fence 0", "end", "fenced 0", "read", "grant")
"""The coordinator appends a record by an id of its own in place of a mark by the id that it fenced."""

# --- told ends -------------------------------------------------------------------------------------------------------

TOLD_RECOVER = without(RECOVER, "declare", "mark")
"""INIT, then READs of both logs to ends that brokers tell."""

_TOLD = {
    "the coordinator reads the offset log": (
        group(without(COORDINATOR, "mark"), inits=(0, 0, 0), recover=TOLD_RECOVER),
        DOUBLE,
    ),
    "a fenced member reads the control log": (
        group(BY_RECORD, inits=(1, 0, 0), recover=("init", "look", "end", "read", "check", "append")),
        DOUBLE,
    ),
    "a member asks what became of its transaction": (group(NOBODY, inits=(1, 0, 0), recover=TOLD_RECOVER), DOUBLE),
    "a deposed coordinator of transactions answers from its cache": (
        group(NOBODY, inits=(1, 0, 0), recover=TOLD_RECOVER, deposes=True, one_node=False, edge_max=3),
        GAP,
    ),
}
"""INIT and told ends, as keylanes had them. In the second row each READ of the offset log comes to a true end."""


@pytest.mark.parametrize(("design", "wanted"), _TOLD.values(), ids=_TOLD.keys())
def test_a_decision_on_what_a_deposed_leader_tells_is_wrong(design: Design, wanted: str) -> None:
    """Four ways to trust an old answer: three commit a tile twice, one loses records."""
    assert_wrong(design, wanted)


def test_the_way_to_a_double_tile_of_a_fenced_member_can_be_read() -> None:
    """INIT gives the expelled member a good producer again; an old end of the control log leaves it in office."""
    design, wanted = _TOLD["a fenced member reads the control log"]
    assert explore(design, (wanted,)).trace == (
        "V append: [0, 1) epoch 1, answer lost",
        "N init",
        "A expel V",
        "A fence V",
        "V init",
        "V look: to an old end, 1 behind",
        "V append: [0, 1) epoch 1",
        "V commit",
        "A fenced V",
        "A read: edge 0",
        "A grant: epoch 2 from 0 to N",
        "N wait_grant",
        "N append: [0, 1) epoch 2",
        "N commit",
    )


def test_the_way_to_lost_records_can_be_read() -> None:
    """The deposed node's last word on this producer is 'committed'; at the new node the transaction is aborted."""
    design, wanted = _TOLD["a deposed coordinator of transactions answers from its cache"]
    assert explore(design, (wanted,)).trace == (
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


# --- each rule left out ----------------------------------------------------------------------------------------------

_TWO: dict[str, Any] = {"successor": SUCCESSOR, "inits": (0, 0, 0), "edge_max": 1}

_LEFT_OUT = {
    "READ behind an INIT to a told end": group(inits=(1, 0, 0), recover=without(RECOVER, "declare")),
    "READ to an own append in front of the INIT": group(
        inits=(1, 0, 0), recover=("declare", *without(RECOVER, "declare"))
    ),
    "READ behind the first INIT to a told end": group(member=without(MEMBER, "declare"), **_TWO),
    "own outcome to a told end": group(NOBODY, inits=(1, 0, 0), recover=without(RECOVER, "mark")),
    "mark before the fence": group(("expel 0", "end", "fence 0", "fenced 0", "read", "grant"), inits=(0, 0, 0)),
    "GRANT before the mark is read": group(
        ("expel 0", "fence 0", "mark 0", "fenced 0", "grant", "read"), inits=(0, 0, 0)
    ),
    "READ before the mark": group(("expel 0", "fence 0", "read", "mark 0", "fenced 0", "grant"), inits=(0, 0, 0)),
    "a successor without a mark of its own": group(successor_marks=False, **_TWO),
    "a refused mark not made again": group(inits=(1, 0, 0), marks_again=False),
    "EndTxn at another node than INIT's": group(NOBODY, inits=(1, 0, 0), deposes=True, one_node=False, edge_max=3),
}


@pytest.mark.parametrize("design", _LEFT_OUT.values(), ids=_LEFT_OUT.keys())
def test_every_rule_against_old_ends_is_needed(design: Design) -> None:
    """Without the rule a tile is committed twice; a producer that speaks to two nodes loses records."""
    assert_wrong(design, DOUBLE if design.one_node else GAP)


# --- the chosen rules, and what is as good ---------------------------------------------------------------------------

_RIGHT = {
    "the old owner and the new one init": (group(inits=(2, 1, 0)), 11_646, {V, N}),
    "nobody is expelled, a stranger fences twice": (group(NOBODY, strangers_victims=(V, V)), 664, {V}),
    "a stranger fences twice": (group(strangers_victims=(V, V)), 23_153, {V, N}),
    "a stranger fences, two coordinators": (group(strangers_victims=(V,), **_TWO), 9_952, {V, N, M}),
    "a stranger fences the old owner and the new one": (
        group(strangers_victims=(V, N), inits=(1, 1, 0)),
        19_660,
        {V, N},
    ),
    "the coordinator of transactions is deposed": (group(deposes=True), 18_531, {V, N}),
    "own outcome to the offset of the own Produce": (
        group(inits=(2, 1, 0), by_own_offset=True, recover=RECOVER_BY_OFFSET),
        6_659,
        {V, N},
    ),
    "own outcome to that offset, a stranger fences twice": (
        group(strangers_victims=(V, V), by_own_offset=True, recover=RECOVER_BY_OFFSET),
        13_313,
        {V, N},
    ),
    "own outcome to that offset, the coordinator of transactions is deposed": (
        group(deposes=True, by_own_offset=True, recover=RECOVER_BY_OFFSET),
        11_141,
        {V, N},
    ),
    "own records in place of marks": (group(BY_RECORD, inits=(2, 1, 0), recover=RECOVER_BY_RECORD), 7_534, {V, N}),
    "own records in place of marks, a stranger fences twice": (
        group(BY_RECORD, strangers_victims=(V, V), recover=RECOVER_BY_RECORD),
        13_364,
        {V, N},
    ),
}


@pytest.mark.parametrize(("design", "worlds", "workers"), params(_RIGHT))
def test_a_read_to_an_own_append_is_enough(design: Design, worlds: int, workers: set[int]) -> None:
    """Whatever the other READs are told, whoever fences, and whichever node coordinates: nothing is wrong."""
    assert_right(design, worlds, workers)


@pytest.mark.slow
def test_a_successor_that_appends_its_own_record_need_not_fence_anew() -> None:
    """Where FENCED stands a record by an id of its own bounds the READ as well as a new fence and a mark."""
    design = group(
        BY_RECORD,
        ("look", "elect", "look", "take_over", "end", "read", "grant"),
        inits=(1, 0, 0),
        recover=RECOVER_BY_RECORD,
        per_victim=("expel", "fence", "fenced"),
        successor_marks=False,
        edge_max=1,
    )
    assert_right(design, 100_570, {V, N, M})


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_the_version_of_transactions_makes_no_difference(version: int) -> None:
    """No INIT repeats its own epoch, nothing is asked of another node, INIT aborts: the worlds are the same."""
    design = group(deposes=True, late_batches=True, verifies=False, strangers_victims=(V,), version=version, edge_max=1)
    assert_right(design, 18_194, {V, N})


# --- late batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifies", [True, False], ids=["from 3.6 on", "below 3.6"])
def test_a_late_batch_is_refused_when_init_aborts_its_transaction(verifies: bool) -> None:
    """The marker of that abort has a newer epoch, so the leader of the partition refuses the batch by itself."""
    assert_right(group(late_batches=True, verifies=verifies), 6_651, {V, N})


def test_a_late_batch_behind_an_asked_abort_doubles_a_tile_below_3_6() -> None:
    """EndTxn(abort) keeps the epoch: the batch lands behind the marker, and the next transaction commits it."""
    assert_wrong(group(late_batches=True, verifies=False, recover=RECOVER_WITH_ABORT), DOUBLE)


@pytest.mark.parametrize(
    ("verifies", "version", "worlds"),
    [
        pytest.param(True, 1, 7_728, id="from 3.6 on"),
        pytest.param(False, 2, 7_538, id="version 2 of transactions"),
    ],
)
def test_a_late_batch_behind_an_asked_abort_is_refused_elsewhere(verifies: bool, version: int, worlds: int) -> None:
    """Brokers that verify ask for the open transaction; an abort of version 2 raises the epoch."""
    design = group(late_batches=True, verifies=verifies, version=version, recover=RECOVER_WITH_ABORT)
    assert_right(design, worlds, {V, N})


# --- nobody waits for ever -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "design",
    [
        pytest.param(group(), id="one coordinator"),
        pytest.param(group(deposes=True, edge_max=1), id="the coordinator of transactions is deposed"),
        pytest.param(group(**_TWO), id="two coordinators"),
        pytest.param(group(strangers_victims=(V,), **_TWO), id="two coordinators, a stranger fences"),
    ],
)
def test_no_world_is_stuck(design: Design) -> None:
    """Coordinators that fence each other's producers mark again and again, but from every world there is a way out."""
    assert_none_is_stuck(design)


_HANGING: dict[str, Any] = {
    "inits": (1, 0, 0),
    "late_batches": True,
    "verifies": False,
    "recover": ("abort",),
    "edge_max": 1,
}
"""Below 3.6 V asks for an abort and dies: its batch lands outside of any transaction, and no time limit ends it."""


def test_who_reads_past_a_batch_that_hangs_without_a_mark_is_stuck() -> None:
    """A record by an id of the coordinator's own doesn't end the batch: readers stand in front of it for ever."""
    with pytest.raises(AssertionError):
        assert_none_is_stuck(group(BY_RECORD, **_HANGING))


def test_a_mark_by_the_fenced_id_ends_a_batch_that_hangs() -> None:
    """The marker of the mark's abort is one of the same producer id: it ends what the id has there undecided."""
    assert_none_is_stuck(group(**_HANGING))
