"""The picture of a group."""

from pathlib import Path

import pytest

from ..tiers.marks import tier
from .honest_group import FIRST, SECOND, GroupPlanner
from .test_group_figures import figures_of

pytest.importorskip("matplotlib")

import matplotlib.image as mpl_image

from keylanes.spark.group_picture import colour, draw_group

pytestmark = tier("check")


def test_a_range_has_the_colour_of_its_owner(tmp_path: Path) -> None:
    """Both members and the gaps between them are in the picture, and nothing half-written is left."""
    path = draw_group(figures_of(GroupPlanner().run()), tmp_path / "group.png", title="Who owned what: flights")
    assert [entry.name for entry in tmp_path.iterdir()] == ["group.png"]
    pixels = mpl_image.imread(path)[:, :, :3]
    height, width = pixels.shape[:2]
    panels = pixels[:, : int(width * 0.78)]
    for member in (FIRST, SECOND):
        share = (abs(panels - colour(member)[:3]) < 0.01).all(axis=2).mean()
        assert share > 0.05, f"{member} is not seen in {height} x {width}"


def test_neighbours_differ_in_colour() -> None:
    """Of members that follow each other each has a colour of its own."""
    assert len({colour(incarnation) for incarnation in range(1, 21)}) == 20
