"""The pace of attempts: never more than the rate allows, and nearly as many."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.runtime.partition.pace import CATCH_UP_S, ROUNDING, AttemptPace

from ...tiers.marks import tier

pytestmark = tier("check")

STEPS = st.lists(st.tuples(st.floats(0.0, 0.5), st.booleans()), max_size=60)


def begun_at(per_s: float, steps: list[tuple[float, bool]]) -> list[float]:
    """When attempts began of one who asks at these times, several times at some."""
    pace, now_s, begun = AttemptPace(0.0), 0.0, list[float]()
    pace.change(per_s, now_s)
    for passed_s, is_greedy in steps:
        now_s += passed_s
        while pace.take(now_s):
            begun.append(now_s)
            if not is_greedy:
                break
    return begun


@given(st.floats(0.1, 5_000.0), STEPS)
def test_no_time_has_more_than_the_rate(per_s: float, steps: list[tuple[float, bool]]) -> None:
    """In any time of T seconds at most ``rate * (T + CATCH_UP_S) + 1`` begin; the bucket is empty at first."""
    begun = begun_at(per_s, steps)
    for i, since_s in enumerate(begun):
        for count, until_s in enumerate(begun[i:], 1):
            assert count <= per_s * (until_s - since_s + CATCH_UP_S) + 1 + count * 2 * ROUNDING
    assert all(count <= per_s * at_s + count * 2 * ROUNDING for count, at_s in enumerate(begun, 1))


@given(st.floats(0.1, 5_000.0), st.integers(1, 200))
def test_who_comes_when_it_is_told_has_all_of_the_rate(per_s: float, count: int) -> None:
    """One begins each time that ``wait_s`` has passed, and none is lost on the way."""
    pace, now_s = AttemptPace(0.0), 0.0
    pace.change(per_s, now_s)
    for _ in range(count):
        now_s += pace.wait_s(now_s)
        assert pace.take(now_s)
    assert now_s == pytest.approx(count / per_s, rel=1e-3)


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.sampled_from((0.0, 1.0, 20.0, 300.0))), min_size=1, max_size=20))
def test_a_rate_counts_from_when_it_is_changed(changes: list[tuple[float, float]]) -> None:
    """As many begin as come in, never more; at none nothing begins, and nobody is told when."""
    pace, now_s, begun, per_s = AttemptPace(0.0), 0.0, 0, 0.0
    came_in = list(accumulate(passed_s * rate for passed_s, rate in changes))
    for (passed_s, rate), most in zip(changes, came_in, strict=True):
        per_s = rate
        pace.change(per_s, now_s)
        for _ in range(40):
            now_s += passed_s / 40
            while pace.take(now_s):
                begun += 1
        assert begun <= most + begun * 2 * ROUNDING
        if per_s == 0.0:
            assert not pace.take(now_s)
            assert pace.wait_s(now_s) == float("inf")


def test_a_late_loop_catches_up_a_little() -> None:
    """Tokens do not pile up while nobody comes."""
    assert len(begun_at(1_000.0, [(60.0, True)])) == 1 + int(1_000 * CATCH_UP_S)
    assert len(begun_at(2.0, [(60.0, True)])) == 1
