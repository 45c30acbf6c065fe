"""What a run tells of itself: bounded lines, silence while there is nothing to tell."""

import pytest

from keylanes.runtime.watch.story import (
    PARTITIONS_SHOWN_MAX,
    Figures,
    Interval,
    end_text,
    places,
    start_text,
    without_credentials,
)

from ...tiers.marks import tier

pytestmark = tier("check")


def test_an_idle_run_that_is_level_is_silent() -> None:
    """Each line tells of the time since the last look, and none when nothing was done and nothing is left."""
    interval = Interval(0.0)
    assert not interval.is_due(59.9)
    assert interval.is_due(60.0)
    assert interval.look(60.0, Figures()) is None
    assert not interval.is_due(119.0)
    assert interval.look(120.0, Figures(records=600)) == "600 records done in 60 s (10/s), 0 behind"
    assert interval.look(180.0, Figures(records=600)) is None


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (Figures(lag=1_200), "0 records done in 60 s (0/s), 1,200 behind"),
        (Figures(lag=7, ends_age_s=95.4), "0 records done in 60 s (0/s), 7 behind (as of 95 s ago)"),
        (
            Figures(failures=1),
            "0 records done in 60 s (0/s), 0 behind; 1 failed attempt, 0 tried again, 0 dead letters",
        ),
        (
            Figures(records=60, failures=312, retries=302, dead_letters=10),
            "60 records done in 60 s (1/s), 0 behind; 312 failed attempts, 302 tried again, 10 dead letters",
        ),
        (Figures(splits=1_000, merges=1), "0 records done in 60 s (0/s), 0 behind; ranges: 1,000 splits, 1 merge"),
    ],
)
def test_a_run_that_has_something_to_tell_tells_it(figures: Figures, said: str) -> None:
    """Also when it stands still behind the ends, which is what people look for."""
    assert Interval(0.0).look(60.0, figures) == said


def test_many_partitions_are_one_short_line() -> None:
    """Some offsets, and the range of the others."""
    assert places({1: 5, 0: 1_200}) == "[0] at 1200, [1] at 5"
    text = places({partition: 1_000 + partition for partition in range(500)})
    assert text.endswith(f"[{PARTITIONS_SHOWN_MAX - 1}] at 1015, and 484 more at 1016 to 1499")
    assert len(text) < 300


def test_an_interpreted_run_says_so_in_a_line_of_its_own() -> None:
    """With what to do; a compiled one has no more than its first line."""
    assert start_text("0.1.0", "embedded:./data", is_compiled=True) == [
        "starting: keylanes 0.1.0, compiled, on embedded:./data"
    ]
    first, advice = start_text("0.1.0", "embedded:./data", is_compiled=False)
    assert first == "starting: keylanes 0.1.0, interpreted, on embedded:./data"
    assert "install keylanes where there is a C compiler" in advice


def test_an_address_shows_no_password() -> None:
    """Whatever somebody writes into it."""
    assert without_credentials("kafka://ali:open@one:9092,bob:sesame@two:9092") == "kafka://***@one:9092,***@two:9092"
    assert without_credentials("kafka://one:9092,two:9092") == "kafka://one:9092,two:9092"


def test_the_last_line_counts_everything() -> None:
    """From the start of the run on."""
    figures = Figures(records=1, commits=2, failures=3, retries=2, dead_letters=1)
    assert end_text("in order", figures, 1.26) == (
        "stopped in order: 1 record done in 1.3 s, 2 commits, 0 behind; 3 failed attempts, 2 tried again, 1 dead letter"
    )
