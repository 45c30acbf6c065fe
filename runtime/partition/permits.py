"""PURE. How many may go on at once, and who is next: a line for each place, and the places take turns.

A permit that is given back goes to whoever waits; so nobody overtakes. Where there is a pace, a permit lets its holder
begin once, and is given out no sooner than the pace allows.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from .pace import AttemptPace

T = TypeVar("T")


class Permits(Generic[T]):
    """``most`` permits. ``out``: how many are given out. Times are in seconds, by the clock of the pace; without a pace
    they do not matter.
    """

    def __init__(self, most: int, pace: AttemptPace | None = None) -> None:
        self.most, self.pace = most, pace
        self.out = 0
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        """Who waits, by place; the place whose turn it is first."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._lines)

    def take(self, now_s: float = 0.0) -> bool:
        """Take one if there is one and nobody waits."""
        return not self._lines and self._give(now_s)

    def wait(self, place: str, who: T) -> None:
        """Stand in the line of a place; only where ``take`` was in vain."""
        assert self.out >= self.most or self._lines or self.pace is not None, "there is one"
        self._lines.setdefault(place, deque()).append(who)

    def give_back(self, *, is_unused: bool = False) -> None:
        """Give one back; ``serve`` has whoever waits. Of one that was not used the time is there again, too."""
        assert self.out > 0, "none is given out"
        self.out -= 1
        if is_unused and self.pace is not None:
            self.pace.put_back()

    def serve(self, now_s: float = 0.0) -> T | None:
        """Who of those that wait has a permit from now on; None: nobody."""
        if not self._lines or not self._give(now_s):
            return None
        place, line = self._lines.popitem(last=False)
        who = line.popleft()
        if line:
            self._lines[place] = line
        return who

    def due_s(self, now_s: float) -> float | None:
        """In how many seconds ``serve`` may have somebody; None: not before one is given back, or somebody waits."""
        if not self._lines or self.out >= self.most:
            return None
        return 0.0 if self.pace is None else self.pace.wait_s(now_s)

    def forget(self, place: str, who: T) -> None:
        """Somebody waits no longer."""
        line = self._lines[place]
        line.remove(who)
        if not line:
            del self._lines[place]

    def _give(self, now_s: float) -> bool:
        if self.out >= self.most or not (self.pace is None or self.pace.take(now_s)):
            return False
        self.out += 1
        return True
