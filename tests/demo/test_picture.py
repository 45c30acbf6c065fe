"""The picture of the plane, and what it is made of."""

from pathlib import Path
from typing import Any

import pytest

from keylanes.demo.logbook import Structure, WholeCuts
from keylanes.demo.owners import Mark, Ownership, Span, colour_of
from keylanes.demo.tiles import Change, Place, PlaneTile, Stretch, choose_stretch, offset_of, workers_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.events import OffsetEvent, WorkersCut, WorkersMerged, WorkerSplit

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
    assert stretch == Stretch("t", 3, 5, 9, 0, 1 << 32)
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
    stretch = choose_stretch(tiles, Place("t", 1, 3 << 30, 600))
    assert stretch is not None
    assert stretch.is_in(("t", 1))
    assert stretch.holds(600, 3 << 30)
    assert stretch.offset_from < 600
    corner = choose_stretch(tiles, Place("t", 1, (1 << 32) - 1, 0))
    assert corner is not None
    assert (corner.end, corner.offset_from) == (1 << 32, 0)


def test_workers_are_counted_where_a_partition_was_cut_as_a_whole() -> None:
    """The last time; a range that comes to another process later counts for nothing, parts of one commit together."""
    cuts = WholeCuts()
    bounds = even_bounds(8)
    for event in (
        WorkersCut(1, 1, 1, "t", 0, 0, bounds),
        WorkersCut(1, 1, 1, "t", 1, 8, bounds[:5]),
        WorkersCut(1, 1, 1, "t", 1, 12, bounds[4:]),
        WorkersCut(2, 1, 2, "t", 0, 0, bounds[:3]),
    ):
        cuts.take(event)
    assert cuts.workers() == {"t": 16}
    cuts.take(WorkersCut(3, 1, 3, "t", 0, 0, even_bounds(4)))
    assert cuts.workers() == {"t": 12}


def test_changes_are_told_by_their_ranges() -> None:
    """Workers that come later are known by what they were made of; a cut behind the start is a range taken up again."""
    structure = Structure()
    place = 1, "t", 0
    events: list[OffsetEvent] = [
        WorkersCut(1, 1, *place, 0, (0, 100, 200)),
        WorkerSplit(1, 5, *place, 0, 40, 2),
        WorkersMerged(1, 6, *place, 3, 1, 4),
        range_released(1, 7, *place, 40, 200),
        WorkersCut(1, 8, *place, 5, (40, 100, 200)),
        WorkersCut(2, 1, 2, "t", 0, 0, (0, 100, 200)),
    ]
    for number, event in enumerate(events):
        structure.take(event, number)
    assert [(change.kind, change.first, change.end, at) for change, at in structure.changes] == [
        ("split", 40, 100, 1),
        ("merge", 100, 200, 2),
        ("release", 40, 200, 3),
        ("grant", 40, 200, 4),
    ]
    assert structure.is_at_start(WorkersCut(2, 1, 2, "t", 1, 0, (0, 100)))


def test_the_workers_of_a_tile_have_their_own_ranges() -> None:
    """Where they are known; else they are taken for alike."""
    tile = PlaneTile("t", 0, 1, 2, 7, 2, 0, 100, 0, 10)
    assert workers_of(tile, {}) == [(7, 0, 50), (8, 50, 100)]
    known = {("t", 0, 1, 7): (0, 20), ("t", 0, 1, 8): (20, 100), ("t", 0, 2, 7): (0, 9)}
    assert workers_of(tile, known) == [(7, 0, 20), (8, 20, 100)]


def test_a_change_lies_at_the_edge_that_its_range_had() -> None:
    """The last tile before it counts, or the one of its own transaction, which may stand behind it."""
    half = 1 << 31
    tiles = [
        PlaneTile("t", 0, 1, 1, 0, 1, 0, half, 0, 10),
        PlaneTile("t", 1, 1, 1, 9, 1, 0, half, 0, 99),
        PlaneTile("t", 0, 1, 2, 1, 1, half, 2 * half, 0, 20),
        PlaneTile("t", 0, 1, 3, 0, 1, 0, half, 10, 30),
    ]
    assert offset_of(Change("split", "t", 0, 1, 2, 7, half), tiles, 2) == 10
    assert offset_of(Change("split", "t", 0, 1, 3, 7, half), tiles, 3) == 30
    assert offset_of(Change("merge", "t", 0, 1, 4, half, 2 * half), tiles, 4) == 20
    assert offset_of(Change("grant", "t", 2, 1, 4, 0, half), tiles, 4) == 0


@tier("test")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """A PNG of some size comes out, also of an application without tiles, and nothing else is left."""
    from keylanes.demo.picture import draw_plane

    changes = [(Change(kind, "t", 1, 1, 2, 7, 1 << 31), 300) for kind in ("split", "merge", "release", "grant")]
    path = draw_plane(plane(), tmp_path / "plane.png", title="a plane", records=[(420, 1 << 31)], changes=changes)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    draw_plane([], tmp_path / "empty.png", title="nothing yet")
    assert {file.name for file in tmp_path.iterdir()} == {"plane.png", "empty.png"}


@tier("test")
def test_every_tile_is_painted_and_nothing_else() -> None:
    """Pixels of a tile have its worker's colour, so neighbours in time differ; where no tile is, it stays white."""
    from keylanes.demo.picture import PANEL_PIXELS, paint

    half = 1 << 31
    tiles = [PlaneTile("t", 0, 1, 1, 0, 1, 0, half, 0, 50), PlaneTile("t", 0, 1, 2, 0, 1, 0, half, 50, 100)]
    pixels = paint(tiles, 0, 100)
    width, height = PANEL_PIXELS
    assert (pixels[height // 2 :] == 1).all()
    assert (pixels[: height // 2].min(axis=2) < 1).all()
    assert (pixels[0, 0] != pixels[0, width - 1]).any()


OWNERSHIP = Ownership(
    names={1: "demo-1", 2: "demo-2"},
    shares={"demo-1": 0.5, "demo-2": 0.5},
    spans=[Span("t", 0, 0, 1 << 32, "demo-1", 0.0, 1.0), Span("t", 0, 0, 1 << 32, "demo-2", 3.0, 4.0)],
    marks=[
        Mark(1.0, "demo-1 is killed", True),
        Mark(1.1, "demo-2 coordinates", False),
        Mark(2.0, "−1: demo-1", is_loss=True, is_step=True, until_s=3.0),
        Mark(3.9, "late", False),
    ],
)


@tier("test")
def test_the_picture_of_several_processes_has_a_second_part(tmp_path: Path) -> None:
    """Over time, below the plane: so it is higher than that of one."""
    from matplotlib.image import imread

    from keylanes.demo.picture import draw_plane

    one = imread(draw_plane(plane(), tmp_path / "one.png", title="a plane"))
    several = imread(draw_plane(plane(), tmp_path / "several.png", title="a plane", ownership=OWNERSHIP))
    assert several.shape[0] > one.shape[0] * 1.3
    assert several.shape[1] == one.shape[1]


@tier("test")
def test_a_copy_lies_over_the_owner_of_its_range() -> None:
    """In stripes: something of both is seen there, and nothing is changed elsewhere."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from keylanes.demo.timeline import draw_timeline

    def drawn(*copies: Span) -> np.ndarray[Any, Any]:
        figure = Figure(figsize=(15, 5.4))
        canvas = FigureCanvasAgg(figure)
        draw_timeline(figure, OWNERSHIP._replace(copies=copies))
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[:, :, :3] / 255

    without, with_copy = drawn(), drawn(Span("t", 0, 0, 1 << 31, "demo-2", 0.0, 1.0))
    below = slice(without.shape[0] // 3, None)  # without the legend
    rows, columns = (without[below] != with_copy[below]).any(axis=2).nonzero()
    assert len(rows) > 1_000
    assert columns.max() < without.shape[1] / 2
    middle = (rows.min() + rows.max()) // 2
    owner = np.asarray(colour_of("demo-1"))
    stripe = with_copy[below][middle, columns.min() : columns.max()]
    assert np.isclose(stripe, owner, atol=0.01).all(axis=1).any()
    assert np.isclose(stripe, colour_of("demo-2"), atol=0.05).all(axis=1).any()


@tier("test")
def test_a_line_shows_where_a_range_changed_hands() -> None:
    """Tiles have the colour of their process, so those of one commit of one process are alike; between two processes
    there is a dark line, between two commits of one there is none.
    """
    from keylanes.demo.picture import PANEL_PIXELS, paint_owners

    whole = 1 << 32
    tiles = [
        PlaneTile("t", 0, 1, 1, 0, 1, 0, whole, 0, 30),
        PlaneTile("t", 0, 1, 2, 0, 1, 0, whole, 30, 60),
        PlaneTile("t", 0, 2, 1, 0, 1, 0, whole, 60, 90),
    ]
    row = paint_owners(tiles, 0, 90, OWNERSHIP)[PANEL_PIXELS[1] // 2]
    third = PANEL_PIXELS[0] // 3
    assert row[0] == pytest.approx(colour_of("demo-1", 0))
    assert row[third] == pytest.approx(colour_of("demo-1", 1))
    assert row[-1] == pytest.approx(colour_of("demo-2", 2))
    dark = [x for x, pixel in enumerate(row) if pixel.max() < 0.3]
    assert dark
    assert all(abs(x - 2 * third) < 10 for x in dark)
