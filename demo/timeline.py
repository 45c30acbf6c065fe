"""Who worked on what over time, as a part of the picture: a row for each partition, a colour for each process."""

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Patch, Rectangle

from ..keyrange.hashing import SPACE_END
from .owners import Colour, Mark, Ownership, colour_of

TIMELINE_INCHES = 5.4
ROW = 0.86
"""Of the height of a row, the rest keeps it from the next one."""
INK, NOBODY = "#1d2733", "#dfe2e7"
WORDS_SHARE = 0.17
"""Of the width: marks that are nearer to each other have their words on different heights."""
HEIGHTS = 6
BAR = 0.12
AT_WORK: dict[str, Any] = {"fc": INK, "lw": 0, "clip_on": False}
"""Above the rows, from a step of a course that scales until all is balanced."""


def draw_timeline(figure: Any, ownership: Ownership) -> None:
    """Draw it into a figure of its own, with the names, their shares, and marks of who came and went."""
    axes = figure.add_axes((0.115, 0.1, 0.87, 0.51))
    places = sorted({(span.topic, span.partition) for span in ownership.spans}, reverse=True)
    rows = {place: row for row, place in enumerate(places)}
    end_s = max((span.to_s for span in ownership.spans), default=1.0)
    for row in rows.values():
        axes.add_patch(Rectangle((0, row), end_s, ROW, fc=NOBODY, lw=0))
    for span in ownership.spans:
        low = rows[span.topic, span.partition] + span.first / SPACE_END * ROW
        size = span.to_s - span.from_s, (span.end - span.first) / SPACE_END * ROW
        axes.add_patch(Rectangle((span.from_s, low), *size, fc=colour_of(span.name), lw=0))
    for copy in ownership.copies:  # over the owner of that time
        low = rows[copy.topic, copy.partition] + copy.first / SPACE_END * ROW
        size = copy.to_s - copy.from_s, (copy.end - copy.first) / SPACE_END * ROW
        axes.add_patch(Rectangle((copy.from_s, low), *size, **_hatched(colour_of(copy.name))))
    axes.set_xlim(0, end_s)
    axes.set_ylim(0, max(1, len(places)))
    axes.set_yticks([row + ROW / 2 for row in rows.values()], [f"{topic}[{p}]" for topic, p in rows])
    axes.tick_params(labelsize=8, colors=INK, length=2)
    axes.set_xlabel("seconds of work →")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _marks(axes, ownership.marks, end_s, len(places))
    said = "Who worked on what, over time: a row for each partition, in it the hash of the key upwards"
    figure.text(0.045, 0.945, said, fontsize=11)
    _legend(figure, ownership)


def _marks(axes: Any, marks: Sequence[Mark], end_s: float, top: int) -> None:
    """A line for each, with its words above, on the side where there is room."""
    height, before_s = 0, -end_s
    for mark in marks:
        height = (height + 1) % HEIGHTS if mark.at_s - before_s < WORDS_SHARE * end_s else 0
        before_s = mark.at_s
        y = top + 0.1 + 0.5 * height
        is_right = mark.at_s > (1 - WORDS_SHARE) * end_s
        style: dict[str, Any] = {"lw": 1.6, "ls": "-"} if mark.is_loss else {"lw": 1.1, "ls": (0, (4, 2))}
        if mark.is_step:
            style = {"lw": 0.8, "ls": "-"}
            axes.add_patch(Rectangle((mark.at_s, top), (mark.until_s or mark.at_s) - mark.at_s, BAR, **AT_WORK))
        axes.plot([mark.at_s, mark.at_s], [0, y], color=INK, clip_on=False, **style)
        sign = "" if mark.is_step else "✕ " if mark.is_loss else "+ "
        words = f" {sign}{mark.text}, {mark.at_s:.1f} s "
        side = "right" if is_right else "left"
        under = {"fc": "white", "ec": "none", "pad": 0.8}
        axes.text(mark.at_s, y, words, fontsize=8, va="bottom", ha=side, clip_on=False, bbox=under, zorder=4)


def _hatched(colour: Colour | str) -> dict[str, Any]:
    """The look of a copy: stripes in the colour of who has it."""
    return {"fc": "none", "ec": colour, "hatch": "/////", "lw": 0.0}


def _legend(figure: Any, ownership: Ownership) -> None:
    handles = [
        Patch(fc=colour_of(name), label=f"{name}: {share:.0%} of the plane") for name, share in ownership.shares.items()
    ]
    others = [Patch(fc=NOBODY, label="nobody")]
    if ownership.copies:
        others.append(Patch(label="copied by who shall own it", **_hatched(INK)))
    if any(mark.is_step for mark in ownership.marks):
        others.append(Patch(label="until balanced", **AT_WORK))
    figure.legend(
        handles=[*handles, *others], loc="upper left", bbox_to_anchor=(0.04, 0.93),
        frameon=False, fontsize=10, ncols=5, handlelength=1.2, columnspacing=1.6,
    )  # fmt: skip
