"""PURE. Where a curve bends: throughput that falls, memory or a start that rises, more than an axis may cost.

Throughput bends at a point that has less than a share of the best point of its curve. A larger value costs more by
itself: on that axis what is compared is bytes per second, and only with smaller values. Memory bends where what a run
takes beside the process itself is more than some times that of the least point, and a bound more; so does the time that
a start takes. What is known to bend has its reason here, and says so; any other bend is a defect.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from growing.points import AXES, COUNT, PLAIN, Axis
from rig.figures import Content, values

LEAST_SHARE = 0.7
TIMES = 2.0
MEMORY_FREE = 64 * 1024 * 1024
START_FREE_S = 3.0
"""A difference of less than that is none."""
BYTES_WISE = ("size",)
THROUGHPUT, MEMORY, START = "throughput", "memory", "start"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a curve bends from ``x_min`` to ``x_max``, both included, and how far at most: to which share of the best
    throughput, or to how many times the least memory or start. Beyond that it is no reason.
    """

    axis: str
    handlers: tuple[str, ...]
    what: str
    worst: float
    text: str
    x_min: int = 0
    x_max: int = 1 << 62


EXPLAINED = (
    Reason(
        axis="workers",
        handlers=(PLAIN, COUNT),
        what=THROUGHPUT,
        worst=0.4,
        x_min=4_096,
        text="each record meets another worker than the one before, and so many don't fit the processor's cache; and a "
        "commit looks at every worker that moved",
    ),
    Reason(
        axis="partitions",
        handlers=(COUNT,),
        what=THROUGHPUT,
        worst=0.5,
        x_max=1,
        text="the keys of one partition are all keys; of many each has few, which stay in the processor's cache while "
        "a batch of it is worked on",
    ),
    Reason(
        axis="partitions",
        handlers=(COUNT,),
        what=THROUGHPUT,
        worst=0.5,
        x_min=64,
        text="there are as many workers as on the end of the axis of workers, and the same holds for them",
    ),
    Reason(
        axis="partitions",
        handlers=(PLAIN, COUNT),
        what=MEMORY,
        worst=8.0,
        x_min=32,
        text="the consumer prefetches 1 MiB of each partition at least, and there are as many workers as on the end of "
        "the axis of workers",
    ),
    Reason(
        axis="keys",
        handlers=(COUNT,),
        what=THROUGHPUT,
        worst=0.15,
        x_min=10_000,
        text="a commit writes each key once: with few keys that is little for many records, with many a write for each",
    ),
    Reason(
        axis="keys",
        handlers=(COUNT,),
        what=MEMORY,
        worst=8.0,
        x_min=100_000,
        text="what the state keeps in memory fills up and then stays: values read ahead, RocksDB's buffers and cache",
    ),
    Reason(
        axis="drift",
        handlers=(PLAIN,),
        what=THROUGHPUT,
        worst=0.4,
        x_min=1_000_000,
        text="when the stuck key's range is full it is passed, and then split: what its other keys missed is read "
        "again, once, and that is as much as all that is measured here",
    ),
)
"""What is known."""


@dataclass(frozen=True)
class Bend:
    """At ``x`` a curve has ``share`` of its best (throughput), or ``share`` times its least."""

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
        is_so_far = self.share >= reason.worst if self.what == THROUGHPUT else self.share <= reason.worst
        return is_there and is_so_far and (self.axis, self.what) == (reason.axis, reason.what)

    def __str__(self) -> str:
        compared = f"{self.share:.2f} of the best" if self.what == THROUGHPUT else f"{self.share:.1f} times the least"
        outcome = f"explained: {self.reason}" if self.reason else "a DEFECT until it is explained"
        return f"{self.axis}, {self.handler}: {self.what} bends at {self.x:,}: {compared}; {outcome}"


def bends(content: Content) -> Iterator[Bend]:
    """All bends of a book."""
    for axis in AXES:
        for handler in axis.handlers:
            yield from throughput_bends(axis, handler, rates_of(content, axis, handler))
            yield from rises(axis, handler, MEMORY, grown_of(content, axis, handler), MEMORY_FREE)
            yield from rises(axis, handler, START, values(content, axis.name, handler, "start_s"), START_FREE_S)


def rates_of(content: Content, axis: Axis, handler: str) -> dict[int, float]:
    """What is compared on an axis, by x."""
    name = "megabytes_per_second" if axis.name in BYTES_WISE else "per_second"
    return dict(sorted(values(content, axis.name, handler, name).items()))


def grown_of(content: Content, axis: Axis, handler: str) -> dict[int, float]:
    """Peak memory less that of the process before its start, by x."""
    peaks, bases = (values(content, axis.name, handler, name) for name in ("memory_bytes", "rss_base_bytes"))
    return {x: peaks[x] - bases[x] for x in peaks.keys() & bases.keys()}


def throughput_bends(axis: Axis, handler: str, rates: dict[int, float]) -> Iterator[Bend]:
    """Points with less than their share."""
    for x, rate in rates.items():
        best = rates[best_of(axis, rates, x)]
        if rate < LEAST_SHARE * best:
            yield Bend(axis.name, handler, THROUGHPUT, x, rate / best)


def best_of(axis: Axis, rates: dict[int, float], x: int) -> int:
    """The point that this one is compared with."""
    return max((at for at in rates if at <= x or axis.name not in BYTES_WISE), key=rates.__getitem__)


def doubtful(content: Content) -> set[tuple[str, str, int]]:
    """(axis, handler, x) of what decides that throughput bends without a reason: the point, and the best one. The same
    point has two thirds of its throughput when the machine is busy with other things: one run of each says little.
    """
    found: set[tuple[str, str, int]] = set()
    for axis in AXES:
        for handler in axis.handlers:
            rates = rates_of(content, axis, handler)
            for bend in throughput_bends(axis, handler, rates):
                if not bend.reason:
                    found |= {(axis.name, handler, x) for x in (bend.x, best_of(axis, rates, bend.x))}
    return found


def rises(axis: Axis, handler: str, what: str, taken: dict[int, float], free: float) -> Iterator[Bend]:
    """Points that take more than they may."""
    least = min(taken.values(), default=0.0)
    for x, seen in sorted(taken.items()):
        if seen > TIMES * least and seen - least > free:
            yield Bend(axis.name, handler, what, x, seen / least if least > 0 else math.inf)
