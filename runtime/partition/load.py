"""PURE. What a worker costs: handler time and records of a window, and for a few workers at which points.

A worker that waits for its handler is busy: what counts is how long it can't take the next record. A record that runs
across the end of a window counts in both, for its part in each.

The points of a watched worker are kept exactly while they are few. When there are too many they are melted down: a
point with more than ``1/POINTS`` of the load stays a point.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ...brokers.protocol import ConsumerRecord
from ...keyrange.hashing import point_of
from ...keyrange.melting import melt_costs
from ...keyrange.policy import FULL

POINTS: Final = 128
"""A histogram is melted down to about twice as many, when it has four times as many."""

SEEDS_MAX: Final = 256
"""So many waiting records say at the start of a histogram which points there are."""

SEEDS_MIN: Final = 32
"""So many are enough to say, before anything was measured, where the load lies."""


class Window(NamedTuple):
    """One window of a worker. ``busy`` and ``average`` (over windows, decaying) are microseconds a second."""

    busy: int
    average: int
    records: int
    points: Sequence[tuple[int, int]] | None


class Points:
    """A histogram: where the cost of a worker lies, in microseconds; costs of windows gone by decay."""

    __slots__ = ("costs",)

    def __init__(self, costs: Iterable[tuple[int, int]] = ()) -> None:
        self.costs = dict(costs)

    def add(self, point: int, cost: int) -> None:
        """One more cost at a point."""
        costs = self.costs
        costs[point] = costs.get(point, 0) + cost
        if len(costs) > 4 * POINTS:
            self.costs = dict(melt_costs(costs, POINTS))

    def decay(self) -> None:
        """A window is over: what was counts half, and what is next to nothing is forgotten."""
        self.costs = {point: cost // 2 for point, cost in self.costs.items() if cost > 1}

    def part(self, at: int) -> "Points":
        """Take out what lies at a point or above it."""
        right = Points((p, cost) for p, cost in self.costs.items() if p >= at)
        self.costs = {p: cost for p, cost in self.costs.items() if p < at}
        return right


class LoadMeter:
    """What one worker costs; it begins as if it had always been busy, so that nobody merges it at once."""

    __slots__ = ("average", "busy_s", "counted_to_s", "points")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.average = FULL
        self.counted_to_s = 0.0
        self.points: Points | None = None

    def spend(self, since_s: float, now: float, partition: int, record: ConsumerRecord) -> None:
        """A record ran since then (infinity: it does not run); what was counted already is not counted again."""
        spent = now - max(since_s, self.counted_to_s)
        if spent >= 0:
            self.counted_to_s = now
            self.busy_s += spent
            if self.points is not None:
                self.points.add(point_of(record.key, partition, record.offset), 1 + int(spent * 1e6))

    def end_window(self, seconds: float, records: int) -> Window:
        """What the window of this length was, with so many records; the next one begins."""
        busy = min(FULL, int(self.busy_s * FULL / seconds))
        self.average = (self.average + busy) // 2
        window = Window(busy, self.average, records, self.known_points())
        self.busy_s = 0.0
        if self.points is not None:
            self.points.decay()
        return window

    def watch(self, partition: int, waiting: Iterable[ConsumerRecord]) -> int:
        """Keep a histogram from now on. A new one begins with records that wait: with how many, else 0."""
        if self.points is not None:
            return 0
        self.points = Points()
        count = 0
        for record in islice(waiting, SEEDS_MAX):
            self.points.add(point_of(record.key, partition, record.offset), 1)
            count += 1
        return count

    def known_points(self) -> Sequence[tuple[int, int]] | None:
        """The histogram, in order of points; None when none is kept."""
        return None if self.points is None else sorted(self.points.costs.items())

    def unwatch(self) -> None:
        """Keep no histogram."""
        self.points = None

    def part(self, at: int) -> tuple["LoadMeter", "LoadMeter"]:
        """Loads of the two children of a worker that is split: new ones, with its histogram parted."""
        left, right = LoadMeter(), LoadMeter()
        left.counted_to_s = right.counted_to_s = self.counted_to_s
        if self.points is not None:
            right.points = self.points.part(at)
            left.points = self.points
        return left, right
