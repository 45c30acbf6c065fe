"""PURE. The content of the picture of the plane: tiles, changes of workers, and the stretch to be shown near."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from ..keyrange.hashing import SPACE_END
from ..offsets.events import Event, RangesReleased, WorkersCut, WorkersMerged, WorkerSplit

STRETCH_WORKERS: Final = 12
"""The number of workers' bands in the stretch."""
STRETCH_TILES: Final = 110
"""The number of tiles over which the stretch extends."""

WorkerName: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, incarnation, number."""
WorkerRanges: TypeAlias = Mapping[WorkerName, tuple[int, int]]
"""The points ``[first, end)`` of each worker."""


class PlaneTile(NamedTuple):
    """The rectangle ``[offset_from, offset_to) x [first, end)``, a part of the commit ``transaction``. Neighbours, of
    which ``worker`` is the first and ``workers`` the number, committed this rectangle alike.
    """

    topic: str
    partition: int
    incarnation: int
    transaction: int
    worker: int
    workers: int
    first: int
    end: int
    offset_from: int
    offset_to: int

    @property
    def topic_partition(self) -> tuple[str, int]:
        """The source partition of the tile."""
        return self.topic, self.partition


class Change(NamedTuple):
    """A split, a merge, a release or a grant of ``[first, end)``, by its ``kind``."""

    kind: str
    topic: str
    partition: int
    incarnation: int
    transaction: int
    first: int
    end: int


class PlaneLog(NamedTuple):
    """The offset log of an application, as far as the picture shows it. ``changes``, each with its offset."""

    tiles: Sequence[PlaneTile]
    ranges: WorkerRanges
    changes: Sequence[tuple[Change, int]]


NO_PLANE: Final = PlaneLog((), MappingProxyType({}), ())


class PlanePoint(NamedTuple):
    """A point of the key-hash space at an offset of a source partition."""

    topic: str
    partition: int
    point: int
    offset: int


class NearStretch(NamedTuple):
    """The part of one partition's plane that is shown near: offsets and points, half-open."""

    topic: str
    partition: int
    offset_from: int
    offset_to: int
    first: int
    end: int

    def meets(self, tile: PlaneTile) -> bool:
        """Whether a part of the tile lies inside."""
        return (
            tile[:2] == self[:2]
            and tile.offset_from < self.offset_to
            and self.offset_from < tile.offset_to
            and tile.first < self.end
            and self.first < tile.end
        )

    def holds(self, offset: int, point: int) -> bool:
        """Whether a record of the partition lies inside."""
        return self.offset_from <= offset < self.offset_to and self.first <= point < self.end


def plane_log(tiles: Sequence[PlaneTile], rare: Sequence[tuple[int, Event]], ranges: WorkerRanges) -> PlaneLog:
    """The plane from tiles in the order of the log, and the other events, each with the number of tiles before it."""
    found = _changes(rare, ranges)
    return PlaneLog(tiles, ranges, [(change, _offset(change, tiles, before)) for before, change in found])


def _changes(rare: Iterable[tuple[int, Event]], ranges: WorkerRanges) -> list[tuple[int, Change]]:
    """The changes, each with the number of tiles before it. A cut with which an incarnation begins is no change."""
    found: list[tuple[int, Change]] = []
    starts: dict[int, int] = {}
    """The transaction of the first cut of each incarnation."""
    for before, event in rare:
        bands: list[tuple[str, int, int]] = []
        match event:
            case WorkersCut():
                if starts.setdefault(event.incarnation, event.transaction) != event.transaction:
                    bands = [("grant", event.bounds[0], event.bounds[-1])]
            case WorkerSplit() | WorkersMerged():
                kind, worker = ("split", event.left + 1) if isinstance(event, WorkerSplit) else ("merge", event.right)
                span = ranges.get((event.topic, event.partition, event.incarnation, worker))
                bands = [] if span is None else [(kind, *span)]
            case RangesReleased():
                bands = [("release", band.first, band.end) for band in event.bands]
            case _:
                continue
        own = event.topic, event.partition, event.incarnation, event.transaction
        found += [(before, Change(kind, *own, first, end)) for kind, first, end in bands]
    return found


def _offset(change: Change, tiles: Sequence[PlaneTile], before: int) -> int:
    """The offset of a change: the edge of the lower end of the changed range. ``before``: the number of tiles in front
    of the change in the log. Tiles of the same transaction may stand behind the change.
    """

    def holds(tile: PlaneTile) -> bool:
        return tile[:2] == change[1:3] and tile.first <= change.first < tile.end

    after = before
    while after < len(tiles) and tiles[after][2:4] == change[3:5]:
        if holds(tiles[after]):
            return tiles[after].offset_to
        after += 1
    return next((tiles[n].offset_to for n in range(before - 1, -1, -1) if holds(tiles[n])), 0)


def workers_of(tile: PlaneTile, ranges: WorkerRanges) -> list[tuple[int, int, int]]:
    """(worker, first, end) of each worker of a tile. Workers without a range in ``ranges`` share the tile evenly."""
    height = (tile.end - tile.first) // tile.workers
    found = []
    for number in range(tile.workers):
        worker = tile.worker + number
        even = tile.first + number * height, tile.first + (number + 1) * height
        found.append((worker, *ranges.get((tile.topic, tile.partition, tile.incarnation, worker), even)))
    return found


def choose_stretch(tiles: Sequence[PlaneTile], near: PlanePoint | None = None) -> NearStretch | None:
    """A stretch with some workers over several commits; equal tiles give an equal stretch, no tiles give None.

    ``near``: the middle of the stretch. None: the middle of the points of the first partition, behind a third of the
    tiles at these points.
    """
    if not tiles:
        return None
    topic, partition = min(tile.topic_partition for tile in tiles) if near is None else near[:2]
    own = [tile for tile in tiles if tile.topic_partition == (topic, partition)]
    first, end = _stretch_points(own, SPACE_END // 2 if near is None else near.point)
    starts = sorted(tile.offset_from for tile in own if tile.first < end and first < tile.end)
    begin = len(starts) // 3 if near is None else max(0, bisect_left(starts, near.offset) - STRETCH_TILES // 2)
    offset_from = starts[begin]
    later = [offset for offset in starts if offset > offset_from]
    offset_to = later[STRETCH_TILES] if len(later) > STRETCH_TILES else max(tile.offset_to for tile in own)
    return NearStretch(
        topic=topic,
        partition=partition,
        offset_from=offset_from,
        offset_to=max(offset_to, offset_from + 1),
        first=first,
        end=end,
    )


def _stretch_points(tiles: Iterable[PlaneTile], middle: int) -> tuple[int, int]:
    """The points ``[first, end)`` of a stretch around a point: some bands of the usual height, on the grid of this
    height, inside the space.
    """
    height = median_low((tile.end - tile.first) // tile.workers for tile in tiles)
    size = max(1, min(STRETCH_WORKERS, SPACE_END // height)) * height
    lowest = min(max(0, (2 * middle - size) // 2), SPACE_END - size)
    first = lowest // height * height
    return first, first + size
