"""The picture of a book: one panel for each workload, a bar for each arm, whiskers from the least to the greatest."""

import statistics
from pathlib import Path
from typing import Any

from comparison.workloads import OURS, WORKLOADS, Workload
from rig.figures import Content, values
from rig.panels import panels_of, plain, saved

COLUMNS = 3
PANEL_INCHES = (6.2, 2.6)
OUR_COLOUR, OTHER_COLOUR, LIMIT_COLOUR = "#0b6e4f", "#9aa5b1", "#d9c27a"
LIMITS = ("getmany", "bare-lanes")
LATENCY_COLOURS = {"p50": "#b7d3c6", "p99": "#5fa58a", "p99.9": "#0b6e4f"}


def draw(content: Content, path: Path) -> Path:
    """Write the PNG; its path."""
    shown = [w for w in WORKLOADS if any(r["workload"] == w.name and "figures" in r for r in content["runs"])]
    rows = -(-max(len(shown), 1) // COLUMNS)
    figure, axes = panels_of(rows, COLUMNS, PANEL_INCHES)
    for place, axis in enumerate(axes.flat):
        if place >= len(shown):
            axis.set_visible(False)
            continue
        panel = _latency_panel if shown[place].kind == "latency" else _rate_panel
        panel(axis, content, shown[place])
    size_name, cores = content["settings"]["size"], content["machine"]["cores"]
    figure.suptitle(f"keylanes beside the others: {size_name} sizes, {cores} cores; each panel on one topic")
    return saved(figure, path)


def _rate_panel(axis: Any, content: Content, workload: Workload) -> None:
    """Throughput; for the kill what was run again."""
    name = "again" if workload.kind == "kill" else "per_second"
    found = [(arm, values(content, workload.name, arm, name)) for arm in workload.arms]
    found = [(arm, runs) for arm, runs in reversed(found) if runs]
    middles = [statistics.median(runs.values()) for _, runs in found]
    reach = max((value for _, runs in found for value in runs.values()), default=1) or 1
    for place, ((arm, runs), middle) in enumerate(zip(found, middles, strict=True)):
        colour = OUR_COLOUR if arm.startswith(OURS) else LIMIT_COLOUR if arm in LIMITS else OTHER_COLOUR
        whiskers = [[middle - min(runs.values())], [max(runs.values()) - middle]]
        axis.barh(place, middle, color=colour, xerr=whiskers, error_kw={"capsize": 3, "elinewidth": 1})
        axis.text(max(runs.values()) + reach * 0.02, place, f"{middle:,.0f}", va="center", fontsize=8)
    axis.set_yticks(range(len(found)), [arm for arm, _ in found], fontsize=8)
    axis.set_xlim(0, reach * 1.25)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g} k" if value else "0")
    axis.set_title(f"{workload.name}: {workload.title}", fontsize=9, loc="left")
    axis.set_xlabel("records run again after kill -9" if workload.kind == "kill" else "records/s", fontsize=8)
    plain(axis)


def _latency_panel(axis: Any, content: Content, workload: Workload) -> None:
    """Three percentiles for each arm, on a logarithmic axis."""
    arms = [arm for arm in reversed(workload.arms) if values(content, workload.name, arm, "p50")]
    height = 0.8 / len(LATENCY_COLOURS)
    for place, arm in enumerate(arms):
        for step, (name, colour) in enumerate(LATENCY_COLOURS.items()):
            runs = values(content, workload.name, arm, name).values()
            middle, at = statistics.median(runs), place + height * (1 - step)
            whiskers = [[middle - min(runs)], [max(runs) - middle]]
            label = name if place == 0 else None
            axis.barh(at, middle, height, color=colour, xerr=whiskers, label=label, error_kw={"capsize": 2})
            axis.text(max(runs) * 1.08, at, f"{middle:,.1f}", va="center", fontsize=7)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(low, high * 10)  # room for figures and legend
    axis.set_yticks(range(len(arms)), arms, fontsize=8)
    axis.set_title(f"{workload.name}: {workload.title}", fontsize=9, loc="left")
    axis.set_xlabel(f"ms at {content.get('latency_rate', 0):,.0f} records/s", fontsize=8)
    axis.legend(fontsize=7, loc="center right")
    plain(axis)
