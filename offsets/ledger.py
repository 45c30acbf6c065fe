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

An epoch that is committed up to where later grants take over is *closed*: it is forgotten, whatever became of those
before it. The newest one stays, for a further chunk of its grant may come. So an epoch below the newest one that is not
known was closed or never granted, and a tile of it does not count either way.

Rule 2: live running and recovery use this ``evolve``; it never fails on an event, logs nothing and reads no clock.

**Rule 3: the fold is changed in place.** ``evolve`` changes the ledger that it is given and returns the same one; so do
all folds in it, those that ``partition`` returned before included. Who wants to go on from one ledger in two ways, or
to know later what it was, takes a ``copy`` first. What ``owners``, ``edges`` and ``workers`` return is the caller's.

Left out on purpose: the history of tiles (the witness has it from the log), and everything about brokers. The edges
that a release names are not judged here: they are there for who reads less than this fold does, and whether they are
right could not be told any more of an epoch that was closed before its release was read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from .control import Control, event_counts, take
from .control_events import ControlEvent, RangesGranted
from .event_values import Edge, Tile
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


class EpochPart:
    """What one epoch holds of a partition, as functions of the point. Only the fold changes them.

    ``edges`` is defined where ``froms`` is. ``bounds``: where hot bands that were released had been cut, in rising
    order. ``granted_bounds``: the same of those that came with the grant; no snapshot keeps them, for whoever takes the
    grant up has read it (``keep_granted_bounds``).
    """

    __slots__ = ("bounds", "edges", "epoch", "froms", "granted_bounds", "incarnation", "released", "untils", "workers")

    def __init__(self, epoch: int, incarnation: int, bounds: tuple[int, ...] = ()) -> None:
        self.epoch, self.incarnation, self.bounds = epoch, incarnation, bounds
        self.granted_bounds: tuple[int, ...] = ()
        self.froms: Steps[int] = Steps()
        self.edges: Steps[int] = Steps()
        self.untils: Steps[int] = Steps()
        self.workers: Steps[int] = Steps()
        self.released: Steps[bool] = Steps()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochPart) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"EpochPart{self._fields()}"

    def _fields(self) -> tuple[object, ...]:
        steps = (self.froms, self.edges, self.untils, self.workers, self.released)
        return (self.epoch, self.incarnation, self.bounds, *steps)

    def is_complete(self) -> bool:
        """Whether every point was committed up to where a later grant takes over."""
        return self.edges.goes_on_in(self.untils)

    def copy(self) -> "EpochPart":
        """An equal one that changes by itself."""
        new = EpochPart(self.epoch, self.incarnation, self.bounds)
        new.froms, new.edges, new.untils = self.froms.copy(), self.edges.copy(), self.untils.copy()
        new.workers, new.released = self.workers.copy(), self.released.copy()
        new.granted_bounds = self.granted_bounds
        return new


@dataclass(slots=True)
class PartitionLedger:
    """The fold for one source partition. Only ``evolve`` changes it.

    ``parts``: in rising order of epochs, those that are not closed. ``newest``: the newest epoch at each point, which
    is never closed. ``violations``: epochs of which a visible tile does not count. ``changed``: of each incarnation
    that changed the partition's state, and was not succeeded, the last transaction that did, by the offset log alone.
    ``destinations``: the topics that nobody had declared to which its records led. ``version``: rises with each grant
    and each release.
    """

    parts: dict[int, EpochPart] = field(default_factory=dict)
    newest: Steps[int] = field(default_factory=Steps)
    waiting: dict[int, list[EpochEvent]] = field(default_factory=dict)
    violations: set[int] = field(default_factory=set)
    changed: dict[int, int] = field(default_factory=dict)
    destinations: set[str] = field(default_factory=set)
    version: int = field(default=0, compare=False)

    @classmethod
    def of(cls, parts: Iterable[EpochPart]) -> "PartitionLedger":
        """One of these epochs, as if nothing else had ever been said of the partition."""
        partition = cls({part.epoch: part for part in sorted(parts, key=lambda part: part.epoch)})
        for epoch, part in partition.parts.items():
            for a, b, _ in part.froms.pieces():
                partition.newest.put(a, b, epoch)
        return partition

    @property
    def epoch_newest(self) -> int:
        """The highest epoch that was granted here; 0 when none was."""
        return next(reversed(self.parts), 0)

    @property
    def epoch_next(self) -> int:
        """The least epoch that was never granted here, from 1."""
        return self.epoch_newest + 1

    def owners(self) -> Steps[int]:
        """The newest epoch at each point, where nothing released it."""
        steps = self.newest.copy()
        for a, b, epoch in self.newest.pieces():
            for c, d, _ in self.parts[epoch].released.pieces(a, b):
                steps.put(c, d, None)
        return steps

    def edges(self, started: int) -> Steps[int]:
        """The edge at each point: below it all is done. Where nothing was granted: where the partition started."""
        steps: Steps[int] = Steps([(0, SPACE_END, started)])
        for a, b, epoch in self.newest.pieces():
            for c, d, edge in self.parts[epoch].edges.pieces(a, b):
                steps.put(c, d, edge)
        return steps

    def workers(self) -> Steps[tuple[int, int]]:
        """The (incarnation, number) of the worker at each point, by the newest epoch that was cut there."""
        steps: Steps[tuple[int, int]] = Steps()
        for part in self.parts.values():
            for a, b, n in part.workers.pieces():
                steps.put(a, b, (part.incarnation, n))
        return steps

    def copy(self) -> "PartitionLedger":
        """An equal fold that changes by itself."""
        return PartitionLedger(
            {epoch: part.copy() for epoch, part in self.parts.items()},
            self.newest.copy(),
            {epoch: events.copy() for epoch, events in self.waiting.items()},
            self.violations.copy(),
            self.changed.copy(),
            self.destinations.copy(),
            self.version,
        )


@dataclass(slots=True)
class Ledger:
    """The fold of both logs of an application; only ``evolve`` changes it. ``opened``: log partitions whose first event
    was seen.
    """

    control: Control = field(default_factory=Control)
    partitions: dict[Place, PartitionLedger] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    transactions: dict[int, int] = field(default_factory=dict)
    """The highest transaction number that was seen of each incarnation: what became of its last commit."""

    def partition(self, place: Place) -> PartitionLedger:
        """The fold for one source partition; empty, and no part of the ledger, where nothing was seen."""
        return self.partitions.get(place) or PartitionLedger()

    def frontier(self, place: Place) -> int:
        """The least edge of a partition: below it the whole key space is done."""
        started = self.control.started.get(place, 0)
        return min(edge for _, _, edge in self.partition(place).edges(started).pieces())

    def violations(self, writer: int | None = None) -> list[tuple[Place, int]]:
        """(partition, epoch) of every visible commit that does not count, in order; all, or those at epochs of one
        incarnation.
        """
        return [
            (place, epoch)
            for place, partition in sorted(self.partitions.items())
            for epoch in sorted(partition.violations)
            if writer is None or ((part := partition.parts.get(epoch)) is not None and part.incarnation == writer)
        ]

    def waiting(self, writer: int | None = None) -> list[tuple[Place, int]]:
        """(partition, epoch) of events whose grant was not read yet, in order; all, or those of one incarnation."""
        return [
            (place, epoch)
            for place, partition in sorted(self.partitions.items())
            for epoch, events in sorted(partition.waiting.items())
            if writer is None or any(event.incarnation == writer for event in events)
        ]

    def copy(self) -> "Ledger":
        """An equal ledger that changes by itself. It takes time in proportion to what it holds: some µs a partition."""
        partitions = {place: partition.copy() for place, partition in self.partitions.items()}
        return Ledger(self.control.copy(), partitions, self.opened.copy(), self.transactions.copy())


def evolve(ledger: Ledger, event: Event) -> Ledger:
    """The fold with one more event of either log: **the same object, changed**. Who still needs it copies it before."""
    match event:
        case Committed() | WorkersCut() | WorkerSplit() | WorkersMerged() | RangesReleased():
            _evolve_partition(_partition(ledger, event.topic, event.partition), event)
        case StateChanged():
            partition = _partition(ledger, event.topic, event.partition)
            for incarnation in event.succeeded:
                partition.changed.pop(incarnation, None)
            partition.changed[event.incarnation] = event.transaction
        case TopicsWritten():
            _partition(ledger, event.topic, event.partition).destinations.update(event.destinations)
        case LogOpened():
            ledger.opened.add(event.log_partition)
        case SnapshotTaken():
            pass
        case _:
            return _evolve_control(ledger, event)
    if ledger.transactions.get(event.incarnation, 0) < event.transaction:
        ledger.transactions[event.incarnation] = event.transaction
    return ledger


def evolve_all(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """The fold with more events, one after the other: **the same object, changed**."""
    for event in events:
        evolve(ledger, event)
    return ledger


def _partition(ledger: Ledger, topic: str, partition: int) -> PartitionLedger:
    """The fold of a source partition that something is about to be said of."""
    place = (topic, partition)
    fold = ledger.partitions.get(place)
    if fold is None:
        fold = ledger.partitions[place] = PartitionLedger()
    return fold


def _evolve_control(ledger: Ledger, event: ControlEvent) -> Ledger:
    if event_counts(ledger.control, event):
        if isinstance(event, RangesGranted):
            fold_grant(ledger, event)
        take(ledger.control, event)
    return ledger


def fold_grant(ledger: Ledger, grant: RangesGranted) -> None:
    """A grant that counts, and that the fold of the control log has already, goes into that of its source partition."""
    _grant(_partition(ledger, grant.topic, grant.partition), grant)


def keep_granted_bounds(folds: Mapping[Place, PartitionLedger], before: Mapping[Place, PartitionLedger]) -> None:
    """The bounds that came with grants, which no snapshot keeps, go on from the folds of before."""
    for place, fold in folds.items():
        known = before[place].parts if place in before else {}
        for epoch, part in fold.parts.items():
            if epoch in known and known[epoch].incarnation == part.incarnation:
                part.granted_bounds = tuple(sorted({*part.granted_bounds, *known[epoch].granted_bounds}))


def _grant(partition: PartitionLedger, grant: RangesGranted) -> None:
    """A later grant ends the older epochs where it begins. Epochs rise; a grant may come in chunks of one epoch."""
    partition.version += 1
    newest = partition.epoch_newest
    part = partition.parts.get(grant.epoch)
    if grant.epoch < max(newest, 1) or (part is not None and part.incarnation != grant.incarnation):
        return
    if part is None:
        part = partition.parts[grant.epoch] = EpochPart(grant.epoch, grant.incarnation)
    part.granted_bounds = tuple(sorted({*part.granted_bounds, *grant.bounds}))
    ended = [newest]
    for band in grant.bands:
        if is_span(band.first, band.end):
            for first, end, known in part.froms.all_pieces(band.first, band.end):
                if known is None:
                    _take_over(partition, part, first, end, band.offset_from, ended)
    if partition.waiting:
        for epoch in sorted(partition.waiting):
            if epoch <= grant.epoch:
                for event in partition.waiting.pop(epoch):  # some of them may wait on
                    _evolve_partition(partition, event)
    _close(partition, {*ended})


def _take_over(
    partition: PartitionLedger, part: EpochPart, first: int, end: int, offset: int, ended: list[int]
) -> None:
    """Points that the part did not hold become its own; the epochs that end there go into ``ended``."""
    part.froms.put(first, end, offset)
    part.edges.put(first, end, offset)
    for a, b, older in partition.newest.pieces(first, end):
        ended.append(older)
        if not _end_at(partition.parts[older], a, b, offset):
            partition.violations.add(older)
    partition.newest.put(first, end, part.epoch)


def _end_at(part: EpochPart, first: int, end: int, offset: int) -> bool:
    """End the part where the next grant begins; False when something was committed beyond that.

    Only the *next* grant over a point ends an epoch, so it is the newest one there that ends. Were it the lowest one, a
    part could be closed or not, by what was read first, when that came.
    """
    part.untils.put(first, end, offset)
    is_clean = True
    for a, b, edge in part.edges.pieces(first, end):
        if edge > offset:
            part.edges.put(a, b, offset)
            is_clean = False
    return is_clean


def _close(partition: PartitionLedger, epochs: Iterable[int]) -> None:
    """Forget those of these epochs that are complete; the newest one stays, for a chunk of its grant may come."""
    newest = partition.epoch_newest
    for epoch in epochs:
        part = partition.parts.get(epoch)
        if part is not None and epoch != newest and part.is_complete():
            del partition.parts[epoch]


def _evolve_partition(partition: PartitionLedger, event: EpochEvent) -> None:
    """An event of an epoch, over the points that the epoch holds. What lies elsewhere waits while a grant of those
    points may still be read, and violates when none can come: a newer epoch was granted.
    """
    part = partition.parts.get(event.epoch)
    if part is None:
        _elsewhere(partition, event)
        return
    match event:
        case Committed():
            _commit(partition, part, event)
        case WorkersCut():
            for n, (a, b) in enumerate(zip(event.bounds, event.bounds[1:], strict=False), event.worker):
                if is_span(a, b):
                    part.workers.put(a, b, n)
        case WorkerSplit():
            for a, b, n in part.workers.pieces():
                if n == event.worker and a < event.at < b:
                    part.workers.put(a, event.at, event.left)
                    part.workers.put(event.at, b, event.left + 1)
        case WorkersMerged():
            for a, b, n in part.workers.pieces():
                if n in (event.left, event.right):
                    part.workers.put(a, b, event.worker)
        case RangesReleased():
            _release(partition, part, event)


def _elsewhere(partition: PartitionLedger, event: EpochEvent) -> None:
    """What an epoch says of points that it does not hold."""
    if event.epoch >= max(partition.epoch_newest, 1):
        partition.waiting.setdefault(event.epoch, []).append(event)
    elif isinstance(event, Committed) and event.tiles:
        partition.violations.add(event.epoch)


def _release(partition: PartitionLedger, part: EpochPart, event: RangesReleased) -> None:
    partition.version += 1
    elsewhere: list[Edge] = []
    for band in event.bands:
        if is_span(band.first, band.end):
            for a, b, known in part.froms.all_pieces(band.first, band.end):
                if known is None:
                    elsewhere.append(Edge(a, b, band.edge))
                else:
                    part.released.put(a, b, True)
    part.bounds = tuple(sorted({*part.bounds, *event.bounds}))
    if elsewhere:
        _elsewhere(partition, msgspec.structs.replace(event, bands=tuple(elsewhere)))


def _commit(partition: PartitionLedger, part: EpochPart, event: Committed) -> None:
    """Take the tiles that count; a tile, or a piece of one, that does not is a violation."""
    is_ours = event.incarnation == part.incarnation
    elsewhere: list[Tile] = []
    may_end = False
    for tile in event.tiles:
        if is_ours and _continues(part, tile):
            part.edges.put(tile.first, tile.end, tile.offset_to)
            continue
        may_end = True
        if not is_span(tile.first, tile.end) or not _commit_in_pieces(part, tile, elsewhere, is_ours=is_ours):
            partition.violations.add(event.epoch)
    if elsewhere:
        _elsewhere(partition, msgspec.structs.replace(event, tiles=tuple(elsewhere)))
    if may_end:
        _close(partition, (event.epoch,))


def _continues(part: EpochPart, tile: Tile) -> bool:
    """Whether the tile begins at one edge, on points that the part holds to no end yet: nearly all tiles do."""
    first, end, offset = tile.first, tile.end, tile.offset_from
    return (
        0 <= first < end <= SPACE_END
        and offset < tile.offset_to
        and part.edges.is_constant(first, end, offset)
        and part.untils.is_constant(first, end, None)
        and part.released.is_constant(first, end, None)
    )


def _commit_in_pieces(part: EpochPart, tile: Tile, elsewhere: list[Tile], *, is_ours: bool) -> bool:
    """Take what counts of a tile; False when a piece on points of the part does not. Other pieces go ``elsewhere``."""
    is_clean = True
    for a, b, edge in part.edges.all_pieces(tile.first, tile.end):
        if edge is None:
            elsewhere.append(Tile(tile.worker, tile.count, a, b, tile.offset_from, tile.offset_to))
        elif not is_ours or edge != tile.offset_from or tile.offset_from >= tile.offset_to:
            is_clean = False
        else:
            for c, d, until in part.untils.all_pieces(a, b):
                to = tile.offset_to if until is None else min(tile.offset_to, until)
                is_clean = is_clean and to == tile.offset_to
                part.edges.put(c, d, to)
            is_clean = is_clean and not part.released.pieces(a, b)
    return is_clean


def is_span(first: int, end: int) -> bool:
    """Whether ``[first, end)`` holds a point and lies in the space."""
    return 0 <= first < end <= SPACE_END
