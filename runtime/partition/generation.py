"""PURE. The content of one transaction: how far each worker is done, with all results of its records.

A generation is cut by offset: the generation takes the done records below a *line*, an offset at which the front stood
a short lead time ago. So most edges fall on the same line, neighbours that moved alike are one tile, and a commit stays
small. A worker that has not reached the line gives its done records; records beyond the line wait one cycle. Taken work
stays in memory until the transaction is decided, and can be sent again without running a handler twice.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...brokers.protocol import Outgoing, TopicPartition
from ...keyrange.hashing import point_of
from ...offsets.decide import CommitKey, WorkerAdvance, decide_commits
from ...offsets.events import Committed, OffsetEvent
from ...offsets.provenance import DIGEST_MASK, place_seed
from ...state.changes import StateChanges
from ...state.overlay import Layer
from ..handlers.outputs import result_of
from ..handlers.record_result import RecordResult
from .cut import Change
from .dispatch import PartitionDispatch
from .worker import Stretch, Worker


class WorkerPart:
    """The part of one worker in a generation: ``[offset_from, offset_to)`` and the results of its records there.

    ``number``, ``first`` and ``end``: the worker's number and key range when the share was taken; the worker may be
    split later. ``layers``: after ``spread``, the state changes of the stretches' records; they lie below all ``done``
    records. ``layers_size``: the bytes that the share counts for layers. ``outputs`` and ``digest``: before ``spread``,
    the count and digest of the stretches' outputs for the worker.
    """

    __slots__ = (
        "digest", "dispatch", "done", "end", "first", "layers", "layers_size", "number", "offset_from", "offset_to",
        "outputs", "worker",
    )  # fmt: skip

    def __init__(
        self,
        dispatch: PartitionDispatch,
        worker: Worker,
        number: int,
        first: int,
        end: int,
        offset_from: int,
        offset_to: int,
        done: list[RecordResult],
    ) -> None:
        self.dispatch = dispatch
        self.worker = worker
        self.number = number
        self.first = first
        self.end = end
        self.offset_from = offset_from
        self.offset_to = offset_to
        self.done = done
        self.layers: list[Layer] = []
        self.layers_size = self.outputs = self.digest = 0

    def moved_like(self, left: "WorkerPart") -> bool:
        """Whether the share is the right neighbour of ``left``, in points and number, of one grant, and moved alike."""
        return (
            left.end == self.first
            and left.number + 1 == self.number
            and left.offset_from == self.offset_from
            and left.offset_to == self.offset_to
            and left.dispatch is self.dispatch
            and left.worker.epoch == self.worker.epoch
        )

    def move(self) -> WorkerAdvance:
        """The share's progress, for the commit event."""
        return _move([self])


def _move(alike: Sequence[WorkerPart]) -> WorkerAdvance:
    """The common progress of neighbours that moved alike."""
    outputs = dead = digest = 0
    for share in alike:
        outputs += share.outputs
        digest += share.digest
        for done in share.done:
            digest += done.digest
            if done.dead:
                dead += len(done.outputs)
            else:
                outputs += len(done.outputs)
    first, digest = alike[0], digest & DIGEST_MASK
    return WorkerAdvance(
        worker=first.number,
        first=first.first,
        end=alike[-1].end,
        offset_from=first.offset_from,
        offset_to=first.offset_to,
        outputs=outputs,
        dead_letters=dead,
        digest=digest,
        workers=len(alike),
    )


@dataclass(slots=True)
class Generation:
    """Shares in order of partition and points, and changes of structure that start at the shares' ends.

    ``opening``: earlier changes that made the workers of the shares.
    """

    shares: list[WorkerPart] = field(default_factory=list)
    structure: list[Change] = field(default_factory=list)
    heirs: list[tuple[Worker, int]] = field(default_factory=list)
    """Workers made by the structure, each with the offset where it goes on."""
    stretches: list[tuple[PartitionDispatch, list[Stretch]]] = field(default_factory=list)
    """The stretches of the shares' workers, by partition, until ``spread``."""
    opening: list[Change] = field(default_factory=list)
    is_full: bool = False
    """The limits ended the generation: the workers may have more done records."""

    def __bool__(self) -> bool:
        return bool(self.shares or self.structure or self.opening)

    def add(self, changes: Iterable[Change], heirs: Iterable[tuple[Worker, int]] = ()) -> None:
        """Add changes of structure, and the workers made by the changes."""
        self.structure += changes
        self.heirs += heirs

    @property
    def size(self) -> int:
        """About the bytes of all outputs and of their source records."""
        kept = sum(share.layers_size + sum(done.size for done in share.done) for share in self.shares)
        return kept + sum(stretch.size for _, stretches in self.stretches for stretch in stretches)

    def outputs(self) -> list[Outgoing]:
        """All outputs; the outputs of each worker are in the order of its records."""
        found = [output for _, stretches in self.stretches for stretch in stretches for output in stretch.outputs]
        found += [output for share in self.shares for done in share.done for output in done.outputs]
        return found

    def writes(self) -> set[tuple[TopicPartition, str]]:
        """(source partition, destination topic) of all outputs."""
        found = {(s.dispatch.place, output.topic) for s in self.shares for done in s.done for output in done.outputs}
        for dispatch, stretches in self.stretches:
            found.update((dispatch.place, stretch.topic) for stretch in stretches if stretch.outputs)
        return found

    def changes(self) -> list[StateChanges]:
        """The changes of state, in order of partitions."""
        found: dict[PartitionDispatch, StateChanges] = {}
        for dispatch, stretches in self.stretches:
            changed = found[dispatch] = StateChanges(dispatch.place)
            for stretch in stretches:
                changed.add(stretch.changes, stretch.size)
        for share in self.shares:
            written = [(done.changes, done.size) for done in share.done if done.changes]
            if share.layers or written:
                changed = found.setdefault(share.dispatch, StateChanges(share.dispatch.place))
                for layer in share.layers:  # their common size, divided equally
                    changed.add(layer, share.layers_size // len(share.layers))
                for changes, size in written:
                    changed.add(changes, size)
        return [changed for changed in found.values() if changed.last]

    def spread(self) -> None:
        """Give each share the outputs and state changes of its own records in the stretches. Afterwards each share can
        be sent without the others. A second call does nothing.
        """
        spread, self.stretches = self.stretches, []
        for dispatch, stretches in spread:
            shares = [share for share in self.shares if share.dispatch is dispatch]
            for share in shares:
                share.outputs = share.digest = 0
            firsts = [share.first for share in shares]
            dones: dict[int, list[RecordResult]] = {}
            for stretch in stretches:
                kept_size = 0
                for point, done in _kept_records(dispatch, stretch):
                    dones.setdefault(bisect_right(firsts, point) - 1, []).append(done)
                    kept_size += done.size
                layers: dict[int, Layer] = {}
                for cell, value in zip(stretch.changes.entries, stretch.changes.values, strict=True):
                    i = bisect_right(firsts, cell.point) - 1
                    layers.setdefault(i, Layer()).append(cell, value)
                for i, layer in layers.items():
                    shares[i].layers.append(layer)
                # Any share may count the rest of the size: all shares are committed in the end, only the sum counts.
                shares[0].layers_size += stretch.size - kept_size
            for i, below in dones.items():
                shares[i].done = [*below, *shares[i].done]

    def events(self, transaction: int) -> list[OffsetEvent]:
        """The events of the transaction: the opening, the commits, then the structure that starts at their ends."""
        grouped: dict[CommitKey, list[WorkerAdvance]] = {}
        shares, start = self.shares, 0
        moves: list[WorkerAdvance] = []
        while start < len(shares):
            first, before, end = shares[start], shares[start - 1], start + 1
            while end < len(shares) and shares[end].moved_like(shares[end - 1]):
                end += 1
            if not start or first.dispatch is not before.dispatch or first.worker.epoch != before.worker.epoch:
                d = first.dispatch
                key = CommitKey(
                    incarnation=d.incarnation,
                    transaction=transaction,
                    epoch=first.worker.epoch,
                    topic=d.topic,
                    partition=d.partition,
                )
                moves = grouped.setdefault(key, [])
            moves.append(_move(shares[start:end]))
            start = end
        commits: Sequence[Committed] = decide_commits(list(grouped.items()))
        opening = [change.event(transaction) for change in self.opening]
        changes = [change.event(transaction) for change in self.structure]
        return [*opening, *commits, *changes]

    def halves(self) -> list["Generation"]:
        """Two generations with half the shares each, or half the records of one share. The opening goes with the first,
        the structure with the last. An indivisible generation stays whole.
        """
        if not self.is_divisible:
            return [self]
        self.spread()
        shares = self.shares if len(self.shares) > 1 else _pieces(self.shares[0], (len(self.shares[0].done) + 1) // 2)
        middle = len(shares) // 2
        first = Generation(shares[:middle], opening=self.opening)
        return [first, Generation(shares[middle:], self.structure, self.heirs)]

    @property
    def is_divisible(self) -> bool:
        """Whether the generation has halves: more than one share, or a share with more than one record with results."""
        if len(self.shares) > 1:
            return True
        sent = sum(len(share.done) for share in self.shares)
        return sent + sum(len(one.outputs) for _, many in self.stretches for one in many) > 1

    def isolate(self, culprits: Iterable[int]) -> list["Generation"]:
        """Put each record of workers with refused outputs into a generation of its own. ``culprits``: the indexes of
        the refused outputs among all outputs.

        All other shares come first, in one generation with the opening. The structure goes with the last generation.
        """
        self.spread()
        guilty: set[int] = set()
        wanted = set(culprits)
        index = 0
        for s, share in enumerate(self.shares):
            for done in share.done:
                if not wanted.isdisjoint(range(index, index + len(done.outputs))):
                    guilty.add(s)
                index += len(done.outputs)
        innocent = [share for s, share in enumerate(self.shares) if s not in guilty]
        parts = [Generation(innocent, opening=self.opening)]
        for s in sorted(guilty):
            parts += [Generation([piece]) for piece in _pieces(self.shares[s], 1)]
        parts[-1].structure, parts[-1].heirs = self.structure, self.heirs
        return [part for part in parts if part]


def take_generation(
    dispatches: Iterable[tuple[PartitionDispatch, int]], *, records_max: int, bytes_max: int
) -> Generation:
    """A generation of the done records below each partition's line, at most ``records_max`` records with results and
    about ``bytes_max`` bytes; the rest waits for the next generation.
    """
    generation = Generation()
    records = size = 0
    for dispatch, below in dispatches:
        front = dispatch.front
        stretches, line = dispatch.take_stretches(below, bytes_max - size, records_max - records)
        size += sum(stretch.size for stretch in stretches)
        records += sum(len(stretch.outputs) for stretch in stretches)
        shares: list[WorkerPart] = []
        for worker in dispatch.workers:
            to = min(worker.edge_now(front), line)
            if to <= worker.taken_to:
                continue
            taken: list[RecordResult] = []
            done = worker.done
            while done and done[0].record.offset < to:
                if records >= records_max or size >= bytes_max:
                    to = done[0].record.offset
                    break
                size += done[0].size
                records += 1
                taken.append(done.popleft())
            worker.done_count -= len(taken)
            if to <= worker.taken_to:
                continue
            shares.append(
                WorkerPart(
                    dispatch=dispatch,
                    worker=worker,
                    number=worker.number,
                    first=worker.first,
                    end=worker.end,
                    offset_from=worker.taken_to,
                    offset_to=to,
                    done=taken,
                )
            )
            worker.taken_to = to
        if stretches:
            generation.stretches.append((dispatch, stretches))
            _tally(dispatch, shares, stretches)
        generation.shares += shares
    generation.is_full = records >= records_max or size >= bytes_max
    return generation


def _tally(dispatch: PartitionDispatch, shares: Sequence[WorkerPart], stretches: Iterable[Stretch]) -> None:
    """Count the outputs of stretches, and sum up their digests, in the shares of their workers."""
    firsts = [share.first for share in shares]
    share_of = {share.worker: share for share in shares}
    for stretch in stretches:
        if not stretch.is_split and all(worker in share_of for worker in stretch.tallies):
            for worker, tally in stretch.tallies.items():
                share = share_of[worker]
                share.outputs += tally.outputs
                share.digest += tally.digest
            continue
        # Some workers were split or merged since their records ran: the points tell whose records they are.
        for point, done in _kept_records(dispatch, stretch):
            share = shares[bisect_right(firsts, point) - 1]
            share.outputs += 1
            share.digest += done.digest


def _kept_records(dispatch: PartitionDispatch, stretch: Stretch) -> Iterator[tuple[int, RecordResult]]:
    """The records of a stretch that sent something, as ``RecordResult``, each with the record's point."""
    seed = place_seed(dispatch.topic, dispatch.partition)
    for record, output in zip(stretch.records, stretch.outputs, strict=True):
        yield point_of(record.key, dispatch.partition, record.offset), result_of(record, output, seed)


def move_edges(generation: Generation) -> None:
    """Move edges after the commit of the generation's transaction."""
    for share in generation.shares:
        share.worker.edge = max(share.worker.edge, share.offset_to)
    for heir, offset in generation.heirs:
        heir.edge = max(heir.edge, offset)


def _pieces(share: WorkerPart, records: int) -> list[WorkerPart]:
    """A share in pieces of at most ``records`` records with results."""
    pieces: list[WorkerPart] = []
    start = share.offset_from
    for i in range(0, len(share.done), records):
        done, last = share.done[i : i + records], i + records >= len(share.done)
        end = share.offset_to if last else share.done[i + records].record.offset
        piece = WorkerPart(
            dispatch=share.dispatch,
            worker=share.worker,
            number=share.number,
            first=share.first,
            end=share.end,
            offset_from=start,
            offset_to=end,
            done=done,
        )
        if not i:  # the layers lie below all done records
            piece.layers, piece.layers_size = share.layers, share.layers_size
        pieces.append(piece)
        start = end
    return pieces or [share]
