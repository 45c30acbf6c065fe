"""A steady load: what a line through samples says, and how bytes of a log are counted."""

import random
from typing import Any

import pytest

from rig.reader import Turns
from rig.records import value_of
from steadiness.slopes import BOUNDS, Verdict, Written, fitted, judge, of_intervals
from steady import exit_code, table

from ..tiers.marks import tier
from .books import output

pytestmark = tier("check")

LEVEL = {bound.name: 1_000.0 * bound.scale for bound in BOUNDS}
MORE = {"per_second": 2.0, "cpu_us_per_record": 3.0, "workers": 4.0}


def samples(count: int = 40, /, **figures: Any) -> list[dict[str, float]]:
    """Ten seconds apart; a figure is level unless it is given as a function of seconds."""
    times = [10.0 * number for number in range(1, count + 1)]
    return [{"at_s": at, **LEVEL, **MORE, **{name: of(at) for name, of in figures.items()}} for at in times]


def growing(found: list[Verdict]) -> list[str]:
    """What is said to grow."""
    return [verdict.bound.name for verdict in found if verdict.grows]


def test_a_line_is_that_of_least_squares() -> None:
    """Exactly on a line there is no error; beside it the error is that of the textbook."""
    line = fitted([0.0, 1.0, 2.0, 3.0], [5.0, 7.0, 9.0, 11.0])
    assert (line.start, line.slope, line.error) == (5.0, 2.0, 0.0)
    line = fitted([0.0, 1.0, 2.0], [0.0, 0.0, 3.0])
    assert (line.start, line.slope) == pytest.approx((-0.5, 1.5))
    assert line.error == pytest.approx((1.5 / 2) ** 0.5)


def test_what_is_level_holds() -> None:
    """So does what goes up and down."""
    draw = random.Random(5)
    found = list(judge(samples(rss_bytes=lambda _: LEVEL["rss_bytes"] * draw.uniform(0.8, 1.2))))
    assert growing(found) == []
    assert exit_code(found) == 0


@pytest.mark.parametrize("name", [bound.name for bound in BOUNDS])
def test_what_rises_by_a_third_grows(name: str) -> None:
    """Each figure is looked at, and the verdict names the one that grows."""
    found = list(judge(samples(**{name: lambda at: LEVEL[name] * (1 + at / 1_000)})))
    assert growing(found) == [name]
    assert exit_code(found) == 1
    assert str(next(v for v in found if v.grows)).startswith("GROWS")


def test_what_rises_at_the_beginning_only_does_not_grow() -> None:
    """The first quarter is not judged."""
    found = list(judge(samples(rss_bytes=lambda at: LEVEL["rss_bytes"] * min(at / 100, 1.0))))
    assert growing(found) == []


def test_a_saw_does_not_grow_and_a_saw_on_a_slope_does() -> None:
    """A folder that is filled and compacted: its line is level, but for chance."""
    level = LEVEL["state_bytes"]
    assert growing(list(judge(samples(state_bytes=lambda at: level * (1 + at % 60 / 60))))) == []
    found = list(judge(samples(state_bytes=lambda at: level * (1 + at % 60 / 60 + at / 200))))
    assert growing(found) == ["state_bytes"]


def test_too_few_samples_are_not_judged() -> None:
    """No verdict is better than one from three points."""
    with pytest.raises(ValueError, match="too few"):
        list(judge(samples(3)))
    with pytest.raises(ValueError, match="too few"):
        list(judge([]))


def test_bytes_of_a_log_are_those_that_were_written() -> None:
    """Whatever a cleaner does to files before the last one; partitions are counted each for itself."""
    written = Written()
    assert written.look({("log-0", "00"): 100, ("log-1", "00"): 10}) == 110
    assert written.look({("log-0", "00"): 150, ("log-1", "00"): 30}) == 180
    assert written.look({("log-0", "00"): 200, ("log-0", "70"): 40, ("log-1", "00"): 30}) == 270
    assert written.look({("log-0", "00"): 20, ("log-0", "70"): 60, ("log-1", "00"): 30}) == 290
    assert written.look({("log-0", "00"): 90, ("log-0", "70"): 60, ("log-1", "00"): 30}) == 290


def test_intervals_have_the_rates_since_the_sample_before() -> None:
    """Totals become bytes per record; a figure that is no total stays as it is."""
    names = ("at_s", "records", "cpu_s", "offset_log_bytes", "changelog_bytes", "event_bytes")
    first, second = dict.fromkeys(names, 0.0), dict(zip(names, (10.0, 200.0, 0.5, 100.0, 4_000.0, 50.0), strict=True))
    (found,) = of_intervals([{**first, "handles": 3.0}, {**second, "handles": 4.0}])
    assert (found["per_second"], found["cpu_us_per_record"], found["handles"]) == (20.0, 2_500.0, 4.0)
    assert (found["offset_log_per_record"], found["changelog_per_record"]) == (0.5, 20.0)
    assert of_intervals([first]) == []


def test_a_table_shows_some_samples_and_always_the_last() -> None:
    """Thirty rows at most, evenly taken."""
    rows = table(samples(100))
    assert len(rows) <= 30
    assert rows[-1][0] == f"{1_000 / 60:.1f}"
    assert len(table(samples(7))) == 7


def test_turns_see_what_is_missing_doubled_or_out_of_order() -> None:
    """Without the whole value: the number of a record within its key is enough."""
    turns = Turns([3, 2])
    for key, number in ((0, 0), (1, 0), (0, 2), (0, 2), (1, 1)):
        turns.take(output(value_of(key, number, 0, number)))
    seen = turns.event()
    assert (seen["missing"], seen["doubled"], seen["out_of_order"]) == (1, 1, 1)
    whole = Turns([1, 1])
    for key in (1, 0):
        whole.take(output(value_of(key, 0, 0, 0)))
    assert [whole.event()[name] for name in ("seen", "missing", "doubled", "out_of_order")] == [2, 0, 0, 0]
