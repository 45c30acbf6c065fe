"""The picture of a book: see ``cores.py``."""

from pathlib import Path
from statistics import median
from typing import Any

from rig.figures import Content
from rig.panels import panels_of, plain, saved
from spreading.run import Arm

PANEL_INCHES = (4.4, 3.0)
COLOURS = ("#0b6e4f", "#b3541e", "#3b6fb6", "#8a6fae")
EVEN = "#9aa5b1"
MIB = 1024 * 1024
ROOM = 1.12
"""Above the highest point."""
RATE, READ, MOVES = "steady_per_second", "read", "handed_over_ms"
CPU = "cpu_us_per_record"
OF_ONE = (RATE, CPU)
"""These are shown in those of one process."""
PANELS = (
    (RATE, 1.0, "steady rate, in rates of one process"),
    (CPU, 1.0, "processor time per record, in that of one process"),
    (READ, 1.0, "records read per record handled"),
    ("memory_bytes", MIB, "memory of all processes, MiB"),
    ("spread_s", 1.0, "s until all are at work"),
    (MOVES, 1.0, "ms from a move being asked for to its end"),
)
"""Each is a sum over all processes, the parent included."""

Runs = list[dict[str, Any]]


def draw(content: Content, path: Path) -> Path:
    """Write the PNG."""
    kinds: dict[tuple[int, int], dict[int, Runs]] = {}
    for run in content["runs"]:
        if "figures" in run:
            arm = Arm(*run["figures"]["arm"])
            kinds.setdefault((arm.spin_us, arm.partitions), {}).setdefault(arm.processes, []).append(run["figures"])
    counts = sorted({n for found in kinds.values() for n in found})
    cores = content["machine"]["cores"]
    figure, axes = panels_of(2, len(PANELS) // 2, PANEL_INCHES)
    for axis, (name, unit, title) in zip(axes.flat, PANELS, strict=True):
        highest = cores if name == RATE else 0.0
        for colour, ((spin_us, partitions), found) in zip(COLOURS, sorted(kinds.items()), strict=False):
            ys = {n: y / unit for n, runs in sorted(found.items()) if (y := _middle(runs, name)) is not None}
            if name in OF_ONE:
                ys = {n: y / ys[1] for n, y in ys.items()} if 1 in ys else {}
            highest = max(highest, *ys.values()) if ys else highest
            label = f"{spin_us:,} µs, {partitions} partition{'s' if partitions > 1 else ''}"
            if ys:
                axis.plot(ys.keys(), ys.values(), marker="o", markersize=4, color=colour, label=label)
        if name == RATE:
            axis.plot(counts, [min(n, cores) for n in counts], color=EVEN, linewidth=1, linestyle="--", label="cores")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.set_xlim(min(counts, default=1) * 0.85, max(counts, default=1) * 1.18)
        axis.set_ylim(0, highest * ROOM or 1)
        axis.set_xlabel("processes", fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=7)
        plain(axis)
    size = content["settings"]["size"]
    figure.suptitle(f"Handlers that compute: {size} sizes, {cores} cores, which the broker shares")
    return saved(figure, path)


def _middle(runs: Runs, name: str) -> float | None:
    """The median over all runs, or over all hand-overs of them; None where there is none."""
    found = [run[name] for run in runs] if name != MOVES else [ms for run in runs for ms in run[name]]
    known = [one for one in found if one is not None]
    return median(known) if known else None
