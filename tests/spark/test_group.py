"""The audit of a group: proven, with its figures; and each statement on who owned what finds its planted fault."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylanes.spark.report import COPYING, OWNERSHIP

from .copy_plants import COPY_PLANTS
from .group_plants import PLANTS, Plant, planted
from .honest import Planner, Run
from .honest_copies import CopyPlanner
from .honest_group import GroupPlanner
from .honest_ranges import RangePlanner
from .owned_logs import judged
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
    assert report.violated_checks() == []
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


def test_members_that_share_a_partition_are_proven(audited: Audited) -> None:
    """Three members with ranges of one partition: all statements hold, those on tiles and outputs, too."""
    run = RangePlanner().run()
    report = audited(run, group=True, level=True)
    assert report.violated_checks() == []
    group = report.to_dict()["group"]
    assert group["moves"] == {"change": 3, "silent": 1}
    assert [member["ended"] for member in group["members"]] == ["silent", "left", "left"]


@pytest.mark.parametrize(
    ("planner", "plants"),
    [
        (
            GroupPlanner(),
            (
                PLANTS["released below its tiles"],
                PLANTS["begun before the release"],
                PLANTS["a commit behind the fence"],
            ),
        ),
        (
            RangePlanner(),
            (
                RANGE_PLANTS["one edge of several is wrong"],
                RANGE_PLANTS["a tile in a released part of its own range"],
                RANGE_PLANTS["a grant overlaps by one point"],
            ),
        ),
    ],
)
def test_faults_are_found_as_without_spark(audited: Audited, planner: Planner, plants: Sequence[Plant]) -> None:
    """What Spark makes of the rows of tiles and commits is what the events say. test_ownership.py finds all faults."""
    run = planner.run()
    for plant in plants:
        plant.change(run)
    report = audited(run)
    assert report.group is None, "it was not asked for"
    found = {name for name in OWNERSHIP if not report.check(name).holds}
    assert found == {*judged(run).violated()} >= {plant.check for plant in plants}
    assert all(report.check(name).examples for name in found)


def stored_empty(folder: Path, run: Run) -> Run:
    """The run, whose changelog is there and holds nothing: its handlers have not kept anything."""
    write(folder / "topics", [], partitions=run.partitions)
    return run


def test_copies_are_proven_and_shown(audited: Audited, tmp_path: Path) -> None:
    """All statements hold, those on copies too, and the figures are those of the plan."""
    report = audited(stored_empty(tmp_path, CopyPlanner().run()), group=True)
    assert report.violated_checks() == []
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
    assert report.violated_checks() == ["copy-first"]
    assert "exactly once, but COPIES ARE WRONGLY ASKED FOR" in report.to_text()
