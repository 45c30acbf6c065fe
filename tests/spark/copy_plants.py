"""Faults in what is asked for of copies (honest_copies.py), each with the statement that has to find it."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    MemberJoined,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import PlannedMove, Span

from ..stage.log_events import NO_NUMBER
from .group_plants import Plant, find, put_behind
from .honest import SOURCE, Run
from .honest_copies import DEMOTED, DROPPED, HALF, LAST, MOVED, STANDBY, THIRD, asked
from .honest_group import FIRST, SECOND, WHOLE


def _asked(number: int, **fields: Any) -> Callable[[Run], None]:
    """The copy of this number is asked for otherwise."""

    def plant(run: Run) -> None:
        at = find(run.control, CopyAsked, move=number)
        run.control[at] = replace(run.control[at], **fields)

    return plant


def _left_out(kind: type, **fields: Any) -> Callable[[Run], None]:
    def plant(run: Run) -> None:
        del run.control[find(run.control, kind, **fields)]

    return plant


def _behind(kind: type, of: dict[str, Any], behind: type, **fields: Any) -> Callable[[Run], None]:
    """An event comes too late."""

    def plant(run: Run) -> None:
        put_behind(run.control, find(run.control, kind, **of), find(run.control, behind, **fields))

    return plant


def _before_the_release(*events: Any) -> Callable[[Run], None]:
    """These stand in front of the request to release partition 1."""

    def plant(run: Run) -> None:
        at = find(run.control, ReleaseAsked, move=MOVED)
        run.control[at:at] = list(events)

    return plant


def _demoted_before_the_grant(run: Run) -> None:
    grant = find(run.control, RangesGranted, incarnation=SECOND, partition=1)
    run.control.insert(grant, run.control.pop(find(run.control, CopyAsked, move=DEMOTED)))


def _released_while_learned(run: Run) -> None:
    """What the second member learns is asked for once more, for a third one, which learns it, too."""
    at = find(run.control, ReleaseAsked, move=MOVED)
    other = replace(run.control[at], move=90)
    moved = _plan(90, PlannedMove(90, SOURCE, 1, 0, WHOLE, FIRST, THIRD, 0, 0.0, 0))
    run.control[at:at] = [_third(run), moved, asked(1, 90, THIRD, 1, "learner"), other]


def _released_for_another(run: Run) -> None:
    """It has a standby, which is enough to be promoted; but somebody learns these points."""
    at = find(run.control, ReleaseAsked, move=MOVED)
    standby = asked(1, 91, THIRD, 1, "standby")
    moved = _plan(90, PlannedMove(90, SOURCE, 1, 0, WHOLE, FIRST, THIRD, 0, 0.0, 0))
    run.control[at:at] = [_third(run), standby, moved, replace(run.control[at], move=90)]


def _third(run: Run) -> MemberJoined:
    """The third member joins early."""
    run.control.pop(find(run.control, MemberJoined, incarnation=THIRD))
    joined = run.control[find(run.control, MemberJoined, incarnation=SECOND)]
    assert isinstance(joined, MemberJoined)
    return replace(joined, incarnation=THIRD, birth="process 2")


def _plan(number: int, move: PlannedMove, *, part: int = 0, parts: int = 1) -> PlanMade:
    return PlanMade(1, NO_NUMBER, number, number, "change", 0, part, parts, (move,))


def _half_a_plan(run: Run) -> None:
    at = find(run.control, PlanMade, plan=1)
    run.control[at] = replace(run.control[at], parts=2)


def _another_plan(run: Run) -> None:
    """A whole plan replaces the one whose move nobody has begun; then its copy is asked for."""
    at = find(run.control, PlanMade, plan=2)
    run.control.insert(at + 1, _plan(92, PlannedMove(93, SOURCE, 0, 0, HALF, SECOND, FIRST, 0, 0.0, 0)))


COPY_PLANTS = {
    "a copy of who was expelled": Plant(
        "copy-asked", lambda run: run.control.append(asked(2, 94, FIRST, 0, "standby"))
    ),
    "a copy of who never joined": Plant("copy-asked", _asked(STANDBY, incarnation=7)),
    "a copy of what it owns": Plant("copy-asked", _asked(STANDBY, partition=1)),
    "demoted before the grant": Plant("copy-asked", _demoted_before_the_grant),
    "a copy of no points": Plant("copy-asked", _asked(STANDBY, bands=())),
    "a copy of no range": Plant("copy-asked", _asked(STANDBY, bands=(Span(5, 5),))),
    "a copy of another topic": Plant("copy-asked", _asked(STANDBY, topic="other")),
    "a learner of no move": Plant("copy-asked", _asked(STANDBY, role="learner")),
    "a learner of half a plan": Plant("copy-asked", _half_a_plan, ("copy-first",)),
    "a learner of a plan that was replaced": Plant("copy-asked", _another_plan),
    "a learner that is not the target": Plant("copy-asked", _asked(DROPPED, incarnation=SECOND, partition=1)),
    "a learner of more than its move": Plant("copy-asked", _asked(DROPPED, bands=(Span(0, HALF + 1),))),
    "a number used twice": Plant("copy-asked", _asked(LAST, move=STANDBY)),
    "the number of a planned move": Plant("copy-asked", _asked(STANDBY, move=MOVED)),
    "a move with the number of a copy": Plant(
        "copy-asked", _before_the_release(asked(1, 4, SECOND, 0, "standby", [(0, 5)]))
    ),
    "a role that there is not": Plant("copy-asked", _asked(STANDBY, role="leader")),
    "released without a copy": Plant("copy-first", _left_out(CopyAsked, move=MOVED)),
    "released before the copy": Plant("copy-first", _behind(CopyAsked, {"move": MOVED}, ReleaseAsked, move=MOVED)),
    "a copy of one point too few": Plant("copy-first", _asked(MOVED, bands=(Span(0, HALF), Span(HALF + 1, WHOLE)))),
    "released behind a copy that was ended": Plant(
        "copy-first", _before_the_release(CopyEnded(1, NO_NUMBER, MOVED, "too early"))
    ),
    "released for a move that was withdrawn": Plant(
        "copy-first", _before_the_release(ReleaseWithdrawn(1, NO_NUMBER, MOVED, "deadline"))
    ),
    "two learners of a range": Plant("copy-once", _released_while_learned),
    "released for another than who learns": Plant("copy-once", _released_for_another),
    "ended twice": Plant(
        "copy-ended", _before_the_release(*[CopyEnded(1, NO_NUMBER, MOVED, "again")] * 2), ("copy-first",)
    ),
    "ended when it was owned": Plant(
        "copy-ended", lambda run: run.control.append(CopyEnded(2, NO_NUMBER, STANDBY, "late"))
    ),
    "a copy that nobody was asked for": Plant("copy-ended", _left_out(CopyAsked, move=DEMOTED)),
}
"""By what is wrong."""
