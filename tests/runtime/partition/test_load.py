"""What a worker costs: windows, points, and histograms that stay small."""

import math

from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.policy import FULL
from keylanes.runtime.partition.load import POINTS, SEEDS_MAX, LoadMeter, Points

from ...tiers.marks import tier

pytestmark = tier("check")


def record(key: bytes = b"k", offset: int = 0) -> SimulatedRecord:
    """A record of a key."""
    return SimulatedRecord(offset, 0, key, b"", ())


def test_a_record_counts_in_the_windows_that_it_runs_in() -> None:
    """Each takes its part of a long record; what was counted is not counted again."""
    load = LoadMeter()
    load.spend(9.5, 10.0, 0, record())
    assert load.end_window(1.0, 1).busy == FULL // 2
    load.spend(9.5, 11.0, 0, record())
    assert load.end_window(1.0, 1).busy == FULL
    load.spend(9.5, 11.25, 0, record())
    load.spend(11.5, 11.75, 0, record())
    assert load.end_window(1.0, 1).busy == FULL // 2


def test_a_record_that_waits_for_a_thread_costs_nothing() -> None:
    """It began at no time."""
    load = LoadMeter()
    load.spend(math.inf, 10.0, 0, record())
    assert load.end_window(1.0, 1).busy == 0


def test_the_average_decays_from_the_top() -> None:
    """A new worker counts as busy until it was seen idle for some windows; a window has its length as its measure."""
    load = LoadMeter()
    assert [load.end_window(1.0, 1).average for _ in range(3)] == [FULL // 2, FULL // 4, FULL // 8]
    load.spend(0.0, 1.0, 0, record())
    assert load.end_window(4.0, 1).busy == FULL // 4


def test_a_watched_worker_knows_its_points() -> None:
    """Their handler time in microseconds, and that those that wait are there; older windows count half."""
    load = LoadMeter()
    load.watch(0, (record(b"a"), record(b"b")))
    load.spend(0.0, 0.5, 0, record(b"a"))
    a, b = point_of_key(b"a"), point_of_key(b"b")
    assert dict(load.end_window(1.0, 1).points or ()) == {a: 500_002, b: 1}
    assert dict(load.end_window(1.0, 1).points or ()) == {a: 250_001}
    load.unwatch()
    assert load.end_window(1.0, 1).points is None


def test_watching_again_forgets_nothing() -> None:
    """And at its begin it looks at so many waiting records, not more."""
    load = LoadMeter()
    load.watch(0, (record(b"%d" % i) for i in range(10 * SEEDS_MAX)))
    seen = load.points
    load.watch(0, ())
    assert load.points is seen
    assert seen is not None
    assert sum(seen.costs.values()) == SEEDS_MAX


def test_a_split_parts_the_histogram() -> None:
    """Each child has its points, and begins as if always busy."""
    load = LoadMeter()
    load.points = Points([(5, 1), (7, 2), (9, 3)])
    load.average = 3
    left, right = load.part(7)
    assert left.points is not None
    assert right.points is not None
    assert (left.points.costs, right.points.costs) == ({5: 1}, {7: 2, 9: 3})
    assert left.average == right.average == FULL


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 1_000)), max_size=3_000))
def test_a_histogram_stays_small(added: list[tuple[int, int]]) -> None:
    """However many points there are; nothing is lost."""
    points = Points()
    for point, cost in added:
        points.add(point, cost)
        assert len(points.costs) <= 4 * POINTS
    assert sum(points.costs.values()) == sum(cost for _, cost in added)
