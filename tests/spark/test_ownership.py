"""Who owned what, and whether it might: an honest group holds, and each planted fault is found by name. No Spark."""

import pytest
from msgspec.structs import replace

from keylanes.offsets.event_values import EpochFold, Piece
from keylanes.offsets.events import RangesReleased, SnapshotTaken

from ..tiers.marks import tier
from .copy_plants import COPY_PLANTS
from .group_plants import PLANTS, Plant, planted
from .honest import SOURCE, Planner
from .honest_copies import CopyPlanner
from .honest_group import FIRST, WHOLE, GroupPlanner
from .honest_ranges import SIXTEENTH, RangePlanner
from .owned_logs import judged, owned
from .range_plants import RANGE_PLANTS

pytestmark = tier("check")


def test_an_honest_group_holds_all_statements() -> None:
    """And each of them has looked at something."""
    verdicts = judged(GroupPlanner().run()).verdicts()
    assert {name: verdict.problems for name, verdict in verdicts.items() if verdict.problems} == {}
    assert {name: verdict.checked for name, verdict in verdicts.items()} == {
        "decision-turn": 18,
        "grant-owner": 4,
        "grant-free": 2,
        "grant-edge": 4,
        "release-edge": 3,
        "release-last": 3,
        "fence-last": 2,
    }


def test_members_that_share_a_partition_hold_all_statements() -> None:
    """Parts that move, a request that is withdrawn, ranges that are granted as one, and a member that is lost."""
    verdicts = judged(RangePlanner().run()).verdicts()
    assert {name: verdict.problems for name, verdict in verdicts.items() if verdict.problems} == {}
    assert verdicts["grant-free"].checked > 5
    assert verdicts["release-edge"].checked > verdicts["release-last"].checked == 8, "some are of several bands"


def test_restarts_with_uneven_edges_hold_all_statements() -> None:
    """Each life goes on from the edges of the one before."""
    assert judged(Planner(restarts=3, lag=0.6).run()).violated() == []


@pytest.mark.parametrize(
    ("planner", "plant"),
    [
        pytest.param(planner(), plant, id=name)
        for planner, plants in ((GroupPlanner, PLANTS), (RangePlanner, RANGE_PLANTS), (CopyPlanner, COPY_PLANTS))
        for name, plant in plants.items()
    ],
)
def test_a_planted_fault_is_found_by_name(planner: Planner, plant: Plant) -> None:
    """Under the statements that it contradicts, and no others."""
    assert {*judged(planted(planner, plant)).violated()} == {plant.check, *plant.also}


def test_an_overlap_is_told_by_its_points() -> None:
    """One point that two members may commit: when it is granted, and when it is granted on."""
    verdict = judged(planted(RangePlanner(), RANGE_PLANTS["a grant overlaps by one point"])).verdicts()["grant-free"]
    points = [(problem["first"], problem["end"]) for problem in verdict.problems]
    assert points == [(2 * SIXTEENTH, 2 * SIXTEENTH + 1)] * 2


def test_a_grant_before_the_release_is_found_by_what_stands_in_front_of_it() -> None:
    """The owner releases it all the same, at its end; somebody had read the grant and written something before."""
    verdict = judged(planted(RangePlanner(), RANGE_PLANTS["an orphan with a part of its neighbour"])).verdicts()[
        "grant-free"
    ]
    (problem,) = verdict.problems
    assert (problem["first"], problem["end"]) == (SIXTEENTH, 2 * SIXTEENTH)
    assert "released it later" in problem["problem"]


def test_a_problem_says_where_and_what() -> None:
    """Places in both logs, points, offsets, and what was allowed."""
    (problem,) = judged(planted(GroupPlanner(), PLANTS["a commit behind the fence"])).verdicts()["fence-last"].problems
    assert problem["incarnation"] == FIRST
    assert problem["position"] > 0
    assert "after the member was fenced" in problem["problem"]
    (problem,) = judged(planted(GroupPlanner(), PLANTS["granted from ahead of it"])).verdicts()["grant-edge"].problems
    assert (problem["topic"], problem["partition"], problem["epoch"]) == (SOURCE, 0, 2)
    assert (problem["granted_from"], problem["edge"]) == (210, 200)


def test_a_grant_is_held_against_the_released_edge_too() -> None:
    """Where that is not the edge of the tiles, both the release and the grant contradict something."""
    verdicts = judged(planted(GroupPlanner(), PLANTS["released below its tiles"])).verdicts()
    (problem,) = verdicts["grant-edge"].problems
    assert problem["problem"] == "released at offset 140, granted on from 150"
    (problem,) = verdicts["release-edge"].problems
    assert problem["problem"] == "released at offset 140, its tiles end at 150"


def test_what_ended_before_a_snapshot_is_passed_over() -> None:
    """Its log begins with a snapshot that knows the epochs that are not over: nothing can be said of the others."""
    run = GroupPlanner().run()
    events = run.events[0]
    released = next(i for i, event in enumerate(events) if isinstance(event, RangesReleased))
    start = released + 1
    fold = EpochFold(1, FIRST, (Piece(0, WHOLE, 0, 150, None, 0, False),), ())
    moved = EpochFold(1, FIRST, (Piece(0, WHOLE, 0, 150, None, 0, True),), ())
    taken = [
        SnapshotTaken(FIRST, 999, part, 2, "flights", start, SOURCE, part, (one,), (), (), (), ())
        for part, one in enumerate((fold, moved))
    ]
    trimmed = [*enumerate(events[start:], start)]
    log = {0: [*trimmed[:2], *((start + 1, one) for one in taken), *trimmed[2:]]}
    found = owned(run.control_log(), log, {0: start})
    assert found.violated() == []
    verdicts = found.verdicts()
    assert (verdicts["grant-free"].checked, verdicts["grant-edge"].checked) == (2, 4)
    later = [with_epoch(one, 3) for one in taken]
    found = owned(run.control_log(), {0: [*((start + 1, one) for one in later)]}, {0: start})
    assert found.verdicts()["grant-edge"].checked == 2, "those from the starts alone"


def with_epoch(taken: SnapshotTaken, epoch: int) -> SnapshotTaken:
    """A snapshot that knows this epoch alone."""
    return replace(taken, epochs=tuple(replace(fold, epoch=epoch) for fold in taken.epochs))
