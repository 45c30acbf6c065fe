"""The audit of a group: proven, with its figures; and each statement on who owned what finds its planted fault."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylanes.spark.report import COPYING

from .copy_plants import COPY_PLANTS
from .group_plants import PLANTS, planted
from .honest import Run
from .honest_copies import CopyPlanner
from .honest_group import GroupPlanner
from .honest_ranges import RangePlanner
from .range_plants import RANGE_PLANTS
from .test_state import write

if TYPE_CHECKING:
    from keylanes.spark.report import Report

pytestmark = pytest.mark.spark

Audited = Callable[..., "Report"]


def test_an_honest_group_is_proven_and_shown(audited: Audited) -> None:
    """All statements hold, each has looked at what the plan holds, and the figures are those of the plan."""
    run = GroupPlanner().run()
    report = audited(run, group=True)
    assert report.violated() == []
    group = report.to_dict()["group"]
    assert group["proved"] == {
        "decision-turn": 18,
        "grant-owner": 4,
        "grant-free": 2,
        "grant-edge": 4,
        "release-edge": 3,
        "release-last": 3,
        "fence-last": 2,
    }
    assert group["moves"] == {"change": 1, "silent": 1}
    assert group["released_to_taken_up_ms"]["longest"] == 25
    assert group["until_ms"] == max(run.control_ms)
    assert 0.99 < sum(member["share"] for member in group["members"]) < 1


@pytest.mark.parametrize(
    "name",
    [
        "granted while its owner is at work",
        "released below its tiles",
        "a tile behind its release",
        "a commit behind the fence",
    ],
)
def test_a_planted_fault_is_found_by_name(audited: Audited, name: str) -> None:
    """What the control log shows, and what tiles and commits show; test_ownership.py finds all, without Spark."""
    check = PLANTS[name].check
    report = audited(planted(GroupPlanner(), PLANTS[name]))
    assert report.group is None, "it was not asked for"
    assert check in report.violated()
    assert report.check(check).examples


def test_members_that_share_a_partition_are_proven(audited: Audited) -> None:
    """Three members with ranges of one partition: all statements hold, those on tiles and outputs, too."""
    run = RangePlanner().run()
    report = audited(run, group=True, level=True)
    assert report.violated() == []
    group = report.to_dict()["group"]
    assert group["moves"] == {"change": 3, "silent": 1}
    assert [member["ended"] for member in group["members"]] == ["silent", "left", "left"]


@pytest.mark.parametrize("name", ["one edge of several is wrong", "a tile in a released part of its own range"])
def test_a_planted_fault_in_a_part_of_a_partition_is_found(audited: Audited, name: str) -> None:
    """See test_ownership.py."""
    assert RANGE_PLANTS[name].check in audited(planted(RangePlanner(), RANGE_PLANTS[name])).violated()


def stored_empty(folder: Path, run: Run) -> Run:
    """The run, whose changelog is there and holds nothing: its handlers have not kept anything."""
    write(folder / "topics", [], partitions=run.partitions)
    return run


def test_copies_are_proven_and_shown(audited: Audited, tmp_path: Path) -> None:
    """All statements hold, those on copies too, and the figures are those of the plan."""
    report = audited(stored_empty(tmp_path, CopyPlanner().run()), group=True)
    assert report.violated() == []
    group = report.to_dict()["group"]
    assert {name: group["proved"][name] for name in COPYING} == {
        "copy-asked": 5,
        "copy-first": 1,
        "copy-once": 2,
        "copy-ended": 2,
    }
    assert group["copies"]["promoted"] == {"learner": 1, "standby": 1}
    assert group["copies"]["released_to_taken_up_with_copy_ms"]["longest"] == 25


def test_a_range_that_moves_without_its_state_is_found(audited: Audited, tmp_path: Path) -> None:
    """See test_copying.py."""
    report = audited(stored_empty(tmp_path, planted(CopyPlanner(), COPY_PLANTS["released without a copy"])))
    assert report.violated() == ["copy-first"]
    assert "exactly once, but COPIES ARE WRONGLY ASKED FOR" in report.to_text()
