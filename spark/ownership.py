"""PURE. The owners of points, derived anew from both logs for the statements in ownership_checks.py.

The control log tells each grant, the owner before the grant, and whether the owner before was fenced by then. The
offset log tells the edges of each owner, and the points that an owner released.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from ..offsets.control_events import MemberExpelled, MemberFenced, MemberJoined, RangesGranted, ReleaseAsked
from ..offsets.events import (
    Committed,
    Event,
    OffsetEvent,
    RangesReleased,
    SnapshotTaken,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from .history import Source
from .plane import bands_of
from .report import Example

Epoch: TypeAlias = tuple[Source, int]
"""An epoch of a source partition."""

NOBODY = 0
"""The epoch and the incarnation before the first grant of a point."""


class TileSeries(NamedTuple):
    """All tiles that one incarnation committed at one epoch over the same points, as one value.

    ``position_first`` and ``position_last``: positions of the first and the last tile in the log partition;
    ``transaction_last``: the greatest transaction; ``offset_to``: the greatest right edge.
    """

    log_partition: int
    source: Source
    epoch: int
    incarnation: int
    first: int
    end: int
    offset_to: int
    position_first: int
    position_last: int
    transaction_last: int


class EventSpan(NamedTuple):
    """The first and the last position of events of one incarnation at one epoch (None: no epoch) in a log partition."""

    log_partition: int
    incarnation: int
    epoch: Epoch | None
    position_first: int
    position_last: int


class Claim(NamedTuple):
    """Points that a grant gave to ``incarnation``. All points had the same owner before. ``position``: of the grant."""

    source: Source
    first: int
    end: int
    offset_from: int
    epoch: int
    incarnation: int
    position: int
    move: int
    epoch_before: int
    incarnation_before: int
    is_fenced_before: bool


class Release(NamedTuple):
    """A release of points. ``position``: -1 where only a snapshot tells the release; ``edge``: None if not told."""

    position: int
    transaction: int
    edge: int | None


@dataclass(slots=True)
class Members:
    """By incarnation, from the control log: positions of joining, expulsion and fence, and the expulsion's cause."""

    joined: dict[int, int] = field(default_factory=dict)
    expelled: dict[int, int] = field(default_factory=dict)
    causes: dict[int, str] = field(default_factory=dict)
    fenced: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Ownership:
    """The fold of the control log: the claims in log order. ``problems``: grants against the rules."""

    members: Members = field(default_factory=Members)
    claims: list[Claim] = field(default_factory=list)
    owners: dict[Source, Steps[Claim]] = field(default_factory=dict)
    problems: list[Example] = field(default_factory=list)
    unexpelled: list[Example] = field(default_factory=list)
    """Members that were fenced and not expelled before."""
    asked: dict[int, ReleaseAsked] = field(default_factory=dict)
    """The first request of a release, by move."""

    def by_epoch(self) -> dict[Epoch, list[Claim]]:
        """The claims of each epoch."""
        found: dict[Epoch, list[Claim]] = defaultdict(list)
        for claim in self.claims:
            found[claim.source, claim.epoch].append(claim)
        return found


@dataclass(slots=True)
class OffsetLog:
    """The fold of the offset log.

    ``rare``: by log partition, all events except commits and changes of state; ``snapshots``: by source partition,
    where the log partition begins with a snapshot; ``spans``: of the commits, and of the changes of state.
    """

    runs: Sequence[TileSeries]
    spans: Sequence[EventSpan]
    rare: Mapping[int, Sequence[tuple[int, Event]]]
    snapshots: Mapping[Source, SnapshotTaken]


# --- the control log --------------------------------------------------------------------------------------------------


def fold_ownership(counted: Iterable[tuple[int, Event]]) -> Ownership:
    """Fold the owners from the ``(position, event)`` of the control log that count, in order."""
    found, members = Ownership(), Members()
    found.members = members
    holders: dict[Epoch, int] = {}
    """The incarnation of the first grant at each epoch."""
    for position, event in counted:
        match event:
            case MemberJoined():
                if event.incarnation > max(members.joined, default=0):
                    members.joined[event.incarnation] = position
            case MemberExpelled():
                members.expelled.setdefault(event.incarnation, position)
                members.causes.setdefault(event.incarnation, event.cause)
            case MemberFenced():
                if event.incarnation not in members.expelled:
                    shown = {"position": position, "incarnation": event.incarnation}
                    found.unexpelled.append({**shown, "problem": "fenced, and not expelled before"})
                members.fenced.setdefault(event.incarnation, position)
            case ReleaseAsked():
                found.asked.setdefault(event.move, event)
            case RangesGranted():
                _grant(found, holders, position, event)
    return found


def _grant(found: Ownership, holders: dict[Epoch, int], position: int, event: RangesGranted) -> None:
    source = event.topic_partition
    shown = {"topic": event.topic, "partition": event.partition, "epoch": event.epoch, "position": position}
    if problem := _unfit(found.members, event.incarnation):
        found.problems.append({**shown, "problem": f"granted to incarnation {event.incarnation}, {problem}"})
    holder = holders.setdefault((source, event.epoch), event.incarnation)
    if holder != event.incarnation:
        problem = f"granted to incarnation {event.incarnation}, and to {holder} at the same epoch"
        found.problems.append({**shown, "problem": problem})
    owners = found.owners.setdefault(source, Steps())
    for band in event.bands:
        if not 0 <= band.first < band.end <= SPACE_END:
            found.problems.append({**shown, "first": band.first, "end": band.end, "problem": "no range of points"})
            continue
        for first, end, before in owners.all_pieces(band.first, band.end):
            if before is not None and before.epoch >= event.epoch:
                again = (before.epoch, before.incarnation, before.offset_from)
                if again != (event.epoch, event.incarnation, band.offset_from):  # else sent twice
                    problem = f"owned at epoch {before.epoch} by incarnation {before.incarnation}"
                    found.problems.append({**shown, "first": first, "end": end, "problem": problem})
                continue
            epoch_before, owner = (NOBODY, NOBODY) if before is None else (before.epoch, before.incarnation)
            is_fenced = owner in found.members.fenced
            claim = Claim(
                source=source,
                first=first,
                end=end,
                offset_from=band.offset_from,
                epoch=event.epoch,
                incarnation=event.incarnation,
                position=position,
                move=event.move,
                epoch_before=epoch_before,
                incarnation_before=owner,
                is_fenced_before=is_fenced,
            )
            found.claims.append(claim)
            owners.put(first, end, claim)


def _unfit(members: Members, incarnation: int) -> str:
    """The reason why a member may not get a grant now; "": it may."""
    if incarnation not in members.joined:
        return "which has not joined"
    return "which was expelled before" if incarnation in members.expelled else ""


# --- the offset log ---------------------------------------------------------------------------------------------------


class Edges:
    """The edges of the points of each epoch at the end of the epoch, and the released points."""

    def __init__(self, ownership: Ownership, log: OffsetLog) -> None:
        self._claims = ownership.by_epoch()
        self._snapshots = log.snapshots
        self._runs: dict[Epoch, list[TileSeries]] = defaultdict(list)
        """The tiles of each epoch, the run with the last tile first."""
        for run in log.runs:
            self._runs[run.source, run.epoch].append(run)
        for runs in self._runs.values():
            runs.sort(key=lambda run: -run.position_last)
        self._epochs_taken = {source: {fold.epoch for fold in taken.epochs} for source, taken in log.snapshots.items()}
        """The epochs in the snapshot of each source partition."""
        self._released = _releases(log)
        self._edges: dict[Epoch, Steps[int]] = {}
        """The computed answers of ``of``."""
        self._owned: dict[tuple[Source, int, int], Steps[bool]] = {}
        """The computed answers of ``owned_points``."""

    def in_view(self, source: Source, epoch: int) -> bool:
        """Whether all commits of the epoch are known, from the log or from its snapshot. An epoch that is missing from
        the snapshot was over before the snapshot, or began later.
        """
        taken = self._epochs_taken.get(source)
        return taken is None or epoch in taken or epoch > max(taken, default=NOBODY)

    def of(self, source: Source, epoch: int) -> Steps[int]:
        """The edge of each point at an epoch in view: the end of the point's tiles, else the start of the epoch."""
        if (known := self._edges.get((source, epoch))) is not None:
            return known
        left = Steps((claim.first, claim.end, claim.offset_from) for claim in self._claims.get((source, epoch), ()))
        taken = self._snapshots.get(source)
        for fold in () if taken is None else taken.epochs:
            if fold.epoch == epoch:
                left = left.replace((piece.first, piece.end, piece.offset_edge) for piece in fold.pieces)
        runs = [(run.first, run.end, run.offset_to) for run in self._runs.get((source, epoch), ())]
        known = Steps((band.first, band.end, band.edge) for band in bands_of(runs, left))
        self._edges[source, epoch] = known
        return known

    def released_points(self, source: Source, epoch: int, incarnation: int) -> Steps[Release]:
        """The points that the owner of an epoch has released."""
        return self._released.get((source, epoch, incarnation), Steps())

    def owned_points(self, source: Source, epoch: int, incarnation: int) -> Steps[bool]:
        """The points that the incarnation was granted at the epoch."""
        key = (source, epoch, incarnation)
        if (known := self._owned.get(key)) is None:
            own = [claim for claim in self._claims.get((source, epoch), ()) if claim.incarnation == incarnation]
            known = self._owned[key] = Steps((claim.first, claim.end, True) for claim in own)
        return known

    def runs(self, source: Source, epoch: int) -> Sequence[TileSeries]:
        """The tiles of an epoch."""
        return self._runs.get((source, epoch), ())

    def runs_behind(self, source: Source, epoch: int, position: int) -> Iterator[TileSeries]:
        """The tiles of an epoch, by run, where the last tile of the run stands behind a position."""
        return takewhile(lambda run: run.position_last > position, self.runs(source, epoch))


def _releases(log: OffsetLog) -> dict[tuple[Source, int, int], Steps[Release]]:
    """By source partition, epoch and incarnation, the last release of each released point."""
    found: dict[tuple[Source, int, int], Steps[Release]] = defaultdict(Steps)
    for source, taken in log.snapshots.items():
        for fold in taken.epochs:
            pieces = found[source, fold.epoch, fold.incarnation]
            for piece in fold.pieces:
                if piece.released:
                    pieces.put(piece.first, piece.end, Release(-1, -1, piece.offset_edge))
    for _, position, event in releases_of(log):
        pieces = found[event.topic_partition, event.epoch, event.incarnation]
        for band in event.bands:
            if 0 <= band.first < band.end <= SPACE_END:
                pieces.put(band.first, band.end, Release(position, event.transaction, band.edge))
    return found


def releases_of(log: OffsetLog) -> list[tuple[int, int, RangesReleased]]:
    """(log partition, position, event) of each release."""
    return [
        (number, position, event)
        for number, events in sorted(log.rare.items())
        for position, event in events
        if isinstance(event, RangesReleased)
    ]


def cuts_of(log: OffsetLog) -> dict[Epoch, list[tuple[int, int, WorkersCut]]]:
    """By epoch, (log partition, position, event) of each cut. With a cut the owner takes a range up."""
    found: dict[Epoch, list[tuple[int, int, WorkersCut]]] = defaultdict(list)
    for number, events in sorted(log.rare.items()):
        for position, event in events:
            if isinstance(event, WorkersCut):
                found[event.topic_partition, event.epoch].append((number, position, event))
    return found


def epoch_of(event: OffsetEvent) -> Epoch | None:
    """The epoch at which an event of the offset log was written; None: at none."""
    if isinstance(event, Committed | WorkersCut | WorkerSplit | WorkersMerged | RangesReleased):
        return event.topic_partition, event.epoch
    return None
