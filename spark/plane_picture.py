"""The plane as a picture: offset × key hash, one panel for each partition. Tiles are coloured by worker, or by member
where several members owned points. One stretch is shown from near: single tiles and their records can be seen.

The panels are painted pixel by pixel. Therefore the cost of a tile is small and fixed, even of a million tiles. Only
tiles of the stretch become shapes. Needs matplotlib and numpy, which come with the extra ``plot``.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ..keyrange.hashing import SPACE_END
from .group_picture import Colour, colour_of, draw_timeline, ownership_of, save_figure
from .group_report import OwnershipPicture
from .plane_tiles import (
    STRETCH_WORKERS,
    Change,
    NearStretch,
    PlaneLog,
    PlaneTile,
    WorkerRanges,
    choose_stretch,
    workers_of,
)
from .report import Report

WIDTH_INCHES, HEIGHT_INCHES, TIMELINE_INCHES, DPI = 15.0, 9.4, 5.4, 110
PANEL_PIXELS = (900, 1_024)  # offsets, points
PANELS_MAX = 8
SHADES = 3
BORDER_PIXELS = 5
"""The width of the line at which a range goes from one member to another."""
HUE_STEP = 0.381966
"""The golden section of the circle of hues: neighbouring workers get hues far apart."""
INK, PALE = "#1d2733", "#f4f5f7"
SIGNS = {
    "split": ("<", "a worker is split"),
    "merge": (">", "neighbours merge"),
    "release": ("s", "a range is given up"),
    "grant": ("o", "and taken up again"),
}
SIGN_STYLE: dict[str, Any] = {"c": "white", "edgecolors": "black", "linewidths": 0.8, "zorder": 3}

HOW_TO_READ = (
    "Each record is a point: its offset to the right, the hash of its key upwards. A worker owns a horizontal band",
    "and works through it in order, at its own speed, beside all others. Each commit moves the right edge of a band:",
    "that is one tile. Where tiles cover the plane without overlap and without a hole, every record was processed",
)
READ_WORKERS = "exactly once. Nothing waits for the slowest: where tiles end raggedly, some workers were ahead."
READ_OWNERS = "exactly once. A dark line shows where a range went from one process to another: exactly at its edge."


def draw_plane(
    plane: PlaneLog,
    path: str | os.PathLike[str],
    *,
    title: str,
    stretch: NearStretch | None = None,
    records: Sequence[tuple[int, int]] = (),
    ownership: OwnershipPicture | None = None,
) -> Path:
    """Draw the tiles of an application, with changes as small signs, into a PNG file; returns its path.

    ``stretch`` None: the picture chooses a stretch. ``records``: the (offset, point) of the records in the stretch, as
    dots. ``ownership``: the reigns of several members, drawn below the plane in place of the signs; None: tiles are
    coloured by worker.
    """
    tiles, changes = plane.tiles, plane.changes if ownership is None else ()
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 9, "axes.edgecolor": INK, "text.color": INK}):
        height = HEIGHT_INCHES + (TIMELINE_INCHES if ownership is not None else 0)
        whole = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(whole)
        figure: Any = whole
        last_line = READ_WORKERS
        if ownership is not None:
            figure, below = whole.subfigures(2, 1, height_ratios=[HEIGHT_INCHES, TIMELINE_INCHES])
            draw_timeline(below, ownership, title="Who worked on what, over time")
            last_line = READ_OWNERS
        figure.suptitle(title, x=0.045, y=0.975, ha="left", fontsize=15, fontweight="bold")
        figure.text(0.045, 0.022, "\n".join((*HOW_TO_READ, last_line)), fontsize=9.5, linespacing=1.35)
        stretch = stretch or choose_stretch(tiles)
        _draw_overview(figure, tiles, stretch, changes, ownership)
        _draw_sign_legend(figure, changes)
        if stretch is not None:
            near = [tile for tile in tiles if stretch.meets(tile)]
            _draw_stretch(figure, near, stretch, records, plane.ranges, ownership)
        return save_figure(whole, Path(path))


def draw_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Draw the plane of an audit, from a report with tiles, into a PNG file; returns its path."""
    members = () if report.group is None else report.group.members
    is_of_several = len({member.instance for member in members}) > 1
    tiles, commits = report.figures["tiles"], report.figures["commits"]
    return draw_plane(
        report.plane,
        path,
        title=f"The plane of {report.app}: {tiles:,} tiles in {commits:,} commits",
        ownership=ownership_of(report.group) if is_of_several and report.group is not None else None,
    )


# --- the whole plane -------------------------------------------------------------------------------------------------


def _draw_overview(
    figure: Any,
    tiles: Sequence[PlaneTile],
    stretch: NearStretch | None,
    changes: Sequence[tuple[Change, int]],
    ownership: OwnershipPicture | None,
) -> None:
    places = sorted({tile[:2] for tile in tiles})
    shown = places[:PANELS_MAX]
    columns = 1 if len(shown) <= 1 else 2
    rows = max(1, -(-len(shown) // columns))
    grid = figure.add_gridspec(
        rows, columns, left=0.045, right=0.555, top=0.885, bottom=0.165, hspace=0.11 * rows, wspace=0.1
    )
    left_out = f", the first {len(shown)} of {len(places)} partitions" if len(places) > len(shown) else ""
    hues = "hue by worker" if ownership is None else "a colour for each process"
    figure.text(0.045, 0.925, f"The whole plane{left_out}: {hues}, light and dark by commit", fontsize=11)
    for number, (topic, partition) in enumerate(shown):
        own = [tile for tile in tiles if tile[:2] == (topic, partition)]
        axes = figure.add_subplot(grid[number // columns, number % columns])
        start, end = min(tile.offset_from for tile in own), max(tile.offset_to for tile in own)
        place = {"origin": "lower", "aspect": "auto", "extent": (start, end, 0, SPACE_END)}
        painted = paint(own, start, end) if ownership is None else paint_owners(own, start, end, ownership)
        axes.imshow(painted, interpolation="nearest", **place)
        axes.set_title(f"{topic}, partition {partition}", fontsize=9.5, loc="left")
        _name_axes(axes, is_left=number % columns == 0, is_low=number // columns == rows - 1)
        axes.set_yticks([0, SPACE_END // 2, SPACE_END], ["0", "½", "1"])
        axes.set_xlim(start, end)
        axes.set_ylim(0, SPACE_END)
        _draw_signs(axes, [change for change in changes if change[0][1:3] == (topic, partition)])
        if stretch is not None and (topic, partition) == stretch[:2]:
            size = stretch.offset_to - stretch.offset_from, stretch.end - stretch.first
            axes.add_patch(Rectangle((stretch.offset_from, stretch.first), *size, fill=False, ec="black", lw=1.6))


def _draw_signs(axes: Any, changes: Sequence[tuple[Change, int]]) -> None:
    """A sign for each change: of a split and a merge at the border between the workers, of a release and a grant in the
    middle of the range.
    """
    for kind, (marker, _) in SIGNS.items():
        places = [
            (offset, change.first if kind in ("split", "merge") else (change.first + change.end) / 2)
            for change, offset in changes
            if change.kind == kind
        ]
        if places:
            size = 30 if kind == "release" else 12  # a grant lies where the release was
            axes.scatter(*zip(*places, strict=True), marker=marker, s=size, **SIGN_STYLE)


def _draw_sign_legend(figure: Any, changes: Sequence[tuple[Change, int]]) -> None:
    counts = Counter(change.kind for change, _ in changes)
    handles = [
        Line2D([], [], ls="", marker=marker, ms=5, mfc="white", mec="black", mew=0.8, label=f"{label} ({counts[kind]})")
        for kind, (marker, label) in SIGNS.items()
        if counts[kind]
    ]
    if handles:
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.6, 0.012), ncols=2, frameon=False, fontsize=8.5,
            handletextpad=0.4, columnspacing=1.5, title="who works on what, changed while it ran",
            title_fontsize=8.5, alignment="left",
        )  # fmt: skip


def paint(tiles: Sequence[PlaneTile], start: int, end: int) -> Any:
    """The tiles of one partition as pixels, an array of (points, offsets, rgb) from 0 to 1; white: no tile."""
    width, height = PANEL_PIXELS
    pixels = np.ones((height, width, 3), dtype=np.float32)
    hues = (np.arange(height) + 0.5) / height
    shades = [np.array([colour(hue, shade) for hue in hues], dtype=np.float32)[:, None, :] for shade in range(SHADES)]
    commits = _commit_numbers(tiles)
    for tile, low, high, left, right in _tile_pixels(tiles, start, end):
        pixels[low:high, left:right] = shades[commits[tile.incarnation, tile.transaction] % SHADES][low:high]
    return pixels


def paint_owners(tiles: Sequence[PlaneTile], start: int, end: int, ownership: OwnershipPicture) -> Any:
    """The pixels as of ``paint``, in the colours of members, with a dark line where the member of a range changes."""
    width, height = PANEL_PIXELS
    pixels = np.ones((height, width, 3), dtype=np.float32)
    owners = np.full((height, width), -1, dtype=np.int16)
    commits, numbers = _commit_numbers(tiles), ownership.numbers()
    for tile, low, high, left, right in _tile_pixels(tiles, start, end):
        owners[low:high, left:right] = number = numbers.get(tile.incarnation, 0)
        pixels[low:high, left:right] = colour_of(number, commits[tile.incarnation, tile.transaction])
    changed = (owners[:, 1:] != owners[:, :-1]) & (owners[:, 1:] >= 0) & (owners[:, :-1] >= 0)
    for shift in range(BORDER_PIXELS):
        pixels[:, shift : shift + width - 1][changed[:, : width - shift]] = mpl.colors.to_rgb(INK)
    return pixels


def _tile_pixels(tiles: Sequence[PlaneTile], start: int, end: int) -> Iterator[tuple[PlaneTile, int, int, int, int]]:
    """Each tile with its pixels: low, high, left, right. Every tile has one pixel at least."""
    width, height = PANEL_PIXELS
    scale = width / max(1, end - start)
    for tile in tiles:
        left, right = int((tile.offset_from - start) * scale), int((tile.offset_to - start) * scale)
        low, high = tile.first * height // SPACE_END, tile.end * height // SPACE_END
        yield tile, low, max(high, low + 1), left, max(right, left + 1)


def _commit_numbers(tiles: Sequence[PlaneTile]) -> dict[tuple[int, int], int]:
    """Commits by (incarnation, transaction), counted, so that neighbours in one partition do not repeat a shade."""
    return {commit: number for number, commit in enumerate(sorted({(t.incarnation, t.transaction) for t in tiles}))}


def colour(hue: float, shade: int) -> Colour:
    """A hue (0 to 1) for a worker, and one of ``SHADES`` for a commit; as red, green and blue from 0 to 1."""
    light = (0.97, 0.76, 0.87)[shade % SHADES]
    red, green, blue = (float(channel) for channel in mpl.colors.hsv_to_rgb((hue * 0.92 + 0.02, 0.42, light)))
    return red, green, blue


# --- one stretch -----------------------------------------------------------------------------------------------------


def _draw_stretch(
    figure: Any,
    tiles: Sequence[PlaneTile],
    stretch: NearStretch,
    records: Sequence[tuple[int, int]],
    ranges: WorkerRanges,
    ownership: OwnershipPicture | None,
) -> None:
    axes = figure.add_axes((0.605, 0.215, 0.335, 0.67))
    what = "single tiles and their records" if records else "single tiles"
    figure.text(0.605, 0.925, f"The black frame, seen from near: {what}", fontsize=11)
    axes.set_facecolor(PALE)
    bands: dict[tuple[int, int], tuple[int, int]] = {}
    """By points, the right edge and the worker of the band's last tile."""
    commits = _commit_numbers(tiles)
    numbers = {} if ownership is None else ownership.numbers()
    for tile in tiles:
        width = tile.offset_to - tile.offset_from
        for worker, first, end in workers_of(tile, ranges):
            bands[first, end] = max(bands.get((first, end), (0, 0)), (tile.offset_to, worker))
            commit = commits[tile.incarnation, tile.transaction]
            if ownership is None:
                face = colour((first / max(1, end - first) * HUE_STEP) % 1.0, commit)
            else:
                face = colour_of(numbers.get(tile.incarnation, 0), commit)
            axes.add_patch(Rectangle((tile.offset_from, first), width, end - first, fc=face, ec="white", lw=0.4))
        corner = tile.offset_from, tile.first
        axes.add_patch(Rectangle(corner, width, tile.end - tile.first, fill=False, ec=INK, lw=0.9))
    if records:
        offsets, points = zip(*records, strict=True)
        axes.scatter(offsets, points, s=5, c=INK, linewidths=0, zorder=3)
    axes.set_xlim(stretch.offset_from, stretch.offset_to)
    axes.set_ylim(stretch.first, stretch.end)
    _name_axes(axes, is_left=True, is_low=True)
    axes.set_ylabel("a few bands of the key space →")
    axes.set_yticks([])
    axes.set_title(f"{stretch.topic}, partition {stretch.partition}", fontsize=9.5, loc="left")
    shown = [colour(0.6, 0), colour(0.6, 1), colour(0.1, 0)]
    if ownership is not None and tiles:
        shown = [colour_of(numbers.get(tiles[0].incarnation, 0), shade) for shade in range(SHADES)]
    _draw_tile_legend(axes, shown, has_records=bool(records))
    beside = axes.get_yaxis_transform()
    for (first, end), worker in _last_bands(bands, stretch)[: 2 * STRETCH_WORKERS]:
        axes.text(1.01, (first + end) / 2, f"worker {worker}", transform=beside, va="center", fontsize=8)


def _last_bands(
    bands: dict[tuple[int, int], tuple[int, int]], stretch: NearStretch
) -> list[tuple[tuple[int, int], int]]:
    """The last bands, with their workers: where bands overlap, the band with the later tile stays."""
    last: list[tuple[tuple[int, int], int]] = []
    for (first, end), (_, worker) in sorted(bands.items(), key=lambda item: item[1], reverse=True):
        is_free = all(end <= other[0] or other[1] <= first for other, _ in last)
        if is_free and stretch.first <= (first + end) // 2 < stretch.end:
            last.append(((first, end), worker))
    return sorted(last)


def _draw_tile_legend(axes: Any, shown: Sequence[Colour], *, has_records: bool) -> None:
    """The signs of the near panel in words."""
    signs: list[Any] = [
        _tile_sign(shown[0], INK, "a tile: one commit of one worker"),
        _tile_sign(shown[1], INK, "its next commit"),
        _tile_sign(shown[2], "white", "white lines: neighbours that committed alike"),
    ]
    if has_records:
        signs.append(Line2D([], [], ls="", marker="o", ms=3, c=INK, label="a record"))
    axes.legend(
        handles=signs, loc="upper left", bbox_to_anchor=(-0.01, -0.075), ncols=2, frameon=False, fontsize=8.5,
        handlelength=1.4, columnspacing=1.5,
    )  # fmt: skip


def _tile_sign(face: Colour, edge: str, label: str) -> Rectangle:
    return Rectangle((0, 0), 1, 1, fc=face, ec=edge, lw=0.9, label=label)


def _name_axes(axes: Any, *, is_left: bool, is_low: bool) -> None:
    axes.set_xlabel("offset in the partition →" if is_low else "")
    axes.set_ylabel("hash of the key →" if is_left else "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=8, colors=INK, length=2)
