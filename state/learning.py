"""PURE. Which points a process shall have copies of beside what it owns, and when such a copy is near its changelog.

Near is not there: who owns points restores them to a watermark that was taken after it was granted them, as ever. A
copy is *ready* when that will not take long: what it lacks is read in a moment, at its own pace.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .keys import point_in
from .tables import Change, Marker

NEAR_S: Final = 0.1
FAR_S: Final = 1.0
LOOKS: Final = 2
"""A copy is ready, or not any more, when so many looks in a row say so."""
_KEPT: Final = 0.8
"""What the past counts for with each measurement."""
BURST_S: Final = 0.1
"""So much of a limit may be spent at once."""


class Wanted(NamedTuple):
    """Points of one source partition that a copy was asked for of, under the number of a move."""

    move: int
    points: Steps[bool]
    role: str
    bytes_per_s: int


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
    """The points of all of these."""
    return Steps(piece for one in points for piece in one.pieces())


def least_position(points: Steps[bool], markers: Steps[Marker]) -> int:
    """From where on a changelog has to be read for these points, if their markers can be gone on from."""
    pieces = (piece for first, end, _ in points.pieces() for piece in markers.all_pieces(first, end))
    return min((0 if marker is None else marker.position for _, _, marker in pieces), default=0)


class CopySpeed:
    """How fast a changelog is read and its copy written, by the latest of it. Counts what does not wait for records."""

    def __init__(self) -> None:
        self._offsets = self._bytes = self._seconds = 0.0

    def add(self, offsets: int, size: int, seconds: float) -> None:
        """So much was read in so long."""
        self._offsets = self._offsets * _KEPT + offsets
        self._bytes = self._bytes * _KEPT + size
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def offsets_per_s(self) -> float:
        """0: nothing was measured."""
        return self._offsets / self._seconds if self._seconds else 0.0

    @property
    def bytes_per_s(self) -> int:
        """The same."""
        return int(self._bytes / self._seconds) if self._seconds else 0


class Nearness:
    """Whether a copy is ready, by looks at how much it lacks."""

    def __init__(self) -> None:
        self.is_ready = False
        self._looks = 0
        self._fetches = -1

    def look(self, behind: int, offsets_per_s: float, fetches: int) -> bool:
        """It lacks so many offsets, after so many fetches; whether that it is ready has changed. One that lacks nothing
        is ready at once; else looks count that have a fetch between them.
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
    """A limit in bytes per second, over all that is copied."""

    def __init__(self) -> None:
        self._free_s = 0.0
        """When all that was spent is paid."""

    def spend(self, size: int, bytes_per_s: int, now_s: float) -> None:
        """So much was read."""
        self._free_s = max(self._free_s, now_s - BURST_S) + size / bytes_per_s

    def wait_s(self, now_s: float) -> float:
        """For so many seconds nothing more shall be read."""
        return max(0.0, self._free_s - now_s)


def bytes_by_role(changes: Iterable[Change], roles: Mapping[str, Steps[bool]]) -> dict[str, int]:
    """What changes take, by the role that their points are copied in; the first one counts."""
    if len(roles) == 1:
        (role,) = roles
        return {role: sum(len(key) + len(value or b"") for key, value in changes)}
    sizes = dict.fromkeys(roles, 0)
    for key, value in changes:
        point = point_in(key)
        for role, points in roles.items():
            if points.at(point):
                sizes[role] += len(key) + len(value or b"")
                break
    return sizes
