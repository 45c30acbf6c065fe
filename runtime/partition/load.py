"""PURE. The cost of a worker: handler time and records of a window, and for a few workers a histogram over points.

A worker that waits for its handler is busy: the cost is the time in which the worker can't take the next record. A
record that runs across the end of a window counts in both windows, with its part in each.

A histogram is exact while it has few points. A histogram with too many points is melted down: a point with more than
``1/POINTS`` of the load stays a point.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ...brokers.protocol import ConsumerRecord
from ...keyrange.hashing import point_of
from ...keyrange.melting import melt_costs
from ...keyrange.policy import FULL

POINTS: Final = 128
"""A histogram with more than four times this number of points is melted down to about twice this number."""

SEEDS_MAX: Final = 256
"""A new histogram begins with the points of at most this number of waiting records."""

SEEDS_MIN: Final = 32
"""This number of waiting records shows where the load lies, before anything is measured."""


class Window(NamedTuple):
    """A window of a worker. ``busy``, and ``average`` over this and earlier windows (decaying), are microseconds a
    second. ``points``: the histogram, as ``known_points`` gives it.
    """

    busy: int
    average: int
    records: int
    points: Sequence[tuple[int, int]] | None


class Points:
    """A histogram: the cost of a worker by point, in microseconds; the costs of past windows decay."""

    __slots__ = ("costs",)

    def __init__(self, costs: Iterable[tuple[int, int]] = ()) -> None:
        self.costs = dict(costs)

    def add(self, point: int, cost: int) -> None:
        """Add a cost at a point."""
        costs = self.costs
        costs[point] = costs.get(point, 0) + cost
        if len(costs) > 4 * POINTS:
            self.costs = dict(melt_costs(costs, POINTS))

    def decay(self) -> None:
        """End a window: halve all costs, and forget costs of next to nothing."""
        self.costs = {point: cost // 2 for point, cost in self.costs.items() if cost > 1}

    def part(self, at: int) -> "Points":
        """Take out the costs at or above a point."""
        right = Points((p, cost) for p, cost in self.costs.items() if p >= at)
        self.costs = {p: cost for p, cost in self.costs.items() if p < at}
        return right


class LoadMeter:
    """The cost of one worker. A new worker starts as if always busy before: otherwise a merge would follow at once.

    ``busy_s``: the handler time in this window so far. ``counted_to_s``: all time up to here is counted.
    """

    __slots__ = ("average", "busy_s", "counted_to_s", "points")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.average = FULL
        self.counted_to_s = 0.0
        self.points: Points | None = None

    def spend(self, since_s: float, now: float, partition: int, record: ConsumerRecord) -> None:
        """Count the time of a record from ``since_s`` to now (infinity: the record does not run), without the time that
        an earlier call counted.
        """
        spent = now - max(since_s, self.counted_to_s)
        if spent >= 0:
            self.counted_to_s = now
            self.busy_s += spent
            if self.points is not None:
                self.points.add(point_of(record.key, partition, record.offset), 1 + int(spent * 1e6))

    def end_window(self, seconds: float, records: int) -> Window:
        """End a window of ``seconds`` with ``records`` records, and begin the next window."""
        busy = min(FULL, int(self.busy_s * FULL / seconds))
        self.average = (self.average + busy) // 2
        window = Window(busy, self.average, records, self.known_points())
        self.busy_s = 0.0
        if self.points is not None:
            self.points.decay()
        return window

    def watch(self, partition: int, waiting: Iterable[ConsumerRecord]) -> int:
        """Keep a histogram from now on. Returns how many waiting records a new histogram begins with, else 0."""
        if self.points is not None:
            return 0
        self.points = Points()
        count = 0
        for record in islice(waiting, SEEDS_MAX):
            self.points.add(point_of(record.key, partition, record.offset), 1)
            count += 1
        return count

    def known_points(self) -> Sequence[tuple[int, int]] | None:
        """The histogram, in order of points; None without a histogram."""
        return None if self.points is None else sorted(self.points.costs.items())

    def unwatch(self) -> None:
        """Keep no histogram."""
        self.points = None

    def part(self, at: int) -> tuple["LoadMeter", "LoadMeter"]:
        """New meters for the two children of a split worker, each with its part of the histogram."""
        left, right = LoadMeter(), LoadMeter()
        left.counted_to_s = right.counted_to_s = self.counted_to_s
        if self.points is not None:
            right.points = self.points.part(at)
            left.points = self.points
        return left, right
