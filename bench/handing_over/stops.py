"""PURE. From notes: how late records were around a moment, and how long some points stood still.

Times are nanoseconds of the system's monotonic clock, as in ``rig/notes.py``.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rig.notes import Notes, Points

LATE_MS = 100.0
"""A record that ended so late behind its due time stood still."""


class Ended(NamedTuple):
    """A record: when it ended, and by how much behind its due time."""

    at_ns: int
    late_us: int


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


def stood(ended: Sequence[Ended], since_ns: int, until_ns: int) -> int:
    """How many records that ended in ``[since, until)`` had stood still."""
    return sum(one.late_us >= LATE_MS * 1e3 for one in ended if since_ns <= one.at_ns < until_ns)
