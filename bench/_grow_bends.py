"""PURE. Where a curve bends: throughput that falls, or memory that rises, more than an axis may cost.

Throughput bends at a point that has less than a share of the best point of its curve. A larger value costs more by
itself: on that axis what is compared is bytes per second, and only with smaller values. Memory bends where what a run
takes beside the process itself is more than some times that of the least point, and a bound more. What is known to bend
has its reason here, and says so; any other bend is a defect.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from _bars import Content, values
from _grow_points import AXES, Axis

LEAST_SHARE = 0.7
MEMORY_TIMES = 2.0
MEMORY_FREE = 64 * 1024 * 1024
"""A difference of memory by less than that is none."""
BYTES_WISE = ("size",)
THROUGHPUT, MEMORY = "throughput", "memory"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a curve bends from ``x_min`` to ``x_max``, both included."""

    axis: str
    handlers: tuple[str, ...]
    what: str
    text: str
    x_min: int = 0
    x_max: int = 1 << 62


EXPLAINED: tuple[Reason, ...] = ()
"""What is known."""


@dataclass(frozen=True)
class Bend:
    """At ``x`` a curve has ``share`` of its best (throughput), or ``share`` times its least (memory)."""

    axis: str
    handler: str
    what: str
    x: int
    share: float

    @property
    def reason(self) -> str:
        """Why; empty for a defect."""
        return next((reason.text for reason in EXPLAINED if self._is_covered(reason)), "")

    def _is_covered(self, reason: Reason) -> bool:
        is_there = reason.x_min <= self.x <= reason.x_max and self.handler in reason.handlers
        return is_there and (self.axis, self.what) == (reason.axis, reason.what)

    def __str__(self) -> str:
        compared = f"{self.share:.2f} of the best" if self.what == THROUGHPUT else f"{self.share:.1f} times the least"
        outcome = f"explained: {self.reason}" if self.reason else "a DEFECT until it is explained"
        return f"{self.axis}, {self.handler}: {self.what} bends at {self.x:,}: {compared}; {outcome}"


def bends(content: Content) -> Iterator[Bend]:
    """All bends of a book."""
    for axis in AXES:
        for handler in axis.handlers:
            yield from throughput_bends(axis, handler, rates_of(content, axis, handler))
            yield from memory_bends(axis, handler, grown_of(content, axis, handler))


def rates_of(content: Content, axis: Axis, handler: str) -> dict[int, float]:
    """What is compared on an axis, by x."""
    name = "megabytes_per_second" if axis.name in BYTES_WISE else "per_second"
    return dict(sorted(values(content, axis.name, handler, name).items()))


def grown_of(content: Content, axis: Axis, handler: str) -> dict[int, float]:
    """Peak memory less that of the process before its start, by x."""
    peaks, bases = (values(content, axis.name, handler, name) for name in ("memory_bytes", "rss_base_bytes"))
    return {x: peaks[x] - bases[x] for x in sorted(peaks.keys() & bases.keys())}


def throughput_bends(axis: Axis, handler: str, rates: dict[int, float]) -> Iterator[Bend]:
    """Points with less than their share."""
    for x, rate in rates.items():
        compared = [other for at, other in rates.items() if at <= x or axis.name not in BYTES_WISE]
        if rate < LEAST_SHARE * max(compared):
            yield Bend(axis.name, handler, THROUGHPUT, x, rate / max(compared))


def memory_bends(axis: Axis, handler: str, grown: dict[int, float]) -> Iterator[Bend]:
    """Points that take more memory than they may."""
    least = min(grown.values(), default=0.0)
    for x, memory in grown.items():
        if memory > MEMORY_TIMES * least and memory - least > MEMORY_FREE:
            yield Bend(axis.name, handler, MEMORY, x, memory / max(least, 1.0))
