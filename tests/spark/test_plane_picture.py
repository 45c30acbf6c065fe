"""The picture of the plane, and what it is made of."""

from pathlib import Path

import pytest

from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.events import Event, WorkersCut, WorkersMerged, WorkerSplit
from keylanes.spark.history import fold_workers, ranges_of
from keylanes.spark.plane_tiles import (
    NO_PLANE,
    NearStretch,
    PlanePoint,
    PlaneTile,
    choose_stretch,
    plane_log,
    workers_of,
)

from ..stage.log_events import range_released
from ..tiers.marks import tier

pytestmark = tier("check")

WORKERS = 64


def plane(commits: int = 12, partitions: int = 2) -> list[PlaneTile]:
    """Workers that move by 100 offsets with each commit, every seventh by 50: those are committed for themselves."""
    bounds = even_bounds(WORKERS)
    return [
        PlaneTile(
            "t", partition, 1, commit, worker, 1, bounds[worker], bounds[worker + 1],
            commit * (50 if worker % 7 == 0 else 100), (commit + 1) * (50 if worker % 7 == 0 else 100),
        )
        for partition in range(partitions)
        for commit in range(commits)
        for worker in range(WORKERS)
    ]  # fmt: skip


def test_a_stretch_shows_some_workers_over_several_commits() -> None:
    """The stretch lies inside the first partition, at the borders of workers, and holds many tiles, not all."""
    tiles = plane()
    stretch = choose_stretch(list(reversed(tiles)))
    assert stretch == choose_stretch(tiles)
    assert stretch is not None
    assert (stretch.topic, stretch.partition) == ("t", 0)
    assert {stretch.first, stretch.end} <= set(even_bounds(WORKERS))
    inside = [tile for tile in tiles if stretch.meets(tile)]
    assert len({tile.worker for tile in inside}) == 12
    assert 40 <= len(inside) < len(tiles) / 4
    assert len({tile.transaction for tile in inside}) >= 3


def test_without_tiles_there_is_no_stretch() -> None:
    """An application that has committed nothing has nothing to look at."""
    assert choose_stretch([]) is None


def test_one_tile_is_its_own_stretch() -> None:
    """A single worker's only tile is shown whole."""
    stretch = choose_stretch([PlaneTile("t", 3, 1, 1, 0, 1, 0, 1 << 32, 5, 9)])
    assert stretch == NearStretch("t", 3, 5, 9, 0, 1 << 32)
    assert stretch.holds(8, 1 << 31)
    assert not stretch.holds(9, 0)


def test_a_stretch_is_not_made_narrow_by_a_split() -> None:
    """A few workers of half the height change nothing about the height of what is shown."""
    tiles = plane()
    whole = choose_stretch(tiles)
    assert whole is not None
    halves = [tile._replace(end=(tile.first + tile.end) // 2) for tile in tiles if tile.worker == 3]
    assert choose_stretch([*tiles, *halves]) == whole


def test_a_stretch_is_where_it_is_asked_for() -> None:
    """In that partition, around that point and offset; at a border of the plane it ends there."""
    tiles = plane()
    stretch = choose_stretch(tiles, PlanePoint("t", 1, 3 << 30, 600))
    assert stretch is not None
    assert stretch[:2] == ("t", 1)
    assert stretch.holds(600, 3 << 30)
    assert stretch.offset_from < 600
    corner = choose_stretch(tiles, PlanePoint("t", 1, (1 << 32) - 1, 0))
    assert corner is not None
    assert (corner.end, corner.offset_from) == (1 << 32, 0)


def test_changes_are_found_by_their_ranges() -> None:
    """Workers that come later are known by what they were made of; a cut behind the start is a range taken up again. A
    change lies at the edge that its range had: of the last tile before, or of its own transaction, also behind it.
    """
    place, half = (1, "t", 0), 1 << 31
    events: list[tuple[int, Event]] = [
        (0, WorkersCut(1, 1, *place, 0, (0, 100, half))),
        (1, WorkerSplit(1, 5, *place, 0, 40, 2)),
        (2, WorkersMerged(1, 6, *place, 3, 1, 4)),
        (4, range_released(1, 7, *place, 40, half)),
        (4, WorkersCut(1, 8, *place, 5, (40, 100, half))),
        (4, WorkersCut(2, 1, 2, "t", 0, 0, (0, 100, half))),
        (4, range_released(2, 2, 2, "t", 1, 0, 7)),
    ]
    tiles = [
        PlaneTile("t", 0, 1, 1, 0, 2, 0, half, 0, 10),
        PlaneTile("t", 1, 1, 1, 9, 1, 0, half, 0, 99),
        PlaneTile("t", 0, 1, 6, 3, 1, 40, half, 10, 30),
        PlaneTile("t", 0, 1, 6, 2, 1, 0, 40, 10, 20),
    ]
    plane = plane_log(tiles, events, ranges_of(fold_workers(events)[0]))
    assert [(change.kind, change.partition, change.first, change.end, offset) for change, offset in plane.changes] == [
        ("split", 0, 40, 100, 10),
        ("merge", 0, 100, half, 30),
        ("release", 0, 40, half, 30),
        ("grant", 0, 40, half, 30),
        ("release", 1, 0, 7, 99),
    ]
    assert plane.ranges["t", 0, 1, 4] == (40, half)


def test_the_workers_of_a_tile_have_their_own_ranges() -> None:
    """Where they are known; else they are taken for alike."""
    tile = PlaneTile("t", 0, 1, 2, 7, 2, 0, 100, 0, 10)
    assert workers_of(tile, {}) == [(7, 0, 50), (8, 50, 100)]
    known = {("t", 0, 1, 7): (0, 20), ("t", 0, 1, 8): (20, 100), ("t", 0, 2, 7): (0, 9)}
    assert workers_of(tile, known) == [(7, 0, 20), (8, 20, 100)]


@tier("test")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """A PNG of some size comes out, also of an application without tiles, and nothing else is left. The picture of
    several processes has a second part below the plane, so it is higher.
    """
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from keylanes.spark.plane_picture import draw_plane

    from .test_group_picture import TWO

    events: list[tuple[int, Event]] = [(3, range_released(1, 2, 1, "t", 1, 7, 1 << 31))]
    drawn = plane_log(plane(), events, {})
    path = draw_plane(drawn, tmp_path / "plane.png", title="a plane", records=[(420, 1 << 31)])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    several = draw_plane(drawn, tmp_path / "several.png", title="a plane", ownership=TWO)
    draw_plane(NO_PLANE, tmp_path / "empty.png", title="nothing yet")
    assert {file.name for file in tmp_path.iterdir()} == {"plane.png", "several.png", "empty.png"}
    assert imread(several).shape[0] > imread(path).shape[0] * 1.3


@tier("test")
def test_every_tile_is_painted_and_nothing_else() -> None:
    """Pixels of a tile have its worker's colour, so neighbours in time differ; where no tile is, it stays white."""
    pytest.importorskip("matplotlib")
    from keylanes.spark.plane_picture import PANEL_PIXELS, paint

    half = 1 << 31
    tiles = [PlaneTile("t", 0, 1, 1, 0, 1, 0, half, 0, 50), PlaneTile("t", 0, 1, 2, 0, 1, 0, half, 50, 100)]
    pixels = paint(tiles, 0, 100)
    width, height = PANEL_PIXELS
    assert (pixels[height // 2 :] == 1).all()
    assert (pixels[: height // 2].min(axis=2) < 1).all()
    assert (pixels[0, 0] != pixels[0, width - 1]).any()


@tier("test")
def test_a_line_shows_where_a_range_changed_hands() -> None:
    """Tiles have the colour of their process, so those of one commit of one process are alike; between two processes
    there is a dark line, between two commits of one there is none.
    """
    pytest.importorskip("matplotlib")
    from keylanes.spark.group_picture import colour_of
    from keylanes.spark.plane_picture import PANEL_PIXELS, paint_owners

    from .test_group_picture import TWO

    whole = 1 << 32
    tiles = [
        PlaneTile("t", 0, 7, 1, 0, 1, 0, whole, 0, 30),
        PlaneTile("t", 0, 7, 2, 0, 1, 0, whole, 30, 60),
        PlaneTile("t", 0, 8, 1, 0, 1, 0, whole, 60, 90),
    ]
    row = paint_owners(tiles, 0, 90, TWO)[PANEL_PIXELS[1] // 2]
    third = PANEL_PIXELS[0] // 3
    assert row[0] == pytest.approx(colour_of(0, 0))
    assert row[third] == pytest.approx(colour_of(0, 1))
    assert row[-1] == pytest.approx(colour_of(1, 2))
    dark = [x for x, pixel in enumerate(row) if pixel.max() < 0.3]
    assert dark
    assert all(abs(x - 2 * third) < 10 for x in dark)
