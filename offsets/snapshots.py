"""Snapshots limit the reading at the start: the fold of the offset log up to a position, written into the log itself.

A snapshot is written in a transaction of its owner and names the position that the snapshot covers. Events between
that position and the snapshot's own place are read again. Nothing points at the newest snapshot: a reader goes back
from the end of the log in growing steps until the first whole snapshot. So the distance between two snapshots limits
the reading.

A snapshot has no place for events that wait for their grant, and a reader that begins with the snapshot does not read
these events again. So no snapshot is taken while an event waits.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from .codec import EventError
from .event_values import EpochFold, Piece, Writer
from .events import OffsetEvent, SnapshotTaken
from .ledger import EpochPart, Ledger, PartitionLedger, SourcePartition

FIRST_STEP = 1_000
"""The first step back from the end of a log, in positions."""
STEP_GROWTH = 4
"""Each further step is so many times as long."""


def search_starts(start: int, high: int) -> Iterable[int]:
    """Positions to begin reading at, from near the end of the log back to its start."""
    step = FIRST_STEP
    while high - step > start:
        yield high - step
        step *= STEP_GROWTH
    yield start


def take_snapshot(
    ledger: Ledger,
    app: str,
    log_partition: int,
    places: Sequence[SourcePartition],
    position: int,
    incarnation: int,
    transaction: int,
) -> list[SnapshotTaken]:
    """The parts of a snapshot of partitions (all with the same log partition) at a position of the log.

    Raises ValueError when an event of the partitions waits for its grant: read more of the control log first.
    """
    for place in places:
        for epoch in sorted(ledger.partition(place).waiting):
            raise ValueError(f"no snapshot of {place[0]}[{place[1]}]: an event of epoch {epoch} waits for its grant")
    unfenced = {i: t for i, t in ledger.transactions.items() if not ledger.control.is_fenced(i)}
    folds = [(place, ledger.partition(place)) for place in places] or [(("", log_partition), PartitionLedger())]
    return [
        SnapshotTaken(
            incarnation=incarnation,
            transaction=transaction,
            part=i,
            parts=len(folds),
            app=app,
            position=position,
            topic=place[0],
            partition=place[1],
            epochs=tuple(_fold_epoch(part) for part in fold.parts.values()),
            violations=tuple(sorted(fold.violations)),
            changed=tuple(Writer(*writer) for writer in sorted(fold.changed.items())),
            destinations=tuple(sorted(fold.destinations)),
            transactions=() if i else tuple(Writer(*writer) for writer in sorted(unfenced.items())),
        )
        for i, (place, fold) in enumerate(folds)
    ]


def newest_snapshot(events: Iterable[OffsetEvent]) -> list[SnapshotTaken] | None:
    """The parts of the last whole snapshot among events in log order; None without a whole snapshot."""
    newest: list[SnapshotTaken] | None = None
    parts: list[SnapshotTaken] = []
    for event in events:
        if not isinstance(event, SnapshotTaken):
            continue
        goes_on = parts and (parts[0].incarnation, parts[0].transaction) == (event.incarnation, event.transaction)
        parts = [*parts, event] if goes_on else [event]
        if [p.part for p in parts] == list(range(event.parts)):
            newest = parts
    return newest


def restore_snapshot(parts: Sequence[SnapshotTaken]) -> dict[SourcePartition, PartitionLedger]:
    """The folds of the partitions in a snapshot; raises EventError when a piece is impossible."""
    folds: dict[SourcePartition, PartitionLedger] = {}
    for part in parts:
        if part.topic == "":
            continue
        try:
            fold = PartitionLedger.of(_restore_epoch(epoch) for epoch in part.epochs)
        except ValueError as error:
            raise EventError(f"damaged snapshot of {part.topic}[{part.partition}]: {error}") from None
        fold.violations.update(part.violations)
        fold.changed.update((writer.incarnation, writer.transaction) for writer in part.changed)
        fold.destinations.update(part.destinations)
        folds[part.topic_partition] = fold
    return folds


def transactions_in(parts: Sequence[SnapshotTaken]) -> dict[int, int]:
    """By incarnation, the last transaction that was read before a snapshot was taken."""
    return {writer.incarnation: writer.transaction for part in parts for writer in part.transactions}


def _fold_epoch(part: EpochPart) -> EpochFold:
    """An epoch in a snapshot: cut at each bound of each function of the point, so all are constant on a piece."""
    bounds = sorted(
        {
            bound
            for steps in (part.froms, part.edges, part.untils, part.workers, part.released)
            for first, end, _ in steps.pieces()
            for bound in (first, end)
        }
    )
    pieces = []
    for first, end in pairwise(bounds):
        offset_from, edge = part.froms.at(first), part.edges.at(first)
        if offset_from is None or edge is None:
            continue
        until, worker, released = part.untils.at(first), part.workers.at(first), part.released.at(first)
        pieces.append(
            Piece(
                first=first,
                end=end,
                offset_from=offset_from,
                offset_edge=edge,
                offset_until=until,
                worker=worker,
                released=bool(released),
            )
        )
    return EpochFold(part.epoch, part.incarnation, tuple(pieces), part.bounds)


def _restore_epoch(fold: EpochFold) -> EpochPart:
    part = EpochPart(fold.epoch, fold.incarnation, fold.bounds)
    for piece in fold.pieces:
        first, end = piece.first, piece.end
        part.froms.put(first, end, piece.offset_from)
        part.edges.put(first, end, piece.offset_edge)
        part.untils.put(first, end, piece.offset_until)
        part.workers.put(first, end, piece.worker)
        part.released.put(first, end, piece.released or None)
    return part
