"""The fold of the control log where events say what can't be, or say it again."""

from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
)

from ..stage.log_events import (
    coordinator_elected,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    source_identified,
)


def fold(*events: ControlEvent) -> Control:
    """The fold of a log that begins as every one does."""
    control = Control()
    for event in (
        AppCreated("app", "hash", 1),
        coordinator_elected(1, "a"),
        member_joined(1, 1, "a", "app.a"),
        *events,
    ):
        control = evolve_control(control, event)
    return control


def test_who_never_joined_is_not_expelled() -> None:
    """The fold never fails on an event: one about nobody changes nothing."""
    assert fold(member_expelled(1, 7), member_fenced(1, 8)) == fold()


def test_a_partition_starts_once() -> None:
    """A second start would move the audit's left edge."""
    started = fold(
        partition_started(1, "t", 0, 5, "earliest", 1),
        partition_started(1, "t", 0, 9, "earliest", 1),
        partition_started(1, "t", 1, 9, "earliest", 1),
    )
    assert dict(started.started) == {("t", 0): 5, ("t", 1): 9}


def test_a_source_has_one_identity() -> None:
    """The first one stays: the offsets in the logs are those of that topic; a stale one counts for nothing."""
    events = (source_identified(0, "s", "z"), source_identified(1, "t", "x"), source_identified(1, "t", "y"))
    assert dict(fold(*events).identities) == {"t": "x"}
