"""A group in which all goes wrong that can (world.py): each decision is safe, and at the end all have what they can."""

from collections.abc import Iterable
from random import Random

import msgspec
import pytest

from keylanes.group import cells, copies, copy_requests, members, moves, pieces, plan_moves, standbys
from keylanes.group.books import Books
from keylanes.group.view import CoordinatorMemory, DecisionBatch, View
from keylanes.offsets.control import LOAD
from keylanes.offsets.control_events import PlanMade

from ..stage.planting import Planting, Put, changed
from ..tiers.marks import tier
from .finding import row
from .world import World

pytestmark = tier("check")

STEPS = 50
SEEDS = 40
SEEDS_MORE = 120
SEEDS_MANY = 300
SEEDS_PLANTED = 300


def plays(seed: int, *, heals: bool = True) -> None:
    """A history, and how it ends."""
    chance = Random(seed)
    world = World(chance)
    world.asks_anew(chance.choice("ac"), "h1")
    world.run("pass 3s")
    for _ in range(STEPS):
        world.happens(chance)
    if heals:
        world.heals()
        world.is_at_rest()


def plays_all(seeds: Iterable[int], *, heals: bool) -> None:
    """One after the other."""
    for seed in seeds:
        plays(seed, heals=heals)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_decision_is_safe_and_at_the_end_all_have_what_they_can(seed: int) -> None:
    """What is granted is free and begins where the last owner ended, ranges with state move when there is a copy, and
    each point stands as its own events say: while members die at each step, signals are lost, late and doubled, and
    coordinators are replaced and know nothing. When faults end all is owned, and nothing more is decided.
    """
    plays(seed)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEEDS, SEEDS_MORE), id="more", marks=tier("test")),
        pytest.param(range(SEEDS_MORE, SEEDS_MANY), id="many", marks=tier("proof", "group-model")),
    ],
)
def test_each_decision_is_safe_in_many_more_histories(seeds: range) -> None:
    """The same for longer."""
    plays_all(seeds, heals=True)


def test_after_two_plans_for_load_within_a_minute_half_as_many_moves_may_begin() -> None:
    """For ten minutes; a plan that comes later, or for another cause, halves nothing."""
    plan = PlanMade(1, 1, 1, 1, LOAD, 0, 0, 1, ())
    for gap_ms, cause, left in ((59_999, LOAD, 5), (60_000, LOAD, 9), (59_999, "change", 9)):
        seat = CoordinatorMemory("app", "z1", 0)
        seat.note(DecisionBatch([plan]), 1_000)
        seat.note(DecisionBatch([msgspec.structs.replace(plan, cause=cause)]), 1_000 + gap_ms)
        assert seat.left_of_budget(9, 1_000 + gap_ms) == left
        assert seat.left_of_budget(9, 1_000 + gap_ms + 599_999) == left
        assert seat.left_of_budget(9, 1_000 + gap_ms + 600_000) == 9


PLANTED: dict[str, tuple[str, Put]] = {
    "a release is asked for without a copy": (
        "without a ready copy",
        changed(moves, "_askable", ("if not has_state or is_near", "if not None or is_near")),
    ),
    "a copy that was begun counts as one that is near": (
        "without a ready copy",
        changed(moves, "is_near", (" and kept.is_ready", "")),
    ),
    "what a learner is to have is not fixed": (
        "has lost its destination",
        changed(pieces, "_heir_of", ("favoured if is_begun else NOBODY", "NOBODY")),
    ),
    "a request counts for what a learner is to have": (
        "has lost its destination",
        changed(plan_moves, "planned_moves", ("None if share.is_fixed else ", "")),
    ),
    "what is fixed may be given away": (
        "has lost its destination",
        changed(Books, "_count", ("[] if piece.is_fixed else ", "")),
    ),
    "a member is asked for what it has": (
        "two copies of one point",
        changed(copy_requests, "moves_wanting_copies", ("for piece in held], own)", "for piece in held], ())")),
    ),
    "slots are not counted": (
        "more passes",
        changed(copy_requests._PassSlots, "is_free", ("len(own) < self.view.rules.copies_max", "True")),
    ),
    "copies of what nobody works on are ended": (
        "the last ready copy",
        changed(
            standbys,
            "unused_copies",
            ("used |= {k.asked.move for k in over if k.incarnation in present.staying or k.is_ready}", "pass"),
        ),
    ),
    "copies do not say who is to have what has no owner": (
        "somebody has a ready copy",
        changed(copies, "heir", ("if best is not None and best.is_ready:", "if False:")),
    ),
    "a move goes through whatever copies say": (
        "it waits for a name",
        changed(moves, "_by_move", ("in (NOBODY, move.target)", "!= -1")),
    ),
    "no name is waited for": (
        "it waits for a name",
        changed(View, "left_of_hold_ms", ("member.hold_ms - (self.now_ms - since_ms)", "0")),
    ),
    "who had it keeps no copy": (
        "keeps no copy",
        row(moves, "grant_ranges", ("demoted.append", "str")),
    ),
    "copies are kept for ever": (
        "copies of",
        changed(standbys, "_is_used", ("kept.incarnation in members", "True")),
    ),
    "standbys are not asked for": (
        "copies of",
        row(copy_requests, "ask_copies", ("[] if decisions else _standbys_wanted(view, slots)", "[]")),
    ),
    "a standby stays on the host of its owner": (
        "on the host of their owner",
        changed(standbys, "standbys_lacking", ("if lacking <= 0:", "if False:")),
    ),
    "a hold has no end": (
        "nobody works on",
        changed(View, "left_of_hold_ms", ("member.hold_ms - (self.now_ms - since_ms)", "1")),
    ),
    "who is expelled is taken for fenced": (
        "stands otherwise",
        changed(
            cells,
            "_state_of_points",
            ("if not control.is_fenced(owner):", "if control.is_fenced(owner) and not is_read:"),
        ),
    ),
    "what was never read is taken for read": (
        "is not free",
        changed(cells, "_state_of_points", ("if is_read", "if True")),
    ),
    "what is held is granted": (
        "is not free",
        changed(moves, "_by_move", ("is not state", "not in (state, CellState.HELD)")),
    ),
    "FENCED for a fence that never was": (
        "it was not fenced",
        row(members, "tell_fenced", ("in view.memory.fenced", "not in {0}")),
    ),
}
AT_REST = ("copies of", "on the host of their owner", "nobody works on")


@tier("test")
@pytest.mark.parametrize(("says", "put"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(says: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many histories fails with it, as it should."""
    put(Planting(monkeypatch))
    with pytest.raises(AssertionError, match=says):
        plays_all(range(SEEDS_PLANTED), heals=says in AT_REST)
