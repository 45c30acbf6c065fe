"""PURE. How many may go on at once, and who is next: a line for each place, and the places take turns.

A permit that is given back goes to whoever waits; so nobody overtakes, and while somebody waits all permits are out.
"""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Permits(Generic[T]):
    """``most`` permits. ``out``: how many are given out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.out = 0
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        """Who waits, by place; the place whose turn it is first."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._lines)

    def take(self) -> bool:
        """Take one if there is one."""
        if self.out >= self.most:
            return False
        self.out += 1
        return True

    def wait(self, place: str, who: T) -> None:
        """Stand in the line of a place; only where ``take`` was in vain."""
        assert self.out >= self.most, "there is one"
        self._lines.setdefault(place, deque()).append(who)

    def give_back(self) -> T | None:
        """Give one back: who has it now; None: nobody waits."""
        assert self.out > 0, "none is given out"
        if not self._lines:
            self.out -= 1
            return None
        place, line = self._lines.popitem(last=False)
        who = line.popleft()
        if line:
            self._lines[place] = line
        return who

    def forget(self, place: str, who: T) -> None:
        """Somebody waits no longer."""
        line = self._lines[place]
        line.remove(who)
        if not line:
            del self._lines[place]
