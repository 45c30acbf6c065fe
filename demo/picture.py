"""The plane as a picture: offset × key hash, one panel for each partition, tiles coloured by worker, or by process
where there were several; and one stretch of it so near that single tiles, and the records in them, can be seen.

The panels are painted pixel by pixel from the tiles, so a million of them cost no more than their number; only those of
the stretch become shapes. Needs matplotlib and numpy, which come with the extra ``demo``.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ..keyrange.hashing import SPACE_END
from .owners import Ownership, colour_of
from .tiles import (
    NOTHING_KNOWN,
    STRETCH_WORKERS,
    Change,
    PlaneTile,
    Stretch,
    WorkerName,
    choose_stretch,
    workers_of,
)
from .timeline import TIMELINE_INCHES, draw_timeline

WIDTH_INCHES, HEIGHT_INCHES, DPI = 15.0, 9.4, 110
PANEL_PIXELS = (900, 1_024)  # offsets, points
PANELS_MAX = 8
SHADES = 3
BORDER_PIXELS = 5
"""How wide the line is where a range changed hands."""
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
    "that is one tile. Together the tiles cover the plane without overlap and without a hole: every record was",
    "processed exactly once. Nothing waits for the slowest: where tiles end raggedly, some workers were ahead.",
)
HOW_TO_READ_OWNERS = (
    *HOW_TO_READ[:3],
    "processed exactly once. A dark line shows where a range went from one process to another: exactly at its edge.",
)


def draw_plane(
    tiles: Sequence[PlaneTile],
    path: str | os.PathLike[str],
    *,
    title: str,
    stretch: Stretch | None = None,
    records: Sequence[tuple[int, int]] = (),
    changes: Sequence[tuple[Change, int]] = (),
    ranges: Mapping[WorkerName, tuple[int, int]] = NOTHING_KNOWN,
    ownership: Ownership | None = None,
) -> Path:
    """Draw the tiles of an application into a PNG file; returns its path.

    ``stretch`` None: one is chosen. ``records`` are the (offset, point) of the records in the stretch, drawn as dots;
    ``changes`` of who works on what, each with its offset, are drawn as small signs. ``ranges``: those of workers that
    are not all alike.
    """
    path = Path(path)
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 9, "axes.edgecolor": INK, "text.color": INK}):
        height = HEIGHT_INCHES + (TIMELINE_INCHES if ownership is not None else 0)
        whole = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(whole)
        figure: Any = whole
        lines = HOW_TO_READ
        if ownership is not None:
            figure, below = whole.subfigures(2, 1, height_ratios=[HEIGHT_INCHES, TIMELINE_INCHES])
            draw_timeline(below, ownership)
            lines = HOW_TO_READ_OWNERS
        figure.suptitle(title, x=0.045, y=0.975, ha="left", fontsize=15, fontweight="bold")
        figure.text(0.045, 0.022, "\n".join(lines), fontsize=9.5, linespacing=1.35)
        stretch = stretch or choose_stretch(tiles)
        _overview(figure, tiles, stretch, changes if ownership is None else (), ownership)
        _legend_of_signs(figure, changes if ownership is None else ())
        if stretch is not None:
            _near(figure, [tile for tile in tiles if stretch.meets(tile)], stretch, records, ranges, ownership)
        partial = path.with_name(f"{path.name}.partial")
        whole.savefig(partial, format="png")
        partial.replace(path)
    return path


# --- all of it -----------------------------------------------------------------------------------------------------


def _overview(
    figure: Any,
    tiles: Sequence[PlaneTile],
    stretch: Stretch | None,
    changes: Sequence[tuple[Change, int]],
    ownership: Ownership | None,
) -> None:
    places = sorted({(tile.topic, tile.partition) for tile in tiles})
    shown = places[:PANELS_MAX]
    columns = 1 if len(shown) <= 1 else 2
    rows = max(1, -(-len(shown) // columns))
    grid = figure.add_gridspec(rows, columns, left=0.045, right=0.555, top=0.885, bottom=0.165, hspace=0.22, wspace=0.1)
    left_out = f", the first {len(shown)} of {len(places)} partitions" if len(places) > len(shown) else ""
    hues = "hue by worker" if ownership is None else "a colour for each process"
    figure.text(0.045, 0.925, f"The whole plane{left_out}: {hues}, light and dark by commit", fontsize=11)
    for number, (topic, partition) in enumerate(shown):
        own = [tile for tile in tiles if (tile.topic, tile.partition) == (topic, partition)]
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
        _signs(axes, [change for change in changes if (change[0].topic, change[0].partition) == (topic, partition)])
        if stretch is not None and (topic, partition) == stretch[:2]:
            size = stretch.offset_to - stretch.offset_from, stretch.end - stretch.first
            axes.add_patch(Rectangle((stretch.offset_from, stretch.first), *size, fill=False, ec="black", lw=1.6))


def _signs(axes: Any, changes: Sequence[tuple[Change, int]]) -> None:
    """A split and a merge where the border came or went, a release and a grant in the middle of the range."""
    for kind, (marker, _) in SIGNS.items():
        places = [
            (offset, change.first if kind in ("split", "merge") else (change.first + change.end) / 2)
            for change, offset in changes
            if change.kind == kind
        ]
        if places:
            size = 30 if kind == "release" else 12  # a grant lies where the release was
            axes.scatter(*zip(*places, strict=True), marker=marker, s=size, **SIGN_STYLE)


def _legend_of_signs(figure: Any, changes: Sequence[tuple[Change, int]]) -> None:
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
    """The tiles of one partition as pixels, an array of (points, offsets, rgb) from 0 to 1; white is no tile."""
    width, height = PANEL_PIXELS
    pixels = np.ones((height, width, 3), dtype=np.float32)
    hues = (np.arange(height) + 0.5) / height
    shades = [np.array([colour(hue, shade) for hue in hues], dtype=np.float32)[:, None, :] for shade in range(SHADES)]
    scale = width / max(1, end - start)
    commits = _numbered(tiles)
    for tile in tiles:
        left, right = int((tile.offset_from - start) * scale), int((tile.offset_to - start) * scale)
        low, high = tile.first * height // SPACE_END, tile.end * height // SPACE_END
        right, high = max(right, left + 1), max(high, low + 1)
        pixels[low:high, left:right] = shades[commits[tile.incarnation, tile.transaction] % SHADES][low:high]
    return pixels


def paint_owners(tiles: Sequence[PlaneTile], start: int, end: int, ownership: Ownership) -> Any:
    """The same, by process: a hue for each, and a dark line where a range went from one to another."""
    width, height = PANEL_PIXELS
    pixels = np.ones((height, width, 3), dtype=np.float32)
    owners = np.full((height, width), -1, dtype=np.int16)
    numbers = {name: number for number, name in enumerate(sorted(ownership.shares))}
    scale = width / max(1, end - start)
    commits = _numbered(tiles)
    for tile in tiles:
        left, right = int((tile.offset_from - start) * scale), int((tile.offset_to - start) * scale)
        low, high = tile.first * height // SPACE_END, tile.end * height // SPACE_END
        right, high = max(right, left + 1), max(high, low + 1)
        name = ownership.names.get(tile.incarnation, "?")
        owners[low:high, left:right] = numbers.get(name, -1)
        pixels[low:high, left:right] = colour_of(name, commits[tile.incarnation, tile.transaction])
    changed = (owners[:, 1:] != owners[:, :-1]) & (owners[:, 1:] >= 0) & (owners[:, :-1] >= 0)
    for shift in range(BORDER_PIXELS):
        pixels[:, shift : shift + width - 1][changed[:, : width - shift]] = mpl.colors.to_rgb(INK)
    return pixels


def _numbered(tiles: Sequence[PlaneTile]) -> dict[tuple[int, int], int]:
    """Commits by (incarnation, transaction), counted: those of other partitions in between must not repeat a shade."""
    return {commit: number for number, commit in enumerate(sorted({(t.incarnation, t.transaction) for t in tiles}))}


def colour(hue: float, shade: int) -> tuple[float, float, float]:
    """A hue (0 to 1) for a worker, and one of ``SHADES`` for a commit; as red, green and blue from 0 to 1."""
    light = (0.97, 0.76, 0.87)[shade % SHADES]
    red, green, blue = (float(channel) for channel in mpl.colors.hsv_to_rgb((hue * 0.92 + 0.02, 0.42, light)))
    return red, green, blue


# --- one stretch of it ---------------------------------------------------------------------------------------------


def _near(
    figure: Any,
    tiles: Sequence[PlaneTile],
    stretch: Stretch,
    records: Sequence[tuple[int, int]],
    ranges: Mapping[WorkerName, tuple[int, int]],
    ownership: Ownership | None,
) -> None:
    axes = figure.add_axes((0.605, 0.215, 0.335, 0.67))
    figure.text(0.605, 0.925, "The black frame, seen from near: single tiles and their records", fontsize=11)
    axes.set_facecolor(PALE)
    bands: dict[tuple[int, int], tuple[int, int]] = {}
    commits = _numbered(tiles)
    for tile in tiles:
        width = tile.offset_to - tile.offset_from
        for worker, first, end in workers_of(tile, ranges):
            bands[first, end] = max(bands.get((first, end), (0, 0)), (tile.offset_to, worker))
            commit = commits[tile.incarnation, tile.transaction]
            if ownership is None:
                face = colour((first / max(1, end - first) * 0.381966) % 1.0, commit)
            else:
                face = colour_of(ownership.names.get(tile.incarnation, "?"), commit)
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
        name = ownership.names.get(tiles[0].incarnation, "?")
        shown = [colour_of(name, 0), colour_of(name, 1), colour_of(name, 2)]
    _legend(axes, shown, has_records=bool(records))
    beside = axes.get_yaxis_transform()
    for (first, end), worker in _last_of(bands, stretch)[: 2 * STRETCH_WORKERS]:
        axes.text(1.01, (first + end) / 2, f"worker {worker}", transform=beside, va="center", fontsize=8)


def _last_of(bands: dict[tuple[int, int], tuple[int, int]], stretch: Stretch) -> list[tuple[tuple[int, int], int]]:
    """The bands that were there last, with their workers: of those that overlap, the one with the later tile."""
    kept: list[tuple[tuple[int, int], int]] = []
    for (first, end), (_, worker) in sorted(bands.items(), key=lambda item: item[1], reverse=True):
        is_free = all(end <= other[0] or other[1] <= first for other, _ in kept)
        if is_free and stretch.first <= (first + end) // 2 < stretch.end:
            kept.append(((first, end), worker))
    return sorted(kept)


def _legend(axes: Any, shown: Sequence[tuple[float, float, float]], *, has_records: bool) -> None:
    """The signs of the near panel in words."""
    signs: list[Any] = [
        _sign(shown[0], INK, "a tile: one commit of one worker"),
        _sign(shown[1], INK, "its next commit"),
        _sign(shown[2], "white", "white lines: neighbours that committed alike"),
    ]
    if has_records:
        signs.append(Line2D([], [], ls="", marker="o", ms=3, c=INK, label="a record"))
    axes.legend(
        handles=signs, loc="upper left", bbox_to_anchor=(-0.01, -0.075), ncols=2, frameon=False, fontsize=8.5,
        handlelength=1.4, columnspacing=1.5,
    )  # fmt: skip


def _sign(face: tuple[float, float, float], edge: str, label: str) -> Rectangle:
    return Rectangle((0, 0), 1, 1, fc=face, ec=edge, lw=0.9, label=label)


def _name_axes(axes: Any, *, is_left: bool, is_low: bool) -> None:
    axes.set_xlabel("offset in the partition →" if is_low else "")
    axes.set_ylabel("hash of the key →" if is_left else "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=8, colors=INK, length=2)
