"""A quota for writes, as Kafka counts: bytes a second, over a window."""

from collections import deque

from ..throttling import WINDOW_S


class Quota:
    """A quota for all clients. ``rate``: bytes a second; ``moved``: bytes in all; ``longest_s``: the longest throttling
    so far.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.moved = 0
        self.longest_s = 0.0
        self._moved: deque[tuple[float, int]] = deque()
        self._sum = 0

    def throttled_s(self, size: int, now_s: float) -> float:
        """Count ``size`` new bytes. Returns for how long the broker throttles."""
        self._moved.append((now_s, size))
        self.moved += size
        self._sum += size
        while self._moved[0][0] <= now_s - WINDOW_S:
            self._sum -= self._moved.popleft()[1]
        throttled_s = max(0.0, self._sum / self.rate - WINDOW_S)
        self.longest_s = max(self.longest_s, throttled_s)
        return throttled_s
