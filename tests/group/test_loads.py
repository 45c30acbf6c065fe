"""What ranges cost, against a twin that keeps for each point the report that it is known by."""

import time
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.loads import PIECES_MAX, POINTS_MAX, STALE_MS, Loads, PointsCost
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.ledger import SourcePartition
from keylanes.offsets.signals import BandLoad, Load

from ..stage.planting import changed
from .finding import each_is_found

SPACE = 12
PLACES: tuple[SourcePartition, ...] = (("t", 0), ("t", 1))


class Report(NamedTuple):
    """One band at a time."""

    at_ms: int
    interval_ms: int
    band: BandLoad


@st.composite
def bands(draw: st.DrawFn) -> BandLoad:
    """Few points of a small space, some with histograms that do not fit."""
    first = draw(st.integers(0, SPACE - 1))
    end = draw(st.integers(first + 1, SPACE))
    points = draw(st.dictionaries(st.integers(0, SPACE), st.integers(0, 9), max_size=4))
    values = st.integers(0, 40)
    return BandLoad(
        *draw(st.sampled_from(PLACES)),
        first,
        end,
        draw(st.integers(1, 3)),
        draw(values),
        draw(values),
        draw(values),
        draw(values),
        tuple(sorted(points.items())),
    )


@st.composite
def reports(draw: st.DrawFn) -> list[Report]:
    """In order of time."""
    at_ms, found = 0, list[Report]()
    for band in draw(st.lists(bands(), max_size=12)):
        at_ms += draw(st.sampled_from((0, 1, STALE_MS - 1, STALE_MS)))
        found.append(Report(at_ms, draw(st.sampled_from((500, 1_000))), band))
    return found


def folded(found: Iterable[Report]) -> Loads:
    """The production's fold."""
    loads = Loads()
    for report in found:
        loads.hear(Load(1, report.interval_ms, (report.band,)), report.at_ms)
    return loads


class Known(NamedTuple):
    """What the twin knows of a point."""

    at_ms: int
    report: Report
    cost: tuple[Fraction, ...]


def lies(report: Report, point: int) -> tuple[Fraction, ...]:
    """The cost at one point of a band."""
    band = report.band
    even = Fraction(1, band.end - band.first)
    points = {p: cost for p, cost in band.points if band.first <= p < band.end and cost}
    part = Fraction(points.get(point, 0), sum(points.values())) if points else even
    rates = [value * 1000 // report.interval_ms for value in (band.busy_us, band.records)]
    return rates[0] * part, rates[1] * part, band.backlog * part, band.state_bytes * even


def twin(found: Iterable[Report]) -> dict[tuple[SourcePartition, int], Known]:
    """Each point by itself."""
    known: dict[tuple[SourcePartition, int], Known] = {}
    for report in found:
        band = report.band
        own = [((band.topic, band.partition), point) for point in range(band.first, band.end)]
        newer = [known[at] for at in own if at in known and known[at].report.band.epoch > band.epoch]
        if all(report.at_ms - one.at_ms >= STALE_MS for one in newer):
            for place, point in own:
                known[place, point] = Known(report.at_ms, report, lies(report, point))
    return known


RANGE = st.tuples(st.integers(0, SPACE - 1), st.integers(1, SPACE)).filter(lambda r: r[0] < r[1])


@given(reports(), st.sampled_from(PLACES), RANGE)
def test_a_cost_is_that_of_the_points(found: list[Report], place: SourcePartition, within: tuple[int, int]) -> None:
    """Of the report that counts for each, up to a rounding for each report; None when one point was not measured."""
    known = twin(found)
    points = [known.get((place, point)) for point in range(*within)]
    cost = folded(found).cost(place, *within)
    if (measured := [one for one in points if one is not None]) != points:
        assert cost is None
        return
    assert cost is not None
    for i, seen in enumerate(cost):
        wanted = sum((one.cost[i] for one in measured), Fraction(0))
        assert abs(seen - wanted) < len(measured)


@given(reports(), st.sampled_from(PLACES), RANGE, st.integers(1, SPACE - 1))
def test_costs_add_up(found: list[Report], place: SourcePartition, within: tuple[int, int], at: int) -> None:
    """Exactly: whatever is parted has the cost of its parts."""
    loads, (first, end) = folded(found), within
    whole = loads.cost(place, first, end)
    if whole is not None and first < at < end:
        left, right = loads.cost(place, first, at), loads.cost(place, at, end)
        assert left is not None
        assert right is not None
        assert PointsCost(*(a + b for a, b in zip(left, right, strict=True))) == whole


@given(reports())
def test_the_version_says_whether_something_changed(found: list[Report]) -> None:
    """What is said again changes nothing, and an unchanged version means unchanged costs."""
    loads = Loads()
    for report in found:
        load = Load(1, report.interval_ms, (report.band,))
        before, costs = loads.version, all_costs(loads)
        loads.hear(load, report.at_ms)
        assert loads.version > before or all_costs(loads) == costs
        before = loads.version
        loads.hear(load, report.at_ms)
        assert loads.version == before


def all_costs(loads: Loads) -> list[PointsCost | None]:
    """Of each point of each place."""
    return [loads.cost(place, point, point + 1) for place in PLACES for point in range(SPACE)]


def band(first: int, end: int, busy_us: int, *, epoch: int = 1, points: tuple[tuple[int, int], ...] = ()) -> BandLoad:
    """A band of the first place with busy time alone."""
    return BandLoad(*PLACES[0], first, end, epoch, busy_us, 0, 0, 0, points)


def test_a_report_of_who_owned_before_counts_for_nothing() -> None:
    """Such as one that was expelled: the points are another's, who has measured them."""
    loads = Loads()
    loads.hear(Load(1, 1000, (band(0, 8, 80),)), 0)
    loads.hear(Load(2, 1000, (band(4, 8, 7, epoch=2),)), 1)
    loads.hear(Load(1, 1000, (band(0, 8, 800),)), 2)
    assert [loads.cost(PLACES[0], *r) for r in ((0, 4), (4, 8))] == [PointsCost(40, 0, 0, 0), PointsCost(7, 0, 0, 0)]


def test_a_heavy_cell_is_known_by_its_first_point() -> None:
    """However the band is parted, the cell keeps its cost."""
    loads = Loads()
    loads.hear(Load(1, 2000, (band(0, 100, 1000, points=((20, 900), (50, 100))),)), 0)
    costs = [loads.cost(PLACES[0], first, first + 10) for first in range(0, 100, 10)]
    assert [cost.busy_us_per_s for cost in costs if cost is not None] == [0, 0, 450, 0, 0, 50, 0, 0, 0, 0]


def test_what_can_not_be_is_left_out() -> None:
    """A signal is no fact: bands without points, or beyond the space, and costs below 0."""
    loads = Loads()
    loads.hear(Load(1, 0, (band(5, 5, 1), band(9, 3, 1), band(-1, 3, 1), band(0, SPACE_END + 1, 1))), 0)
    assert loads.version == 0
    loads.hear(Load(1, 0, (band(0, 4, -1, points=((2, -5),)),)), 0)
    assert loads.cost(PLACES[0], 0, 4) == PointsCost(0, 0, 0, 0)


def test_places_that_are_gone_are_forgotten() -> None:
    """The others stay as they were."""
    loads = folded([Report(0, 1000, BandLoad(*place, 0, 4, 1, 4, 4, 4, 4, ())) for place in PLACES])
    version = loads.version
    loads.keep(PLACES[:1])
    assert [loads.cost(place, 0, 4) for place in PLACES] == [PointsCost(4, 4, 4, 4), None]
    assert loads.version == version + 1
    loads.keep(PLACES[:1])
    assert loads.version == version + 1


def test_bands_that_touch_are_melted_when_they_are_many() -> None:
    """The cost of all stays, and so does each heavy point."""
    loads, count = Loads(), 4 * PIECES_MAX
    bounds = even_bounds(count)
    for n in range(count):
        points = ((bounds[n], 1),) if n % 2 else ()
        heavy = 10_000_000 if n == count // 3 else 0
        loads.hear(Load(1, 1000, (band(bounds[n], bounds[n + 1], 10 + heavy, points=points),)), n)
    assert loads.cost(PLACES[0], 0, SPACE_END) == PointsCost(10 * count + 10_000_000, 0, 0, 0)
    at = count // 3
    hot = loads.cost(PLACES[0], bounds[at - at % 64], bounds[at - at % 64 + 64])
    assert hot is not None
    assert hot.busy_us_per_s >= 10_000_000


def test_slivers_do_not_pile_up() -> None:
    """Of bands that do not touch the last ones are known."""
    loads = Loads()
    for n in range(3 * PIECES_MAX):
        loads.hear(Load(1, 1000, (band(2 * n, 2 * n + 1, 5),)), n)
    known = [n for n in range(3 * PIECES_MAX) if loads.cost(PLACES[0], 2 * n, 2 * n + 1) is not None]
    assert len(known) <= PIECES_MAX
    assert known[-1] == 3 * PIECES_MAX - 1


def test_points_of_a_report_are_melted_when_they_are_many() -> None:
    """The sum stays, and a heavy point its cost."""
    loads, count = Loads(), 40 * POINTS_MAX
    points = tuple((n, 10_000 if n == 777 else 1) for n in range(count))
    loads.hear(Load(1, 1000, (band(0, count, count + 9_999, points=points),)), 0)
    costs = [loads.cost(PLACES[0], n, n + 1) for n in range(count)]
    busy = [cost.busy_us_per_s for cost in costs if cost is not None]
    assert sum(busy) == count + 9_999
    assert busy[777] == 10_000
    assert sum(cost > 0 for cost in busy) < 4 * POINTS_MAX


def test_many_members_are_cheap() -> None:
    """A thousand with fifty bands each: to hear and to ask takes far less than the interval in which they report."""
    loads, bounds = Loads(), even_bounds(1_000)
    reports = [
        Load(
            member,
            2_000,
            tuple(BandLoad("t", p, bounds[member], bounds[member + 1], 1, 1_000 + p, 9, 9, 9, ()) for p in range(50)),
        )
        for member in range(1_000)
    ]
    began_s = time.process_time()
    for now_ms, report in enumerate([*reports, *reports]):
        loads.hear(report, now_ms)
    for p in range(50):
        for first, end in pairwise(bounds):
            assert loads.cost(("t", p), first, end) is not None
    assert time.process_time() - began_s < 10


PLANTED = {
    "epochs do not count": (
        changed(Loads, "_hear", ("p.measured.epoch > measured.epoch", "False")),
        test_a_cost_is_that_of_the_points,
    ),
    "nothing gets stale": (
        changed(Loads, "_hear", (" and now_ms - p.heard_ms < STALE_MS", "")),
        test_a_cost_is_that_of_the_points,
    ),
    "the rest behind a report is lost": (
        changed(Loads, "_hear", ("over[-1].end > end", "False")),
        test_a_cost_is_that_of_the_points,
    ),
    "gaps are taken for nothing": (
        changed(Loads, "cost", ("piece.first > reached", "False")),
        test_a_cost_is_that_of_the_points,
    ),
    "what is said again is a change": (
        changed(Loads, "_hear", ("over[0].measured != measured", "1")),
        test_the_version_says_whether_something_changed,
    ),
}


test_a_planted_defect_is_found = each_is_found(PLANTED)
