"""How cost grows: the points that are run, what is run again, what bends, and the tables."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growing.bends import MEMORY, START, THROUGHPUT, Reason, bends, doubtful
from growing.points import AXES, COUNT, PLAIN, Point, points
from growing.run import figures_of
from growth import COLUMNS, COLUMNS_OF, MORE_COLUMNS, median_run, missing, report, table, unsettled
from rig.book import Book
from rig.loader import counts_of, keys_of_order
from rig.witness import WrongRun

from .books import book, run

MIB = 2**20
WORKERS, KEYS, _, SIZE, DRIFT = AXES


def point(axis: str, handler: str, x: int, per_second: float, memory: int = 100 * MIB) -> dict[str, Any]:
    """A point that was run, with all that a table shows."""
    figures = dict.fromkeys(("cpu_us_per_record", "tiles_per_commit", "splits", "queued_bytes", "dropped"), 1)
    figures |= dict.fromkeys(
        ("event_bytes_per_commit", "event_bytes_per_record", "tail_s", "rss_peak_to_the_end", "start_s"), 2
    )
    rates = {"per_second": per_second, "megabytes_per_second": per_second * x / 1e6}
    memories = {"memory_bytes": memory, "rss_base_bytes": 40 * MIB}
    return run(axis, handler, x, records=1_000, **figures, **rates, **memories)


def test_the_axes_reach_what_they_promise() -> None:
    """At full size; and quick points are among the full ones."""
    reach = {axis.name: (axis.full[0], axis.full[-1]) for axis in AXES}
    assert reach == {
        "workers": (1, 16_384),
        "keys": (10, 1_000_000),
        "partitions": (1, 64),
        "size": (10, 1_000_000),
        "drift": (0, 10_000_000),
    }
    assert all(set(axis.quick) <= set(axis.full) for axis in AXES)


@pytest.mark.parametrize("size", ["full", "quick"])
def test_every_point_can_be_run(size: str) -> None:
    """It has records of every key that it speaks of, its window lies inside, its bytes are bounded, each once."""
    found = [point for axis in AXES for point in points(axis, size)]
    assert len({(point.axis, point.handler, point.x) for point in found}) == len(found)
    for each in found:
        first, last = each.window
        assert each.axis != "drift" or 0 < first < last < each.records - 1
        assert each.records * each.value_bytes < 2_000_000_000
        assert each.distribution == "uniform" or each.records >= each.keys


def test_points_share_a_topic_only_when_they_ask_for_the_same_records() -> None:
    """The topic of all numbers of workers is the same; no other order has it."""
    found = [point for axis in AXES for point in points(axis, "full")]
    assert len({point.topic for point in found if point.axis == "workers" and point.handler == PLAIN}) == 1
    orders = {point.topic: point.source for point in found}
    assert all(orders[point.topic] == point.source for point in found)


def test_the_stuck_record_is_the_only_one_of_its_key_and_so_far_behind() -> None:
    """With a drift of x the front ends x offsets after it; without a drift none is stuck."""
    stuck = Point(axis="drift", handler=PLAIN, x=300, records=1_000, keys=11)
    keys = keys_of_order(stuck.source)
    assert counts_of(keys, 11)[10] == 1
    assert len(keys) - 1 - keys.index(10) == 300
    assert Point(axis="drift", handler=PLAIN, x=0, records=1_000, keys=11).stuck == -1


def test_even_keys_come_each_in_turn() -> None:
    """All of them are there, as often as each other."""
    even = Point(axis="keys", handler=PLAIN, x=50, records=200, keys=50, distribution="even")
    assert set(counts_of(keys_of_order(even.source), 50)) == {4}


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    """A point that failed is; so are points that nobody has run."""
    kept = Book(tmp_path / "book.json")
    kept.open({"size": "quick"})
    wanted = list(points(WORKERS, "quick"))
    kept.add("workers", PLAIN, wanted[0].x, figures={"per_second": 1.0})
    kept.add("workers", COUNT, wanted[0].x, failed="it ended")
    assert missing(kept, wanted) == wanted[1:]


def test_the_figures_of_a_drift_are_those_of_its_window() -> None:
    """Not of the whole run, whose end is the neighbours' time; a run without a window has none."""
    drift = Point(axis="drift", handler=PLAIN, x=10, records=1_000, window_records=400)
    result = {"event": "result", "records": 999, "seconds": 10.0, "rss_peak_bytes": 7, "window_s": 2.0}
    figures = figures_of(drift, result)
    assert (figures["per_second"], figures["mean_per_second"], figures["memory_bytes"]) == (200.0, 99.9, 7)
    with pytest.raises(WrongRun, match="window"):
        figures_of(drift, {**result, "window_s": 0.0})


def test_a_curve_that_falls_bends_where_it_falls() -> None:
    """Below the share of the best point, on either side of it; what stays above does not."""
    rates = {1: 60.0, 4: 100.0, 16: 71.0, 64: 20.0}
    found = list(bends(book(*(point("workers", PLAIN, x, rate) for x, rate in rates.items()))))
    assert [(bend.what, bend.x) for bend in found] == [(THROUGHPUT, 1), (THROUGHPUT, 64)]
    assert found[1].share == pytest.approx(0.2)


def test_what_decides_that_a_curve_bends_is_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The point below its share and the best one, once; not where the reason is known, nor what was run again."""
    far = Reason(axis="workers", handlers=(PLAIN,), what=THROUGHPUT, worst=0.1, x_min=256, text="the moon")
    monkeypatch.setattr("growing.bends.EXPLAINED", (far,))
    kept = Book(tmp_path / "book.json")
    kept.open({"size": "full"})
    wanted = [one for one in points(WORKERS, "full") if one.handler == PLAIN and one.x <= 256]
    rates = dict(zip((one.x for one in wanted), (60.0, 100.0, 80.0, 90.0, 20.0), strict=True))
    for x, rate in rates.items():
        kept.add("workers", PLAIN, x, figures=point("workers", PLAIN, x, rate)["figures"])
    assert doubtful(kept.content) == {("workers", PLAIN, 1), ("workers", PLAIN, 4)}
    assert [one.x for one in unsettled(kept, wanted)] == [1, 4]
    for x in (1, 4):
        kept.add("workers", PLAIN, x, figures=point("workers", PLAIN, x, rates[x])["figures"], rates=[1.0, 2.0, 3.0])
    assert unsettled(kept, wanted) == []


def test_the_best_of_smaller_values_decides_for_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger values may well pass more bytes."""
    monkeypatch.setattr("growing.bends.EXPLAINED", ())
    rates = {10: 1e9, 1_000: 1e8, 100_000: 1e5, 1_000_000: 1e6}
    content = book(*(point("size", PLAIN, x, rate) for x, rate in rates.items()))
    assert doubtful(content) == {("size", PLAIN, 1_000), ("size", PLAIN, 100_000)}


def test_the_median_run_counts() -> None:
    """Whole, with its memory, not figure by figure."""
    seen = [{"per_second": rate, "memory_bytes": mib} for rate, mib in ((5.0, 1), (1.0, 2), (3.0, 3))]
    assert median_run(seen) == {"per_second": 3.0, "memory_bytes": 3}


def test_larger_values_are_compared_by_their_bytes_with_smaller_ones() -> None:
    """Fewer records a second are no bend, fewer bytes a second than smaller values had are."""
    rates = {10: 1_000.0, 1_000: 900.0, 100_000: 50.0, 1_000_000: 1.0}
    found = list(bends(book(*(point("size", PLAIN, x, rate) for x, rate in rates.items()))))
    assert [(bend.what, bend.x) for bend in found] == [(THROUGHPUT, 1_000_000)]


def test_memory_bends_when_it_grows_by_times_and_by_much() -> None:
    """Twice little is little, and more than much is not twice; it may bend on either side."""
    grown = {10: 90, 100: 10, 1_000: 60, 10_000: 150}
    runs = [point("keys", COUNT, x, 100.0, (40 + mib) * MIB) for x, mib in grown.items()]
    assert [(bend.what, bend.x) for bend in bends(book(*runs))] == [(MEMORY, 10), (MEMORY, 10_000)]


def test_a_start_bends_when_it_takes_times_as_long_and_seconds_more() -> None:
    """Twice a moment is none."""
    starts = {1: 0.5, 8: 2.0, 64: 9.0}
    runs = [point("partitions", PLAIN, x, 100.0) for x in starts]
    for one, taken in zip(runs, starts.values(), strict=True):
        one["figures"]["start_s"] = taken
    assert [(bend.what, bend.x, bend.share) for bend in bends(book(*runs))] == [(START, 64, 18.0)]


def test_a_bend_with_a_reason_is_no_defect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says it, and is content; without the reason it is not."""
    content = book(point("drift", PLAIN, 0, 100.0), point("drift", PLAIN, 10_000, 10.0))
    monkeypatch.setattr("growing.bends.EXPLAINED", ())
    assert not report(content, list(AXES))
    far = Reason(axis="drift", handlers=(PLAIN,), what=THROUGHPUT, worst=0.1, x_min=100_000, text="the moon")
    monkeypatch.setattr("growing.bends.EXPLAINED", (far,))
    assert not report(content, list(AXES))
    monkeypatch.setattr("growing.bends.EXPLAINED", (far, replace(far, x_min=10_000)))
    assert report(content, list(AXES))
    assert "the moon" in capsys.readouterr().out


def test_a_reason_goes_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throughput that falls below what it explains, or memory that rises above, is a defect again."""
    falls = Reason(axis="drift", handlers=(PLAIN,), what=THROUGHPUT, worst=0.3, text="the moon")
    rises = Reason(axis="keys", handlers=(COUNT,), what=MEMORY, worst=4.0, text="the tide")
    monkeypatch.setattr("growing.bends.EXPLAINED", (falls, rises))
    for x, per_second, mib in ((1, 30.0, 400), (2, 29.0, 401)):
        drift = [point("drift", PLAIN, 0, 100.0), point("drift", PLAIN, x, per_second)]
        keys = [point("keys", COUNT, 0, 100.0, 140 * MIB), point("keys", COUNT, x, 100.0, (40 + mib) * MIB)]
        assert [bool(bend.reason) for bend in bends(book(*drift, *keys))] == [x == 1, x == 1]


def test_a_point_that_failed_is_told_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Its reason stands below the tables; another axis has nothing to do with it."""
    failed = {"workload": "keys", "arm": PLAIN, "round": 10, "failed": "3 keys are incomplete"}
    content = book(point("workers", PLAIN, 1, 100.0), failed)
    assert not report(content, list(AXES))
    assert "3 keys are incomplete" in capsys.readouterr().out
    assert report(content, [WORKERS])


def test_a_table_has_a_row_for_each_point_in_order() -> None:
    """By handler, then along the axis; as many cells on each."""
    runs = [point("workers", handler, x, 5.0) for x in (64, 1) for handler in (COUNT, PLAIN)]
    rows = table(book(*runs), WORKERS)
    assert [row[:2] for row in rows] == [["1", PLAIN], ["64", PLAIN], ["1", COUNT], ["64", COUNT]]
    assert len({len(row) for row in rows}) == 1
    assert table(book(*runs), DRIFT) == []
    drift = table(book(point("drift", PLAIN, 10, 5.0)), DRIFT)
    assert len(drift[0]) == len((*COLUMNS, *COLUMNS_OF["drift"]))
    assert len(rows[0]) == len((*COLUMNS, *MORE_COLUMNS))
