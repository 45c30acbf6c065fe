"""The order of a key's records over all processes: what the logs do not say, for they tell only what was committed."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

Lane: TypeAlias = tuple[str, int, bytes]
"""Topic, partition and key."""


class Begun(NamedTuple):
    """At which epoch, and by whom, a record of a key was begun last."""

    epoch: int
    incarnation: int


class KeyOrder:
    """Of one world. ``is_out``: whether an incarnation is expelled: then whatever it runs comes to nothing."""

    def __init__(self, is_out: Callable[[int], bool]) -> None:
        self.is_out = is_out
        self._newest: dict[Lane, Begun] = {}
        self._running: dict[Lane, dict[int, int]] = defaultdict(dict)

    def begins(self, lane: Lane, epoch: int, incarnation: int) -> str | None:
        """A record of a key is begun; what is wrong with that."""
        newest = self._newest.get(lane)
        if newest is not None and newest.incarnation != incarnation and newest.epoch >= epoch:
            if not self.is_out(incarnation):
                return f"{lane}: is run by {incarnation} at epoch {epoch} after {newest}"
        else:
            self._newest[lane] = Begun(epoch, incarnation)
        running = self._running[lane]
        for other in running:
            if other != incarnation and not self.is_out(other) and not self.is_out(incarnation):
                return f"{lane}: incarnations {other} and {incarnation} run at once"
        running[incarnation] = epoch
        return None

    def ends(self, lane: Lane, incarnation: int) -> None:
        """The attempt is over."""
        self._running[lane].pop(incarnation, None)
