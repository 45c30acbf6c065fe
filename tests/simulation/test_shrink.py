"""Failing plans become small: shown on a fake world whose failures are known, before it is trusted with a real one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from ..stage.planting import Planting
from ..tiers.marks import tier
from .plan import Plan as RealPlan
from .plan import draw_plan
from .plants import focused
from .plants_fencing import no_fence
from .shrink import describe_kind, kind_of, parts_of, shrink
from .world import run_plan

pytestmark = tier("check")

SEEDS_SEARCHED = 300
SHRINK_RUNS = 50


class Item(Struct, frozen=True):
    key: int
    fails: int = 0


class Burst(Struct, frozen=True):
    at_s: float
    records: tuple[Item, ...]


class Happening(Struct, frozen=True):
    at_s: float
    kind: str


class Mix(Struct, frozen=True):
    keys: int
    stateful: bool = False


class Plan(Struct, frozen=True):
    seed: int
    mix: Mix
    bursts: tuple[Burst, ...]
    happenings: tuple[Happening, ...]


def large_plan() -> Plan:
    """Ten bursts of twenty records, thirty happenings."""
    bursts = tuple(Burst(b / 3, tuple(Item(20 * b + i, i % 3) for i in range(20))) for b in range(10))
    kinds = ("crash", "cut", "slow")
    return Plan(7, Mix(40, True), bursts, tuple(Happening(i / 7, kinds[i % 3]) for i in range(30)))


def keys_of(plan: Plan) -> set[int]:
    """The keys of all records."""
    return {item.key for burst in plan.bursts for item in burst.records}


def needs_two_records_and_a_cut(plan: Plan) -> str | None:
    """Fails when two records of different bursts and a cut come together."""
    has_cut = any(happening.kind == "cut" for happening in plan.happenings)
    return "AssertionError: lost" if {33, 151} <= keys_of(plan) and has_cut else None


def test_only_what_is_needed_is_left() -> None:
    """Of 240 parts 5 are left: two bursts with a record each, and one happening; and their values are simple."""
    plan = large_plan()
    shrunk = shrink(plan, "AssertionError: lost", needs_two_records_and_a_cut)
    assert keys_of(shrunk.plan) == {33, 151}
    assert [happening.kind for happening in shrunk.plan.happenings] == ["cut"]
    assert (parts_of(plan), parts_of(shrunk.plan)) == (240, 5)
    assert shrunk.plan.mix == Mix(0, False)
    assert {item.fails for burst in shrunk.plan.bursts for item in burst.records} == {0}
    assert shrunk.runs < 250


def test_a_failure_of_another_kind_is_not_followed() -> None:
    """Without a crash this fake fails differently: the crash stays, though the plan fails without it too."""

    def failure(plan: Plan) -> str | None:
        kinds = {happening.kind for happening in plan.happenings}
        return ("AssertionError: lost" if "crash" in kinds else "VirtualDeadlock: nothing") if plan.bursts else None

    shrunk = shrink(large_plan(), "AssertionError: lost", failure).plan
    assert [happening.kind for happening in shrunk.happenings] == ["crash"]
    assert len(shrunk.bursts) == 1


def test_the_runs_are_bounded_and_what_was_found_by_then_is_kept() -> None:
    """With twenty runs the plan is smaller, and fails."""
    tried: list[Plan] = []

    def failure(plan: Plan) -> str | None:
        tried.append(plan)
        return needs_two_records_and_a_cut(plan)

    shrunk = shrink(large_plan(), "AssertionError: lost", failure, runs_max=20)
    assert len(tried) == shrunk.runs == 20
    assert parts_of(shrunk.plan) < 240
    assert needs_two_records_and_a_cut(shrunk.plan)


@given(st.sets(st.integers(0, 199), max_size=6))
def test_the_result_fails_and_no_part_of_it_is_superfluous(needed: set[int]) -> None:
    """Whatever records a failure needs, they are what is left."""

    def failure(plan: Plan) -> str | None:
        return "E: x" if needed <= keys_of(plan) else None

    assert keys_of(shrink(large_plan(), "E: x", failure, runs_max=2_000).plan) == needed


def real_failure(plan: RealPlan) -> str | None:
    """How a plan of the real world fails."""
    try:
        run_plan(plan)
    except Exception as error:  # noqa: BLE001  # whatever it is
        return kind_of(error)
    return None


@tier("test")
@pytest.mark.timeout(600)
def test_a_planted_defect_of_the_runtime_is_left_with_little_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fence, of many records and happenings a handful is left, and somebody is called fenced who is not."""
    no_fence(Planting(monkeypatch))
    plans = (focused(draw_plan(seed), ("rival", "rivals", "pause", "slow")) for seed in range(SEEDS_SEARCHED))
    large = ((plan, real_failure(plan)) for plan in plans if parts_of(plan) > 50)
    plan, kind = next((plan, kind) for plan, kind in large if kind is not None)
    shrunk = shrink(plan, kind, real_failure, SHRINK_RUNS)
    assert real_failure(shrunk.plan) == kind
    assert parts_of(shrunk.plan) <= max(12, parts_of(plan) // 8)
    monkeypatch.undo()
    assert real_failure(shrunk.plan) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("orders[2]: offset 17 is missing", "AssertionError: orders offset is missing"),
        ("orders[0]: offset 3 is missing\nand more", "AssertionError: orders offset is missing"),
        ("a b c d e f g", "AssertionError: a b c d e"),
        ("", "AssertionError:"),
    ],
)
def test_a_kind_is_the_type_and_the_first_words_without_numbers(text: str, kind: str) -> None:
    """What changes when something is left out of a plan is no part of the kind."""
    assert describe_kind("AssertionError", text) == kind
    assert kind_of(AssertionError(text)) == kind
    assert kind_of(ExceptionGroup("several", [AssertionError(text), ValueError()])) == kind
