"""What workers cost, by cells of the declared cut."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.policy import WorkerLoad
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.runtime.engine.windows import CutCosts

SIZE = 24


@st.composite
def workers(draw: st.DrawFn) -> list[WorkerLoad]:
    """Neighbours that make up a small space, some across cells."""
    at = sorted(draw(st.sets(st.integers(1, SIZE - 1), max_size=6)))
    bounds = [0, *at, SIZE]
    return [
        WorkerLoad(n, bounds[n], bounds[n + 1], 1, draw(st.integers(0, 1_000_000)), 0, draw(st.integers(0, 50)))
        for n in range(len(bounds) - 1)
    ]


@given(st.lists(workers(), max_size=4), st.sampled_from((1, 2, 3, 8)), st.sampled_from((0.5, 1.0, 2.0)))
def test_costs_lie_in_the_cells_of_the_workers(rounds: list[list[WorkerLoad]], cells: int, seconds: float) -> None:
    """Against a twin that keeps them by points: a worker's time and records are shared out evenly; nothing is lost."""
    cut = even_bounds(cells, KeyRange(0, SIZE))
    costs, busy_us, records = CutCosts(cut), 0, 0
    busy_in, records_in = [Fraction(0)] * cells, [Fraction(0)] * cells
    for loads in rounds:
        costs.add(loads, seconds)
        for load in loads:
            spent_us = int(load.busy * seconds)
            busy_us, records = busy_us + spent_us, records + load.records
            for point in range(load.first, load.end):
                cell = point * cells // SIZE
                busy_in[cell] += Fraction(spent_us, load.end - load.first)
                records_in[cell] += Fraction(load.records, load.end - load.first)
    assert costs.seconds == seconds * len(rounds)
    assert (sum(costs.busy_us.values()), sum(costs.records.values())) == (busy_us, records)
    for cell in range(cells):
        assert abs(costs.busy_us.get(cell, 0) - busy_in[cell]) <= sum(map(len, rounds))
        assert abs(costs.records.get(cell, 0) - records_in[cell]) <= sum(map(len, rounds))
