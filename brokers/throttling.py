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
"""A request takes so much as long as nothing is known."""
BYTES_OPEN: Final = 4 * BYTES_FIRST
"""So much goes in requests one after the other, of which the last ones are left out when a quota is met."""
BYTES_LEAST: Final = 16 * 1024
"""A request may always take so much: a broker that throttles keeps the next one waiting. So much may pass in a window,
too, where others use up the quota of a user: how much that is can't be told from the little that was moved.
"""
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
        self.writing = Allowance(limit_ms)
        """Of the requests that write, in bytes before compression."""
        self._last_s: float | None = None

    def heard(self, throttle_ms: int, now_s: float) -> bool | None:
        """An answer said for how long its connection is throttled: True when that begins, False when it is over; None:
        neither.
        """
        if throttle_ms > 0:
            begins, self._last_s = self._last_s is None, now_s
            self.total_ms += throttle_ms
            return True if begins else None
        if self._last_s is None or now_s < self._last_s + QUIET_S:
            return None
        self._last_s = None
        return False


class Allowance:
    """How many bytes may go at once, by what went lately: no more than is throttled for ``limit_ms``.

    When a quota is met they go at its ``rate``, until nothing was throttled for a window: more may pass by then.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self.total = 0
        """All that went."""
        self._moved: deque[tuple[float, int]] = deque()
        self._sum = 0
        self.rate: float | None = None
        """In bytes a second."""
        self.quota: float | None = None
        """As it was met last, in bytes a second, until nothing was throttled for ``QUIET_S``."""
        self._level = self._filled_s = self._throttled_to_s = 0.0

    def moved(self, size: int, throttled_s: float, now_s: float) -> None:
        """So many bytes went, and were throttled for so long."""
        self._look(now_s)
        self._moved.append((now_s, size))
        self.total += size
        self._sum += size
        self._level -= size
        if throttled_s > 0:
            if self.rate is None:
                self._level = 0.0
            self.rate = self.quota = max(self._sum, BYTES_LEAST) / (WINDOW_S + throttled_s)
            self._throttled_to_s = now_s + throttled_s

    def request_max(self, now_s: float) -> int:
        """So many may go in one request; the next one goes behind its answer."""
        self._look(now_s)
        if self.rate is None:
            return int(max(BYTES_FIRST, self._sum * self._limit_s / WINDOW_S))
        return int(max(BYTES_LEAST, self.rate * (WINDOW_S + self._limit_s) - self._sum))

    def bytes_max(self, now_s: float) -> int:
        """So many may go now, in any number of requests. As long as no quota is known these pass in half a window, by
        the least that there may be.
        """
        self._look(now_s)
        if self.rate is None:
            return max(BYTES_OPEN, self._sum // 2)
        return int(max(0, min(self._level, self.rate * (WINDOW_S + self._limit_s) - self._sum)))

    def least_rate(self, now_s: float) -> float:
        """The quota in bytes a second, as far as it is known; else the least that there may be."""
        self._look(now_s)
        return self._sum / WINDOW_S if self.rate is None else self.rate

    def wait_s(self, size: int, now_s: float) -> float:
        """For how long so many bytes wait for their turn: until as many as ever gather are there at the quota's rate,
        and all would not be throttled for longer than the limit.
        """
        self._look(now_s)
        if self.rate is None:
            return 0.0
        needed = min(size, self._burst(self.rate))
        wait_s = max(0.0, (needed - self._level) / self.rate)
        beyond = self._sum + size - self.rate * (WINDOW_S + self._limit_s)
        for moved_s, moved in self._moved:
            if beyond <= 0:
                break
            beyond -= moved
            wait_s = max(wait_s, moved_s + WINDOW_S - now_s)
        return wait_s

    def passes_max(self) -> int | None:
        """So many bytes pass at once at most, when nothing else did for a window; None where no quota was met. Never
        less than ``BYTES_OPEN``: others may have used up the quota of a user.
        """
        return None if self.quota is None else max(BYTES_OPEN, int(self.quota * (WINDOW_S + self._limit_s)))

    def is_too_much(self, size: int) -> bool:
        """Whether so many bytes never gather, by a quota that is known."""
        return self.rate is not None and size > self._burst(self.rate)

    def _burst(self, rate: float) -> float:
        """So much gathers of what a quota lets pass while nothing is sent: half of what it throttles for the limit."""
        return rate * self._limit_s / 2

    def _look(self, now_s: float) -> None:
        while self._moved and self._moved[0][0] <= now_s - WINDOW_S:
            self._sum -= self._moved.popleft()[1]
        if self.rate is not None:
            self._level = min(self._level + self.rate * (now_s - self._filled_s), self._burst(self.rate))
            if now_s > self._throttled_to_s + WINDOW_S:
                self.rate = None
        if now_s > self._throttled_to_s + QUIET_S:
            self.quota = None
        self._filled_s = now_s
