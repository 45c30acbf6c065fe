"""PURE. From notes: how late records were around a moment, and how long some points stood still.

Times are nanoseconds of the system's monotonic clock, as in ``rig/notes.py``.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rig.gaps import percentile
from rig.notes import Notes, Points

BIN_S = 0.25
LATE_MS = 100.0
"""A record that ended so late behind its due time stood still."""


class Ended(NamedTuple):
    """A record: when it ended, and by how much behind its due time."""

    at_ns: int
    late_us: int


class Late(NamedTuple):
    """The records that were due in ``[at_s, at_s + BIN_S)`` of a curve, and how late they ended."""

    at_s: float
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def ended_of(notes: Sequence[Notes], within: Points | None, points: Sequence[int]) -> list[Ended]:
    """The records of some points (None: of all) in the order in which they ended. ``points``: of all keys."""
    return sorted(
        Ended(at_ns, late_us)
        for of in notes
        for at_ns, late_us, partition, key in zip(of.ended_ns, of.late_us, of.partition, of.key, strict=True)
        if within is None or (partition == within.partition and within.first <= points[key] < within.end)
    )


def longest_gap_ms(ended: Sequence[Ended], since_ns: int, until_ns: int) -> float:
    """The longest time without an end, of those that lasted into ``[since, until)``."""
    first = max(bisect_left(ended, Ended(since_ns, 0)) - 1, 0)
    last = bisect_left(ended, Ended(until_ns, 0)) + 1
    times = [one.at_ns for one in ended[first:last]]
    return max((after - before for before, after in pairwise(times)), default=0) / 1e6


def gap_of_all_ms(notes: Sequence[Notes], partitions: int, since_ns: int, until_ns: int) -> float:
    """The longest of any source partition."""
    times: list[list[Ended]] = [[] for _ in range(partitions)]
    for of in notes:
        for at_ns, partition in zip(of.ended_ns, of.partition, strict=True):
            times[partition].append(Ended(at_ns, 0))
    return max(longest_gap_ms(sorted(own), since_ns, until_ns) for own in times)


def curve(ended: Sequence[Ended], zero_ns: int, from_s: float, to_s: float) -> list[Late]:
    """How late records were that were due so many seconds before and behind a moment."""
    bins: dict[int, list[float]] = {}
    for one in ended:
        due_s = (one.at_ns - one.late_us * 1_000 - zero_ns) / 1e9
        if from_s <= due_s < to_s:
            bins.setdefault(int((due_s - from_s) / BIN_S), []).append(one.late_us / 1e3)
    return [
        Late(from_s + place * BIN_S, len(late), percentile(late, 0.5), percentile(late, 0.99), max(late))
        for place, late in sorted(bins.items())
    ]


def stood(ended: Sequence[Ended], since_ns: int, until_ns: int) -> int:
    """How many records that ended in ``[since, until)`` had stood still."""
    return sum(one.late_us >= LATE_MS * 1e3 for one in ended if since_ns <= one.at_ns < until_ns)
