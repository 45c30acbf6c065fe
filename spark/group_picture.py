"""Who owned which points, over the time, as a picture: one panel for each source partition, coloured by member.

Needs matplotlib, which comes with the extra ``demo``.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..keyrange.hashing import SPACE_END
from .group_report import GroupFigures, MemberFigures, Reign

WIDTH_INCHES, PANEL_INCHES, REST_INCHES, DPI = 15.0, 1.5, 2.0, 110
PANELS_MAX = 16
MEMBERS_NAMED = 12
"""So many have a line in the legend: those that owned most."""
INK, NOBODY = "#1d2733", "white"
COLOURS = "tab20"
HOW_TO_READ = (
    "Time to the right, the hash of the key upwards. A range has the colour of the member that owned it; white: nobody."
)


def draw_group(figures: GroupFigures, path: str | os.PathLike[str], *, title: str) -> Path:
    """Draw the reigns of the members into a PNG file; returns its path."""
    path = Path(path)
    places = sorted({(reign.topic, reign.partition) for reign in figures.reigns})
    shown = places[:PANELS_MAX]
    height = REST_INCHES + PANEL_INCHES * max(1, len(shown))
    with mpl.rc_context({"font.family": "sans-serif", "font.size": 9, "axes.edgecolor": INK, "text.color": INK}):
        figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        left_out = f", the first {len(shown)} of {len(places)} partitions" if len(places) > len(shown) else ""
        figure.suptitle(f"{title}{left_out}", x=0.045, y=1 - 0.25 / height, ha="left", fontsize=15, fontweight="bold")
        figure.text(0.045, 0.2 / height, HOW_TO_READ, fontsize=9.5)
        top, bottom = 1 - 0.75 / height, 0.85 / height
        grid = figure.add_gridspec(max(1, len(shown)), 1, left=0.045, right=0.78, top=top, bottom=bottom, hspace=0.35)
        for row, place in enumerate(shown):
            own = [reign for reign in figures.reigns if (reign.topic, reign.partition) == place]
            _panel(figure.add_subplot(grid[row, 0]), place, own, figures, is_low=row == len(shown) - 1)
        _legend(figure, figures.members)
        partial = path.with_name(f"{path.name}.partial")
        figure.savefig(partial, format="png")
        partial.replace(path)
    return path


def colour(incarnation: int) -> Any:
    """Of a member: those that follow each other differ."""
    return mpl.colormaps[COLOURS](2 * (incarnation % 10) + incarnation // 10 % 2)


def _panel(axes: Any, place: tuple[str, int], reigns: Sequence[Reign], figures: GroupFigures, *, is_low: bool) -> None:
    def at_s(ms: int) -> float:
        return (ms - figures.from_ms) / 1000

    corners = [
        [(at_s(r.from_ms), r.first), (at_s(r.until_ms), r.first), (at_s(r.until_ms), r.end), (at_s(r.from_ms), r.end)]
        for r in reigns
    ]
    faces = [colour(reign.incarnation) for reign in reigns]
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=INK, linewidths=0.3))
    axes.set_facecolor(NOBODY)
    axes.set_title(f"{place[0]}, partition {place[1]}", fontsize=9.5, loc="left")
    axes.set_xlim(0, max(at_s(figures.until_ms), 0.001))
    axes.set_ylim(0, SPACE_END)
    axes.set_yticks([0, SPACE_END // 2, SPACE_END], ["0", "½", "1"])
    if is_low:
        axes.set_xlabel("seconds since the first grant")
    else:
        axes.set_xticklabels([])


def _legend(figure: Figure, members: Sequence[MemberFigures]) -> None:
    named = sorted(sorted(members, key=lambda member: -member.share)[:MEMBERS_NAMED])
    handles = [
        Patch(
            facecolor=colour(member.incarnation),
            edgecolor=INK,
            linewidth=0.3,
            label=f"{member.incarnation} {member.instance} {member.share:.1%}"
            + (f", {member.ended}" if member.ended else ""),
        )
        for member in named
    ]
    title = f"members{f', {len(named)} of {len(members)}' if len(named) < len(members) else ''}, with their share"
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.79, 0.95), frameon=False, title=title)
