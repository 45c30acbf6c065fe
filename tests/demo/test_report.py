"""What the demo says of its processes at the end."""

import msgspec

from keylanes.demo.figures import GroupFigures
from keylanes.demo.report import group_lines
from keylanes.demo.scaling import ScalingFigures

from ..tiers.marks import tier

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
