"""What the demo says of its processes at the end."""

import msgspec

from figures import ActFigures, GroupFigures, ScalingFigures
from report import group_lines

from ...tiers.marks import tier

pytestmark = tier("check")

UP = ScalingFigures(["demo-3", "demo-4"], 4, True, 0.24, 23.0, 4.15, 5, 50_205, 5, 0.518, 0.394, 1.515)
GROUP = GroupFigures([], 12, 1, [], [], [], [UP], {"left": 4}, [])


def said(group: GroupFigures) -> dict[str, str]:
    """What stands beside each label."""
    return dict(group_lines(group, None))


def test_a_step_of_scaling_says_what_it_cost() -> None:
    """How many there are then, until when it lasted, what moved, and for how long that stood still."""
    lines = said(GROUP)
    assert lines["scaled"] == (
        "+2 to 4 (demo-3, demo-4) at 24%, balanced after 4.2 s; 5 ranges with 50 kB of state moved, 5 copied before, "
        "each within 0.5 s; a range had no owner for 0.39 s at most, and the next commit in it came after 1.51 s "
        "at most"
    )
    assert lines["who is no member any more, and why"] == "left 4"


def test_what_a_step_has_not_is_not_said() -> None:
    """It never came to rest, and nothing moved; and where nobody is scaled there is no word about it."""
    nothing = ScalingFigures(["demo-2"], 1, False, 0.78, 40.0, None, 0, 0, 0, None, None, None)
    lines = said(msgspec.structs.replace(GROUP, scaled=[nothing], expelled={}))
    assert lines["scaled"] == (
        "−1 to 1 (demo-2) at 78%, was not balanced before the end or the next step; 0 ranges with 0 kB of state moved"
    )
    assert lines["who is no member any more, and why"] == "nobody"
    assert set(said(msgspec.structs.replace(GROUP, scaled=[]))) == {
        "members, records (about)",
        "ranges that changed hands",
    }


def test_what_became_of_a_process_is_said_in_a_line() -> None:
    """Of a kill what it cost, of a pause how long it was; what did not come is not said."""
    kill = ActFigures("demo-1", "coordinator", 0.34, 0.0, 20.1, None, 9.6, (11.2, 13.0), (11.5, 11.5))
    paused, joined = (
        ActFigures("demo-2", "member", 0.06, 3.0, None, None),
        ActFigures("demo-4", "member", 0.5, 0, None, 15),
    )
    lines = said(msgspec.structs.replace(GROUP, killed=[kill], paused=[paused], joined=[joined]))
    assert lines["killed"] == (
        "demo-1 (coordinator) at 34%; last commit at 9.6 s; expelled at 20.1 s; its ranges had no owner for 11.2 to "
        "13.0 s; the next commit in them came after 11.5 s"
    )
    assert lines["paused"] == "demo-2 (member) at 6% for 3 s"
    assert lines["added"] == "demo-4 (member) at 50%; joined at 15.0 s"
