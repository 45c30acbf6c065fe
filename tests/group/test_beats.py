"""When each member was heard last."""

import pytest

from keylanes.group.beats import Beats
from keylanes.group.signals_fold import COORDINATORS, partition_of
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.signals import Beat, CoordinatorBeat, LeaveAsked, MoveAsked, Signal

from ..stage.log_events import coordinator_elected, in_turn, member_expelled, member_fenced, member_joined
from ..tiers.marks import tier

pytestmark = tier("check")


def group() -> Control:
    """Three members; the second was expelled, the third was fenced too. The first one coordinates term 2."""
    control = Control()
    events: list[ControlEvent] = [coordinator_elected(1, "b")]
    events += [member_joined(1, n, birth, birth) for n, birth in enumerate("abc", 1)]
    events += [member_expelled(1, 2), member_expelled(1, 3), member_fenced(1, 3), coordinator_elected(2, "a")]
    for event in in_turn(events):
        evolve_control(control, event)
    return control


@pytest.mark.parametrize(
    ("signal", "who"),
    [
        (Beat(2, "b", 0, 0, 0, 0, ()), {"b": 7}),
        (LeaveAsked(1, "a", 0, is_done=False), {"a": 7}),
        (CoordinatorBeat(2, 1, False, 1_000, False, (), (), ()), {"a": 7}),
        (MoveAsked("r1", "b", "orders", 0, 0, 1, 0, 0), {}),
        (CoordinatorBeat(1, 1, False, 1_000, False, (), (), ()), {}),
    ],
)
def test_a_signal_shows_that_who_says_it_lives(signal: Signal, who: dict[str, int]) -> None:
    """A beat of a coordinator shows it of who has its term; one of a term that is over of nobody."""
    beats = Beats(group())
    beats.hear(7, signal)
    assert beats.last_ms == who


def test_the_last_one_counts_in_whatever_order_they_are_heard() -> None:
    """The signals are read backwards."""
    beats = Beats(group())
    for ms in (5, 9, 7):
        beats.hear(ms, Beat(1, "a", 0, 0, 0, 0, ()))
    assert beats.last_ms == {"a": 9}


def test_who_was_not_heard_is_looked_for_where_it_speaks() -> None:
    """In its own partition, and in the coordinator's, where it may have asked for a sign; who was fenced is not."""
    beats = Beats(group())
    assert beats.partitions_unheard() == {COORDINATORS, partition_of("a", "a"), partition_of("b", "b")}
    beats.hear(5, Beat(2, "b", 0, 0, 0, 0, ()))
    assert beats.partitions_unheard() == {COORDINATORS, partition_of("a", "a")}
    beats.hear(5, Beat(1, "a", 0, 0, 0, 0, ()))
    assert beats.partitions_unheard() == set()
