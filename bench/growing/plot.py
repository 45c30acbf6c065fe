"""The picture of "how cost grows": for each axis a panel of throughput above one of memory, on logarithmic axes."""

import math
from pathlib import Path
from typing import Any

from growing.points import AXES, COUNT, PLAIN, Axis
from rig.figures import Content, values
from rig.panels import panels_of, plain, saved

MIB = 1024 * 1024
PANEL_INCHES = (4.2, 3.0)
COLOURS = {PLAIN: "#0b6e4f", COUNT: "#b3541e"}
BASE_COLOUR = "#9aa5b1"


def draw(content: Content, path: Path) -> Path:
    """Write the PNG; its path."""
    shown = [axis for axis in AXES if any(values(content, axis.name, handler) for handler in axis.handlers)]
    columns = max(len(shown), 1)
    figure, panels = panels_of(2, columns, PANEL_INCHES)
    for place, axis in enumerate(shown):
        _throughput(panels[0][place], content, axis)
        _memory(panels[1][place], content, axis)
    size_name, cores = content["settings"]["size"], content["machine"]["cores"]
    figure.suptitle(f"How cost grows: keylanes, exactly once, {size_name} sizes, {cores} cores")
    return saved(figure, path)


def _throughput(panel: Any, content: Content, axis: Axis) -> None:
    lines(panel, content, axis, "per_second", "records/s")
    panel.set_title(axis.title, fontsize=9, loc="left")
    seen = [rate for handler in axis.handlers for rate in values(content, axis.name, handler).values()]
    logarithmic(panel, min(min(seen) / 1.5, 20_000), max(max(seen) * 1.5, 500_000))
    if len(axis.handlers) > 1:
        panel.legend(fontsize=7)


def _memory(panel: Any, content: Content, axis: Axis) -> None:
    lines(panel, content, axis, "memory_bytes", "peak memory, MiB", scale=MIB)
    bases = [base / MIB for base in values(content, axis.name, axis.handlers[0], "rss_base_bytes").values()]
    if bases:
        panel.axhline(min(bases), color=BASE_COLOUR, linewidth=1, linestyle="--")
    _, high = panel.get_ylim()
    logarithmic(panel, 30, max(high, 400))
    panel.set_xlabel(axis.unit, fontsize=8)


def logarithmic(panel: Any, low: float, high: float) -> None:
    """The upright axis, with whole numbers at 1, 2 and 5 times a power of ten."""
    panel.set_yscale("log")
    panel.set_ylim(low, high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    panel.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    panel.set_yticks([], minor=True)


def lines(panel: Any, content: Content, axis: Axis, name: str, label: str, scale: float = 1.0) -> None:
    """A line for each handler; 0 has a place of its own before the first power of ten."""
    for handler in axis.handlers:
        found = sorted(values(content, axis.name, handler, name).items())
        xs, ys = [x for x, _ in found], [y / scale for _, y in found]
        panel.plot(xs, ys, marker="o", markersize=4, color=COLOURS[handler], label=handler)
    least = min((x for x in axis.full if x), default=1)
    if 0 in axis.full:
        panel.set_xscale("symlog", linthresh=least)
    else:
        panel.set_xscale("log")
    panel.set_ylabel(label, fontsize=8)
    plain(panel)
    panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
