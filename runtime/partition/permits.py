"""PURE. Permits: how many workers may go on at once, and the next worker to go on.

The workers of each place wait in a queue, and the places take turns. A returned permit goes to the first worker in the
queue of the next place; no worker overtakes another one of its place. Where there is a pace, a permit lets its holder
begin once, and is given out no sooner than the pace allows.
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
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        """The queues of waiting workers by place; the place whose turn is next comes first."""

    @property
    def is_awaited(self) -> bool:
        """Whether a worker waits for a permit."""
        return bool(self._queues)

    def take(self, now_s: float = 0.0) -> bool:
        """Take a permit if one is free and no worker waits."""
        return not self._queues and self._give(now_s)

    def wait(self, place: str, worker: T) -> None:
        """Put a worker at the end of the queue of a place; only after ``take`` returned False."""
        assert self.out >= self.most or self._queues or self.pace is not None, "a permit is free"
        self._queues.setdefault(place, deque()).append(worker)

    def give_back(self, *, is_unused: bool = False) -> None:
        """Give a permit back, for ``serve`` to give to the next worker. An unused permit gives its token of the pace
        back, too.
        """
        assert self.out > 0, "no permit is given out"
        self.out -= 1
        if is_unused and self.pace is not None:
            self.pace.put_back()

    def serve(self, now_s: float = 0.0) -> T | None:
        """Give a permit to the next waiting worker and return the worker; None: none waits, or no permit is free."""
        if not self._queues or not self._give(now_s):
            return None
        place, queue = self._queues.popitem(last=False)
        worker = queue.popleft()
        if queue:
            self._queues[place] = queue
        return worker

    def due_s(self, now_s: float) -> float | None:
        """The seconds until ``serve`` may give a permit; None: not before a permit comes back, or a worker waits."""
        if not self._queues or self.out >= self.most:
            return None
        return 0.0 if self.pace is None else self.pace.wait_s(now_s)

    def forget(self, place: str, worker: T) -> None:
        """Take a worker out of the queue of a place."""
        queue = self._queues[place]
        queue.remove(worker)
        if not queue:
            del self._queues[place]

    def _give(self, now_s: float) -> bool:
        if self.out >= self.most or not (self.pace is None or self.pace.take(now_s)):
            return False
        self.out += 1
        return True
