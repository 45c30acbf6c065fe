"""The picture of a group."""

from pathlib import Path
from typing import Any

import pytest

from keylanes.spark.group_report import OwnershipPicture, Reign, TimeMark

from ..tiers.marks import tier
from .honest_group import FIRST, SECOND, GroupPlanner
from .test_group_figures import figures_of

pytest.importorskip("matplotlib")

import matplotlib.image as mpl_image
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from keylanes.spark.group_picture import (
    COLOURS,
    DEPTHS,
    PALE_SHARES,
    colour_of,
    draw_group,
    draw_timeline,
    ownership_of,
)

pytestmark = tier("check")

TWO = OwnershipPicture(
    names={7: "a-1", 8: "a-2", 9: "a-1"},
    shares={"a-1": 0.5, "a-2": 0.5},
    shares_of="the plane",
    reigns=[Reign("t", 0, 0, 1 << 32, 7, 0, 1_000), Reign("t", 0, 0, 1 << 32, 8, 3_000, 4_000)],
    clock="seconds of work",
    marks=[
        TimeMark(1.0, "a-1 is killed", True),
        TimeMark(1.1, "a-2 coordinates", False),
        TimeMark(2.0, "−1: a-1", is_loss=True, is_step=True, until_s=3.0),
        TimeMark(3.9, "late", False),
    ],
)
"""Two members; the first one is back as another incarnation, and owns nothing then."""


def test_a_range_has_the_colour_of_its_owner(tmp_path: Path) -> None:
    """Both members and the gaps between them are in the picture, and nothing half-written is left."""
    figures = figures_of(GroupPlanner().run())
    path = draw_group(figures, tmp_path / "group.png", title="Who owned what: flights")
    assert [entry.name for entry in tmp_path.iterdir()] == ["group.png"]
    pixels = mpl_image.imread(path)[:, :, :3]
    numbers = ownership_of(figures).numbers()
    for member in (FIRST, SECOND):
        share = (abs(pixels - colour_of(numbers[member])) < 0.01).all(axis=2).mean()
        assert share > 0.05, f"{member} is not seen in {pixels.shape}"


def test_each_member_has_a_colour_of_its_own() -> None:
    """In each shade, for as many members as there are colours and depths; incarnations of one name have one."""
    count = DEPTHS * len(COLOURS)
    colours = {colour_of(number, shade) for number in range(count) for shade in range(len(PALE_SHARES))}
    assert len(colours) == count * len(PALE_SHARES)
    assert all(0 <= channel <= 1 for colour in colours for channel in colour)
    assert TWO.numbers() == {7: 0, 8: 1, 9: 0}


def test_a_copy_lies_over_the_owner_of_its_range() -> None:
    """In stripes: something of both is seen there, and nothing is changed elsewhere."""

    def drawn(*copies: Reign) -> np.ndarray[Any, Any]:
        figure = Figure(figsize=(15, 5.4))
        canvas = FigureCanvasAgg(figure)
        draw_timeline(figure, TWO._replace(copies=copies), title="Who worked on what")
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[:, :, :3] / 255

    without, with_copy = drawn(), drawn(Reign("t", 0, 0, 1 << 31, 8, 0, 1_000))
    below = slice(without.shape[0] // 3, None)  # without the legend
    rows, columns = (without[below] != with_copy[below]).any(axis=2).nonzero()
    assert len(rows) > 1_000
    assert columns.max() < without.shape[1] / 2
    stripe = with_copy[below][(rows.min() + rows.max()) // 2, columns.min() : columns.max()]
    assert np.isclose(stripe, colour_of(0), atol=0.01).all(axis=1).any()
    assert np.isclose(stripe, colour_of(1), atol=0.05).all(axis=1).any()
