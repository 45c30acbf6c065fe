"""Failures are counted, all of them, and said in a sample: a storm of them must not drown everything else in the log.

The first failure of a kind is said at once, and then one in an interval, which says how many like it came before it and
were not said. What is never followed by another one stays unsaid, and counted.
"""

from typing import Final, NamedTuple

KINDS_MAX: Final = 1_000
"""So many kinds are known at once; the one that was said longest ago is forgotten first, and is then said at once."""


class Kind(NamedTuple):
    """Failures that are like each other: of one handler, with one type of error and the same consequence."""

    handler: str
    error: str
    consequence: str


class Sample:
    """Which failures are said. ``interval_s``: at least so long lies between two that are, of each kind."""

    def __init__(self, interval_s: float, kinds_max: int = KINDS_MAX) -> None:
        self._interval_s, self._kinds_max = interval_s, kinds_max
        self._said: dict[Kind, tuple[float, int]] = {}
        """When one was said last, and how many there were since; in the order of these times."""

    def look(self, kind: Kind, now_s: float) -> int | None:
        """How many like it were not said since the last that was; None: it is not to be said itself."""
        said_s, unsaid = self._said.get(kind, (None, 0))
        if said_s is not None and now_s - said_s < self._interval_s:
            self._said[kind] = said_s, unsaid + 1
            return None
        self._said.pop(kind, None)
        if len(self._said) >= self._kinds_max:
            del self._said[next(iter(self._said))]
        self._said[kind] = now_s, 0
        return unsaid


class Failures:
    """What failed in a run: ``attempts``, the ``retries`` that followed, and records that became ``dead_letters``."""

    def __init__(self, interval_ms: int) -> None:
        self.attempts = 0
        self.retries = 0
        self.dead_letters = 0
        self._sample = Sample(interval_ms / 1000)

    def said(self, handler: str, error: str, consequence: str, now_s: float) -> str | None:
        """What stands behind the line about a failure: nothing, or how many like it there were. None: no line."""
        unsaid = self._sample.look(Kind(handler, error, consequence), now_s)
        return None if unsaid is None else and_more(unsaid)


def and_more(unsaid: int) -> str:
    """How many more there were, for the end of a line."""
    return f" (and {unsaid:,} more like it)" if unsaid else ""
