"""PURE. Where a curve bends: throughput that falls, or memory that rises, more than an axis may cost.

Throughput bends at a point that has less than a share of the best point of its curve. A larger value costs more by
itself: on that axis what is compared is bytes per second, and only with smaller values. Memory bends where its growth
over the process before its start is more than some times that of the first point, and more than a bound. What is known
to bend has its reason here, and says so; any other bend is a defect.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from _bars import Content, values
from _grow_points import AXES, Axis

LEAST_SHARE = 0.7
MEMORY_TIMES = 2.0
MEMORY_FREE = 64 * 1024 * 1024
"""Growth of memory by less than that is none."""
BYTES_WISE = ("size",)
THROUGHPUT, MEMORY = "throughput", "memory"

EXPLAINED: dict[tuple[str, str, str], str] = {}
"""(axis, handler, throughput or memory) → why it bends."""


@dataclass(frozen=True)
class Bend:
    """At ``x`` a curve has ``share`` of its best (throughput), or ``share`` times its first (memory)."""

    axis: str
    handler: str
    what: str
    x: int
    share: float

    @property
    def reason(self) -> str:
        """Why; empty for a defect."""
        return EXPLAINED.get((self.axis, self.handler, self.what), "")

    def __str__(self) -> str:
        compared = f"{self.share:.2f} of the best" if self.what == THROUGHPUT else f"{self.share:.1f} times the first"
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
    first = next(iter(grown.values()), 0.0)
    for x, memory in grown.items():
        if memory > MEMORY_TIMES * first and memory - first > MEMORY_FREE:
            yield Bend(axis.name, handler, MEMORY, x, memory / first)
