"""A deliberately dumb ledger: looks at whole logs, point by point, straight from the rule that says what counts.

Epoch e holds, at a point, from the offset of its own grant to that of the next grant over the point. A tile counts iff
it lies inside its own epoch's part and starts at the edge. Epochs rise; what does not count in the control log doesn't
exist.
"""

from collections.abc import Sequence
from typing import NamedTuple

from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    LevelRaised,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
)
from keylanes.offsets.events import Committed, OffsetEvent, RangesReleased, StateChanged, TopicsWritten


class Judgement(NamedTuple):
    """What the logs say of some points: edges and owners by point, epochs that violate, epochs that wait.

    And of each writer that was not succeeded its last transaction that changed the state, and the destinations.
    """

    edges: dict[int, int]
    owners: dict[int, int | None]
    violations: set[int]
    waiting: set[int]
    changed: dict[int, int]
    destinations: set[str]


class Roll(NamedTuple):
    """What the control log says of the application and of who took part."""

    app_birth: str
    level: int
    term: int
    used: int
    fenced: set[int]


class _Grants(NamedTuple):
    froms: dict[tuple[int, int], int]
    untils: dict[tuple[int, int], int]
    holders: dict[int, int]
    newest: int


def judge(control: Sequence[ControlEvent], offsets: Sequence[OffsetEvent], points: Sequence[int]) -> Judgement:
    """The judgement of one partition's logs at these points."""
    in_force = counting(control)
    started = next((event.offset for event in in_force if isinstance(event, PartitionStarted)), 0)
    grants = _grants(in_force, points)
    edge = dict(grants.froms)
    released: dict[tuple[int, int], bool] = {}
    violations: set[int] = set()
    waiting: set[int] = set()
    for event in offsets:
        epoch = getattr(event, "epoch", None)
        if epoch is None:
            continue
        if epoch > grants.newest:
            waiting.add(epoch)
        elif isinstance(event, RangesReleased):
            for point in points:
                if any(band.first <= point < band.end for band in event.bands):
                    if (epoch, point) in edge:
                        released[epoch, point] = True
                    elif epoch == grants.newest:
                        waiting.add(epoch)
        elif isinstance(event, Committed) and event.tiles:
            if epoch not in grants.holders:
                violations.add(epoch)
                continue
            _commit(event, grants, points, edge, released, violations, waiting)
    for (epoch, point), until in grants.untils.items():
        if edge[epoch, point] > until:
            violations.add(epoch)
            edge[epoch, point] = until
    written = {name for event in offsets if isinstance(event, TopicsWritten) for name in event.destinations}
    return Judgement(*_at_last(started, points, edge, released), violations, waiting, _changed(offsets), written)


def _changed(offsets: Sequence[OffsetEvent]) -> dict[int, int]:
    changes = [event for event in offsets if isinstance(event, StateChanged)]
    return {
        change.incarnation: change.transaction
        for i, change in enumerate(changes)
        if not any(change.incarnation in later.succeeded for later in changes[i + 1 :])
    }


def _commit(
    event: Committed,
    grants: _Grants,
    points: Sequence[int],
    edge: dict[tuple[int, int], int],
    released: dict[tuple[int, int], bool],
    violations: set[int],
    waiting: set[int],
) -> None:
    epoch = event.epoch
    for tile in event.tiles:
        for point in (p for p in points if tile.first <= p < tile.end):
            key = (epoch, point)
            if key not in edge:
                (waiting if epoch == grants.newest else violations).add(epoch)
            elif (
                event.incarnation != grants.holders[epoch]
                or tile.offset_from >= tile.offset_to
                or edge[key] != tile.offset_from
            ):
                violations.add(epoch)
            else:
                edge[key] = tile.offset_to
                if key in released:
                    violations.add(epoch)


def _at_last(
    started: int, points: Sequence[int], edge: dict[tuple[int, int], int], released: dict[tuple[int, int], bool]
) -> tuple[dict[int, int], dict[int, int | None]]:
    edges: dict[int, int] = {}
    owners: dict[int, int | None] = {}
    for point in points:
        epochs = sorted(epoch for epoch, p in edge if p == point)
        edges[point] = edge[epochs[-1], point] if epochs else started
        owners[point] = epochs[-1] if epochs and (epochs[-1], point) not in released else None
    return edges, owners


def counting(control: Sequence[ControlEvent]) -> list[ControlEvent]:
    """What counts of a control log, by looking back at all that counted before."""
    counted: list[ControlEvent] = []
    for event in control:
        elections = [at for at, before in enumerate(counted) if isinstance(before, CoordinatorElected)]
        election = counted[elections[-1]] if elections else None
        if isinstance(event, AppCreated):
            counts = not any(isinstance(before, AppCreated) for before in counted)
        elif isinstance(event, CoordinatorElected):
            counts = all(event.term > counted[at].term for at in elections)  # type: ignore[union-attr]  # elections
            counts = counts and _app_birth(counted) in ("", event.app_birth)
        else:
            begun = elections[-1] + 1 if elections else 0
            term = election.term if isinstance(election, CoordinatorElected) else 0
            decided = [before for before in counted[begun:] if not isinstance(before, AppCreated)]
            counts = (event.term, event.number) == (term, len(decided) + 1)
        if counts:
            counted.append(event)
    return counted


def _app_birth(counted: Sequence[ControlEvent]) -> str:
    """As the first election says it."""
    return next((event.app_birth for event in counted if isinstance(event, CoordinatorElected)), "")


def roll(control: Sequence[ControlEvent]) -> Roll:
    """Who took part; an incarnation that was passed over, or is forgotten, is as good as fenced."""
    counted = counting(control)
    joined: list[int] = []
    fenced: set[int] = set()
    for event in counted:
        if isinstance(event, MemberJoined) and event.incarnation > max(joined, default=0):
            fenced |= {*range(max(joined, default=0) + 1, event.incarnation)}
            joined.append(event.incarnation)
        elif isinstance(event, MemberFenced) and event.incarnation in joined:
            fenced.add(event.incarnation)
    level = max((event.level for event in counted if isinstance(event, LevelRaised)), default=0)
    term = max((event.term for event in counted if isinstance(event, CoordinatorElected)), default=0)
    return Roll(_app_birth(counted), level, term, max(joined, default=0), fenced)


def _grants(counted: Sequence[ControlEvent], points: Sequence[int]) -> _Grants:
    in_force: list[RangesGranted] = []
    for event in counted:
        if isinstance(event, RangesGranted):
            same = [g for g in in_force if g.epoch == event.epoch]
            rises = event.epoch >= max([1, *(g.epoch for g in in_force)])
            if rises and all(g.incarnation == event.incarnation for g in same):
                in_force.append(event)
    froms: dict[tuple[int, int], int] = {}
    untils: dict[tuple[int, int], int] = {}
    for grant in in_force:
        for band in grant.bands:
            for point in (p for p in points if band.first <= p < band.end):
                if (grant.epoch, point) in froms:
                    continue
                froms[grant.epoch, point] = band.offset_from
                for older in {g.epoch for g in in_force if g.epoch < grant.epoch}:
                    if (older, point) in froms:
                        untils.setdefault((older, point), band.offset_from)
    holders = {g.epoch: g.incarnation for g in reversed(in_force)}
    return _Grants(froms, untils, holders, max(holders, default=0))
