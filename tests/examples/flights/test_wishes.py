"""What the demo asks of its processes: that ranges change hands."""

from itertools import pairwise

from course import Told
from keylanes.keyrange.hashing import SPACE_END
from wishes import PARTS, move_of

from ...tiers.marks import tier

pytestmark = tier("check")

PLACES = [(topic, partition) for topic in ("a", "b") for partition in range(4)]
TOLD = {"demo-1": Told(1, 9), "demo-2": Told(1, 2), "demo-3": Told(1, 5)}


def test_each_part_is_asked_for_once_in_a_turn() -> None:
    """Every eighth of every partition, and no two neighbours of one in a row."""
    moves = [move_of(number, PLACES, TOLD, {}) for number in range(PARTS * len(PLACES))]
    assert len({(move.topic, move.partition, move.first) for move in moves}) == len({move.request for move in moves})
    assert sum(move.end - move.first for move in moves) == len(PLACES) * SPACE_END
    of_one = [move.first for move in moves if (move.topic, move.partition) == ("a", 0)]
    assert all(abs(a - b) > SPACE_END // PARTS for a, b in pairwise(of_one))


def test_it_goes_to_who_has_least_or_to_each_in_turn() -> None:
    """Of those that are at work; one whose number is not known is for the coordinator to replace."""
    targets = [move_of(number, PLACES, TOLD, {"demo-1": 1, "demo-2": 7}).target for number in range(6)]
    assert targets == [1, 7, 7, 7, 0, 7]
    moved = move_of(2, PLACES, TOLD, {})
    assert (moved.topic, moved.partition, moved.epoch) == ("a", 2, 0)
