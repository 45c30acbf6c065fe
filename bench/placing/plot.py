"""The picture of how the cost of placement grows: a step and a whole plan, over the ranges of the group."""

from pathlib import Path
from typing import Any

from rig.figures import Content
from rig.panels import panels_of, plain, saved

PANEL_INCHES = (4.2, 3.0)
COLOUR = "#0b6e4f"


def draw(content: Content, path: Path) -> Path:
    """Write the PNG; its path."""
    figure, panels = panels_of(1, 3, PANEL_INCHES)
    for panel, name, title in zip(
        panels[0], ("step_ms", "plan_s", "start_s"), ("a step, ms", "a plan for a skew, s", "a start, s"), strict=True
    ):
        _line(panel, content["plans"], name, title)
    figure.suptitle("What placement costs, by ranges: processor time")
    return saved(figure, path)


def _line(panel: Any, plans: list[dict[str, Any]], name: str, title: str) -> None:
    panel.plot([one["ranges"] for one in plans], [one[name] for one in plans], marker="o", markersize=4, color=COLOUR)
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_title(title, fontsize=9, loc="left")
    plain(panel)
    panel.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
