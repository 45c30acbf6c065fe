"""A group in words: as few ranges as there are, whatever the number of grants that they came with. No broker."""

from keylanes.cli.group_logs import Stands
from keylanes.cli.group_text import RANGES_SHOWN, group_text, history_text
from keylanes.group.happened import Moment, Move, MoveState, Party
from keylanes.group.history import History
from keylanes.group.shown import GroupShown, GroupState, Held, MemberShown
from keylanes.keyrange.hashing import SPACE_END

from ..tiers.marks import tier

pytestmark = tier("check")

MEMBERS, CELLS = 8, 64
CELL = SPACE_END // CELLS


def text_of(*held: tuple[Held, ...]) -> list[str]:
    """What is shown of members that hold this, a line each."""
    members = tuple(
        MemberShown(i, f"m{i}", f"birth {i}", "host", 1, "member", i == 1, own, share_of(own))
        for i, own in enumerate(held, 1)
    )
    group = GroupShown(GroupState.RUNNING, 1, "birth 1", 1, 8, 8, members, ())
    return group_text("shop", Stands(group, None, 0, None)).splitlines()[1:]


def share_of(held: tuple[Held, ...]) -> float:
    """Of one partition."""
    return sum(one.end - one.first for one in held) / SPACE_END


def cell(number: int, epoch: int, partition: int = 0) -> Held:
    """One of 64 of a partition."""
    return Held("orders", partition, number * CELL, (number + 1) * CELL, epoch)


def test_touching_cells_of_a_member_are_one_range() -> None:
    """Eight members of one partition, each with eight cells that came one by one: a line of one range each."""
    lines = text_of(*(tuple(cell(8 * m + i, 1 + 8 * i + m) for i in range(8)) for m in range(MEMBERS)))
    assert len(lines) == MEMBERS
    assert lines[0].endswith(": orders[0] 00000000-20000000 (12%)")
    assert lines[7].endswith(": orders[0] e0000000-100000000 (12%)")


def test_a_partition_is_named_once() -> None:
    """Whole ones stand beside parts; more ranges than a line holds are counted, as ranges."""
    (line,) = text_of((cell(0, 1), cell(2, 2), cell(3, 3), Held("orders", 1, 0, SPACE_END, 1)))
    assert line.endswith(": orders[0] 00000000-04000000 08000000-10000000, orders[1] (105%)")
    (line,) = text_of(tuple(cell(2 * i, 1) for i in range(RANGES_SHOWN + 3)))
    assert line.count("-") == RANGES_SHOWN
    assert line.endswith(" and 3 more (17%)")
    (line,) = text_of(())
    assert line.endswith(": nothing (0%)")


def moved(number: int, released_ms: int = 50, target: int = 2) -> Move:
    """A cell that went to a member."""
    origin, to = Party(1, "a", ""), Party(target, "b", "")
    return Move(
        number, MoveState.MOVED, "orders", 0, number * CELL, (number + 1) * CELL, origin, to, "load", 3,
        number, 1, number, Moment(10, "asked"), Moment(released_ms, "released"), 60, 70,
    )  # fmt: skip


def test_ranges_that_moved_alike_are_one_line() -> None:
    """Where they touch, and all times are the same; else each has its own."""
    history = History()
    history.first_ms = 0
    lines = history_text("shop", history, [moved(n) for n in range(4)], 100).splitlines()[1:]
    assert len(lines) == 2
    assert "orders[0] 00000000-10000000  1 a -> 2 b, load (plan 3, term 1)" in lines[0]
    apart = [moved(1), moved(3), moved(4, released_ms=51), moved(5, target=3)]
    assert len(history_text("shop", history, apart, 100).splitlines()[1:]) == 8
