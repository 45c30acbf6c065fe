"""Which copies were asked for, and whether they might: honest ones hold, each planted fault is found by name."""

import pytest

from keylanes.offsets.control_events import CopyAsked, CopyEnded, StoreDeclared

from ..tiers.marks import tier
from .copy_plants import COPY_PLANTS, planted_copy
from .group_plants import find
from .honest import Run
from .honest_copies import HALF, MOVED, CopyPlanner
from .honest_group import SECOND, WHOLE
from .owned_logs import Owned, owned

pytestmark = tier("check")


def judged(run: Run) -> Owned:
    """A run without Spark."""
    return owned(run.control_log(), {p: list(enumerate(events)) for p, events in enumerate(run.events)})


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


@pytest.mark.parametrize("name", COPY_PLANTS)
def test_a_planted_fault_is_found_by_name(name: str) -> None:
    """Under the statement that it contradicts."""
    assert COPY_PLANTS[name].check in judged(planted_copy(name)).violated()


@pytest.mark.parametrize(
    "name",
    [
        "demoted before the grant",
        "a copy of one point too few",
        "released for another than who learns",
        "ended when it was owned",
        "a copy that nobody was asked for",
    ],
)
def test_a_fault_breaks_no_other_statement(name: str) -> None:
    """Where nothing else is wrong with it."""
    assert judged(planted_copy(name)).violated() == [COPY_PLANTS[name].check]


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
    (problem,) = judged(planted_copy("a copy of one point too few")).verdicts()["copy-first"].problems
    assert (problem["partition"], problem["move"]) == (1, MOVED)
    assert (problem["first"], problem["end"]) == (HALF, HALF + 1)
    assert problem["problem"] == f"a release is asked for, and incarnation {SECOND} has no copy"
    (problem,) = judged(planted_copy("released without a copy")).verdicts()["copy-first"].problems
    assert (problem["first"], problem["end"]) == (0, WHOLE)


def test_a_topic_without_stores_needs_no_copies() -> None:
    """Nothing is judged where there is no state, and no copy."""
    run = planted_copy("released without a copy")
    run.control = [event for event in run.control if not isinstance(event, StoreDeclared)]
    run.control = [event for event in run.control if not isinstance(event, CopyAsked | CopyEnded)]
    assert [name for name in judged(run).verdicts() if name.startswith("copy-")] == []
