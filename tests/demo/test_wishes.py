"""What the demo asks of its processes: that ranges change hands."""

from itertools import pairwise

from keylanes.demo.course import Told
from keylanes.demo.wishes import PARTS, wish_of
from keylanes.keyrange.hashing import SPACE_END

from ..tiers.marks import tier

pytestmark = tier("check")

PLACES = [(topic, partition) for topic in ("a", "b") for partition in range(4)]
TOLD = {"demo-1": Told(1, 9), "demo-2": Told(1, 2), "demo-3": Told(1, 5)}


def test_each_part_is_asked_for_once_in_a_turn() -> None:
    """Every eighth of every partition, and no two neighbours of one in a row."""
    wishes = [wish_of(number, PLACES, TOLD) for number in range(PARTS * len(PLACES))]
    assert len({wish[:3] for wish in wishes}) == len(wishes)
    assert sum(wish.within.size for wish in wishes) == len(PLACES) * SPACE_END
    of_one = [wish.within.first for wish in wishes if wish[:2] == ("a", 0)]
    assert all(abs(a - b) > SPACE_END // PARTS for a, b in pairwise(of_one))


def test_it_goes_to_who_has_least_or_to_each_in_turn() -> None:
    """Of those that are at work; one whose number is not known is for the coordinator to replace."""
    names = [wish_of(number, PLACES, TOLD).name for number in range(6)]
    assert names == ["demo-1", "demo-2", "demo-2", "demo-2", "demo-3", "demo-2"]
    asked = wish_of(2, PLACES, TOLD).asked(2, {"demo-2": 7})
    assert (asked.topic, asked.partition, asked.target, asked.epoch) == ("a", 2, 7, 0)
    assert wish_of(2, PLACES, TOLD).asked(2, {}).target == 0
    assert wish_of(2, PLACES, TOLD).asked(3, {}).request != asked.request
