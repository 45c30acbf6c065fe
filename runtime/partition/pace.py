"""PURE. When the next attempt may begin, where a handler's rate is limited: a token bucket of one token.

Tokens come in at ``per_s``; an attempt takes one token. The bucket holds one token and the tokens of ``CATCH_UP_S``,
for a loop that wakes somewhat late to catch up. The bucket is empty at first. In any time of T seconds, at a steady
rate, at most ``per_s * (T + CATCH_UP_S) + 1`` attempts begin.
"""

import math
from typing import Final

CATCH_UP_S: Final = 0.01
ROUNDING: Final = 1e-6
"""A token counts as full when no more than this part of the token is missing: times are floats."""


class AttemptPace:
    """The pace of one process's attempts. Times are in seconds, by any clock that does not go back."""

    def __init__(self, now_s: float) -> None:
        self.per_s = 0.0
        self._tokens = 0.0
        self._at_s = now_s

    def change(self, per_s: float, now_s: float) -> None:
        """Change the rate from now on; 0.0: no attempt begins."""
        self._fill(now_s)
        self.per_s = per_s

    def take(self, now_s: float) -> bool:
        """Take a token for an attempt; False: no attempt may begin now."""
        self._fill(now_s)
        if self.per_s <= 0.0 or self._tokens < 1.0 - ROUNDING:
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True

    def put_back(self) -> None:
        """Put a token back that was not needed: no attempt began."""
        self._tokens = min(1.0 + self.per_s * CATCH_UP_S, self._tokens + 1.0)

    def wait_s(self, now_s: float) -> float:
        """The time until the next attempt may begin, unless the rate changes."""
        self._fill(now_s)
        if self.per_s <= 0.0:
            return math.inf
        lacking = 1.0 - self._tokens
        return 0.0 if lacking <= ROUNDING else lacking / self.per_s

    def _fill(self, now_s: float) -> None:
        passed_s, self._at_s = max(0.0, now_s - self._at_s), max(now_s, self._at_s)
        self._tokens = min(1.0 + self.per_s * CATCH_UP_S, self._tokens + passed_s * self.per_s)
