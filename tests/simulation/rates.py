"""How many attempts begin in a second over all processes, where the rate of handlers is limited."""

from typing import Final

LATE_S: Final = 0.1
"""So late at most, behind its permit, an attempt begins."""


class Rates:
    """Of one world: a bucket for each topic into which each attempt falls, and which runs out at the rate."""

    def __init__(self, per_s: float | None) -> None:
        self.per_s = per_s
        self._buckets: dict[str, tuple[float, float]] = {}
        """What is in it, and as of when."""
        self._processes = 0

    def begins(self, topic: str, now_s: float, processes: int) -> str | None:
        """An attempt begins while so many processes are alive; what is wrong with that.

        Each process may begin one beside the rate, and one that was held up has one more under way.
        """
        if self.per_s is None:
            return None
        self._processes = max(self._processes, processes)
        level, at_s = self._buckets.get(topic, (0.0, now_s))
        level = max(0.0, level - (now_s - at_s) * self.per_s) + 1.0
        self._buckets[topic] = level, now_s
        most = 2 * self._processes + self.per_s * LATE_S
        return (
            None
            if level <= most
            else f"{topic}: {level:.1f} attempts above the rate of {self.per_s}, {most:.1f} may be"
        )
