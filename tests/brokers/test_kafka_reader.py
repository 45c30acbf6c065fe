"""For how long a broker gave nothing, told by its answers alone."""

from keylanes.brokers.kafka.reader import EmptyAnswers

from ..tiers.marks import tier

pytestmark = tier("check")


def test_the_time_between_answers_counts() -> None:
    """Answers that come all the time sum up to the time they took."""
    empty = EmptyAnswers(1_000, 0)
    for answered in (1_250, 1_250, 1_500, 3_000):
        empty = empty.heard(answered, step_ms_max=5_000)
    assert empty == (3_000, 2_000)


def test_a_stop_counts_for_one_request() -> None:
    """A process that stood still for an hour between two answers: so long the broker was not asked."""
    assert EmptyAnswers(1_000, 10).heard(3_601_000, step_ms_max=5_000) == (3_601_000, 5_010)


def test_a_clock_set_back_counts_for_nothing() -> None:
    """And the answers behind it count from there."""
    assert EmptyAnswers(9_000, 10).heard(1_000, 5_000).heard(1_250, 5_000) == (1_250, 260)
