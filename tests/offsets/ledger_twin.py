"""A deliberately dumb ledger: looks at whole logs, point by point, straight from the rule that says what counts.

Epoch e holds, at a point, from the offset of its own grant to that of the next grant over the point. A tile counts iff
it lies inside its own epoch's part and starts at the edge. Epochs rise; a stale term's grants don't exist.
"""

from collections.abc import Sequence
from typing import NamedTuple

from keylanes.offsets.control_events import ControlEvent, CoordinatorElected, PartitionStarted, RangesGranted
from keylanes.offsets.events import Committed, OffsetEvent, RangesReleased, StateChanged


class Judgement(NamedTuple):
    """What the logs say of some points: edges and owners by point, epochs that violate, epochs that wait.

    And which (incarnation, transaction) changed the state last.
    """

    edges: dict[int, int]
    owners: dict[int, int | None]
    violations: set[int]
    waiting: set[int]
    changed_by: tuple[int, int] | None


class _Grants(NamedTuple):
    froms: dict[tuple[int, int], int]
    untils: dict[tuple[int, int], int]
    holders: dict[int, int]
    newest: int


def judge(control: Sequence[ControlEvent], offsets: Sequence[OffsetEvent], points: Sequence[int]) -> Judgement:
    """The judgement of one partition's logs at these points."""
    started, in_force = _in_force(control)
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
                if event.first <= point < event.end:
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
    changes = [(event.incarnation, event.transaction) for event in offsets if isinstance(event, StateChanged)]
    changed_by = changes[-1] if changes else None
    return Judgement(*_at_last(started, points, edge, released), violations, waiting, changed_by)


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


def _in_force(control: Sequence[ControlEvent]) -> tuple[int, list[RangesGranted]]:
    term = started = 0
    grants: list[RangesGranted] = []
    for event in control:
        if isinstance(event, CoordinatorElected):
            term = max(term, event.term)
        elif isinstance(event, PartitionStarted) and event.term == term:
            started = event.offset
        elif isinstance(event, RangesGranted) and event.term == term:
            same = [g for g in grants if g.epoch == event.epoch]
            if event.epoch >= max([1, *(g.epoch for g in grants)]) and all(
                g.incarnation == event.incarnation for g in same
            ):
                grants.append(event)
    return started, grants


def _grants(in_force: Sequence[RangesGranted], points: Sequence[int]) -> _Grants:
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
