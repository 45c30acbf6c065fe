"""The key range: a half-open interval of points, never empty. Validated here once, trusted afterwards."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .hashing import SPACE_END


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Points ``[first, end)`` with ``0 <= first < end <= 2**32``; raises ValueError on anything else."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= SPACE_END:
            raise ValueError(
                f"a key range needs 0 <= first < end <= {SPACE_END}; seen first={self.first}, end={self.end}"
            )

    def __str__(self) -> str:
        return f"[{self.first:08x}, {self.end:08x})"

    @property
    def size(self) -> int:
        """The number of points."""
        return self.end - self.first

    def contains(self, point: int) -> bool:
        """Whether the point lies in the range."""
        return self.first <= point < self.end

    def covers(self, other: "KeyRange") -> bool:
        """Whether every point of ``other`` lies in this range."""
        return self.first <= other.first and other.end <= self.end

    def overlaps(self, other: "KeyRange") -> bool:
        """Whether both ranges share a point."""
        return self.first < other.end and other.first < self.end

    def split(self, at: int) -> tuple["KeyRange", "KeyRange"]:
        """Two ranges with the common bound ``at``; raises ValueError unless both hold at least one point."""
        if not self.first < at < self.end:
            raise ValueError(f"{self} can be split at points strictly inside it; seen {at:08x}")
        return KeyRange(self.first, at), KeyRange(at, self.end)

    def join(self, right: "KeyRange") -> "KeyRange":
        """The union with the range that starts at the end of this range; raises ValueError for other ranges."""
        if self.end != right.first:
            raise ValueError(f"{self} can be joined with a range that starts at {self.end:08x}; seen {right}")
        return KeyRange(self.first, right.end)


WHOLE = KeyRange(0, SPACE_END)
"""All points."""


def even_bounds(parts: int, within: KeyRange = WHOLE) -> tuple[int, ...]:
    """``parts + 1`` rising bounds that cut a range into parts whose sizes differ by at most one point.

    Raises ValueError unless ``1 <= parts <= within.size``.
    """
    if not 1 <= parts <= within.size:
        raise ValueError(f"{within} can be cut into 1 to {within.size} parts; seen {parts}")
    return tuple(within.first + within.size * i // parts for i in range(parts + 1))


class Ranged(Protocol):
    """A value that lies on points ``[first, end)``."""

    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=Ranged)


def join_neighbours(intervals: Iterable[R], join: Callable[[R, R], R | None]) -> list[R]:
    """The intervals in their order, with neighbours that touch joined where ``join`` does so.

    ``join`` gets the left interval, which may be joined already, and the right interval. It returns the joined
    interval, or None: the two stay apart.
    """
    joined: list[R] = []
    for interval in intervals:
        both = join(joined[-1], interval) if joined and joined[-1].end == interval.first else None
        if both is None:
            joined.append(interval)
        else:
            joined[-1] = both
    return joined
