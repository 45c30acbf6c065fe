"""What one member has to do, by what it has read."""

from keylanes.group.member import NotJoined, Out, Rejected, Works, range_of, state_of
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    ControlEvent,
    MemberJoined,
    MemberRefused,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import Band

from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    ranges_granted,
)
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = ("orders", 0)
HALF = SPACE_END // 2


def fold(*events: ControlEvent) -> Control:
    """The fold of a control log in which each of these counts."""
    control = Control()
    for number, event in enumerate(in_turn([coordinator_elected(1, "c"), *events])):
        assert evolve_control(control, event).number == number
    return control


def joins(incarnation: int, birth: str) -> MemberJoined:
    """A member."""
    return member_joined(1, incarnation, birth, f"x.{incarnation}")


def grants(incarnation: int, epoch: int, end: int = SPACE_END) -> RangesGranted:
    """Points of the one partition."""
    return ranges_granted(1, incarnation, epoch, *PLACE, (Band(0, end, 0),))


def asks(move: int, epoch: int) -> ReleaseAsked:
    """The first member is asked for half of them."""
    return ReleaseAsked(1, NO_NUMBER, move, 1, epoch, *PLACE, 0, HALF, 1_000)


def test_it_waits_until_it_is_answered() -> None:
    """JOINED or REFUSED of its own birth, nobody else's."""
    refused = MemberRefused(1, NO_NUMBER, "a", "name in use: x")
    assert state_of(fold(joins(1, "b")), "a", None) == NotJoined()
    assert state_of(fold(joins(1, "b"), refused), "a", None) == Rejected("name in use: x")
    assert state_of(fold(joins(1, "b"), refused), "b", None) == Works(1, (), (), (), ())


def test_it_takes_up_what_is_granted_to_it() -> None:
    """Each epoch once, as long as it owns something of it."""
    control = fold(joins(1, "a"), joins(2, "b"), grants(1, 1), grants(2, 2, HALF))
    assert state_of(control, "a", 1) == Works(1, ((PLACE, 1),), (), (), ())
    assert state_of(control, "b", 2) == Works(2, ((PLACE, 2),), (), (), ())
    assert state_of(control, "a", 1, taken=[(PLACE, 1)]) == Works(1, (), (), (), ())


def test_it_winds_up_what_is_asked_of_it_and_goes_on_when_that_is_withdrawn() -> None:
    """At the epoch that it holds; a request for another one is nobody's."""
    log: list[ControlEvent] = [joins(1, "a"), grants(1, 3), asks(7, 3), asks(8, 2)]
    control = fold(*log)
    asked = control.moves.release_requests[7]
    assert range_of(asked) == KeyRange(0, HALF)
    assert state_of(control, "a", 1, [(PLACE, 3)]) == Works(1, (), (asked,), (), ())
    assert state_of(control, "a", 1, [(PLACE, 3)], [7]) == Works(1, (), (), (), ())
    withdrawn = fold(*log, ReleaseWithdrawn(1, NO_NUMBER, 7, "deadline"))
    assert state_of(withdrawn, "a", 1, [(PLACE, 3)], [7]) == Works(1, (), (), (7,), ())


def test_it_is_out_when_it_is_expelled_also_when_that_is_forgotten() -> None:
    """The cause is told as long as the log knows it."""
    log: list[ControlEvent] = [joins(1, "a"), member_expelled(1, 1)]
    for known in (1, None):
        assert state_of(fold(*log), "a", known) == Out("superseded")
    control = fold(*log, member_fenced(1, 1))
    assert 1 not in control.members
    assert state_of(control, "a", 1) == Out("")


def test_it_is_out_although_its_birth_joined_once_more() -> None:
    """A request of its own that came late, behind all that became of it: what was granted to that one is not its own,
    whose transactional ids nobody will fence any more.
    """
    control = fold(joins(1, "a"), member_expelled(1, 1), member_fenced(1, 1), joins(2, "a"), grants(2, 1))
    assert state_of(control, "a", 1) == Out("")
    assert state_of(control, "a", None) == Works(2, ((PLACE, 1),), (), (), ())
