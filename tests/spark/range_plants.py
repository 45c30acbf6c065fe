"""Faults in the run of a group that shares one partition (honest_ranges.py), each with the statement that finds it."""

from collections.abc import Callable

from msgspec.structs import replace

from keylanes.offsets.control_events import MemberFenced, RangesGranted
from keylanes.offsets.event_values import Band, Edge, Tile
from keylanes.offsets.events import Committed, RangesReleased, WorkersCut

from .group_plants import Plant, find, put_behind
from .honest import Run
from .honest_ranges import FIRST, SIXTEENTH

LOG = 0
"""The one partition of the offset log."""


def _granted(epoch: int, change: Callable[[tuple[Band, ...]], tuple[Band, ...]]) -> Callable[[Run], None]:
    """The grant of an epoch has other bands."""

    def plant(run: Run) -> None:
        at = find(run.control, RangesGranted, epoch=epoch)
        event = run.control[at]
        assert isinstance(event, RangesGranted)
        run.control[at] = replace(event, bands=change(event.bands))

    return plant


def _released(nth: int, change: Callable[[tuple[Edge, ...]], tuple[Edge, ...]], **fields: int) -> Callable[[Run], None]:
    """The nth release has other bands or fields."""

    def plant(run: Run) -> None:
        at = _releases(run)[nth]
        event = run.events[LOG][at]
        assert isinstance(event, RangesReleased)
        run.events[LOG][at] = replace(event, bands=change(event.bands), **fields)

    return plant


def _releases(run: Run) -> list[int]:
    return [i for i, event in enumerate(run.events[LOG]) if isinstance(event, RangesReleased)]


def _not_released(nth: int) -> Callable[[Run], None]:
    def plant(run: Run) -> None:
        del run.events[LOG][_releases(run)[nth]]

    return plant


def _wider(bands: tuple[Band, ...]) -> tuple[Band, ...]:
    """One point below, from the same offset."""
    return replace(bands[0], first=bands[0].first - 1), *bands[1:]


def _one_edge(bands: tuple[Band, ...]) -> tuple[Band, ...]:
    """All as one, from where the first one ended."""
    return (Band(bands[0].first, bands[-1].end, bands[0].offset_from),)


def _up_to(end: int) -> Callable[[tuple[Band, ...]], tuple[Band, ...]]:
    """The last band reaches further."""
    return lambda bands: (*bands[:-1], replace(bands[-1], end=end))


def _from(first: int) -> Callable[[tuple[Band, ...]], tuple[Band, ...]]:
    """The first band begins earlier."""
    return lambda bands: (replace(bands[0], first=first), *bands[1:])


def _last_edge_off(bands: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """One of several bands was released at another edge than it has."""
    assert len(bands) > 1
    assert bands[-1].edge is not None
    return *bands[:-1], replace(bands[-1], edge=bands[-1].edge - 1)


def _one_point_more(bands: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """The point below goes, too."""
    return Edge(bands[0].first - 1, bands[0].first, None), *bands


def _whole_of_both(bands: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """What is of another epoch of the same owner, too."""
    return *bands, Edge(12 * SIXTEENTH, 16 * SIXTEENTH, None)


def _tile_in_what_was_released(run: Run) -> None:
    """The owner goes on with a sixteenth that it has given up, while the rest of its range stays its own."""
    log = run.events[LOG]
    at = _releases(run)[0]
    event = log[at]
    assert isinstance(event, RangesReleased)
    given_up = event.bands[0]
    assert given_up.edge is not None
    later = next(
        i for i, e in enumerate(log) if i > at and isinstance(e, Committed) and (e.incarnation, e.epoch) == (FIRST, 1)
    )
    tile = Tile(8, 1, given_up.first, given_up.first + SIXTEENTH, given_up.edge, given_up.edge + 5)
    commit = log[later]
    assert isinstance(commit, Committed)
    log[later] = replace(commit, tiles=(*commit.tiles, tile))


def _second_part_begun_first(run: Run) -> None:
    """The new owner works on the second part, too, when the first one was released."""
    log = run.events[LOG]
    put_behind(log, find(log, WorkersCut, epoch=3), find(log, WorkersCut, epoch=2))


def _two_at_one_epoch(run: Run) -> None:
    """The part of another member is granted at the epoch of this one."""
    at = find(run.control, RangesGranted, epoch=3)
    run.control[at] = replace(run.control[at], epoch=2, incarnation=FIRST)


def _fenced_late(run: Run) -> None:
    fenced = find(run.control, MemberFenced, incarnation=FIRST)
    put_behind(run.control, fenced, find(run.control, RangesGranted, epoch=6))


RANGE_PLANTS = {
    "two owners in one partition": Plant("grant-free", _not_released(1)),
    "a grant overlaps by one point": Plant("grant-free", _granted(4, _up_to(2 * SIXTEENTH + 1)), ("grant-edge",)),
    "a grant overlaps by one point below": Plant("grant-free", _granted(2, _wider), ("grant-edge",)),
    "what was withdrawn is granted": Plant("grant-free", _granted(4, _up_to(4 * SIXTEENTH)), ("grant-edge",)),
    "granted to itself what it did not release": Plant("grant-free", _not_released(4)),
    "an orphan with a part of its neighbour": Plant("grant-free", _granted(6, _from(SIXTEENTH)), ("grant-edge",)),
    "a part is granted before the fence": Plant("grant-free", _fenced_late),
    "parts of two members at one epoch": Plant(
        "grant-owner", _two_at_one_epoch, ("grant-free", "grant-edge", "release-edge")
    ),
    "parts are granted from the edge of one": Plant("grant-edge", _granted(3, _one_edge)),
    "one edge of several is wrong": Plant("release-edge", _released(1, _last_edge_off), ("grant-edge",)),
    "a point is released that nobody asked for": Plant(
        "release-edge", _released(0, _one_point_more), ("release-last",)
    ),
    "released at the epoch of another range": Plant("release-edge", _released(3, _whole_of_both)),
    "released for the move of another": Plant("release-edge", _released(2, lambda bands: bands, move=1)),
    "released in parts that overlap": Plant("release-last", _released(1, _one_point_more), ("grant-free",)),
    "a tile in a released part of its own range": Plant(
        "release-last", _tile_in_what_was_released, ("grant-edge", "release-edge")
    ),
    "the second part is begun with the first": Plant("release-last", _second_part_begun_first, ("grant-free",)),
}
"""By what is wrong."""
