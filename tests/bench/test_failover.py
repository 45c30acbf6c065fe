"""What a change of the group costs: the figures of the notes."""

import pytest

from failing_over.notes import NOTE, Note, again, notes_in, owners, stops
from rig.gaps import gaps, percentile

from ..tiers.marks import tier

pytestmark = tier("check")


def test_notes_are_read_back() -> None:
    """The half note of a killed process is none."""
    raw = NOTE.pack(1_500_000_000, 3, 7) + NOTE.pack(2_000_000_000, 4, 8)
    assert notes_in(raw + raw[:5], "a") == [Note(1.5, 3, 7, "a"), Note(2.0, 4, 8, "a")]


def test_the_newest_note_says_who_works_on_a_partition() -> None:
    """In whatever order the files are read."""
    notes = [Note(2.0, 0, 5, "b"), Note(1.0, 0, 4, "a"), Note(1.0, 1, 0, "a")]
    assert {partition: note.who for partition, note in owners(notes).items()} == {0: "b", 1: "a"}


@pytest.mark.parametrize(
    ("times", "since", "until", "found"),
    [
        ([0.0, 1.0, 5.0, 6.0], 1.0, 6.0, [4.0, 1.0]),
        ([0.0, 1.0, 5.0, 6.0], 2.0, 3.0, [4.0]),  # it stood all the while
        ([0.0, 1.0], 2.0, 9.0, [8.0]),  # and stands still
        ([0.0, 1.0, 2.0], 1.0, 2.0, [1.0]),
        ([], 0.0, 1.0, []),
    ],
)
def test_a_gap_counts_if_it_lasted_into_the_window(
    times: list[float], since: float, until: float, found: list[float]
) -> None:
    """Also one that began before it, ends behind it, or does not end."""
    assert gaps(times, since, until) == found


def test_of_each_partition_the_longest_stop_counts() -> None:
    """Whoever handled its records before and after."""
    times = [(0, 0.0), (0, 0.5), (1, 0.0), (0, 3.0), (1, 0.2), (1, 4.0)]
    assert stops(times, 0.0, 4.0) == {0: 2.5, 1: 3.8}


def test_a_record_that_is_handled_again_is_counted_each_time() -> None:
    """Three times is twice again."""
    assert (
        again([Note(at, 0, offset, who) for at, offset, who in ((1, 1, "a"), (2, 1, "b"), (3, 1, "a"), (4, 2, "a"))])
        == 2
    )


def test_a_percentile_is_one_of_the_values() -> None:
    """And of none it is 0."""
    assert percentile([float(n) for n in range(1_000)], 0.999) == 999.0
    assert percentile([3.0, 1.0], 0.5) == 3.0
    assert percentile([], 0.5) == 0.0
