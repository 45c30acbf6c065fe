"""The picture of a steady load: what could grow, over time, each with the line that was fitted through it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.panels import panels_of, plain, saved
from steadiness.slopes import BOUNDS, FIRST_SHARE, Bound, fitted

COLUMNS = 2
PANEL_INCHES = (6.2, 2.3)
COLOUR, LINE_COLOUR = "#0b6e4f", "#b3541e"


def draw(result: dict[str, Any], path: Path) -> Path:
    """Write the PNG; its path."""
    rows = -(-len(BOUNDS) // COLUMNS)
    figure, panels = panels_of(rows, COLUMNS, PANEL_INCHES)
    for panel, bound in zip(panels.flat, BOUNDS, strict=False):
        _panel(panel, result["samples"], bound)
    settings = result["settings"]
    figure.suptitle(f"{settings['per_second']:,.0f} records/s for {settings['minutes']:g} minutes: what could grow")
    return saved(figure, path)


def _panel(panel: Any, samples: Sequence[dict[str, float]], bound: Bound) -> None:
    minutes = [sample["at_s"] / 60 for sample in samples]
    values = [sample[bound.name] / bound.scale for sample in samples]
    panel.plot(minutes, values, color=COLOUR, linewidth=1, marker="o", markersize=2.5)
    kept = [(at, v) for at, v in zip(minutes, values, strict=True) if at >= FIRST_SHARE * minutes[-1]]
    if len(kept) > 2:
        seconds = [at for at, _ in kept]
        line = fitted(seconds, [v for _, v in kept])
        panel.plot(seconds, [line.start + line.slope * at for at in seconds], color=LINE_COLOUR, linewidth=1.2)
    panel.set_ylim(0, max(max(values, default=0.0) * 1.25, 1e-9))
    unit = f", {bound.unit}" if bound.unit else ""
    panel.set_title(f"{bound.title}{unit}", fontsize=9, loc="left")
    panel.set_xlabel("minutes", fontsize=8)
    plain(panel)
