"""What an operator may ask of a group: what is refused, and with which words."""

import pytest

from keylanes import SettingsError
from keylanes.group.requests import make_expulsion, make_move_request, member_of
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.offsets.control import Control, Member, Owner
from keylanes.offsets.control_events import MemberJoined, ReleaseAsked
from keylanes.offsets.event_values import PlannedMove, Sourced

from ..tiers.marks import tier

pytestmark = tier("check")

QUARTER = SPACE_END // 4


def member(incarnation: int, name: str, topics: dict[str, int], *, expelled: bool = False) -> Member:
    """One with handlers for these topics, with these factors."""
    sourced = tuple(Sourced(topic, factor, "earliest", 0, 0.0) for topic, factor in topics.items())
    joined = MemberJoined(
        1, 1, incarnation, name, f"b{incarnation}", (), "", "", 1.0, 1, sourced, (), until_level=False
    )
    return Member(joined, expelled=expelled)


def control() -> Control:
    """Three members, one of which is called as another one is numbered, and one that was expelled."""
    found = Control()
    found.members = {
        1: member(1, "shop-a", {"orders": 4}),
        2: member(2, "", {"orders": 4, "bills": 1}),
        3: member(3, "2", {"bills": 1}),
        4: member(4, "shop-d", {"orders": 4}, expelled=True),
    }
    found.incarnation_max = 4
    found.started = {("orders", 0): 0, ("orders", 1): 0, ("bills", 0): 0}
    owners: Steps[Owner] = Steps()
    owners.put(0, QUARTER, Owner(7, 2))
    owners.put(QUARTER, SPACE_END, Owner(3, 1))
    found.owners = {("orders", 0): owners}
    return found


def test_a_member_is_named_by_its_incarnation_or_its_name() -> None:
    """The incarnation goes before the name."""
    assert member_of(control(), "shop-a").incarnation == 1
    assert member_of(control(), "2").incarnation == 2
    assert member_of(control(), "3").incarnation == 3


@pytest.mark.parametrize(
    ("given", "within"),
    [
        ({}, WHOLE),
        ({"points": ("whole",)}, WHOLE),
        ({"points": ("40000000", "0xC0000000")}, KeyRange(QUARTER, 3 * QUARTER)),
        ({"points": ("0", "100000000")}, WHOLE),
        ({"cells": "1..2"}, KeyRange(QUARTER, 3 * QUARTER)),
        ({"cells": "3"}, KeyRange(3 * QUARTER, SPACE_END)),
    ],
)
def test_points_are_named_in_several_ways(given: dict[str, str], within: KeyRange) -> None:
    """As bounds, as keylanes group shows them, or as cells of the declared cut; all of them when nothing is said."""
    move = make_move_request(control(), "r", "me", ("orders", 0), "shop-a", **given)
    assert (move.within, move.target, move.signal.epoch) == (within, 1, 0)


def test_for_anybody_the_request_names_the_epoch() -> None:
    """Or one that comes late would move it once more."""
    assert make_move_request(control(), "r", "me", ("orders", 0), "any").signal.epoch == 7
    assert make_move_request(control(), "r", "me", ("orders", 0), "any", cells="1..3").signal.epoch == 3


@pytest.mark.parametrize(
    ("place", "to", "given", "why"),
    [
        (("orders", 0), "shop-b", {}, "'shop-b' is no member; there are incarnation 1 shop-a, incarnation 2, incar"),
        (("orders", 0), "4", {}, "'4' is no member any more; there are incarnation 1 shop-a"),
        (("orders", 0), "3", {}, "incarnation 3 2 can't handle topic 'orders'; those who can are incarnation 1 shop-a"),
        (("parcels", 0), "1", {}, "'parcels' is no source topic of the application; its topics are bills, orders"),
        (("orders", 2), "1", {}, r"orders\[2\] was not started; partitions of orders that were are 0, 1"),
        (("orders", 0), "1", {"points": ("40000001", "80000000")}, "bounds of cells .*; bounds are 00000000, 40000000"),
        (("orders", 0), "1", {"points": ("80000000", "40000000")}, "FIRST below END; seen 80000000 and 40000000"),
        (("orders", 0), "1", {"points": ("some",)}, "give FIRST and END, --cells A..B, or whole; seen 'some'"),
        (("orders", 0), "1", {"points": ("0", "end")}, "'end' is no point; a point is hexadecimal"),
        (("orders", 0), "1", {"cells": "2..4"}, r"seen '2..4'; allowed is A..B, .* 0 <= A <= B <= 3: .* 4 cells"),
        (("orders", 0), "1", {"cells": "2..1"}, "seen '2..1'"),
        (("orders", 0), "1", {"cells": "1", "points": ("whole",)}, "either FIRST and END or --cells"),
        (("bills", 0), "2", {"points": ("0", "80000000")}, "bounds are 00000000, 100000000"),
    ],
)
def test_what_can_not_be_asked_is_refused(place: tuple[str, int], to: str, given: dict[str, str], why: str) -> None:
    """With what was seen, and what is allowed."""
    with pytest.raises(SettingsError, match=why):
        make_move_request(control(), "r", "me", place, to, **given)


def test_nothing_is_asked_of_nobody() -> None:
    """An application without members has nobody who could do it."""
    with pytest.raises(SettingsError, match="has no member: start a process first"):
        make_move_request(Control(), "r", "me", ("orders", 0), "any")
    with pytest.raises(SettingsError, match="has no member: start a process first"):
        make_expulsion(Control(), "r", "me", "1")
    with pytest.raises(SettingsError, match="'9' is no member; there are"):
        make_expulsion(control(), "r", "me", "9")


def test_a_move_is_done_when_its_points_are_owned_anew() -> None:
    """By its target, whoever had what; for anybody, at later epochs."""
    found = control()
    move = make_move_request(found, "r", "me", ("orders", 0), "shop-a")
    anywhere = make_move_request(found, "r", "me", ("orders", 0), "any", cells="0")
    assert not move.stage(found).is_done
    found.owners["orders", 0].put(0, QUARTER, Owner(8, 1))
    assert move.stage(found) == ("orders[0] belongs to incarnation 1 shop-a", True, False)
    assert anywhere.stage(found).is_done
    assert not make_move_request(found, "r", "me", ("orders", 0), "any").stage(found).is_done


def test_how_far_a_move_is_is_told() -> None:
    """Whom it waits for; a plan whose moves are done already is none of it, and it has to be asked again."""
    found = control()
    move = make_move_request(found, "r", "me", ("orders", 0), "shop-a", cells="0")
    anywhere = make_move_request(found, "r", "me", ("orders", 0), "any", cells="0")
    found.moves.plan, found.moves.planned = 5, {9: PlannedMove(9, "orders", 0, 0, QUARTER, 0, 2, 0, 0.0, 0)}
    waits = ("orders[0] 00000000-40000000 waits for the coordinator to plan it", False, False)
    assert move.stage(found) == anywhere.stage(found) == waits
    found.moves.plan, found.moves.planned = 6, {10: PlannedMove(10, "orders", 0, 0, QUARTER, 2, 1, 0, 0.0, 0)}
    planned = ("orders[0] 00000000-40000000 is to move, by plan 6", False, True)
    assert move.stage(found) == anywhere.stage(found) == planned
    found.moves.release_requests = {10: ReleaseAsked(1, 1, 10, 2, 7, "orders", 0, 0, QUARTER, 30_000)}
    asked = ("orders[0] 00000000-40000000 waits for incarnation 2 to release it", False, True)
    assert move.stage(found) == anywhere.stage(found) == asked


def test_a_move_whose_target_goes_comes_to_nothing() -> None:
    """It is said at once."""
    found = control()
    move = make_move_request(found, "r", "me", ("orders", 0), "2")
    found.members[2] = member(2, "", {"orders": 4}, expelled=True)
    with pytest.raises(SettingsError, match=r"orders\[0\] can't go to incarnation 2, which was expelled meanwhile"):
        move.stage(found)
