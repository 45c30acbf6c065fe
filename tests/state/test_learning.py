"""When a copy is near its changelog, and which points it has."""

import pytest

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.copy_readiness import (
    BURST_S,
    ByteRateLimit,
    CopySpeed,
    Nearness,
    bytes_by_role,
    least_position,
    points_of,
    ranges_of,
    together,
    without,
)
from keylanes.state.keys import state_key
from keylanes.state.tables import Marker

from ..tiers.marks import tier

pytestmark = tier("check")

LOWER, UPPER = KeyRange(0, SPACE_END).split(SPACE_END // 2)


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        pytest.param([(0, 1)], [True], id="nothing lacks"),
        pytest.param([(10, 1), (10, 2)], [False, True], id="near twice"),
        pytest.param([(10, 1), (10, 1), (10, 1)], [False, False, False], id="the same fetch counts once"),
        pytest.param([(10, 1), (11, 2), (10, 3), (10, 4)], [False, False, False, True], id="in a row"),
        pytest.param([(0, 1), (100, 2), (100, 3)], [True, True, True], id="a second behind is not far"),
        pytest.param([(0, 1), (101, 2), (101, 3)], [True, True, False], id="far twice"),
        pytest.param([(0, 1), (101, 2), (100, 3), (101, 4)], [True, True, True, True], id="far, in a row"),
        pytest.param([(0, 1), (101, 2), (101, 3), (0, 4)], [True, True, False, True], id="back again"),
    ],
)
def test_when_a_copy_is_ready(looks: list[tuple[int, int]], told: list[bool]) -> None:
    """At 100 offsets a second ten are near and more than a hundred are far; each look is (behind, fetches)."""
    nearness = Nearness()
    seen = []
    for behind, fetches in looks:
        before = nearness.is_ready
        assert nearness.look(behind, 100.0, fetches) is (nearness.is_ready is not before)
        seen.append(nearness.is_ready)
    assert seen == told


def test_one_record_is_near_also_where_no_pace_is_known() -> None:
    """Two are not."""
    near, far = Nearness(), Nearness()
    for fetches in range(3):
        near.look(1, 0.0, fetches)
        far.look(2, 0.0, fetches)
    assert (near.is_ready, far.is_ready) == (True, False)


def test_pace_is_that_of_the_latest() -> None:
    """What was long ago counts for little."""
    pace = CopySpeed()
    assert (pace.offsets_per_s, pace.bytes_per_s) == (0.0, 0)
    pace.add(1_000, 10_000, 1.0)
    assert (pace.offsets_per_s, pace.bytes_per_s) == (1_000.0, 10_000)
    for _ in range(50):
        pace.add(10, 100, 1.0)
    assert pace.offsets_per_s == pytest.approx(10, rel=0.01)


def test_budget_holds_over_any_length_of_time() -> None:
    """Whatever the sizes, and after a pause no more than a moment's worth is free."""
    budget, now_s, spent = ByteRateLimit(), 0.0, 0
    for size in (100, 5_000, 1, 700) * 20:
        budget.spend(size, 1_000, now_s)
        now_s += budget.wait_s(now_s)
        spent += size
    assert now_s == pytest.approx(spent / 1_000)
    budget.spend(1_000, 1_000, now_s + 3_600)
    assert budget.wait_s(now_s + 3_600) == pytest.approx(1.0 - BURST_S)


def test_points() -> None:
    """Unions and what is left of them; where they have to be read from."""
    both = together([points_of([LOWER]), points_of([UPPER])])
    assert ranges_of(both) == [KeyRange(0, SPACE_END)]
    assert ranges_of(without(both, points_of([LOWER]))) == [UPPER]
    assert ranges_of(without(both, both)) == []
    markers = Steps([(LOWER.first, LOWER.end, Marker(7, 1))])
    assert least_position(points_of([LOWER]), markers) == 7
    assert least_position(both, markers) == 0


def test_bytes_count_for_the_first_role() -> None:
    """A point that is copied for both counts once."""
    low, high = state_key(LOWER.first, 0, b"k"), state_key(UPPER.first, 0, b"k")
    changes = [(low, b"12345"), (high, None)]
    everything = points_of([LOWER, UPPER])
    sizes = bytes_by_role(changes, {"learner": points_of([LOWER]), "standby": everything})
    assert sizes == {"learner": len(low) + 5, "standby": len(high)}
    assert bytes_by_role(changes, {"standby": everything}) == {"standby": len(low) + 5 + len(high)}
