"""PURE. Tiles for people: what the picture is made of, and which stretch of it is worth a nearer look."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median_low
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ..keyrange.hashing import SPACE_END

STRETCH_WORKERS = 12
STRETCH_TILES = 110
CHANGES = ("split", "merge", "release", "grant")


WorkerName: TypeAlias = tuple[str, int, int, int]
"""Topic, partition, incarnation, number."""
NOTHING_KNOWN: Mapping[WorkerName, tuple[int, int]] = MappingProxyType({})


class PlaneTile(NamedTuple):
    """The rectangle ``[offset_from, offset_to) x [first, end)``, a part of the commit ``transaction``.

    It was committed alike by so many ``workers``, neighbours, of which ``worker`` is the first.
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


class Change(NamedTuple):
    """Who works on what changed over ``[first, end)``: a split, a merge, a release or a grant."""

    kind: str
    topic: str
    partition: int
    incarnation: int
    transaction: int
    first: int
    end: int


class Place(NamedTuple):
    """A point of a partition's plane."""

    topic: str
    partition: int
    point: int
    offset: int


class Stretch(NamedTuple):
    """A part of one partition's plane that is shown near: offsets and points, half-open."""

    topic: str
    partition: int
    offset_from: int
    offset_to: int
    first: int
    end: int

    def meets(self, tile: PlaneTile) -> bool:
        """Whether a part of the tile lies inside."""
        return (
            (tile.topic, tile.partition) == (self.topic, self.partition)
            and tile.offset_from < self.offset_to
            and self.offset_from < tile.offset_to
            and tile.first < self.end
            and self.first < tile.end
        )

    def is_in(self, source: tuple[str, int]) -> bool:
        """Whether this is a part of that source partition."""
        return source == (self.topic, self.partition)

    def holds(self, offset: int, point: int) -> bool:
        """Whether a record of the partition lies inside."""
        return self.offset_from <= offset < self.offset_to and self.first <= point < self.end


def workers_of(tile: PlaneTile, ranges: Mapping[WorkerName, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(worker, first, end) of each worker of a tile; of those whose range is not known, as if all were alike."""
    height = (tile.end - tile.first) // tile.workers
    found = []
    for number in range(tile.workers):
        worker = tile.worker + number
        even = tile.first + number * height, tile.first + (number + 1) * height
        found.append((worker, *ranges.get((tile.topic, tile.partition, tile.incarnation, worker), even)))
    return found


def offset_of(change: Change, tiles: Sequence[PlaneTile], near: int) -> int:
    """Where a change lies: the edge of its range's lower end. ``near``: the place in ``tiles`` at which it was written.

    ``tiles`` are in the order of the log.
    """
    moment = change.incarnation, change.transaction

    def holds(tile: PlaneTile) -> bool:
        return (tile.topic, tile.partition) == (
            change.topic,
            change.partition,
        ) and tile.first <= change.first < tile.end

    at = near
    while at < len(tiles) and (tiles[at].incarnation, tiles[at].transaction) == moment:
        if holds(tiles[at]):  # in the transaction that carries the change, behind it
            return tiles[at].offset_to
        at += 1
    return next((tile.offset_to for tile in reversed(tiles[:near]) if holds(tile)), 0)


def choose_stretch(tiles: Sequence[PlaneTile], near: Place | None = None) -> Stretch | None:
    """A stretch that shows some workers over several commits; the same for the same tiles. None when there are none.

    ``near``: what shall be in the middle of it; None: anywhere.
    """
    if not tiles:
        return None
    topic, partition = min((tile.topic, tile.partition) for tile in tiles) if near is None else near[:2]
    own = [tile for tile in tiles if (tile.topic, tile.partition) == (topic, partition)]
    height = median_low((tile.end - tile.first) // tile.workers for tile in own)
    bands = max(1, min(STRETCH_WORKERS, SPACE_END // height))
    middle = SPACE_END // 2 if near is None else near.point
    first = min(max(0, (2 * middle - bands * height) // 2), SPACE_END - bands * height) // height * height
    end = first + bands * height
    inside = sorted(tile.offset_from for tile in own if tile.first < end and first < tile.end)
    start = inside[len(inside) // 3 if near is None else max(0, bisect_left(inside, near.offset) - STRETCH_TILES // 2)]
    later = [offset for offset in inside if offset > start]
    last = max(tile.offset_to for tile in own)
    stop = later[STRETCH_TILES] if len(later) > STRETCH_TILES else last
    return Stretch(topic, partition, start, max(stop, start + 1), first, end)
