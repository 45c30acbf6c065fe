"""The ledger: the fold of both logs, and the one place that says which commits count.

Rule 1: the fold does not depend on the order in which the control log and the offset log are read against each other
(each is read in its own order). Epoch e of a partition holds, at each point, from its own offset to that of the next
grant over the point. A tile counts where it lies inside its own epoch's part and starts at the edge. What sticks out
is a *violation* of that epoch: its effects are visible, so the host must stop.

Why it is order-independent: each epoch folds its own events, in the order of the offset log, without looking at other
epochs; the next grant over a point sets its ``until`` once, and an edge is kept at ``min(what was committed, until)``,
which gives the same edge and the same violation whether the tile or the grant was read first. Epochs rise, and a grant
may come in chunks: what an epoch says of points that it does not hold waits while the epoch is the newest or newer, and
is a violation when it is older. What is waiting blocks nobody else.

Rule 2: live running and recovery use this ``evolve``; it never fails on an event, logs nothing and reads no clock.
Left out on purpose: the history of tiles (the witness has it from the log), and everything about brokers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from .control import Control, event_counts, evolve_control
from .control_events import ControlEvent, RangesGranted
from .event_values import EVERYBODY, Edge, Tile
from .events import (
    Committed,
    Event,
    LogOpened,
    RangesReleased,
    SnapshotTaken,
    StateChanged,
    TopicsWritten,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)

Place: TypeAlias = tuple[str, int]
"""A source partition: (topic, partition)."""

EpochEvent: TypeAlias = Committed | WorkersCut | WorkerSplit | WorkersMerged | RangesReleased


@dataclass(frozen=True, slots=True)
class EpochPart:
    """What one epoch holds of a partition, as functions of the point."""

    epoch: int
    incarnation: int
    froms: Steps[int] = field(default_factory=Steps)
    edges: Steps[int] = field(default_factory=Steps)
    untils: Steps[int] = field(default_factory=Steps)
    workers: Steps[int] = field(default_factory=Steps)
    released: Steps[bool] = field(default_factory=Steps)
    bounds: tuple[int, ...] = ()
    """Where hot bands that were released had been cut, in rising order."""

    def is_complete(self) -> bool:
        """Whether every point was committed up to where a later grant takes over."""
        return all(self.untils.is_constant(a, b, edge) for a, b, edge in self.edges.pieces())


@dataclass(frozen=True, slots=True)
class PartitionLedger:
    """The fold for one source partition.

    ``violations``: epochs of which a visible tile does not count. ``changed``: of each incarnation that changed the
    partition's state, and was not succeeded, the last transaction that did, by the offset log alone. ``destinations``:
    the topics that nobody had declared to which its records led.
    """

    parts: Mapping[int, EpochPart] = field(default_factory=lambda: MappingProxyType({}))
    epochs_closed: int = 0
    waiting: Mapping[int, tuple[EpochEvent, ...]] = field(default_factory=lambda: MappingProxyType({}))
    violations: frozenset[int] = frozenset()
    changed: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    destinations: frozenset[str] = frozenset()

    @property
    def epoch_newest(self) -> int:
        """The highest epoch that was granted here; 0 when none was."""
        return max(self.parts, default=self.epochs_closed)

    @property
    def epoch_next(self) -> int:
        """The least epoch that was never granted here, from 1."""
        return self.epoch_newest + 1

    def owners(self) -> Steps[int]:
        """The newest epoch at each point, where nothing released it."""
        steps: Steps[int] = Steps()
        for epoch, part in sorted(self.parts.items()):
            steps = steps.replace((a, b, epoch) for a, b, _ in part.froms.pieces())
            steps = steps.replace((a, b, None) for a, b, _ in part.released.pieces())
        return steps

    def edges(self, started: int) -> Steps[int]:
        """The edge at each point: below it all is done. Where nothing was granted: where the partition started."""
        steps: Steps[int] = Steps([(0, 1 << 32, started)])
        for _, part in sorted(self.parts.items()):
            steps = steps.replace(part.edges.pieces())
        return steps

    def workers(self) -> Steps[tuple[int, int]]:
        """The (incarnation, number) of the worker at each point, by the newest epoch that was cut there."""
        steps: Steps[tuple[int, int]] = Steps()
        for _, part in sorted(self.parts.items()):
            steps = steps.replace((a, b, (part.incarnation, n)) for a, b, n in part.workers.pieces())
        return steps


@dataclass(frozen=True, slots=True)
class Ledger:
    """The fold of both logs of an application. ``opened``: log partitions whose first event was seen."""

    control: Control = field(default_factory=Control)
    partitions: Mapping[Place, PartitionLedger] = field(default_factory=lambda: MappingProxyType({}))
    opened: frozenset[int] = frozenset()
    transactions: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """The highest transaction number that was seen of each incarnation: what became of its last commit."""

    def partition(self, place: Place) -> PartitionLedger:
        """The fold for one source partition; empty where nothing was seen."""
        return self.partitions.get(place, _EMPTY)

    def frontier(self, place: Place) -> int:
        """The least edge of a partition: below it the whole key space is done."""
        started = self.control.started.get(place, 0)
        return min(edge for _, _, edge in self.partition(place).edges(started).pieces())

    def violations(self) -> list[tuple[Place, int]]:
        """(partition, epoch) of every visible commit that does not count, in order."""
        return [(place, e) for place, p in sorted(self.partitions.items()) for e in sorted(p.violations)]

    def waiting(self) -> list[tuple[Place, int]]:
        """(partition, epoch) of events whose grant was not read yet, in order."""
        return [(place, e) for place, p in sorted(self.partitions.items()) for e in sorted(p.waiting)]


_EMPTY = PartitionLedger()


def evolve(ledger: Ledger, event: Event) -> Ledger:
    """The fold with one more event of either log."""
    match event:
        case LogOpened():
            ledger = replace(ledger, opened=ledger.opened | {event.log_partition})
            return _seen(ledger, event.incarnation, event.transaction)
        case SnapshotTaken():
            return _seen(ledger, event.incarnation, event.transaction)
        case StateChanged():
            place, writer = (event.topic, event.partition), (event.incarnation, event.transaction)
            partition = ledger.partition(place)
            stay = () if EVERYBODY in event.succeeded else partition.changed.items()
            changed = {i: number for i, number in stay if i not in event.succeeded}
            partition = replace(partition, changed=MappingProxyType({**changed, event.incarnation: event.transaction}))
            return _seen(_with_partition(ledger, place, partition), *writer)
        case TopicsWritten():
            place = (event.topic, event.partition)
            partition = ledger.partition(place)
            partition = replace(partition, destinations=partition.destinations | {*event.destinations})
            return _seen(_with_partition(ledger, place, partition), event.incarnation, event.transaction)
        case Committed() | WorkersCut() | WorkerSplit() | WorkersMerged() | RangesReleased():
            place = (event.topic, event.partition)
            partition = _evolve_partition(ledger.partition(place), event)
            return _seen(_with_partition(ledger, place, partition), event.incarnation, event.transaction)
        case _:
            return _evolve_control(ledger, event)


def evolve_all(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """The fold with more events, one after the other."""
    for event in events:
        ledger = evolve(ledger, event)
    return ledger


def _seen(ledger: Ledger, incarnation: int, transaction: int) -> Ledger:
    if ledger.transactions.get(incarnation, 0) >= transaction:
        return ledger
    return replace(ledger, transactions=MappingProxyType({**ledger.transactions, incarnation: transaction}))


def _with_partition(ledger: Ledger, place: Place, partition: PartitionLedger) -> Ledger:
    return replace(ledger, partitions=MappingProxyType({**ledger.partitions, place: partition}))


def _evolve_control(ledger: Ledger, event: ControlEvent) -> Ledger:
    counts = event_counts(ledger.control, event)
    ledger = replace(ledger, control=evolve_control(ledger.control, event))
    if not counts or not isinstance(event, RangesGranted):
        return ledger
    place = (event.topic, event.partition)
    return _with_partition(ledger, place, _grant(ledger.partition(place), event))


def _grant(partition: PartitionLedger, grant: RangesGranted) -> PartitionLedger:
    """A later grant ends the older epochs where it begins. Epochs rise; a grant may come in chunks of one epoch."""
    newest = partition.epoch_newest
    part = partition.parts.get(grant.epoch)
    if grant.epoch < max(newest, 1) or (part is not None and part.incarnation != grant.incarnation):
        return partition
    part = part or EpochPart(grant.epoch, grant.incarnation)
    new = [
        (a, b, band.offset_from)
        for band in grant.bands
        if is_span(band.first, band.end)
        for a, b, known in part.froms.all_pieces(band.first, band.end)
        if known is None
    ]
    part = replace(part, froms=part.froms.replace(new), edges=part.edges.replace(new))
    parts = {**partition.parts, grant.epoch: part}
    violations = set(partition.violations)
    for epoch, older in partition.parts.items():
        if epoch < grant.epoch:
            parts[epoch], is_clean = _end_at(older, new)
            if not is_clean:
                violations.add(epoch)
    ready = [event for epoch, events in sorted(partition.waiting.items()) if epoch <= grant.epoch for event in events]
    waiting = {epoch: events for epoch, events in partition.waiting.items() if epoch > grant.epoch}
    partition = replace(
        partition, parts=MappingProxyType(parts), waiting=MappingProxyType(waiting), violations=frozenset(violations)
    )
    for event in ready:
        partition = _evolve_partition(partition, event)
    return _close_complete(partition)


def _end_at(part: EpochPart, bands: list[tuple[int, int, int]]) -> tuple[EpochPart, bool]:
    """The part, ended where the next grant begins; False when something was committed beyond that.

    Where it is ended already it stays so: only the *next* grant over a point ends an epoch. Were it the lowest one, a
    part could be closed or not, by what was read first, when that came.
    """
    untils: list[tuple[int, int, int]] = []
    edges: list[tuple[int, int, int]] = []
    for first, end, offset in bands:
        for a, b, edge in part.edges.pieces(first, end):
            for c, d, until in part.untils.all_pieces(a, b):
                if until is None:
                    untils.append((c, d, offset))
                    if edge > offset:
                        edges.append((c, d, offset))
    return replace(part, untils=part.untils.replace(untils), edges=part.edges.replace(edges)), not edges


def _close_complete(partition: PartitionLedger) -> PartitionLedger:
    """Epochs that are complete need no place in memory; closed in order, so that one number tells which.

    The newest one stays: a further chunk of its grant may come.
    """
    parts, closed = dict(partition.parts), partition.epochs_closed
    for epoch in sorted(parts)[:-1]:
        if not parts[epoch].is_complete():
            break
        del parts[epoch]
        closed = epoch
    if closed == partition.epochs_closed:
        return partition
    return replace(partition, parts=MappingProxyType(parts), epochs_closed=closed)


def _evolve_partition(partition: PartitionLedger, event: EpochEvent) -> PartitionLedger:
    """An event of an epoch, over the points that the epoch holds. What lies elsewhere waits while a grant of those
    points may still be read, and violates when none can come: a newer epoch was granted.
    """
    part = partition.parts.get(event.epoch)
    here, rest = (None, event) if part is None else _parted(part, event)
    if rest is not None and event.epoch >= max(partition.epoch_newest, 1):
        waiting = {**partition.waiting, event.epoch: (*partition.waiting.get(event.epoch, ()), rest)}
        partition = replace(partition, waiting=MappingProxyType(waiting))
    elif isinstance(rest, Committed) and rest.tiles:
        partition = replace(partition, violations=partition.violations | {event.epoch})
    if part is None or here is None:
        return partition
    part, is_clean = _apply(part, here)
    violations = partition.violations if is_clean else partition.violations | {event.epoch}
    parts = MappingProxyType({**partition.parts, event.epoch: part})
    return _close_complete(replace(partition, parts=parts, violations=violations))


def _parted(part: EpochPart, event: EpochEvent) -> tuple[EpochEvent | None, EpochEvent | None]:
    """What of an event lies on points that the epoch holds, and what on others; None for nothing.

    Workers may be told of on any points: what they are called decides nothing.
    """
    match event:
        case Committed():
            if all(_holds(part, tile.first, tile.end) for tile in event.tiles):
                return event, None
            here: list[Tile] = []
            rest: list[Tile] = []
            for tile in event.tiles:
                if not is_span(tile.first, tile.end):
                    here.append(tile)
                    continue
                for a, b, known in part.froms.all_pieces(tile.first, tile.end):
                    piece = Tile(tile.worker, tile.count, a, b, tile.offset_from, tile.offset_to)
                    (rest if known is None else here).append(piece)
            parted = [msgspec.structs.replace(event, tiles=tuple(tiles)) if tiles else None for tiles in (here, rest)]
            return parted[0], parted[1]
        case RangesReleased():
            bands: tuple[list[Edge], list[Edge]] = ([], [])
            for band in event.bands:
                if is_span(band.first, band.end):
                    for a, b, known in part.froms.all_pieces(band.first, band.end):
                        bands[known is None].append(Edge(a, b, band.edge))
            held, elsewhere = (msgspec.structs.replace(event, bands=tuple(of)) if of else None for of in bands)
            return held, elsewhere
        case _:
            return event, None


def _holds(part: EpochPart, first: int, end: int) -> bool:
    return is_span(first, end) and all(known is not None for _, _, known in part.froms.all_pieces(first, end))


def _apply(part: EpochPart, event: EpochEvent) -> tuple[EpochPart, bool]:
    """The part with an event on points that it holds; False when something in it does not count."""
    match event:
        case Committed():
            return _commit(part, event)
        case WorkersCut():
            numbered = enumerate(zip(event.bounds, event.bounds[1:], strict=False), event.worker)
            cut = [(a, b, n) for n, (a, b) in numbered if is_span(a, b)]
            return replace(part, workers=part.workers.replace(cut)), True
        case WorkerSplit():
            return replace(part, workers=part.workers.replace(_split(part, event))), True
        case WorkersMerged():
            merged = [(a, b, event.worker) for a, b, n in part.workers.pieces() if n in (event.left, event.right)]
            return replace(part, workers=part.workers.replace(merged)), True
        case RangesReleased():
            released = part.released.replace((band.first, band.end, True) for band in event.bands)
            bounds = tuple(sorted({*part.bounds, *event.bounds}))
            return replace(part, released=released, bounds=bounds), _at_edges(part, event.bands)


def _at_edges(part: EpochPart, bands: Iterable[Edge]) -> bool:
    """Whether each band was released where it stands, or does not say where."""
    return all(
        edge == band.edge
        for band in bands
        if band.edge is not None
        for _, _, edge in part.edges.pieces(band.first, band.end)
    )


def _split(part: EpochPart, event: WorkerSplit) -> list[tuple[int, int, int]]:
    children = []
    for a, b, n in part.workers.pieces():
        if n == event.worker and a < event.at < b:
            children += [(a, event.at, event.left), (event.at, b, event.left + 1)]
    return children


def _commit(part: EpochPart, event: Committed) -> tuple[EpochPart, bool]:
    """The part with the tiles that count; False when a tile, or a piece of one, does not."""
    if not event.tiles:
        return part, True
    if event.incarnation != part.incarnation:
        return part, False
    is_clean = True
    moves: list[tuple[int, int, int]] = []
    end_last = 0
    for tile in event.tiles:
        if tile.offset_from >= tile.offset_to or not is_span(tile.first, tile.end):
            is_clean = False
            continue
        if tile.first < end_last:  # they come in order of points; if not, one may lie on another
            part, moves = replace(part, edges=part.edges.replace(moves)), []
        end_last = tile.end
        for a, b, edge in part.edges.pieces(tile.first, tile.end):
            if edge != tile.offset_from:
                is_clean = False
                continue
            for c, d, until in part.untils.all_pieces(a, b):
                to = tile.offset_to if until is None else min(tile.offset_to, until)
                is_clean = is_clean and to == tile.offset_to
                moves.append((c, d, to))
        if any(True for _ in part.released.pieces(tile.first, tile.end)):
            is_clean = False
    return replace(part, edges=part.edges.replace(moves)), is_clean


def is_span(first: int, end: int) -> bool:
    """Whether ``[first, end)`` holds a point and lies in the space."""
    return 0 <= first < end <= SPACE_END
