"""The picture of a book: see ``cores.py``."""

from pathlib import Path
from statistics import median
from typing import Any

from rig.figures import Content
from rig.panels import panels_of, plain, saved
from spreading.run import Arm

PANEL_INCHES = (4.6, 3.2)
COLOURS = ("#0b6e4f", "#b3541e", "#3b6fb6", "#8a6fae")
EVEN = "#9aa5b1"
MIB = 1024 * 1024
PANELS = (
    ("per_second", 1.0, "rate, in rates of one process", True),
    ("cpu_us_per_record", 1.0, "µs of processor time of all processes, per record", False),
    ("peak_bytes", MIB, "peak memory of all processes, MiB", False),
)


def draw(content: Content, path: Path) -> Path:
    """Write the PNG."""
    kinds: dict[tuple[int, int], dict[int, list[dict[str, Any]]]] = {}
    for run in content["runs"]:
        if "figures" in run:
            arm = Arm(*run["figures"]["arm"])
            kinds.setdefault((arm.spin_us, arm.partitions), {}).setdefault(arm.processes, []).append(run["figures"])
    figure, axes = panels_of(1, len(PANELS), PANEL_INCHES)
    for axis, (name, unit, title, is_relative) in zip(axes.flat, PANELS, strict=True):
        for colour, ((spin_us, partitions), found) in zip(COLOURS, sorted(kinds.items()), strict=False):
            ys = {n: median(one[name] for one in runs) / unit for n, runs in sorted(found.items())}
            if is_relative and 1 in ys:
                ys = {n: y / ys[1] for n, y in ys.items()}
            label = f"{spin_us} µs, {partitions} partition{'s' if partitions > 1 else ''}"
            axis.plot(ys.keys(), ys.values(), marker="o", markersize=4, color=colour, label=label)
        counts = sorted({n for found in kinds.values() for n in found})
        if is_relative:
            cores = content["machine"]["cores"]
            axis.plot(counts, [min(n, cores) for n in counts], color=EVEN, linewidth=1, linestyle="--", label="cores")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.set_ylim(0, None)
        axis.set_xlabel("processes", fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        axis.legend(fontsize=7)
        plain(axis)
    size, cores = content["settings"]["size"], content["machine"]["cores"]
    figure.suptitle(f"Handlers that compute: {size} sizes, {cores} cores, which the broker shares")
    return saved(figure, path)
