"""The witness that several processes share, and what becomes of what they say."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from _driver import Spec
from keylanes_processes_app import SharedTally, make_shared, merged
from rig.counts import write_counts
from rig.reader import changelog_of
from rig.records import value_of

KEYS, OF = 3, 2
PART: dict[str, Any] = {
    "records": 2,
    "cpu_s": 0.5,
    "rss_peak_bytes": 100,
    "rss_base_bytes": 10,
    "out_of_order": 0,
    "wrong_states": 0,
    "concurrency_peak": 1,
    "commits": 3,
    "tiles": 4,
    "event_bytes": 5,
    "splits": 0,
    "versions": {"keylanes": "1"},
}


@pytest.fixture
def tallies(tmp_path: Path) -> list[SharedTally]:
    """Those of two processes. The keys have 2, 1 and 1 records."""
    expected = write_counts(tmp_path / "expected", array("I", [2, 1, 1]))
    spec = Spec("keylanes-2", "W4", "", "t", 4, "g", str(tmp_path), records=4, keys=KEYS, expected=expected)
    make_shared(tmp_path / "witness", KEYS, OF)
    return [SharedTally(spec, tmp_path / "witness", number, OF) for number in (1, 2)]


def handle(tally: SharedTally, key: int, number: int) -> None:
    """One record, from its begin to its end."""
    tally.end(tally.begin(value_of(key, number, 0, 0)))


def test_the_turn_of_a_key_goes_along_with_its_range(tallies: list[SharedTally]) -> None:
    """Both see what the other has handled, and when all is done."""
    first, second = tallies
    handle(first, 0, 0)
    handle(second, 0, 1)
    handle(second, 1, 0)
    assert (first.own(), second.own(), first.handled(), second.handled()) == (1, 2, 3, 3)
    assert first.incomplete_keys() == 1
    handle(first, 2, 0)
    assert (first.handled(), second.incomplete_keys()) == (4, 0)
    assert (first.out_of_order, second.out_of_order) == (0, 0)
    assert first.began_ns() == second.began_ns() > 0


def test_what_is_doubled_or_left_out_is_seen(tallies: list[SharedTally]) -> None:
    """Whoever does it."""
    first, second = tallies
    handle(first, 0, 0)
    handle(second, 0, 0)
    handle(second, 1, 0)
    handle(first, 2, 0)
    assert second.out_of_order == 1
    handle(first, 0, 1)
    assert first.incomplete_keys() == 1, "one record too many"


def test_what_all_say_becomes_one_result(tallies: list[SharedTally]) -> None:
    """From the first record of all to when all were seen to be done; memory with the parent's."""
    for key, number in ((0, 0), (0, 1), (1, 0), (2, 0)):
        handle(tallies[key % 2], key, number)
    began_ns = tallies[0].began_ns()
    found = merged([PART, PART], tallies[0], began_ns + 2_000_000_000, 50)
    assert (found["records"], found["seconds"], found["shares"]) == (4, 2.0, [0.5, 0.5])
    assert (found["cpu_us_per_record"], found["rss_peak_bytes"], found["concurrency_peak"]) == (250_000, 250, 2)
    assert (found["incomplete_keys"], found["out_of_order"], found["wrong_states"]) == (0, 0, 0)


def test_arms_of_two_keep_their_counts_where_arms_of_one_do() -> None:
    """In the changelog that their library names."""
    assert changelog_of("keylanes-2", "g", "t") == changelog_of("keylanes", "g", "t")
    assert changelog_of("streams-eos-2", "g", "t") == changelog_of("streams-eos", "g", "t")
