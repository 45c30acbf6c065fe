"""PURE. The control log and the rare events of the offset log, folded anew for the audit.

The fold shares nothing with the ledger. Rules:

- An election counts if its term is above all earlier terms, and if the first election names the same application.
- A decision counts while its term is the highest, if its number is the next number of the term.
- A member joins once.
- Epoch e holds at each point from the offset of its own grant to the offset of the next higher epoch over the point.
- A worker's number names one range for ever.

ownership.py folds the owners of points.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..keyrange.hashing import HASH_NAME
from ..keyrange.steps import Steps
from ..offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    Decision,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
    StoreDeclared,
)
from ..offsets.event_values import Band
from ..offsets.events import Event, SnapshotTaken, WorkersCut, WorkersMerged, WorkerSplit
from ..offsets.provenance import app_id_of
from .report import Example

Source: TypeAlias = tuple[str, int]
"""A partition of a source topic."""

UNTIL_NEVER = (1 << 63) - 1
"""The end of a part without a later grant; fits Spark's ``bigint``."""


class Part(NamedTuple):
    """Epoch ``epoch`` of ``source`` holds on ``[offset_from, offset_until) x [first, end)`` for ``incarnation``."""

    source: Source
    epoch: int
    incarnation: int
    first: int
    end: int
    offset_from: int
    offset_until: int


class WorkerSpan(NamedTuple):
    """The range of one worker, and the transactions of its incarnation in which the worker came and went.

    Workers with one ``run`` lie side by side in order of their numbers. Therefore the numbers ``worker`` to ``worker +
    count - 1`` of a tile are neighbours if the first and the last number share a run. Most workers came with the first
    worker of their run (in transaction ``run_born``) and never went. All others are ``is_odd``; ``odd_before`` counts
    the odd workers in front.
    """

    source: Source
    incarnation: int
    worker: int
    first: int
    end: int
    born: int
    died: int
    run: int
    run_born: int
    is_odd: bool
    odd_before: int


@dataclass(slots=True)
class Grants:
    """The fold of the control log."""

    app: str | None = None
    log_partitions: int = 0
    starts: dict[Source, int] = field(default_factory=dict)
    started_from: dict[Source, str] = field(default_factory=dict)
    """The declared start of each source partition."""
    parts: list[Part] = field(default_factory=list)
    granted: set[Source] = field(default_factory=set)
    stores: dict[str, StoreDeclared] = field(default_factory=dict)
    births: dict[int, str] = field(default_factory=dict)
    """The birth of the process of each incarnation."""
    fenced: set[int] = field(default_factory=set)
    """Incarnations that can commit no more."""
    app_birth: str = ""
    """The birth of the application, from the first election."""
    problems: list[Example] = field(default_factory=list)
    counted: list[tuple[int, Event]] = field(default_factory=list)
    """The events that count, with their positions."""
    passed_over: int = 0
    """The number of events that do not count."""
    out_of_turn: list[Example] = field(default_factory=list)
    """The events that do not count and that no coordinator writes."""

    @property
    def app_id(self) -> bytes | None:
        """The id of the application in the headers of its outputs; None without an election."""
        return app_id_of(self.app_birth) if self.app_birth else None


class Snapshot(NamedTuple):
    """A complete snapshot of one log partition: the state of the fold at ``position``."""

    position: int
    taken: tuple[SnapshotTaken, ...]


class _Turns:
    """Tells, in log order, which events of the control log count. ``problems``: events that no coordinator writes.

    Passed over: a copy of a decision that arrives late, a decision of an ended term, a second candidate for a term.
    """

    def __init__(self) -> None:
        self.app_birth = ""
        self.passed_over = 0
        self.problems: list[Example] = []
        self._term = -1
        self._counted: list[Event] = []
        """The counted decisions of the present term."""

    def counts(self, position: int, event: Event) -> bool:
        """Whether the next event of the log counts."""
        if isinstance(event, AppCreated):
            return True
        if isinstance(event, CoordinatorElected):
            counts = self._elects(event)
        else:
            counts = isinstance(event, Decision) and self._is_next(position, event)
        self.passed_over += not counts
        return counts

    def _elects(self, event: CoordinatorElected) -> bool:
        """Whether an election counts; if so, its term begins."""
        is_ours = event.app_birth == self.app_birth or not self.app_birth
        if event.term <= self._term or not is_ours:
            return False
        self._term, self._counted, self.app_birth = event.term, [], event.app_birth
        return True

    def _is_next(self, position: int, event: Decision) -> bool:
        """Whether a decision counts, as the next one of the present term."""
        if event.term != self._term:
            if event.term > self._term:
                self._object(position, event, "nobody was elected for its term")
            return False
        next_number = len(self._counted) + 1
        if event.number != next_number:
            if not 0 < event.number < next_number:
                self._object(position, event, f"out of turn: number {next_number} is next")
            elif event != self._counted[event.number - 1]:
                self._object(position, event, "another decision had its number")
            return False
        self._counted.append(event)
        return True

    def _object(self, position: int, event: Decision, problem: str) -> None:
        kind = str(event.__struct_config__.tag).partition("/")[0]
        shown = {"position": position, "term": event.term, "number": event.number, "kind": kind}
        self.problems.append({**shown, "problem": problem})


def fold_control(events: Iterable[tuple[int, Event]]) -> Grants:
    """The grants of the application from ``(position, event)`` in log order."""
    grants, turns = Grants(), _Turns()
    bands: dict[Source, dict[int, list[tuple[Band, int]]]] = defaultdict(lambda: defaultdict(list))
    for position, event in events:
        if turns.counts(position, event):
            grants.counted.append((position, event))
            _take(grants, bands, position, event)
    grants.app_birth, grants.passed_over, grants.out_of_turn = turns.app_birth, turns.passed_over, turns.problems
    grants.granted = set(bands)
    for source, by_epoch in sorted(bands.items()):
        parts, problems = _parts(source, by_epoch)
        grants.parts += parts
        grants.problems += problems
    return grants


def _take(grants: Grants, bands: dict[Source, dict[int, list[tuple[Band, int]]]], position: int, event: Event) -> None:
    """Take an event that counts. ``bands``: by source partition and epoch, granted bands with their incarnations."""
    match event:
        case AppCreated():
            if grants.app is None:
                grants.app, grants.log_partitions = event.app, event.log_partitions
            if event.hash_name != HASH_NAME:
                grants.problems.append({"position": position, "problem": f"hash function {event.hash_name!r}"})
        case MemberJoined() if _joins(grants, event):
            grants.births[event.incarnation] = event.birth
        case MemberFenced():
            grants.fenced.add(event.incarnation)
        case PartitionStarted():
            source = event.topic_partition
            grants.started_from.setdefault(source, event.start)
            if grants.starts.setdefault(source, event.offset) != event.offset:
                problem = f"{event.topic}[{event.partition}] started twice"
                grants.problems.append({"position": position, "problem": problem})
        case StoreDeclared():
            numbers = {store.store for store in grants.stores.values()}
            if event.name in grants.stores or event.store in numbers:
                problem = f"store {event.name!r} with number {event.store} is declared twice"
                grants.problems.append({"position": position, "problem": problem})
            grants.stores.setdefault(event.name, event)
        case RangesGranted():
            granted = bands[event.topic, event.partition][event.epoch]
            granted.extend((band, event.incarnation) for band in event.bands)


def _parts(source: Source, by_epoch: dict[int, list[tuple[Band, int]]]) -> tuple[list[Part], list[Example]]:
    """The parts of a source partition. Parts of one epoch do not overlap, even where grants overlap."""
    parts: list[Part] = []
    problems: list[Example] = []
    next_offsets: Steps[int] = Steps()
    """The offset from which the next higher epoch over a point holds."""
    for epoch in sorted(by_epoch, reverse=True):
        # A coordinator without an answer sends a grant again: two equal grants in the log are one grant.
        grants = list(dict.fromkeys(by_epoch[epoch]))
        firsts, ends = sorted(band.first for band, _ in grants), sorted(band.end for band, _ in grants)
        # Bands are disjoint if and only if, in order, each ends at or below the first point of the next band.
        if any(first < end for first, end in zip(firsts[1:], ends, strict=False)):
            problems.append({"problem": f"{source[0]}[{source[1]}]: epoch {epoch} granted twice", "epoch": epoch})
        granted = Steps((band.first, band.end, (incarnation, band.offset_from)) for band, incarnation in grants)
        for low, high, (incarnation, offset_from) in granted.pieces():
            for first, end, until in next_offsets.all_pieces(low, high):
                until = UNTIL_NEVER if until is None else until
                parts.append(
                    Part(
                        source=source,
                        epoch=epoch,
                        incarnation=incarnation,
                        first=first,
                        end=end,
                        offset_from=offset_from,
                        offset_until=until,
                    )
                )
        own_offsets = [(first, end, offset_from) for first, end, (_, offset_from) in granted.pieces()]
        next_offsets = next_offsets.replace(own_offsets)
    return parts, problems


def _joins(grants: Grants, event: MemberJoined) -> bool:
    """Whether the joining counts: once for each incarnation, and once for each process."""
    return event.incarnation > max(grants.births, default=0) and event.birth not in grants.births.values()


def oldest_snapshot(events: Iterable[tuple[int, Event]], log_start: int) -> Snapshot | None:
    """The oldest complete snapshot of one log partition at or above ``log_start``: the most history. Else None."""
    sets: dict[tuple[int, int], dict[int, SnapshotTaken]] = defaultdict(dict)
    for _, event in events:
        if isinstance(event, SnapshotTaken) and event.position >= log_start:
            sets[event.incarnation, event.transaction][event.part] = event
    complete = [
        tuple(taken[part] for part in sorted(taken))
        for taken in sets.values()
        if sorted(taken) == list(range(next(iter(taken.values())).parts))
        and len({(event.parts, event.position) for event in taken.values()}) == 1
    ]
    return min((Snapshot(taken[0].position, taken) for taken in complete), key=lambda s: s.position, default=None)


def left_edges(start: int, taken: SnapshotTaken | None) -> Steps[int]:
    """The first audited offset of each point of a source partition."""
    edges: Steps[int] = Steps([(0, 1 << 32, start)])
    if taken is None:
        return edges
    ascending: list[tuple[int, int, int]] = sorted(
        ((piece.first, piece.end, piece.offset_edge) for fold in taken.epochs for piece in fold.pieces),
        key=lambda piece: piece[2],
    )
    return edges.replace(ascending)  # of several pieces over a point the last one stays: the greatest edge


def fold_workers(
    events: Iterable[tuple[int, Event]], snapshots: Sequence[SnapshotTaken] = ()
) -> tuple[list[WorkerSpan], list[Example]]:
    """The ranges of all workers from ``(position, event)`` in log order, and the contradictions.

    The fold starts from the workers in the snapshots. ``events`` begin at the positions of the snapshots.
    """
    fold = _WorkerFold(_workers_of(snapshots))
    for position, event in events:
        match event:
            case WorkersCut():
                bounds = event.bounds
                for i in range(len(bounds) - 1):
                    fold.add(position, event, event.worker + i, bounds[i], bounds[i + 1])
            case WorkerSplit():
                first, end = fold.end_worker(position, event, event.worker)
                if first is None or not first < event.at < end:
                    fold.object(position, event, f"split of worker {event.worker} outside its range")
                    continue
                fold.add(position, event, event.left, first, event.at)
                fold.add(position, event, event.left + 1, event.at, end)
            case WorkersMerged():
                first, middle = fold.end_worker(position, event, event.left)
                meeting, end = fold.end_worker(position, event, event.right)
                if first is None or meeting is None or middle != meeting:
                    fold.object(position, event, f"merge of workers {event.left} and {event.right}, no neighbours")
                    continue
                fold.add(position, event, event.worker, first, end)
    return _runs(fold.spans), fold.problems


def ranges_of(workers: Iterable[WorkerSpan]) -> dict[tuple[str, int, int, int], tuple[int, int]]:
    """The points ``[first, end)`` of each worker, by topic, partition, incarnation and number."""
    return {(*worker.source, worker.incarnation, worker.worker): (worker.first, worker.end) for worker in workers}


_Key: TypeAlias = tuple[Source, int, int]
_Change: TypeAlias = WorkersCut | WorkerSplit | WorkersMerged


class _WorkerFold:
    """Ranges by (source, incarnation, number): ``[first, end, born, died]``."""

    def __init__(self, spans: dict[_Key, list[int]]) -> None:
        self.spans = spans
        self.problems: list[Example] = []

    def object(self, position: int, event: _Change, problem: str) -> None:
        """Add a contradiction."""
        self.problems.append(
            {"topic": event.topic, "partition": event.partition, "position": position, "problem": problem}
        )

    def add(self, position: int, event: _Change, worker: int, first: int, end: int) -> None:
        """Add a worker; object to a number that was used before."""
        key = (event.topic_partition, event.incarnation, worker)
        if key in self.spans:
            self.object(position, event, f"worker {worker} came back")
            return
        self.spans[key] = [first, end, event.transaction, UNTIL_NEVER]

    def end_worker(self, position: int, event: _Change, worker: int) -> tuple[int, int] | tuple[None, int]:
        """End a worker by a split or a merge; returns the worker's range, ``(None, -1)`` for an unknown worker."""
        span = self.spans.get((event.topic_partition, event.incarnation, worker))
        if span is None:
            self.object(position, event, f"worker {worker} was never cut")
            return None, -1
        span[3] = event.transaction
        return span[0], span[1]


def _workers_of(snapshots: Sequence[SnapshotTaken]) -> dict[_Key, list[int]]:
    """The workers that were alive at the snapshots. A worker's range may lie in several pieces of a snapshot."""
    spans: dict[_Key, list[int]] = {}
    for taken in snapshots:
        for epoch in taken.epochs:
            for piece in epoch.pieces:
                if piece.worker is None:
                    continue
                key = (taken.topic_partition, epoch.incarnation, piece.worker)
                span = spans.setdefault(key, [piece.first, piece.end, 0, UNTIL_NEVER])
                span[0], span[1] = min(span[0], piece.first), max(span[1], piece.end)
    return spans


def _runs(spans: dict[_Key, list[int]]) -> list[WorkerSpan]:
    """The workers in order, grouped into runs, see ``WorkerSpan``. The place of its first worker numbers a run."""
    workers: list[WorkerSpan] = []
    for (source, incarnation, worker), (first, end, born, died) in sorted(spans.items()):
        last = workers[-1] if workers else None
        if last and (last.source, last.incarnation, last.worker + 1, last.end) == (source, incarnation, worker, first):
            run, run_born, odd_before = last.run, last.run_born, last.odd_before + last.is_odd
        else:
            run, run_born, odd_before = len(workers), born, 0
        odd = born != run_born or died != UNTIL_NEVER
        workers.append(
            WorkerSpan(
                source=source,
                incarnation=incarnation,
                worker=worker,
                first=first,
                end=end,
                born=born,
                died=died,
                run=run,
                run_born=run_born,
                is_odd=odd,
                odd_before=odd_before,
            )
        )
    return workers
