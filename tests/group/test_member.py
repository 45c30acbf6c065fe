"""What one member has to do, by what it has read."""

from keylanes.group.member import Out, Rejected, Waits, Works, range_of, state_of
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    ControlEvent,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    MemberRefused,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import Band

from ..stage.log_events import coordinator_elected
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = ("orders", 0)
HALF = SPACE_END // 2


class Log:
    """A control log in few words."""

    def __init__(self) -> None:
        self.control, self.turn = Control(), Turn(1)
        evolve_control(self.control, coordinator_elected(1, "c", "x"))

    def says(self, event: ControlEvent) -> None:
        """One more."""
        before = self.control.number
        evolve_control(self.control, event)
        assert self.control.number == before + 1

    def joins(self, incarnation: int, birth: str) -> None:
        """A member."""
        ids = (f"x.{incarnation}",)
        self.says(
            MemberJoined(*self.turn.next(), incarnation, "", birth, ids, "", "", 1.0, 1, (), (), until_level=False)
        )

    def grants(self, incarnation: int, epoch: int, first: int = 0, end: int = SPACE_END) -> None:
        """Points of the one partition."""
        self.says(RangesGranted(*self.turn.next(), 0, incarnation, epoch, *PLACE, (Band(first, end, 0),), (), ()))

    def asks(self, move: int, incarnation: int, epoch: int, first: int = 0, end: int = SPACE_END) -> ReleaseAsked:
        """For a release."""
        asked = ReleaseAsked(*self.turn.next(), move, incarnation, epoch, *PLACE, first, end, 1_000)
        self.says(asked)
        return asked

    def goes(self, incarnation: int, *, is_fenced: bool = True) -> None:
        """It is expelled, and fenced."""
        self.says(MemberExpelled(*self.turn.next(), incarnation, "silent", 0))
        if is_fenced:
            self.says(MemberFenced(*self.turn.next(), incarnation))


def test_it_waits_until_it_is_answered() -> None:
    """JOINED or REFUSED of its own birth, nobody else's."""
    log = Log()
    log.joins(1, "b")
    assert state_of(log.control, "a", None) == Waits()
    log.says(MemberRefused(*log.turn.next(), "a", "name in use: x"))
    assert state_of(log.control, "a", None) == Rejected("name in use: x")
    assert state_of(log.control, "b", None) == Works(1, (), (), (), ())


def test_it_takes_up_what_is_granted_to_it() -> None:
    """Each epoch once, as long as it owns something of it."""
    log = Log()
    log.joins(1, "a")
    log.joins(2, "b")
    log.grants(1, 1)
    log.grants(2, 2, 0, HALF)
    assert state_of(log.control, "a", 1) == Works(1, ((PLACE, 1),), (), (), ())
    assert state_of(log.control, "b", 2) == Works(2, ((PLACE, 2),), (), (), ())
    assert state_of(log.control, "a", 1, taken=[(PLACE, 1)]) == Works(1, (), (), (), ())


def test_it_winds_up_what_is_asked_of_it_and_goes_on_when_that_is_withdrawn() -> None:
    """At the epoch that it holds; a request for another one is nobody's."""
    log = Log()
    log.joins(1, "a")
    log.grants(1, 3)
    asked = log.asks(7, 1, 3, 0, HALF)
    log.asks(8, 1, 2)
    assert range_of(asked) == KeyRange(0, HALF)
    assert state_of(log.control, "a", 1, [(PLACE, 3)]) == Works(1, (), (asked,), (), ())
    assert state_of(log.control, "a", 1, [(PLACE, 3)], [7]) == Works(1, (), (), (), ())
    log.says(ReleaseWithdrawn(*log.turn.next(), 7, "deadline"))
    assert state_of(log.control, "a", 1, [(PLACE, 3)], [7]) == Works(1, (), (), (7,), ())


def test_it_is_out_when_it_is_expelled_also_when_that_is_forgotten() -> None:
    """The cause is told as long as the log knows it."""
    log = Log()
    log.joins(1, "a")
    log.goes(1, is_fenced=False)
    assert state_of(log.control, "a", 1) == Out("silent")
    assert state_of(log.control, "a", None) == Out("silent")
    log.says(MemberFenced(*log.turn.next(), 1))
    assert 1 not in log.control.members
    assert state_of(log.control, "a", 1) == Out("")


def test_it_is_out_although_its_birth_joined_once_more() -> None:
    """A request of its own that came late, behind all that became of it: what was granted to that one is not its own,
    whose transactional ids nobody will fence any more.
    """
    log = Log()
    log.joins(1, "a")
    log.goes(1)
    log.joins(2, "a")
    log.grants(2, 1)
    assert state_of(log.control, "a", 1) == Out("")
    assert state_of(log.control, "a", None) == Works(2, ((PLACE, 1),), (), (), ())
