"""Faults in the run of a group (honest_group.py), each with the statement that has to find it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from keylanes.offsets.control_events import MemberExpelled, MemberFenced, MemberJoined, RangesGranted
from keylanes.offsets.event_values import Band, Edge
from keylanes.offsets.events import Committed, Event, RangesReleased, StateChanged, WorkersCut

from .honest import SOURCE, Planner, Run
from .honest_group import FIRST, SECOND, WHOLE

MOVED, TAKEN = 1, 0
"""The partition that moves in order, and the one whose owner is expelled."""


class Plant(NamedTuple):
    """``check``: the statement that finds it. ``also``: others that it contradicts."""

    check: str
    change: Callable[[Run], None]
    also: tuple[str, ...] = ()


def planted(planner: Planner, plant: Plant) -> Run:
    """The run with one fault."""
    run = planner.run()
    plant.change(run)
    return run


def find(events: list[Any], kind: type, **fields: Any) -> int:
    """Where the first event of a kind with these fields stands."""
    return next(
        i
        for i, event in enumerate(events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    )


def put_behind(events: list[Any], origin: int, behind: int) -> None:
    """An event comes to stand behind another one."""
    events.insert(behind + (origin > behind), events.pop(origin))


def _number_left_out(run: Run) -> None:
    run.control[-1] = replace(run.control[-1], number=99)


def _number_used_twice(run: Run) -> None:
    run.control.append(MemberExpelled(2, 1, FIRST, "operator", 0))


def _term_of_nobody(run: Run) -> None:
    run.control.append(MemberExpelled(9, 1, FIRST, "operator", 0))


def granted_again(run: Run, **fields: Any) -> None:
    """A grant behind all others, of what the second member has released: to that one at epoch 3, but for ``fields``."""
    grant = run.control[find(run.control, RangesGranted, incarnation=SECOND, partition=TAKEN)]
    assert isinstance(grant, RangesGranted)
    bands = (Band(0, WHOLE, 300),)
    at = find(run.control, MemberExpelled, incarnation=SECOND)
    run.control.insert(at, replace(grant, **{"epoch": 3, "bands": bands, **fields}))


def _half_to_another(run: Run) -> None:
    granted_again(run, bands=(Band(0, WHOLE // 2, 300),))
    joined = run.control[find(run.control, MemberJoined, incarnation=SECOND)]
    third = replace(joined, term=2, incarnation=3, birth="process 2")
    run.control.insert(find(run.control, MemberFenced, incarnation=FIRST), third)
    granted_again(run, bands=(Band(WHOLE // 2, WHOLE, 300),), incarnation=3)


def _not_released(run: Run) -> None:
    del run.events[0][find(run.events[0], RangesReleased, incarnation=FIRST)]


def _granted_before_the_fence(run: Run) -> None:
    fenced = find(run.control, MemberFenced, incarnation=FIRST)
    put_behind(run.control, fenced, find(run.control, RangesGranted, incarnation=SECOND, partition=TAKEN))


def _granted_from(partition: int, epoch: int, offset: int) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        at = find(run.control, RangesGranted, partition=partition, epoch=epoch)
        run.control[at] = replace(run.control[at], bands=(Band(0, WHOLE, offset),))

    return change


def _released_at(offset: int) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        at = find(run.events[0], RangesReleased, incarnation=FIRST)
        run.events[0][at] = replace(run.events[0][at], bands=(Edge(0, WHOLE, offset),))

    return change


def _released_by_another(run: Run) -> None:
    at = find(run.events[0], WorkersCut, incarnation=SECOND)
    released = RangesReleased(SECOND, 1, 1, SOURCE, TAKEN, 0, (Edge(0, WHOLE, None),), ())
    run.events[0].insert(at + 1, released)


def _late_tile(run: Run) -> None:
    log = run.events[0]
    at = find(log, RangesReleased, incarnation=FIRST)
    put_behind(log, at, find(log, Committed, incarnation=FIRST, partition=MOVED, transaction=5) - 1)
    log[at] = replace(log[at], transaction=6)


def _released_twice(run: Run) -> None:
    at = find(run.events[0], RangesReleased, incarnation=FIRST)
    run.events[0].insert(at + 1, run.events[0][at])


def _begun_before_the_release(run: Run) -> None:
    log = run.events[0]
    put_behind(log, find(log, WorkersCut, incarnation=SECOND), find(log, RangesReleased, incarnation=FIRST) - 1)


def _last_of_the_first(run: Run) -> int:
    return max(i for i, e in enumerate(run.events[0]) if isinstance(e, Committed) and e.incarnation == FIRST)


def _taken(run: Run) -> int:
    return find(run.events[0], WorkersCut, incarnation=SECOND, partition=TAKEN)


def _commit_behind_the_fence(run: Run) -> None:
    put_behind(run.events[0], _last_of_the_first(run), _taken(run))


def _behind_the_fence(event: Event) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        run.events[0].insert(_taken(run) + 1, event)

    return change


def _never_expelled(run: Run) -> None:
    del run.control[find(run.control, MemberExpelled, incarnation=FIRST)]


PLANTS = {
    "a number is left out": Plant("decision-turn", _number_left_out),
    "a number is used twice": Plant("decision-turn", _number_used_twice),
    "a term that nobody was elected for": Plant("decision-turn", _term_of_nobody),
    "granted to somebody who was expelled": Plant("grant-owner", lambda run: granted_again(run, incarnation=FIRST)),
    "granted to somebody who never joined": Plant("grant-owner", lambda run: granted_again(run, incarnation=7)),
    "granted at an epoch of before": Plant("grant-owner", lambda run: granted_again(run, epoch=1)),
    "granted anew at its epoch": Plant("grant-owner", lambda run: granted_again(run, epoch=2)),
    "an epoch of two members": Plant("grant-owner", _half_to_another),
    "granted while its owner is at work": Plant("grant-free", _not_released),
    "granted before its owner was fenced": Plant("grant-free", _granted_before_the_fence),
    "granted from behind the released edge": Plant("grant-edge", _granted_from(MOVED, 2, 140)),
    "granted from behind the edge of who was fenced": Plant("grant-edge", _granted_from(TAKEN, 2, 190)),
    "granted from ahead of it": Plant("grant-edge", _granted_from(TAKEN, 2, 210)),
    "not granted from the start": Plant("grant-edge", _granted_from(TAKEN, 1, 10)),
    "released below its tiles": Plant("release-edge", _released_at(140), ("grant-edge",)),
    "released above its tiles": Plant("release-edge", _released_at(160), ("grant-edge",)),
    "released by another": Plant("release-edge", _released_by_another, ("release-last",)),
    "a tile behind its release": Plant("release-last", _late_tile),
    "released twice": Plant("release-last", _released_twice),
    "begun before the release": Plant("release-last", _begun_before_the_release, ("grant-free",)),
    "a commit behind the fence": Plant("fence-last", _commit_behind_the_fence),
    "a release behind the fence": Plant(
        "fence-last",
        _behind_the_fence(RangesReleased(FIRST, 99, 1, SOURCE, TAKEN, 0, (Edge(0, WHOLE, 200),), ())),
        ("release-last",),
    ),
    "a change of state behind the fence": Plant(
        "fence-last", _behind_the_fence(StateChanged(FIRST, 99, SOURCE, TAKEN, 1, ()))
    ),
    "fenced and not expelled": Plant("fence-last", _never_expelled),
}
"""By what is wrong."""
