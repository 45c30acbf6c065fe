"""Panels of a picture, as all pictures here have them."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # there may be no screen
from matplotlib import pyplot as plt


def panels_of(rows: int, columns: int, inches: tuple[float, float]) -> tuple[Any, Any]:
    """A figure, and its panels in rows, each so large."""
    size = (inches[0] * columns, inches[1] * rows + 0.6)
    figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, panels


def saved(figure: Any, path: Path) -> Path:
    """Write the PNG; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def plain(panel: Any) -> None:
    """Small ticks, and no frame."""
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
