"""PURE. The cost of the ranges of the source partitions, as told by the members: a fold of the Load signals.

For each place the fold knows how the load lies over the points. After a move of points their measured load counts on,
until the new owner has measured the points anew.

- A report replaces earlier reports on the same points. A report of an earlier epoch counts for nothing, because the
  sender is a former owner, perhaps an expelled member.
- A report without confirmation for ``STALE_MS`` gives way to every report.
- Busy time, records and backlog lie at the points that the report names. Each named point is the first point of a cell
  of the declared cut, and stands for the cell. Without named points the load lies evenly over the band. Bytes of state
  always lie evenly.
- The costs of touching ranges add up exactly to the cost of the joined range.

Another thread may ask for costs during ``hear``. Each answer is the answer before or after a band's report.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from ..keyrange.hashing import SPACE_END
from ..keyrange.melting import melt_costs
from ..offsets.ledger import SourcePartition
from ..offsets.signals import BandLoad, Load

PIECES_MAX: Final = 4_096
"""The most separate pieces of a place; further pieces are joined with their neighbours."""
POINTS_MAX: Final = 128
"""A report with more than 4 * ``POINTS_MAX`` points is melted down to about 2 * ``POINTS_MAX`` points."""
STALE_MS: Final = 300_000
"""How long a report without confirmation keeps its precedence over reports of earlier epochs."""


class PointsCost(NamedTuple):
    """The cost of points. ``busy_us_per_s``: handlers' time, above 1,000,000 for several handlers at once; ``backlog``:
    records left.
    """

    busy_us_per_s: int
    records_per_s: int
    backlog: int
    state_bytes: int


class _Measured(NamedTuple):
    """A reported band. ``points``: the named points, rising; ``below[i]``: the busy time of the points before the i-th
    point.
    """

    first: int
    end: int
    epoch: int
    cost: PointsCost
    points: tuple[int, ...]
    below: tuple[int, ...]

    def until(self, point: int) -> PointsCost:
        """The cost of ``[first, point)``."""
        busy, records, backlog, state_bytes = self.cost
        size, all_size = point - self.first, self.end - self.first
        part, whole = size, all_size  # part / whole: the fraction of busy time, records and backlog
        if self.points:
            part, whole = self.below[bisect_left(self.points, point)], self.below[-1]
        return PointsCost(
            busy * part // whole, records * part // whole, backlog * part // whole, state_bytes * size // all_size
        )


class _BandPiece(NamedTuple):
    """Points ``[first, end)`` of a measured band."""

    first: int
    end: int
    heard_ms: int
    measured: _Measured

    def cost(self, first: int, end: int) -> PointsCost:
        """The cost of the piece inside ``[first, end)``."""
        measured, first, end = self.measured, max(first, self.first), min(end, self.end)
        if (first, end) == measured[:2]:
            return measured.cost
        return _minus(measured.until(end), measured.until(first))

    def points(self) -> dict[int, int]:
        """The busy time of the piece, by point. The piece's first point has the whole of an even load."""
        measured = self.measured
        inside = measured.points[bisect_left(measured.points, self.first) : bisect_left(measured.points, self.end)]
        bounds = [self.first, *inside[1:], self.end]
        costs = [measured.until(b).busy_us_per_s - measured.until(a).busy_us_per_s for a, b in pairwise(bounds)]
        return {point: cost for point, cost in zip(inside or (self.first,), costs, strict=True) if cost}


@dataclass(frozen=True, slots=True)
class _BandPieces:
    """The pieces of a place, in order, without overlap, perhaps with gaps. ``firsts``: the first point of each."""

    firsts: list[int] = field(default_factory=list)
    pieces: list[_BandPiece] = field(default_factory=list)

    def over(self, first: int, end: int) -> slice:
        """The pieces that overlap ``[first, end)``, as a slice."""
        begin = bisect_right(self.firsts, first)
        if begin and self.pieces[begin - 1].end > first:
            begin -= 1
        return slice(begin, bisect_left(self.firsts, end, begin))


class Loads:
    """The fold. ``version`` rises whenever a cost may have changed."""

    def __init__(self) -> None:
        self.version = 0
        self._places: dict[SourcePartition, _BandPieces] = {}

    def hear(self, load: Load, now_ms: int) -> None:
        """Take a report. ``now_ms``: the timestamp of the signal. Impossible bands are left out."""
        for band in load.bands:
            if 0 <= band.first < band.end <= SPACE_END:
                self._hear(band.topic_partition, _measure_of_band(band, max(1, load.interval_ms)), now_ms)

    def cost(self, place: SourcePartition, first: int, end: int) -> PointsCost | None:
        """The cost of the points ``[first, end)`` of a place; None: some points were never measured."""
        known = self._places.get(place)
        if known is None:
            return None
        reached, costs = first, PointsCost(0, 0, 0, 0)
        for piece in known.pieces[known.over(first, end)]:
            if piece.first > reached:
                return None
            costs = _plus(costs, piece.cost(first, end))
            reached = piece.end
        return costs if reached >= end else None

    def keep(self, places: Container[SourcePartition]) -> None:
        """Forget all other places."""
        if gone := [place for place in self._places if place not in places]:
            self.version += 1
            for place in gone:
                del self._places[place]

    def _hear(self, place: SourcePartition, measured: _Measured, now_ms: int) -> None:
        known = self._places.get(place) or _BandPieces()
        first, end = measured.first, measured.end
        where = known.over(first, end)
        over = known.pieces[where]
        if any(p.measured.epoch > measured.epoch and now_ms - p.heard_ms < STALE_MS for p in over):
            return
        new = _BandPiece(first, end, now_ms, measured)
        if len(over) == 1 and over[0][:2] == (first, end):
            self.version += over[0].measured != measured
            known.pieces[where.start] = new  # in place: another thread sees the piece before or after
            return
        self.version += 1
        left = [over[0]._replace(end=first)] if over and over[0].first < first else []
        right = [over[-1]._replace(first=end)] if over and over[-1].end > end else []
        pieces = [*known.pieces[: where.start], *left, new, *right, *known.pieces[where.stop :]]
        if len(pieces) > PIECES_MAX:
            pieces = _join_in_pairs(pieces)
        self._places[place] = _BandPieces([piece.first for piece in pieces], pieces)  # one store, for other threads


def _measure_of_band(band: BandLoad, interval_ms: int) -> _Measured:
    points = {point: cost for point, cost in band.points if band.first <= point < band.end and cost > 0}
    cost = PointsCost(
        max(0, band.busy_us) * 1000 // interval_ms,
        max(0, band.records) * 1000 // interval_ms,
        max(0, band.backlog),
        max(0, band.state_bytes),
    )
    return _measure_of_points(band.first, band.end, band.epoch, cost, points)


def _measure_of_points(first: int, end: int, epoch: int, cost: PointsCost, points: dict[int, int]) -> _Measured:
    """``points``: busy time by named point, {} for an even load. Many points are melted down to few."""
    kept = melt_costs(points, POINTS_MAX) if len(points) > 4 * POINTS_MAX else sorted(points.items())
    below = (0, *accumulate(busy for _, busy in kept))
    return _Measured(
        first=first, end=end, epoch=epoch, cost=cost, points=tuple(point for point, _ in kept), below=below
    )


def _join_in_pairs(pieces: list[_BandPiece]) -> list[_BandPiece]:
    """Return about half as many pieces: touching pieces are joined in pairs. If most pieces do not touch, only the
    pieces heard last stay.
    """
    fewer: list[_BandPiece] = []
    is_pair = False
    for piece in pieces:
        if fewer and not is_pair and fewer[-1].end == piece.first:
            fewer[-1], is_pair = _join_pieces(fewer[-1], piece), True
        else:
            fewer.append(piece)
            is_pair = False
    if len(fewer) > PIECES_MAX * 3 // 4:
        fewer = sorted(sorted(fewer, key=lambda piece: piece.heard_ms)[-PIECES_MAX // 2 :])
    return fewer


def _join_pieces(a: _BandPiece, b: _BandPiece) -> _BandPiece:
    cost = _plus(a.cost(a.first, a.end), b.cost(b.first, b.end))
    epoch = min(a.measured.epoch, b.measured.epoch)  # so that the next report of either owner counts
    measured = _measure_of_points(a.first, b.end, epoch, cost, {**a.points(), **b.points()})
    return _BandPiece(a.first, b.end, max(a.heard_ms, b.heard_ms), measured)


def _plus(a: PointsCost, b: PointsCost) -> PointsCost:
    return PointsCost(a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def _minus(a: PointsCost, b: PointsCost) -> PointsCost:
    return PointsCost(a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3])
