"""The ledger: the fold of both logs, and the only place where commits are judged.

Rule 1: the fold does not depend on the order in which the control log and the offset log are read against each other
(each is read in its own order). Epoch e of a partition holds, at each point, from its own offset to the offset of the
next grant over the point. A tile counts where the tile lies inside its own epoch's part and starts at the edge. A part
of a tile that sticks out is a *violation* of that epoch: its effects are visible, so the host must stop.

Why the order does not matter: each epoch folds its own events, in the order of the offset log, without looking at other
epochs. The next grant over a point sets the point's ``until`` once, and the edge is ``min(committed, until)``. Tile
first or grant first, the edge and the violation are the same. Epochs rise, and a grant may come in chunks. Events of an
epoch about points outside of its grant wait while the epoch is the newest or newer. Such an event of an older epoch is
a violation. Waiting events block no other events.

An epoch that is committed up to the offsets of later grants is *closed*: the fold forgets a closed epoch, whatever
became of earlier epochs. The newest epoch stays, for a further chunk of its grant may come. So an unknown epoch below
the newest was closed or never granted, and its tiles do not count either way.

Rule 2: live running and recovery use this ``evolve``. The function never fails on an event, logs nothing and reads no
clock.

**Rule 3: the fold is changed in place.** ``evolve`` changes the given ledger and returns the same object; so do all
folds in the ledger, also folds that ``partition`` returned before. A caller that wants to go on from one ledger in two
ways, or to know its earlier value, takes a ``copy`` first. Results of ``owners``, ``edges`` and ``workers`` belong to
the caller.

Left out on purpose: the history of tiles (the witness has the history from the log), and everything about brokers. The
edges in a release are not judged here: they serve readers that read less than this fold. Nobody could judge the edges
of an epoch that was closed before its release was read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from .control import Control, apply_event, event_counts
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

SourcePartition: TypeAlias = tuple[str, int]
"""A source partition: (topic, partition)."""

EpochEvent: TypeAlias = Committed | WorkersCut | WorkerSplit | WorkersMerged | RangesReleased


class EpochPart:
    """The points of an epoch of a partition, as functions of the point. Only the fold changes the functions.

    ``edges`` is defined where ``froms`` is. ``bounds``: the cuts of released hot bands, in rising order.
    ``granted_bounds``: the cuts that came with the grant. Snapshots do not store ``granted_bounds``, for the process
    that takes the grant up has read the grant (``keep_granted_bounds``).
    """

    __slots__ = ("bounds", "edges", "epoch", "froms", "granted_bounds", "incarnation", "released", "untils", "workers")

    def __init__(self, epoch: int, incarnation: int, bounds: tuple[int, ...] = ()) -> None:
        self.epoch = epoch
        self.incarnation = incarnation
        self.bounds = bounds
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
        """Whether every point was committed up to the offset of a later grant."""
        return self.edges.goes_on_in(self.untils)

    def copy(self) -> "EpochPart":
        """An equal part, independent of later changes."""
        new = EpochPart(self.epoch, self.incarnation, self.bounds)
        new.froms, new.edges, new.untils = self.froms.copy(), self.edges.copy(), self.untils.copy()
        new.workers, new.released = self.workers.copy(), self.released.copy()
        new.granted_bounds = self.granted_bounds
        return new


@dataclass(slots=True)
class PartitionLedger:
    """The fold for one source partition. Only ``evolve`` changes the fold.

    ``parts``: the epochs that are not closed, in rising order. ``newest``: the newest epoch at each point, which is
    never closed. ``violations``: epochs with a visible tile that does not count. ``changed``: the last state-changing
    transaction of each incarnation without a successor, by the offset log alone. ``destinations``: topics without a
    declaration that got outputs of the partition's records. ``version``: rises with each grant and each release.
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
        """A ledger of the given epochs, as if the partition had no other events."""
        partition = cls({part.epoch: part for part in sorted(parts, key=lambda part: part.epoch)})
        for epoch, part in partition.parts.items():
            for a, b, _ in part.froms.pieces():
                partition.newest.put(a, b, epoch)
        return partition

    @property
    def epoch_newest(self) -> int:
        """The highest epoch that was granted here; 0 without a grant."""
        return next(reversed(self.parts), 0)

    @property
    def epoch_next(self) -> int:
        """The least epoch that was never granted here, from 1."""
        return self.epoch_newest + 1

    def owners(self) -> Steps[int]:
        """The newest epoch at each point, except released points."""
        steps = self.newest.copy()
        for a, b, epoch in self.newest.pieces():
            for c, d, _ in self.parts[epoch].released.pieces(a, b):
                steps.put(c, d, None)
        return steps

    def edges(self, started: int) -> Steps[int]:
        """The edge at each point: all is done below. Without a grant the edge is the start of the partition."""
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
        """An equal fold, independent of later changes."""
        return PartitionLedger(
            parts={epoch: part.copy() for epoch, part in self.parts.items()},
            newest=self.newest.copy(),
            waiting={epoch: events.copy() for epoch, events in self.waiting.items()},
            violations=self.violations.copy(),
            changed=self.changed.copy(),
            destinations=self.destinations.copy(),
            version=self.version,
        )


@dataclass(slots=True)
class Ledger:
    """The fold of both logs of an application; only ``evolve`` changes the ledger. ``opened``: log partitions whose
    first event was seen.
    """

    control: Control = field(default_factory=Control)
    partitions: dict[SourcePartition, PartitionLedger] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    transactions: dict[int, int] = field(default_factory=dict)
    """The highest transaction number of each incarnation that was read: the outcome of its last commit."""

    def partition(self, place: SourcePartition) -> PartitionLedger:
        """The fold for a source partition; empty, and not part of the ledger, where nothing was seen."""
        return self.partitions.get(place) or PartitionLedger()

    def frontier(self, place: SourcePartition) -> int:
        """The least edge of a partition: the whole key space is done below."""
        started = self.control.started.get(place, 0)
        return min(edge for _, _, edge in self.partition(place).edges(started).pieces())

    def violations(self, writer: int | None = None) -> list[tuple[SourcePartition, int]]:
        """(partition, epoch) of every visible commit that does not count, in order; all, or only at epochs of one
        incarnation.
        """
        return [
            (place, epoch)
            for place, partition in sorted(self.partitions.items())
            for epoch in sorted(partition.violations)
            if writer is None or ((part := partition.parts.get(epoch)) is not None and part.incarnation == writer)
        ]

    def early_epochs(self, writer: int | None = None) -> list[tuple[SourcePartition, int]]:
        """(partition, epoch) of events whose grant was not read yet, in order; all, or only of one incarnation."""
        return [
            (place, epoch)
            for place, partition in sorted(self.partitions.items())
            for epoch, events in sorted(partition.waiting.items())
            if writer is None or any(event.incarnation == writer for event in events)
        ]

    def copy(self) -> "Ledger":
        """An equal ledger, independent of later changes. The copy takes some µs a partition."""
        partitions = {place: partition.copy() for place, partition in self.partitions.items()}
        return Ledger(self.control.copy(), partitions, self.opened.copy(), self.transactions.copy())


def evolve(ledger: Ledger, event: Event) -> Ledger:
    """Fold in an event of either log: **the same object, changed**. A caller that needs the old value copies before."""
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
            pass  # a fold of events that were folded here already
        case _:
            return _evolve_control(ledger, event)
    if ledger.transactions.get(event.incarnation, 0) < event.transaction:
        ledger.transactions[event.incarnation] = event.transaction
    return ledger


def evolve_all(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """Fold in events, one after the other: **the same object, changed**."""
    for event in events:
        evolve(ledger, event)
    return ledger


def _partition(ledger: Ledger, topic: str, partition: int) -> PartitionLedger:
    """The fold of a source partition, made if missing, for an event about to be folded in."""
    place = (topic, partition)
    fold = ledger.partitions.get(place)
    if fold is None:
        fold = ledger.partitions[place] = PartitionLedger()
    return fold


def _evolve_control(ledger: Ledger, event: ControlEvent) -> Ledger:
    if event_counts(ledger.control, event):
        if isinstance(event, RangesGranted):
            fold_grant(ledger, event)
        apply_event(ledger.control, event)
    return ledger


def fold_grant(ledger: Ledger, grant: RangesGranted) -> None:
    """Fold a grant that counts, already in the fold of the control log, into its source partition."""
    _grant(_partition(ledger, grant.topic, grant.partition), grant)


def keep_granted_bounds(
    folds: Mapping[SourcePartition, PartitionLedger], before: Mapping[SourcePartition, PartitionLedger]
) -> None:
    """Copy the bounds that came with grants from earlier folds: folds from snapshots lack these bounds."""
    for place, fold in folds.items():
        known = before[place].parts if place in before else {}
        for epoch, part in fold.parts.items():
            if epoch in known and known[epoch].incarnation == part.incarnation:
                part.granted_bounds = tuple(sorted({*part.granted_bounds, *known[epoch].granted_bounds}))


def _grant(partition: PartitionLedger, grant: RangesGranted) -> None:
    """Fold in a grant. At its points the grant ends older epochs, at the offsets where its bands begin. Epochs rise; a
    grant may come in chunks of an epoch.
    """
    partition.version += 1
    newest = partition.epoch_newest
    part = partition.parts.get(grant.epoch)
    if grant.epoch < max(newest, 1) or (part is not None and part.incarnation != grant.incarnation):
        return
    if part is None:
        part = partition.parts[grant.epoch] = EpochPart(grant.epoch, grant.incarnation)
    part.granted_bounds = tuple(sorted({*part.granted_bounds, *grant.bounds}))
    ended = [newest]  # may be complete already: only the newest epoch is never closed
    for band in grant.bands:
        if is_span(band.first, band.end):
            for first, end, known in part.froms.all_pieces(band.first, band.end):
                if known is None:
                    _take_over(partition, part, first, end, band.offset_from, ended)
    if partition.waiting:
        for epoch in sorted(partition.waiting):
            if epoch <= grant.epoch:
                for event in partition.waiting.pop(epoch):  # some events may wait on
                    _evolve_partition(partition, event)
    _close(partition, {*ended})


def _take_over(
    partition: PartitionLedger, part: EpochPart, first: int, end: int, offset: int, ended: list[int]
) -> None:
    """Make points outside of the part points of the part; the epochs that end there go into ``ended``."""
    part.froms.put(first, end, offset)
    part.edges.put(first, end, offset)
    for a, b, older in partition.newest.pieces(first, end):
        ended.append(older)
        if not _end_at(partition.parts[older], a, b, offset):
            partition.violations.add(older)
    partition.newest.put(first, end, part.epoch)


def _end_at(part: EpochPart, first: int, end: int, offset: int) -> bool:
    """End the part where the next grant begins; False when a commit reaches beyond that offset.

    Only the *next* grant over a point ends an epoch, so the newest epoch at the point ends. If the lowest epoch ended
    instead, the reading order would decide whether a part is closed.
    """
    part.untils.put(first, end, offset)
    is_clean = True
    for a, b, edge in part.edges.pieces(first, end):
        if edge > offset:
            part.edges.put(a, b, offset)
            is_clean = False
    return is_clean


def _close(partition: PartitionLedger, epochs: Iterable[int]) -> None:
    """Forget complete epochs among ``epochs``; the newest epoch stays, for a chunk of its grant may come."""
    newest = partition.epoch_newest
    for epoch in epochs:
        part = partition.parts.get(epoch)
        if part is not None and epoch != newest and part.is_complete():
            del partition.parts[epoch]


def _evolve_partition(partition: PartitionLedger, event: EpochEvent) -> None:
    """Fold in an event of an epoch, over the points of the epoch.

    A commit or a release may name other points, too. These wait while their grant may still be read. When a newer epoch
    was granted, their grant can't come any more, and a commit is a violation. The numbers of workers are taken as the
    owner says: no edge depends on the numbers.
    """
    part = partition.parts.get(event.epoch)
    if part is None:
        _wait_or_violate(partition, event)
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


def _wait_or_violate(partition: PartitionLedger, event: EpochEvent) -> None:
    """Fold in an event of an epoch about points outside of the epoch: the event waits for the grant of the points. A
    commit whose grant can't come any more is a violation.
    """
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
        _wait_or_violate(partition, msgspec.structs.replace(event, bands=tuple(elsewhere)))


def _commit(partition: PartitionLedger, part: EpochPart, event: Committed) -> None:
    """Take the tiles that count. Other tiles, or pieces of tiles, are violations."""
    is_ours = event.incarnation == part.incarnation
    elsewhere: list[Tile] = []
    may_end = False  # a tile on points without a next grant ends nothing
    for tile in event.tiles:
        if is_ours and _continues(part, tile):
            part.edges.put(tile.first, tile.end, tile.offset_to)
            continue
        may_end = True
        if not is_span(tile.first, tile.end) or not _commit_in_pieces(part, tile, elsewhere, is_ours=is_ours):
            partition.violations.add(event.epoch)
    if elsewhere:
        _wait_or_violate(partition, msgspec.structs.replace(event, tiles=tuple(elsewhere)))
    if may_end:
        _close(partition, (event.epoch,))


def _continues(part: EpochPart, tile: Tile) -> bool:
    """Whether the tile begins at one edge, on points of the part without an end so far: nearly all tiles do."""
    first, end, offset = tile.first, tile.end, tile.offset_from
    return (
        0 <= first < end <= SPACE_END
        and offset < tile.offset_to
        and part.edges.is_constant(first, end, offset)
        and part.untils.is_constant(first, end, None)
        and part.released.is_constant(first, end, None)
    )


def _commit_in_pieces(part: EpochPart, tile: Tile, elsewhere: list[Tile], *, is_ours: bool) -> bool:
    """Take the pieces of a tile that count. False: a piece on points of the part does not count. Pieces on other points
    go into ``elsewhere``.
    """
    is_clean = True
    for a, b, edge in part.edges.all_pieces(tile.first, tile.end):
        if edge is None:
            elsewhere.append(
                Tile(
                    worker=tile.worker,
                    count=tile.count,
                    first=a,
                    end=b,
                    offset_from=tile.offset_from,
                    offset_to=tile.offset_to,
                )
            )
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
