"""PURE. Permits: how many workers may go on at once, and the next worker. Each place has a line; the places take turns.

A returned permit goes to the first in line; nobody overtakes. Where there is a pace, a permit lets its holder begin
once, and is given out no sooner than the pace allows.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from .pace import AttemptPace

T = TypeVar("T")


class Permits(Generic[T]):
    """``most`` permits. ``out``: how many are given out. Times are in seconds, by the clock of the pace; without a pace
    times do not matter.
    """

    def __init__(self, most: int, pace: AttemptPace | None = None) -> None:
        self.most = most
        self.pace = pace
        self.out = 0
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        """The lines by place; the place whose turn is next comes first."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._lines)

    def take(self, now_s: float = 0.0) -> bool:
        """Take a permit if a permit is free and nobody waits."""
        return not self._lines and self._give(now_s)

    def wait(self, place: str, who: T) -> None:
        """Join the line of a place; only after ``take`` returned False."""
        assert self.out >= self.most or self._lines or self.pace is not None, "there is one"
        self._lines.setdefault(place, deque()).append(who)

    def give_back(self, *, is_unused: bool = False) -> None:
        """Give a permit back; ``serve`` gives it to the next in line. An unused permit gives back its time, too."""
        assert self.out > 0, "none is given out"
        self.out -= 1
        if is_unused and self.pace is not None:
            self.pace.put_back()

    def serve(self, now_s: float = 0.0) -> T | None:
        """Give a permit to the next in line and return the receiver; None: nobody."""
        if not self._lines or not self._give(now_s):
            return None
        place, line = self._lines.popitem(last=False)
        who = line.popleft()
        if line:
            self._lines[place] = line
        return who

    def due_s(self, now_s: float) -> float | None:
        """The seconds until ``serve`` may serve somebody; None: not before a permit comes back, or somebody waits."""
        if not self._lines or self.out >= self.most:
            return None
        return 0.0 if self.pace is None else self.pace.wait_s(now_s)

    def forget(self, place: str, who: T) -> None:
        """Take somebody out of the line of a place."""
        line = self._lines[place]
        line.remove(who)
        if not line:
            del self._lines[place]

    def _give(self, now_s: float) -> bool:
        if self.out >= self.most or not (self.pace is None or self.pace.take(now_s)):
            return False
        self.out += 1
        return True
