"""Loads in fewer points: what stays, and how far it moves."""

from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.melting import melt_costs

from ..tiers.marks import tier

pytestmark = tier("check")

COSTS = st.dictionaries(st.integers(0, 10_000), st.integers(1, 9) | st.integers(1, 10_000), max_size=300)


@given(COSTS, st.integers(1, 20))
def test_melting_keeps_the_sum_and_what_is_heavy(costs: dict[int, int], points: int) -> None:
    """Few points are left, in order, each one that was there; a heavy one keeps its cost, and no cost below any point
    moves by more than a light share and what melts across it.
    """
    left = melt_costs(costs, points)
    total = sum(costs.values())
    assert sum(cost for _, cost in left) == total
    assert [p for p, _ in left] == sorted({p for p, _ in left} & set(costs))
    light = total // points
    assert len(left) <= 3 * points + 1 or light < 4
    for point, cost in costs.items():
        if cost > light:
            assert dict(left)[point] == cost
    for at in [*costs, *(p + 1 for p in costs)]:
        below = sum(cost for p, cost in costs.items() if p < at)
        assert abs(below - sum(cost for p, cost in left if p < at)) <= light
