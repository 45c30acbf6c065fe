"""The picture of "how cost grows": for each axis a panel of throughput above one of memory, on logarithmic axes."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from _bars import Content, values
from _grow_points import AXES, COUNT, PLAIN, Axis

mpl.use("Agg")  # there may be no screen
from matplotlib import pyplot as plt

MIB = 1024 * 1024
PANEL_INCHES = (4.2, 3.0)
COLOURS = {PLAIN: "#0b6e4f", COUNT: "#b3541e"}
BASE_COLOUR = "#9aa5b1"


def draw(content: Content, path: Path) -> Path:
    """Write the PNG; its path."""
    shown = [axis for axis in AXES if any(values(content, axis.name, handler) for handler in axis.handlers)]
    columns = max(len(shown), 1)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * 2 + 0.5)
    figure, panels = plt.subplots(2, columns, figsize=size, squeeze=False, layout="constrained")
    for place, axis in enumerate(shown):
        _throughput(panels[0][place], content, axis)
        _memory(panels[1][place], content, axis)
    size_name, cores = content["settings"]["size"], content["machine"]["cores"]
    figure.suptitle(f"How cost grows: keylanes, exactly once, {size_name} sizes, {cores} cores")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _throughput(panel: Any, content: Content, axis: Axis) -> None:
    lines(panel, content, axis, "per_second", "records/s")
    panel.set_title(axis.title, fontsize=9, loc="left")
    panel.set_yscale("log")
    seen = [rate for handler in axis.handlers for rate in values(content, axis.name, handler).values()]
    panel.set_ylim(min(min(seen) / 1.5, 10_000), max(max(seen) * 1.5, 200_000))
    if len(axis.handlers) > 1:
        panel.legend(fontsize=7)


def _memory(panel: Any, content: Content, axis: Axis) -> None:
    lines(panel, content, axis, "memory_bytes", "peak memory, MiB", scale=MIB)
    bases = [base / MIB for base in values(content, axis.name, axis.handlers[0], "rss_base_bytes").values()]
    if bases:
        panel.axhline(min(bases), color=BASE_COLOUR, linewidth=1, linestyle="--")
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.set_ylim(min(low, 40), max(high, 400))
    panel.set_xlabel(axis.unit, fontsize=8)


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
    panel.tick_params(labelsize=8)
    panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    panel.spines[["top", "right"]].set_visible(False)
