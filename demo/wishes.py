"""PURE. What an operator asks of a demo in many processes, now and then: that an eighth of a partition changes hands.

Partition by partition and eighth by eighth, in turn, so that each of them is asked for sooner or later; to the process
that has least, or to the next one by name. A process may have it already, or be paused: then nothing comes of it, or
comes later.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..keyrange.ranges import KeyRange, even_bounds
from ..offsets.signals import MoveAsked
from .course import Told

ASKED_EVERY_S: Final = 2.5
PARTS: Final = 8
BY: Final = "demo"


class Wish(NamedTuple):
    """A range of a source partition is to go to the process of that ``name``."""

    topic: str
    partition: int
    within: KeyRange
    name: str

    def asked(self, number: int, incarnations: Mapping[str, int]) -> MoveAsked:
        """The same as a signal, the ``number``-th; 0: it goes to whoever is best."""
        first, end = self.within.first, self.within.end
        target = incarnations.get(self.name, 0)
        return MoveAsked(f"{BY} {number}", BY, self.topic, self.partition, first, end, target, 0)


def wish_of(number: int, places: Sequence[tuple[str, int]], told: Mapping[str, Told]) -> Wish:
    """The ``number``-th one; ``told``: by those that are at work, of whom there is one."""
    bounds = even_bounds(PARTS)
    topic, partition = places[number % len(places)]
    turn = number // len(places)
    part = (3 * turn + partition) % PARTS
    names = sorted(told)
    least = min(names, key=lambda name: (told[name].workers, name))
    name = least if number % 2 else names[number // 2 % len(names)]
    return Wish(topic, partition, KeyRange(bounds[part], bounds[part + 1]), name)
