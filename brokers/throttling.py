"""PURE. Quotas of a cluster: for how long brokers throttle this process, and how much may go at once to keep that low.

A broker counts what a client moved in a window. Beyond the quota it answers at once, says for how long it throttles,
and reads nothing more of that connection until then (KIP-219): a throttled broker is slow, not silent. Of ``b`` bytes
in the window ``w`` it throttles for ``b / quota - w``. So what moved unthrottled tells the least quota that there may
be, what was throttled tells the quota. ``now_s`` is any clock that does not go back.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 11.0
"""quota.window.num samples of quota.window.size.seconds each, as Kafka has them by default."""
BYTES_FIRST: Final = 64 * 1024
"""So much goes at once as long as nothing is known."""
QUIET_S: Final = 60.0
"""Throttling is over when nothing was throttled for so long."""
LIMIT_MS: Final = 2_500
"""So long an answer shall throttle at most, where there is no session that asks for less."""


class Throttling:
    """How brokers throttle this process: one object for all of its connections to a cluster. ``limit_ms``: so long an
    answer shall throttle at most.
    """

    def __init__(self, limit_ms: int = LIMIT_MS) -> None:
        self.limit_ms, self.total_ms = limit_ms, 0
        self._last_s: float | None = None
        self._longest_ms = 0

    def heard(self, throttle_ms: int, now_s: float, *, of_write: bool) -> bool | None:
        """An answer said for how long its connection is throttled: True when that begins, False when it is over; None:
        neither.
        """
        if throttle_ms > 0:
            begins, self._last_s = self._last_s is None, now_s
            self.total_ms += throttle_ms
            if of_write:
                self._longest_ms = max(self._longest_ms, throttle_ms)
            return True if begins else None
        if self._last_s is None or now_s < self._last_s + QUIET_S:
            return None
        self._last_s = None
        return False

    def take_longest_ms(self) -> int:
        """The longest that what was written since the last call was throttled."""
        longest_ms, self._longest_ms = self._longest_ms, 0
        return longest_ms


class Allowance:
    """How many bytes may go at once, by what went lately: no more than is throttled for ``limit_ms``.

    While a quota is known they go at its rate. It is forgotten when nothing was throttled for a window.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._moved: deque[tuple[float, int]] = deque()
        self._sum = 0
        self.rate: float | None = None
        """The quota as far as it is known, in bytes a second."""
        self._level = self._filled_s = self._throttled_s = 0.0

    def moved(self, size: int, throttled_s: float, now_s: float) -> None:
        """So many bytes went, and were throttled for so long."""
        self._look(now_s)
        self._moved.append((now_s, size))
        self._sum += size
        self._level -= size
        if throttled_s > 0:
            if self.rate is None:
                self._level = 0.0
            self.rate, self._throttled_s = self._sum / (WINDOW_S + throttled_s), now_s

    def bytes_max(self, now_s: float) -> int:
        """So many may go now."""
        self._look(now_s)
        if self.rate is None:
            return int(max(BYTES_FIRST, self._sum * self._limit_s / WINDOW_S))
        return int(max(0, min(self._level, self.rate * (WINDOW_S + self._limit_s) - self._sum)))

    def _look(self, now_s: float) -> None:
        while self._moved and self._moved[0][0] <= now_s - WINDOW_S:
            self._sum -= self._moved.popleft()[1]
        if self.rate is not None:
            self._level = min(self._level + self.rate * (now_s - self._filled_s), self.rate * self._limit_s / 2)
            if now_s > self._throttled_s + WINDOW_S:
                self.rate = None
        self._filled_s = now_s
