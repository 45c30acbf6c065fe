"""Histories of two members or two coordinators in which a simpler fold goes wrong, each told step by step.

Two members, one and two, work on one source partition; the point 0 stands for its left half, ``MIDDLE`` for its right
half. Whatever is expected here was once not so.
"""

import pytest
from msgspec.structs import replace

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.codec import encode
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import AppCreated, ControlEvent, RangesGranted
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import Committed, Event, StateChanged
from keylanes.offsets.ledger import Ledger, evolve, evolve_all
from keylanes.offsets.snapshots import restore_snapshot, take_snapshot

from ..stage.log_events import (
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
)
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = ("flights", 0)
MIDDLE = SPACE_END // 2

BEGUN: tuple[ControlEvent, ...] = (
    AppCreated("app", "hash", 1),
    coordinator_elected(1, "one"),
    member_joined(1, 1, "one", "app.1"),
    member_joined(1, 2, "two", "app.2"),
    partition_started(1, *PLACE, 0, "earliest", 1),
)
"""One coordinates, both have joined."""


def grant(to: int, epoch: int, *bands: Band) -> RangesGranted:
    """Points to a member; without bands the whole partition from its start."""
    return ranges_granted(1, to, epoch, *PLACE, bands or (Band(0, SPACE_END, 0),))


def commit(by: int, transaction: int, epoch: int, offset: int, to: int, first: int, end: int) -> Committed:
    """A transaction of one tile."""
    return Committed(by, transaction, 0, 1, epoch, *PLACE, (Tile(0, 1, first, end, offset, to),), 0, 0, 0)


def decided(*decisions: ControlEvent) -> list[ControlEvent]:
    """The control log with these decisions behind its beginning, each with its number."""
    return in_turn([*BEGUN, *decisions])


def folded(events: list[ControlEvent]) -> Control:
    """The fold of a control log."""
    control = Control()
    for event in events:
        evolve_control(control, event)
    return control


def test_a_grant_that_lands_behind_another_decision_makes_no_second_owner() -> None:
    """The coordinator grants the whole partition to two, but the append is not answered in time. It reads the log, does
    not find it, and grants the left half to two and then the right half to one. In between the first append lands.
    """
    left, right = grant(2, 1, Band(0, MIDDLE, 0)), grant(1, 2, Band(MIDDLE, SPACE_END, 0))
    *log, late = decided(grant(2, 1))
    *_, second, third = decided(left, right)
    for events in ([second, late, third], [second, third, late], [second, third]):
        ledger = evolve_all(Ledger(), [*log, *events])
        owners, partition = [ledger.control.owners[PLACE].at(point) for point in (0, MIDDLE)], ledger.partition(PLACE)
        assert owners == [(1, 2), (2, 1)]
        assert [partition.parts[epoch].incarnation for epoch in (1, 2)] == [2, 1]
        assert not evolve(ledger, commit(1, 1, 2, 0, 5, MIDDLE, SPACE_END)).violations()
    # Whoever reads the log between the two grants takes nobody for the owner of the right half.
    assert evolve_all(Ledger(), [*log, second, late]).partition(PLACE).owners().at(MIDDLE) is None


@pytest.mark.parametrize("has_points", [True, False])
def test_a_second_copy_of_a_joining_brings_nobody_back(has_points: bool) -> None:
    """Two was expelled and fenced. A copy of its joining that was under way since lands now: were it to count, two
    would be a member with a grant, whose transactions nobody fences any more.
    """
    held = [grant(2, 1)] if has_points else []
    log = decided(*held, member_expelled(1, 2), member_fenced(1, 2))
    control, joined = folded(log), log[3]
    again = in_turn([*log, member_joined(1, 2, "two", "app.2")])[-1]  # even if it is written anew
    for copy in (joined, again):
        after = folded([*log, copy])
        assert after.is_expelled(2)
        assert after.is_fenced(2)
        assert after.members == control.members
        assert after.incarnation_next == 3


def test_two_writers_of_one_changelog_are_known_each_by_its_own_last_change() -> None:
    """Transactions of both are open at once. The changelog shows one's record behind two's, the offset log shows it
    before: which of the two was last has no answer, so one beacon for both would be missed in one of the logs.
    """
    left, right = Band(0, MIDDLE, 0), Band(MIDDLE, SPACE_END, 0)
    log: list[Event] = [*decided(grant(1, 1, left), grant(2, 2, right))]
    ones: list[Event] = [commit(1, 1, 1, 0, 5, 0, MIDDLE), StateChanged(1, 1, *PLACE, 3, ())]
    twos: list[Event] = [commit(2, 1, 2, 0, 5, MIDDLE, SPACE_END), StateChanged(2, 1, *PLACE, 3, ())]
    for offsets in ([*ones, *twos], [*twos, *ones], [ones[0], *twos, ones[1]]):
        ledger = evolve_all(Ledger(), [*log, *offsets])
        assert ledger.partition(PLACE).changed == {1: 1, 2: 1}
    # Three succeeds two, whose changes it has seen; one is still at work, and asked for as before.
    evolve(ledger, StateChanged(3, 8, *PLACE, 1, (2,)))
    assert ledger.partition(PLACE).changed == {1: 1, 3: 8}


def test_no_snapshot_is_taken_of_progress_that_waits_for_its_grant() -> None:
    """One takes a snapshot before it has read the grant by which two works. Two's commit is below the position of the
    snapshot, and not in it: who begins with it would never see the commit, and would grant from too low an edge.
    """
    log = decided(grant(1, 1), grant(2, 2, Band(MIDDLE, SPACE_END, 0)))
    twos = commit(2, 1, 2, 0, 5, MIDDLE, SPACE_END)
    behind = evolve_all(Ledger(), [*log[:-1], twos])
    with pytest.raises(ValueError, match=r"no snapshot of flights\[0\]: an event of epoch 2 waits for its grant"):
        take_snapshot(behind, "app", 0, [PLACE], 1, 1, 7)
    evolve(behind, log[-1])
    begun_anew = Ledger(partitions=restore_snapshot(take_snapshot(behind, "app", 0, [PLACE], 1, 1, 7)))
    evolve_all(begun_anew, log)
    assert begun_anew.partition(PLACE).edges(0).at(MIDDLE) == 5


def test_an_expulsion_that_was_acknowledged_may_not_count() -> None:
    """The append is answered, and yet another coordinator was elected before it, or another decision has its number.
    Two is a member then, and to fence it would fence one that works; only what is read back says whether it counts.
    """
    log = decided()
    *_, expelled = decided(member_expelled(1, 2))
    *_, other = decided(grant(1, 1))
    starts = (partition_started(2, "flights", partition, 0, "earliest", 4) for partition in (1, 2, 3))
    elected, *others = in_turn([coordinator_elected(2, "two"), *starts])
    assert folded([*log, expelled]).is_expelled(2)
    for before in ([elected], [other], [elected, other], [elected, *others]):  # the last: with that number next
        lost = folded([*log, *before, expelled])
        assert not lost.is_expelled(2)
        assert [member.incarnation for member in lost.unfenced_members()] == [1, 2]
    *_, skipped = decided(other, member_expelled(1, 2))  # out of turn: what stood before it never came
    assert not folded([*log, skipped]).is_expelled(2)


def test_a_range_that_is_held_keeps_no_epoch_of_another_open() -> None:
    """One holds the left half at the first epoch, and is slow. The right half goes to and fro a thousand times. Were
    epochs closed in order, each of these moves would stay for as long as one holds its half.
    """
    moves = 1_000
    ledger = evolve_all(Ledger(), decided(grant(1, 1)))
    for move in range(moves):
        by, to = move % 2 + 1, (move + 1) % 2 + 1
        number = ledger.control.number + 1
        moved = replace(grant(to, move + 2, Band(MIDDLE, SPACE_END, move + 1)), number=number)
        evolve_all(ledger, [commit(by, move + 1, move + 1, move, move + 1, MIDDLE, SPACE_END), moved])
        assert len(ledger.partition(PLACE).parts) <= 2
    assert not ledger.violations()
    assert list(ledger.partition(PLACE).parts) == [1, moves + 1]
    parts = take_snapshot(ledger, "app", 0, [PLACE], 1, 1, 7)
    assert len(encode(parts[0])) < 200
    assert restore_snapshot(parts) == ledger.partitions
    evolve(ledger, commit(1, moves + 1, 1, 0, 7, 0, MIDDLE))  # the half that is held goes on
    assert ledger.frontier(PLACE) == 7
