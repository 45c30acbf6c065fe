"""A round of chaos in a group: processes with state share the work, on one node or three, under load.

Whoever coordinates and whoever does not is killed and suspended, below and beyond the session; processes stop in order
and join; the leaders of the group's own logs go. Meanwhile ranges may be on the move, by load and because somebody asks
for it all the time. Three judges look at what came of it: Spark, from the logs;
another client with plain Python (cluster_check.py); and the control log, which must show that nobody was expelled but
whom a fault met, and that nobody was elected while the coordinator lived.

What happens is in group_chaos_plan.py, how it is done in group_chaos_world.py.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import CoordinatorElected, MemberExpelled

from .chaos_process import ChaosError
from .chaos_stage import NAME, Hear, Judged, commits_of
from .cluster_check import Row, read
from .group_chaos_plan import GroupRound
from .group_chaos_world import Befallen, GroupWorld

__all__ = ["ChaosError", "GroupFigures", "GroupRound", "run_group_round"]


class GroupFigures(Judged, kw_only=True):
    """What was done in a round, and what the judges found."""

    elections: int = 0
    expelled: dict[str, int] = msgspec.field(default_factory=dict)
    """Members, by cause."""
    moves: dict[str, int] = msgspec.field(default_factory=dict)
    """Ranges that went from one member to another, by cause."""


def run_group_round(
    round_: GroupRound, folder: Path, tell: Callable[[str], None], hear_found: Hear = dict
) -> GroupFigures:
    """Run a round in a folder of its own: see ``ChaosStage.play``. ``tell`` hears one line about each thing."""
    world, figures = GroupWorld(round_, folder, tell), GroupFigures(seed=round_.seed)
    return world.play(round_, figures, lambda: judge(world, figures), hear_found)


def judge(world: GroupWorld, figures: GroupFigures) -> None:
    """Fill in the figures; raises ChaosError when something does not hold."""
    figures.starts = len(world.processes)
    bootstrap = world.cluster.bootstrap
    control = read(bootstrap, f"{NAME}.control")
    _count(control, figures)
    figures.commits, gaps = commits_of(bootstrap, [(one.began, one.ended) for one in world.befallen])
    for one, gap in zip(world.befallen, gaps, strict=True):
        one.stopped_s = gap
    figures.stops = [(one.fault.told(), one.stopped_s) for one in world.befallen]
    figures.moves = world.judged(figures, group=True)["group"]["moves"]
    wrong = [what for one in world.befallen for what in unfounded(control, one)]
    if wrong := wrong + between(control, world.befallen):
        raise ChaosError(f"in the control log: {'; '.join(wrong)}")


def _count(control: list[Row], figures: GroupFigures) -> None:
    events = [decode(row.value) for row in control]
    figures.elections = sum(isinstance(event, CoordinatorElected) for event in events)
    figures.expelled = dict(Counter(event.cause for event in events if isinstance(event, MemberExpelled)))


def _within(control: list[Row], one: Befallen) -> list[object]:
    """The events of the control log from when a fault began until all worked again."""
    return [decode(row.value) for row in control if one.began <= row.timestamp / 1000 <= one.ended]


def between(control: list[Row], befallen: list[Befallen]) -> list[str]:
    """Who was expelled while there was no fault, other than by leaving."""
    wrong, first = [], control[0].timestamp
    for row in control:
        event, at = decode(row.value), row.timestamp / 1000
        if not isinstance(event, MemberExpelled) or event.cause == "left":
            continue
        if not any(one.began <= at <= one.ended for one in befallen):
            seconds = (row.timestamp - first) / 1000
            wrong.append(f"incarnation {event.incarnation}: {event.cause}, between faults, {seconds:.1f} s on")
    return wrong


def unfounded(control: list[Row], one: Befallen) -> list[str]:
    """What the control log shows of a fault that it does not account for."""
    within, wrong = _within(control, one), []
    expelled = [event for event in within if isinstance(event, MemberExpelled)]
    causes = sorted(event.cause for event in expelled)
    if causes != sorted(one.fault.causes) and not (one.may_be_late and causes == ["silent"]):
        told = ", ".join(f"incarnation {event.incarnation}: {event.cause}" for event in expelled) or "nobody"
        wrong.append(f"{one.fault.told()}: expelled: {told}; it should be {', '.join(one.fault.causes) or 'nobody'}")
    if strangers := sorted({event.incarnation for event in expelled} - {*one.met}):
        wrong.append(f"{one.fault.told()}: incarnations {strangers} were expelled, which it did not meet")
    elected = [event for event in within if isinstance(event, CoordinatorElected)]
    if elected and not one.fault.may_elect:
        wrong.append(f"{one.fault.told()}: elected: {[event.term for event in elected]} while the coordinator lived")
    return wrong
