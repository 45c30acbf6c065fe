"""A history of range_model.py in the real events, folded by the real ledger: both must tell the same of it.

Workers' names and numbers are left out: the ledger's edges, and what it complains of, don't depend on them.
"""

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.decide import CommitKey, WorkerAdvance, decide_commits
from keylanes.offsets.event_values import Band
from keylanes.offsets.events import Event
from keylanes.offsets.ledger import Ledger, evolve_all

from ..stage.log_events import (
    coordinator_elected,
    in_turn,
    member_joined,
    partition_started,
    range_released,
    ranges_granted,
)
from .range_model import OPEN, PREPARED, Control, Design, Released, Tile, World


def span(log_of: tuple[int, ...], point: int) -> tuple[int, int]:
    """The points of the real key space that stand for one of the model: equal parts of its partition."""
    points = [p for p, log in enumerate(log_of) if log == log_of[point]]
    part, i = SPACE_END // len(points), points.index(point)
    return part * i, part * (i + 1) if i + 1 < len(points) else SPACE_END


def control_events(log_of: tuple[int, ...], before: Control, after: Control, names: str) -> list[ControlEvent]:
    """What one step appended to the control log, as far as it counts."""
    events: list[ControlEvent] = []
    if after.term != before.term:
        events.append(coordinator_elected(after.term, names[after.holder]))
    for grant in after.grants[len(before.grants) :]:
        for log in sorted(set(log_of)):
            granted = [(p, edge) for p, edge in enumerate(grant.edges) if edge is not None and log_of[p] == log]
            bands = tuple(Band(*span(log_of, p), edge) for p, edge in granted)
            if bands:
                events.append(ranges_granted(after.term, grant.member + 1, grant.epoch, "t", log, bands))
    return events


def offset_events(log_of: tuple[int, ...], before: World, after: World, transaction: int) -> list[Event]:
    """What the transaction that one step decided wrote to the offset log; nothing when it decided none."""
    events: list[Event] = []
    for log, (old, new) in enumerate(zip(before.logs, after.logs, strict=True)):
        open_before = [entry.owner for entry in old.tail if entry.status == OPEN]
        for entry in new.tail:
            fresh = entry.status == PREPARED and entry.owner in open_before
            for epoch in sorted({event.epoch for event in entry.events}) if fresh else ():
                tiles = [e for e in entry.events if isinstance(e, Tile) and e.epoch == epoch]
                moves = [WorkerAdvance(p, *span(log_of, p), offset, offset + 1) for p, _, offset in sorted(tiles)]
                key = CommitKey(entry.owner + 1, transaction, epoch, "t", log)
                events += decide_commits([(key, moves)])
                left = [span(log_of, e.point) for e in entry.events if isinstance(e, Released) and e.epoch == epoch]
                events += [range_released(entry.owner + 1, transaction, epoch, "t", log, a, b) for a, b in left]
    return events


def histories(design: Design, path: tuple[tuple[str, World], ...]) -> tuple[list[Event], list[Event]]:
    """The real events of both logs along a path."""
    log_of, start = design.log_of, design.start
    control: list[ControlEvent] = [coordinator_elected(start.control.term, design.names[start.control.holder])]
    control += [member_joined(1, me + 1, name, name) for me, name in enumerate(design.names)]
    control += [partition_started(1, "t", log, 0, "earliest", 1) for log in sorted(set(log_of))]
    control += control_events(log_of, start.control._replace(grants=()), start.control, design.names)
    offsets: list[Event] = []
    before = start
    for transaction, (_, after) in enumerate(path, 1):
        control += control_events(log_of, before.control, after.control, design.names)
        offsets += offset_events(log_of, before, after, transaction)
        before = after
    return [*in_turn(control)], offsets


def assert_ledger_agrees(design: Design, path: tuple[tuple[str, World], ...], *, is_wrong: bool) -> None:
    """The real fold, whichever log it reads first, knows the model's edges, or that something is wrong."""
    control, offsets = histories(design, path)
    for events in (control + offsets, offsets + control):
        ledger = evolve_all(Ledger(), events)
        assert bool(ledger.violations()) is is_wrong, [label for label, _ in path]
        if not is_wrong:
            assert not ledger.early_epochs()
            plane = path[-1][1].plane
            for point, log in enumerate(design.log_of):
                edges = ledger.partition(("t", log)).edges(0)
                assert edges.is_constant(*span(design.log_of, point), plane.edges[point])
