"""The owners of points over the time, as a picture: a row for each source partition, a colour for each member.

Needs matplotlib, which comes with the extra ``plot``.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..keyrange.hashing import SPACE_END
from .group_report import GroupFigures, OwnershipPicture, Reign, TimeMark

WIDTH_INCHES, DPI = 15.0, 110
ROW_INCHES, REST_INCHES = 0.45, 2.6
ROWS_MAX: Final = 16
MEMBERS_NAMED_MAX: Final = 12
"""The legend has the members with the largest shares."""
INK, NOBODY = "#1d2733", "#dfe2e7"
ROW: Final = 0.86
"""The height of a row. The rest of 1 is the gap to the next row."""
MARK_WORDS_SHARE: Final = 0.17
"""The width of the words of a mark, as a share of the picture's width. Nearer marks have words at different heights."""
MARK_HEIGHTS: Final = 6
"""The number of heights for the words of marks."""
ROWS_OF_MARKS: Final = 8
"""The heights of words and bars are measured in rows of a picture with this number of rows: every picture has room."""
MARKED_SHARE: Final = 0.61
"""The upper edge of the rows in a picture with marks, as a share of its height: the words of marks stand above."""
BAR: Final = 0.12
"""The height of the bar from a mark to its ``until_s``."""
WORK_STYLE: dict[str, Any] = {"fc": INK, "lw": 0, "clip_on": False}
"""The style of this bar."""

Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, from 0 to 1."""
COLOURS: Final[Sequence[Colour]] = (
    (0.34, 0.61, 0.84), (0.95, 0.64, 0.28), (0.44, 0.73, 0.45), (0.83, 0.48, 0.71),
    (0.90, 0.82, 0.34), (0.33, 0.74, 0.73), (0.85, 0.39, 0.36), (0.58, 0.50, 0.80),
)  # fmt: skip
PALE_SHARES: Final = (0.0, 0.22, 0.5)
"""The share of white in each shade of a colour."""
DARKER, DEPTHS = 0.72, 3
"""The second and the third eight members have the same colours, darker."""


def colour_of(number: int, shade: int = 0) -> Colour:
    """The colour of a member. ``shade``: neighbouring commits of the member have different shades."""
    pale, depth = PALE_SHARES[shade % len(PALE_SHARES)], DARKER ** (number // len(COLOURS) % DEPTHS)
    red, green, blue = (channel * depth * (1 - pale) + pale for channel in COLOURS[number % len(COLOURS)])
    return red, green, blue


def ownership_of(figures: GroupFigures) -> OwnershipPicture:
    """The members of an audit's report; each incarnation has another name."""
    names = {
        one.incarnation: f"{one.incarnation} {one.instance}".rstrip() + (f", {one.ended}" if one.ended else "")
        for one in figures.members
    }
    return OwnershipPicture(
        names=names,
        shares={names[one.incarnation]: one.share for one in figures.members},
        shares_of="the points over the time",
        reigns=[
            reign._replace(from_ms=reign.from_ms - figures.from_ms, until_ms=reign.until_ms - figures.from_ms)
            for reign in figures.reigns
        ],
        clock="seconds since the first grant",
    )


def draw_group(figures: GroupFigures, path: str | os.PathLike[str], *, title: str) -> Path:
    """Draw the reigns of the members into a PNG file; returns its path."""
    ownership = ownership_of(figures)
    places = sorted({reign[:2] for reign in ownership.reigns})
    shown = places[:ROWS_MAX]
    left_out = f", the first {len(shown)} of {len(places)} partitions" if len(places) > len(shown) else ""
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 9, "axes.edgecolor": INK, "text.color": INK}):
        figure = Figure(figsize=(WIDTH_INCHES, REST_INCHES + ROW_INCHES * len(shown)), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        reigns = [reign for reign in ownership.reigns if reign[:2] in shown]
        draw_timeline(figure, ownership._replace(reigns=reigns), title=f"{title}{left_out}")
        return save_figure(figure, Path(path))


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a PNG file, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    figure.savefig(partial, format="png")
    return partial.replace(path)


def draw_timeline(figure: Any, ownership: OwnershipPicture, *, title: str) -> None:
    """Draw the reigns into a figure, with the names and shares of the members, and the marks."""
    inch = figure.dpi / figure.bbox.height  # as a share of the figure's height
    low, high = 0.54 * inch, MARKED_SHARE if ownership.marks else 1 - 1.35 * inch
    axes = figure.add_axes((0.115, low, 0.87, high - low))
    places = sorted({reign[:2] for reign in ownership.reigns}, reverse=True)
    rows = {place: row for row, place in enumerate(places)}
    numbers = ownership.numbers()
    end_s = max((reign.until_ms for reign in ownership.reigns), default=1_000) / 1_000 or 0.001
    for row in rows.values():
        axes.add_patch(Rectangle((0, row), end_s, ROW, fc=NOBODY, lw=0))
    for reign in ownership.reigns:
        axes.add_patch(_patch(reign, rows, fc=colour_of(numbers.get(reign.incarnation, 0)), lw=0))
    for copy in ownership.copies:  # over the owner of that time
        if copy[:2] in rows:
            axes.add_patch(_patch(copy, rows, **_copy_style(colour_of(numbers.get(copy.incarnation, 0)))))
    axes.set_xlim(0, end_s)
    axes.set_ylim(0, max(1, len(places)))
    axes.set_yticks([row + ROW / 2 for row in rows.values()], [f"{topic}[{p}]" for topic, p in rows])
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.set_xlabel(f"{ownership.clock} →")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _draw_marks(axes, ownership.marks, end_s, len(places))
    figure.text(
        0.045, 1 - 0.3 * inch, f"{title}. A row for each partition, in it the hash of the key upwards", fontsize=11
    )
    _draw_legend(figure, ownership, 1 - 0.38 * inch)


def _patch(reign: Reign, rows: Mapping[tuple[str, int], int], **style: Any) -> Rectangle:
    low = rows[reign.topic, reign.partition] + reign.first / SPACE_END * ROW
    size = (reign.until_ms - reign.from_ms) / 1_000, (reign.end - reign.first) / SPACE_END * ROW
    return Rectangle((reign.from_ms / 1_000, low), *size, **style)


def _draw_marks(axes: Any, marks: Sequence[TimeMark], end_s: float, top: int) -> None:
    """A line for each mark, with its words above, on the side where the picture has room. ``top``: the upper edge of
    the rows.
    """
    height, before_s, unit = 0, -end_s, max(1, top) / ROWS_OF_MARKS
    for mark in marks:
        height = (height + 1) % MARK_HEIGHTS if mark.at_s - before_s < MARK_WORDS_SHARE * end_s else 0
        before_s = mark.at_s
        y = top + (0.1 + 0.5 * height) * unit
        is_right = mark.at_s > (1 - MARK_WORDS_SHARE) * end_s
        style: dict[str, Any] = {"lw": 1.6, "ls": "-"} if mark.is_loss else {"lw": 1.1, "ls": (0, (4, 2))}
        if mark.is_step:
            style = {"lw": 0.8, "ls": "-"}
            axes.add_patch(
                Rectangle((mark.at_s, top), (mark.until_s or mark.at_s) - mark.at_s, BAR * unit, **WORK_STYLE)
            )
        axes.plot([mark.at_s, mark.at_s], [0, y], color=INK, clip_on=False, **style)
        sign = "" if mark.is_step else "✕ " if mark.is_loss else "+ "
        words = f" {sign}{mark.text}, {mark.at_s:.1f} s "
        side = "right" if is_right else "left"
        under = {"fc": "white", "ec": "none", "pad": 0.8}
        axes.text(mark.at_s, y, words, fontsize=8, va="bottom", ha=side, clip_on=False, bbox=under, zorder=4)


def _copy_style(colour: Colour | str) -> dict[str, Any]:
    """The look of a copy: stripes in the colour of its member."""
    return {"fc": "none", "ec": colour, "hatch": "/////", "lw": 0.0}


def _draw_legend(figure: Any, ownership: OwnershipPicture, top: float) -> None:
    colours = {name: colour_of(number) for number, name in enumerate(dict.fromkeys(ownership.names.values()))}
    largest = sorted(ownership.shares, key=lambda name: -ownership.shares[name])[:MEMBERS_NAMED_MAX]
    handles = [
        Patch(fc=colour, label=f"{name}: {ownership.shares[name]:.0%} of {ownership.shares_of}")
        for name, colour in colours.items()
        if name in largest
    ]
    others = [Patch(fc=NOBODY, label="nobody")]
    if ownership.copies:
        others.append(Patch(label="copied by its next owner", **_copy_style(INK)))
    if any(mark.is_step for mark in ownership.marks):
        others.append(Patch(label="until balanced", **WORK_STYLE))
    if (more := len(ownership.shares) - len(largest)) > 0:
        others.append(Patch(fc="none", label=f"and {more} members with smaller shares"))
    figure.legend(
        handles=[*handles, *others], loc="upper left", bbox_to_anchor=(0.04, top),
        frameon=False, fontsize=10, ncols=5, handlelength=1.2, columnspacing=1.6,
    )  # fmt: skip
