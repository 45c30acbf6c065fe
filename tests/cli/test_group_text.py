"""A group in words: as few ranges as there are, whatever the number of grants that they came with. No broker."""

from keylanes.cli.group_logs import GroupMoment
from keylanes.cli.group_text import RANGES_SHOWN, group_text, history_text
from keylanes.group.history import History
from keylanes.group.history_entries import EventTime, MoveEntry, MoveState, Party
from keylanes.group.loads import PointsCost
from keylanes.group.overview import CopyShown, GroupShown, GroupState, MemberShown, MoveShown, OwnedRange, WaitShown
from keylanes.keyrange.hashing import SPACE_END

from ..tiers.marks import tier

pytestmark = tier("check")

MEMBERS, CELLS = 8, 64
CELL = SPACE_END // CELLS


def text_of(*held: tuple[OwnedRange, ...]) -> list[str]:
    """What is shown of members that hold this, a line each."""
    members = tuple(
        MemberShown(i, f"m{i}", f"birth {i}", "host", 1, "member", i == 1, own, share_of(own))
        for i, own in enumerate(held, 1)
    )
    group = GroupShown(GroupState.RUNNING, 1, "birth 1", 1, 8, 8, members, ())
    return group_text("shop", GroupMoment(group, None, 0, None)).splitlines()[1:]


def share_of(held: tuple[OwnedRange, ...]) -> float:
    """Of one partition."""
    return sum(one.end - one.first for one in held) / SPACE_END


def cell(number: int, epoch: int, partition: int = 0) -> OwnedRange:
    """One of 64 of a partition."""
    return OwnedRange("orders", partition, number * CELL, (number + 1) * CELL, epoch)


def test_touching_cells_of_a_member_are_one_range() -> None:
    """Eight members of one partition, each with eight cells that came one by one: a line of one range each."""
    lines = text_of(*(tuple(cell(8 * m + i, 1 + 8 * i + m) for i in range(8)) for m in range(MEMBERS)))
    assert len(lines) == MEMBERS
    assert lines[0].endswith(": orders[0] 00000000-20000000 (12%)")
    assert lines[7].endswith(": orders[0] e0000000-100000000 (12%)")


def test_a_partition_is_named_once() -> None:
    """Whole ones stand beside parts; more ranges than a line holds are counted, as ranges."""
    (line,) = text_of((cell(0, 1), cell(2, 2), cell(3, 3), OwnedRange("orders", 1, 0, SPACE_END, 1)))
    assert line.endswith(": orders[0] 00000000-04000000 08000000-10000000, orders[1] (105%)")
    (line,) = text_of(tuple(cell(2 * i, 1) for i in range(RANGES_SHOWN + 3)))
    assert line.count("-") == RANGES_SHOWN
    assert line.endswith(" and 3 more (17%)")
    (line,) = text_of(())
    assert line.endswith(": nothing (0%)")


def test_what_is_under_way_is_a_line_for_each_partition() -> None:
    """Behind a kill many ranges wait, move and are copied; --all tells of each."""
    back = "waits for the coordinator to grant it, or for 's-2' to come back, 60 s at most"
    waits = [WaitShown(cell(2 * i, 1, p), back) for p in range(5) for i in range(6)]
    waits.append(WaitShown(cell(20, 1), "waits for incarnation 1 to take it up"))
    moves = [MoveShown(9 * p + i, *cell(i, 0, p)[:4], 0, 1, "X") for p in range(5) for i in range(9)]
    own = [MoveShown(50 + i, *cell(30 + i, 0)[:4], 3, 3, "incarnation 3 to release it") for i in range(2)]
    own.append(MoveShown(52, *cell(30, 0, 1)[:4], 3, 3, "incarnation 3 to release it"))
    copies = [CopyShown(i, 1, "learner", (cell(i, 0),), 7, 9, i > 0) for i in range(3)]
    copies.append(CopyShown(3, 2, "standby", (cell(3, 0),), 7, 9, False))
    group = GroupShown(GroupState.IN_REBALANCE, 1, "", 1, 8, 8, (), tuple(waits), (*moves, *own), tuple(copies))
    stands = GroupMoment(group, None, 0, None)
    lines = [line.strip() for line in group_text("shop", stands).splitlines()[2:]]
    assert lines[0] == (
        f"orders[0]: each of 6 ranges {back}; 50000000-54000000 waits for incarnation 1 to take it up; "
        "9 moves from nobody to 1; 2 moves of 3 (joins its own ranges); incarnation 1 has 3 copies, 2 ready; "
        "incarnation 2 has a copy (standby, 7 of 9 of the changelog)"
    )
    assert lines[1].endswith(
        "; 9 moves from nobody to 1; move 52: 78000000-7c000000 of 3 (joins its own ranges) waits for incarnation 3 to "
        "release it"
    )
    assert lines[2:] == [f"orders[{p}]: each of 6 ranges {back}; 9 moves from nobody to 1" for p in (2, 3, 4)] + [
        "--all tells of each range, move and copy"
    ]
    every = group_text("shop", stands, is_all=True).splitlines()[2:]
    assert len(every) == len(waits) + len(moves) + len(own) + len(copies)
    assert f"  orders[0] 00000000-04000000 {back}" in every
    assert (
        "  move 50: orders[0] 78000000-7c000000 of 3 (joins its own ranges) waits for incarnation 3 to release it"
        in every
    )


def test_busy_time_has_its_unit() -> None:
    """It is no processor time: a handler that waits is busy, too."""
    member = MemberShown(1, "a", "b", "host", 1, "member", True, (cell(0, 1),), 0.25)
    group = GroupShown(GroupState.RUNNING, 1, "b", 1, 8, 8, (member,), ())
    told = group_text("shop", GroupMoment(group, None, 0, None, {1: PointsCost(34_330_000, 0, 0, 0)}))
    assert told.endswith("(25%, busy 34.33 s/s)")


def moved(number: int, released_ms: int = 50, target: int = 2) -> MoveEntry:
    """A cell that went to a member."""
    origin, to = Party(1, "a", ""), Party(target, "b", "")
    return MoveEntry(
        number, MoveState.MOVED, "orders", 0, number * CELL, (number + 1) * CELL, origin, to, "load", 3,
        number, 1, number, EventTime(10, "asked"), EventTime(released_ms, "released"), 60, 70,
    )  # fmt: skip


def test_ranges_that_moved_alike_are_one_line() -> None:
    """Where they touch, and all times are the same; else each has its own."""
    history = History()
    history.first_ms = 0
    lines = history_text("shop", history, [moved(n) for n in range(4)], 100).splitlines()[1:]
    assert len(lines) == 2
    assert "orders[0] 00000000-10000000  1 a -> 2 b, load (plan 3, term 1)" in lines[0]
    joined = [moved(n, target=1)._replace(target=Party(1, "a", ""), cause="join bands") for n in range(2)]
    assert "  1 a joins its own ranges (plan 3, term 1)" in history_text("shop", history, joined, 100)
    apart = [moved(1), moved(3), moved(4, released_ms=51), moved(5, target=3)]
    assert len(history_text("shop", history, apart, 100).splitlines()[1:]) == 8
