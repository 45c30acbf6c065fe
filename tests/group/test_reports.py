"""What a member tells of its bands, and when."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.reports import (
    ALL_EVERY,
    BANDS_MAX,
    LITTLE,
    POINTS_MAX,
    Reports,
    fewer_points,
    has_changed,
    loads_of,
)
from keylanes.offsets.signals import BandLoad

from ..tiers.marks import tier

pytestmark = tier("check")


def band(partition: int = 0, busy_us: int = 0, *, points: tuple[tuple[int, int], ...] = ()) -> BandLoad:
    """A band of a topic."""
    return BandLoad("t", partition, 0, 1_000, 1, busy_us, 0, 0, 0, points)


def changed(name: str, value: int) -> BandLoad:
    """One with this value, and nothing else."""
    return msgspec.structs.replace(band(), **{name: value})


def test_all_is_told_twice_to_who_hears_anew_and_then_what_changes() -> None:
    """The first time may have been too early for it; a band that is new is told like one that has changed."""
    reports, bands = Reports(), [band(0, 1_000_000), band(1, 500_000)]
    assert reports.bands_due(bands, is_new=True) == bands
    assert reports.bands_due(bands, is_new=False) == bands
    assert reports.bands_due(bands, is_new=False) == []
    bands[1] = band(1, 600_000)
    assert reports.bands_due([*bands, band(2)], is_new=False) == [bands[1], band(2)]
    assert reports.bands_due([*bands, band(2)], is_new=False) == []


def test_all_is_told_again_now_and_then() -> None:
    """What was lost is known again after so many intervals."""
    reports, told = Reports(), list[bool]()
    for _ in range(2 * ALL_EVERY + 2):
        told.append(bool(reports.bands_due([band(0, 1_000_000)], is_new=not told)))
    assert [n for n, one in enumerate(told) if one] == [0, 1, ALL_EVERY + 1, 2 * ALL_EVERY + 1]


def test_small_steps_add_up() -> None:
    """What counts is what was told, not the last interval."""
    reports = Reports()
    reports.bands_due([band(0, 1_000_000)], is_new=True)
    reports.bands_due([band(0, 1_000_000)], is_new=False)
    told = [reports.bands_due([band(0, 1_000_000 + 30_000 * n)], is_new=False) for n in range(1, 6)]
    assert [bool(one) for one in told] == [False, False, False, True, False]


def test_a_change_is_more_than_a_tenth_and_more_than_a_little() -> None:
    """Of each of the values."""
    for name, little in zip(("busy_us", "records", "backlog", "state_bytes"), LITTLE, strict=True):
        for size, is_one in ((1, False), (little, False), (little + 1, True)):
            assert has_changed(band(), changed(name, size)) is is_one
        assert not has_changed(changed(name, 100 * little), changed(name, 90 * little))
        assert has_changed(changed(name, 100 * little), changed(name, 89 * little))


def test_load_that_moves_within_a_band_is_a_change() -> None:
    """Although the band has as much as before; a little back and forth between neighbours is none."""
    before = band(0, 1_000_000, points=((0, 500_000), (100, 250_000), (900, 250_000)))
    assert has_changed(before, band(0, 1_000_000, points=((0, 250_000), (100, 250_000), (900, 500_000))))
    assert not has_changed(before, band(0, 1_000_000, points=((0, 450_000), (100, 300_000), (900, 250_000))))


BANDS = st.lists(
    st.dictionaries(st.integers(0, 999), st.integers(1, 100_000), max_size=300).map(
        lambda points: band(0, sum(points.values()), points=tuple(sorted(points.items())))
    ),
    max_size=6,
)


@given(BANDS)
def test_points_are_few_and_a_heavy_one_stays(bands: list[BandLoad]) -> None:
    """Of all bands together; the sums stay."""
    fewer, total = fewer_points(bands), sum(one.busy_us for one in bands)
    assert sum(len(one.points) for one in fewer) <= 3 * (POINTS_MAX + len(bands))
    for before, after in zip(bands, fewer, strict=True):
        assert sum(cost for _, cost in after.points) == before.busy_us == after.busy_us
        for point, cost in before.points:
            if cost * POINTS_MAX > 2 * total:
                assert (point, cost) in after.points


def test_many_bands_are_told_in_several_signals() -> None:
    """All of them, in order."""
    bands = [band(n) for n in range(2 * BANDS_MAX + 1)]
    loads = loads_of(7, 2_000, bands)
    assert [one for load in loads for one in load.bands] == bands
    assert {(load.incarnation, load.interval_ms) for load in loads} == {(7, 2_000)}
    assert len(loads) == 3
