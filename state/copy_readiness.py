"""PURE. The points of which a process has copies beside the points that it owns, and when a copy is ready.

A new owner of points restores its copy in any case: up to a watermark that is taken after the grant. A copy is *ready*
when this restore will not take long: the copy would read the missing records in a moment, at its own speed. So a ready
copy is near the end of its changelog, and need not be at the end.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .keys import point_in
from .tables import Change, Marker

NEAR_S: Final = 0.1
FAR_S: Final = 1.0
"""A copy becomes ready when it lacks less than it reads in ``NEAR_S``, and stops being ready beyond ``FAR_S``."""
LOOKS: Final = 2
"""A copy becomes ready, or stops being ready, after this number of looks in a row with the same answer."""
_PAST_WEIGHT: Final = 0.8
"""The weight of the earlier measurements at each new one."""
BURST_S: Final = 0.1
"""How far reading may run ahead of the limit after a pause."""


def points_of(bands: Iterable[KeyRange]) -> Steps[bool]:
    """The union of ranges."""
    return Steps((band.first, band.end, True) for band in bands)


def ranges_of(points: Steps[bool]) -> list[KeyRange]:
    """The longest ranges of a union."""
    return [KeyRange(first, end) for first, end, _ in points.pieces()]


def without(points: Steps[bool], others: Steps[bool]) -> Steps[bool]:
    """The points that are not among the others."""
    return points.replace((first, end, None) for first, end, _ in others.pieces())


def together(points: Iterable[Steps[bool]]) -> Steps[bool]:
    """The union of several sets of points."""
    return Steps(piece for one in points for piece in one.pieces())


def overlap(points: Steps[bool], others: Steps[bool]) -> bool:
    """Whether two sets have points in common."""
    return any(points.pieces(first, end) for first, end, _ in others.pieces())


def least_position(points: Steps[bool], markers: Steps[Marker]) -> int:
    """The position from which a changelog has to be read to complete the copy of points, by their markers: 0 where a
    point has no marker.
    """
    pieces = (piece for first, end, _ in points.pieces() for piece in markers.all_pieces(first, end))
    return min((0 if marker is None else marker.position for _, _, marker in pieces), default=0)


class CopySpeed:
    """The speed of reading a changelog and writing its copy, by the latest measurements. Waits for records do not
    count.
    """

    def __init__(self) -> None:
        self._offsets = self._bytes = self._seconds = 0.0

    def add(self, offsets: int, size: int, seconds: float) -> None:
        """Take in a measurement: ``offsets`` and ``size`` bytes were read in ``seconds``."""
        self._offsets = self._offsets * _PAST_WEIGHT + offsets
        self._bytes = self._bytes * _PAST_WEIGHT + size
        self._seconds = self._seconds * _PAST_WEIGHT + seconds

    @property
    def offsets_per_s(self) -> float:
        """Offsets read in a second; 0 without a measurement."""
        return self._offsets / self._seconds if self._seconds else 0.0

    @property
    def bytes_per_s(self) -> int:
        """Bytes read in a second; 0 without a measurement."""
        return int(self._bytes / self._seconds) if self._seconds else 0


class Nearness:
    """The verdict whether a copy is ready, from looks at how much the copy lacks."""

    def __init__(self) -> None:
        self.is_ready = False
        self._looks = 0
        self._fetches = -1

    def look(self, behind: int, offsets_per_s: float, fetches: int) -> bool:
        """Take in a look: the copy lacks ``behind`` offsets after ``fetches`` fetches. Returns whether ``is_ready`` has
        changed. A copy that lacks nothing is ready at once; otherwise only looks with a fetch between them count.
        """
        before = self.is_ready
        limit = max(1.0, offsets_per_s * (FAR_S if before else NEAR_S))
        if behind <= 0 and not before:
            self.is_ready, self._looks = True, 0
        elif (behind > limit) is not before:
            self._looks = 0
        elif fetches != self._fetches:
            self._looks += 1
            if self._looks >= LOOKS:
                self.is_ready, self._looks = not before, 0
        self._fetches = fetches
        return self.is_ready is not before


class ByteRateLimit:
    """A limit in bytes per second, over all copies."""

    def __init__(self) -> None:
        self._free_s = 0.0
        """The time at which all bytes so far are within the limit."""

    def spend(self, size: int, bytes_per_s: int, now_s: float) -> None:
        """Count ``size`` bytes that were read."""
        self._free_s = max(self._free_s, now_s - BURST_S) + size / bytes_per_s

    def wait_s(self, now_s: float) -> float:
        """The seconds to wait before more is read."""
        return max(0.0, self._free_s - now_s)


def bytes_by_role(changes: Iterable[Change], roles: Mapping[str, Steps[bool]]) -> dict[str, int]:
    """The bytes of changes, by the role of the copy of their points. Where a point has several roles, the first one
    counts.
    """
    if len(roles) == 1:
        (role,) = roles
        return {role: sum([len(key) + len(value or b"") for key, value in changes])}
    sizes = dict.fromkeys(roles, 0)
    for key, value in changes:
        point = point_in(key)
        for role, points in roles.items():
            if points.at(point):
                sizes[role] += len(key) + len(value or b"")
                break
    return sizes
