"""PURE. Quotas of a cluster: for how long brokers throttle this process, and how much may go at once to avoid
throttling.

A broker counts the bytes that a client moved in a window. Beyond the quota the broker answers at once, says for how
long the connection is throttled, and reads nothing more of the connection until then (KIP-219): a throttled broker is
slow, not silent. For ``b`` bytes in the window ``w`` a broker throttles for ``b / quota - w``. So bytes that moved
without throttling tell the least possible quota, and throttled bytes tell the quota. ``now_s`` is any clock that does
not go back.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 11.0
"""quota.window.num samples of quota.window.size.seconds each: Kafka's defaults."""
BYTES_FIRST: Final = 64 * 1024
"""The bytes of a request as long as nothing is known."""
BYTES_OPEN: Final = 4 * BYTES_FIRST
"""The bytes that a sender may plan to send at once as long as nothing is known. They go in several requests, one after
the other. When the first of these meet a quota, the others need not be sent.
"""
BYTES_LEAST: Final = 16 * 1024
"""A request may always take so many bytes: a throttling broker keeps the next request waiting. A quota is never taken
for less than so many bytes in a window: where other clients use up the quota of a user, a few moved bytes can't tell
the quota.
"""
QUIET_S: Final = 60.0
"""Throttling is over when nothing was throttled for so long."""
LIMIT_MS: Final = 2_500
"""The longest throttling that an answer shall bring, where no session asks for less."""


class Throttling:
    """The throttling of this process by brokers: one object for all connections to a cluster. ``limit_ms``: the longest
    throttling that an answer shall bring.
    """

    def __init__(self, limit_ms: int = LIMIT_MS) -> None:
        self.limit_ms = limit_ms
        self.total_ms = 0
        self.writing = Allowance(limit_ms)
        """For requests that write, in bytes before compression."""
        self._last_s: float | None = None

    def note_answer(self, throttle_ms: int, now_s: float) -> bool | None:
        """Note the throttling time in an answer. True: throttling begins; False: throttling ends; None: no change."""
        if throttle_ms > 0:
            begins, self._last_s = self._last_s is None, now_s
            self.total_ms += throttle_ms
            return True if begins else None
        if self._last_s is None or now_s < self._last_s + QUIET_S:
            return None
        self._last_s = None
        return False


class Allowance:
    """The bytes that may go at once, judged by recent traffic: no more than would be throttled for ``limit_ms``.

    When a quota is met, a token bucket begins: the bytes that may go *gather* at the quota's ``rate``, up to a maximum.
    The bucket ends when nothing was throttled for a window: by then more may pass.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self.total = 0
        """All bytes that went."""
        self._moved: deque[tuple[float, int]] = deque()
        """The time and the bytes of what went in the last window."""
        self._sum = 0
        """The bytes that went in the last window."""
        self.rate: float | None = None
        """The quota in bytes a second; None: nothing was throttled for a window."""
        self.quota: float | None = None
        """The last known quota in bytes a second, until nothing was throttled for ``QUIET_S``."""
        self._gathered = self._gathered_s = self._throttled_to_s = 0.0
        """The bytes that have gathered, the time at which they were counted, and the end of the last throttling."""

    def note_bytes(self, size: int, throttled_s: float, now_s: float) -> None:
        """Note that ``size`` bytes went, and were throttled for ``throttled_s``."""
        self._advance(now_s)
        self._moved.append((now_s, size))
        self.total += size
        self._sum += size
        self._gathered -= size
        if throttled_s > 0:
            if self.rate is None:
                self._gathered = 0.0
            self.rate = self.quota = max(self._sum, BYTES_LEAST) / (WINDOW_S + throttled_s)
            self._throttled_to_s = now_s + throttled_s

    def request_max(self, now_s: float) -> int:
        """The bytes that may go in one request; the next request goes behind the answer."""
        self._advance(now_s)
        if self.rate is None:
            return int(max(BYTES_FIRST, self._sum * self._limit_s / WINDOW_S))
        return int(max(BYTES_LEAST, self.rate * (WINDOW_S + self._limit_s) - self._sum))

    def bytes_max(self, now_s: float) -> int:
        """The bytes that may go now, in any number of requests. Without a known quota: as many as pass in half a window
        at the least possible quota.
        """
        self._advance(now_s)
        if self.rate is None:
            return max(BYTES_OPEN, self._sum // 2)
        return int(max(0, min(self._gathered, self.rate * (WINDOW_S + self._limit_s) - self._sum)))

    def least_rate(self, now_s: float) -> float:
        """The quota in bytes a second, as far as known; else the least possible quota."""
        self._advance(now_s)
        return self._sum / WINDOW_S if self.rate is None else self.rate

    def wait_s(self, size: int, now_s: float) -> float:
        """The seconds for which ``size`` bytes have to wait. Two conditions end the wait: ``size`` bytes have gathered,
        or as many as ever gather; and to send them would not be throttled for longer than the limit.
        """
        self._advance(now_s)
        if self.rate is None:
            return 0.0
        needed = min(size, self._burst(self.rate))
        wait_s = max(0.0, (needed - self._gathered) / self.rate)
        # The second condition comes true when the first bytes of the window are older than a window.
        beyond = self._sum + size - self.rate * (WINDOW_S + self._limit_s)
        for moved_s, moved in self._moved:
            if beyond <= 0:
                break
            beyond -= moved
            wait_s = max(wait_s, moved_s + WINDOW_S - now_s)
        return wait_s

    def passes_max(self) -> int | None:
        """The most bytes that pass at once after an idle window; None: no quota was met. Never less than
        ``BYTES_OPEN``: others may have used up the quota of a user.
        """
        return None if self.quota is None else max(BYTES_OPEN, int(self.quota * (WINDOW_S + self._limit_s)))

    def is_too_much(self, size: int) -> bool:
        """Whether ``size`` bytes never gather, by a known quota."""
        return self.rate is not None and size > self._burst(self.rate)

    def _burst(self, rate: float) -> float:
        """The most bytes that gather while nothing is sent: half of the bytes that are throttled for the limit."""
        return rate * self._limit_s / 2

    def _advance(self, now_s: float) -> None:
        """Bring the counts up to this time."""
        while self._moved and self._moved[0][0] <= now_s - WINDOW_S:
            self._sum -= self._moved.popleft()[1]
        if self.rate is not None:
            self._gathered = min(self._gathered + self.rate * (now_s - self._gathered_s), self._burst(self.rate))
            if now_s > self._throttled_to_s + WINDOW_S:
                self.rate = None
        if now_s > self._throttled_to_s + QUIET_S:
            self.quota = None
        self._gathered_s = now_s
