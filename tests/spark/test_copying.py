"""Which copies were asked for, and whether they might: honest ones hold, each planted fault is found by name."""

from msgspec.structs import replace

from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    MemberJoined,
    PlanMade,
    RangesGranted,
    StoreDeclared,
)
from keylanes.offsets.event_values import PlannedMove

from ..stage.log_events import NO_NUMBER
from ..tiers.marks import tier
from .copy_plants import COPY_PLANTS
from .group_plants import find, planted
from .honest import SOURCE
from .honest_copies import DROPPED, HALF, MOVED, THIRD, CopyPlanner, asked
from .honest_group import SECOND, WHOLE
from .owned_logs import judged

pytestmark = tier("check")


def test_honest_copies_hold_all_statements() -> None:
    """And each of them has looked at something."""
    found = judged(CopyPlanner().run())
    verdicts = found.verdicts()
    assert {name: verdict.problems for name, verdict in verdicts.items() if verdict.problems} == {}
    checked = {name: verdict.checked for name, verdict in verdicts.items() if name.startswith("copy-")}
    assert checked == {"copy-asked": 5, "copy-first": 1, "copy-once": 2, "copy-ended": 2}


def test_how_copies_were_over() -> None:
    """Owned, ended, or still there."""
    found = judged(CopyPlanner().run()).copying
    assert [(copy.asked.role, copy.how) for copy in found.copies] == [
        ("learner", "owned"),
        ("standby", "ended"),
        ("standby", "owned"),
        ("learner", "ended"),
        ("standby", ""),
    ]


def test_who_learns_points_for_no_move_any_more_is_no_second_learner() -> None:
    """A third one has them, not whom the move takes them from: somebody else may learn them."""
    run = CopyPlanner().run()
    joined = run.control.pop(find(run.control, MemberJoined, incarnation=THIRD))
    assert isinstance(joined, MemberJoined)
    grant = run.control[find(run.control, RangesGranted, incarnation=SECOND, partition=1)]
    assert isinstance(grant, RangesGranted)
    move = PlannedMove(91, SOURCE, 1, 0, HALF, THIRD, SECOND, 0, 0.0, 0)
    at = find(run.control, CopyEnded, move=DROPPED)
    run.control[at:at] = [
        replace(joined, term=1),
        replace(grant, incarnation=THIRD, epoch=3, move=90),
        PlanMade(1, NO_NUMBER, 9, 9, "request", 0, 0, 1, (move,)),
        asked(1, 91, SECOND, 1, "learner", [(0, HALF)]),
    ]
    found = judged(run)
    assert found.verdicts()["copy-once"].problems == []
    assert found.verdicts()["copy-asked"].problems == []


def test_what_is_expelled_has_no_copies_any_more() -> None:
    """So a copy of it can't be ended, and stands for no move."""
    run = CopyPlanner().run()
    del run.control[find(run.control, CopyEnded, move=4)]
    copies = judged(run).copying.copies
    assert [copy.how for copy in copies if copy.asked.incarnation == 1] == ["ended", "expelled"]
    run.control.append(CopyEnded(2, 0, 4, "late"))
    (problem,) = judged(run).verdicts()["copy-ended"].problems
    assert problem["problem"].endswith(": expelled")


def test_a_point_without_a_copy_is_named() -> None:
    """With the request, the move and who should have had it."""
    (problem,) = (
        judged(planted(CopyPlanner(), COPY_PLANTS["a copy of one point too few"])).verdicts()["copy-first"].problems
    )
    assert (problem["partition"], problem["move"]) == (1, MOVED)
    assert (problem["first"], problem["end"]) == (HALF, HALF + 1)
    assert problem["problem"] == f"a release is asked for, and incarnation {SECOND} has no copy"
    (problem,) = (
        judged(planted(CopyPlanner(), COPY_PLANTS["released without a copy"])).verdicts()["copy-first"].problems
    )
    assert (problem["first"], problem["end"]) == (0, WHOLE)


def test_a_topic_without_stores_needs_no_copies() -> None:
    """Nothing is judged where there is no state, and no copy."""
    run = planted(CopyPlanner(), COPY_PLANTS["released without a copy"])
    run.control = [event for event in run.control if not isinstance(event, StoreDeclared)]
    run.control = [event for event in run.control if not isinstance(event, CopyAsked | CopyEnded)]
    assert [name for name in judged(run).verdicts() if name.startswith("copy-")] == []
