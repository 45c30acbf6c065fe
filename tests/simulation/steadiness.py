"""Who works goes on committing, whatever moves elsewhere: an interval after each commit it looks for the next one."""

from collections.abc import Callable
from typing import Final, TypeAlias

from keylanes.runtime.watch.steps import Step

Bands: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""What a member works on: (topic, partition, first point, end), in order."""

INTERVALS: Final = 2.0
HELD_BACK_S: Final = 0.021
"""So long a commit may wait for what is being released, and for tasks that are due at once."""


class Steadiness:
    """Of one member. ``bands``: what it works on now, and ``interval_s`` between its commits."""

    def __init__(self, now_s: Callable[[], float], bands: Callable[[], Bands], interval_s: float) -> None:
        self.now_s, self.bands, self.interval_s = now_s, bands, interval_s
        self.looks = 0
        self._since: tuple[float, Bands] | None = None

    def forget(self) -> None:
        """It stands still, or waits for its disk: what follows is not measured from before."""
        self._since = None

    def hears(self, step: Step) -> str | None:
        """It has come to a step of its commit cycle; what is wrong with when."""
        before, self._since = self._since, None
        if step == "applied":
            self._since = self.now_s(), self.bands()
        if step != "take" or before is None or before[1] != self.bands() or not before[1]:
            return None
        self.looks += 1
        gap_s = self.now_s() - before[0]
        if gap_s <= INTERVALS * self.interval_s + HELD_BACK_S:
            return None
        return (
            f"{gap_s:.3f} s without a look at what is done, of {self.interval_s} s intervals, and nothing moved there"
        )
