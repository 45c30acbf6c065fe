"""Decisions about offsets, as events. The host appends the events; ``evolve`` applies them, live and at recovery alike.

``decide_*`` functions read a ledger and return events; the ledger stays unchanged. Events over ``EVENT_BYTES_MAX`` come
as several events of one transaction.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from ..keyrange.hashing import HASH_NAME, hash_chain_text
from ..keyrange.ranges import WHOLE, KeyRange, join_neighbours
from .codec import EVENT_BYTES_MAX
from .control import Control
from .control_events import RangesGranted, StoreDeclared
from .event_values import NO_MOVE, Band, Tile, Writer
from .events import Committed, LogOpened
from .ledger import Ledger, SourcePartition
from .signals import StoreAsked

T = TypeVar("T")

BAND_BYTES_MAX = 28
TILE_BYTES_MAX = 48
"""The bytes of a band, and of a tile, with offsets and points of the greatest width."""
_BANDS_MAX = EVENT_BYTES_MAX // BAND_BYTES_MAX
_TILES_MAX = EVENT_BYTES_MAX // TILE_BYTES_MAX
WRITERS_MAX = 64
"""The newest writers of a partition's state that a grant names."""
STORE_NUMBER_MAX = (1 << 16) - 1
"""A state key has two bytes for the number of its store."""


class Turn:
    """The right to decide: the term of the writer's own election, never the last term that the writer read, and the
    number of the writer's last decision in this term.
    """

    def __init__(self, term: int, number: int = 0) -> None:
        self.term = term
        self.number = number

    def next(self) -> tuple[int, int]:
        """Take the next number: term and number for a decision."""
        self.number += 1
        return self.term, self.number


class StoreChanged(ValueError):
    """The log has another store under the name of a store that the application declares."""


class StoreSpec(NamedTuple):
    """A store that the application declares; the fields are the fields of ``StoreDeclared``."""

    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class WorkerAdvance(NamedTuple):
    """A worker's progress in one generation, with the production of the records between both offsets. Or the progress
    of several neighbours with the same offsets: ``workers`` of them, consecutive in points, and in numbers from
    ``worker`` on.
    """

    worker: int
    first: int
    end: int
    offset_from: int
    offset_to: int
    outputs: int = 0
    dead_letters: int = 0
    digest: int = 0
    workers: int = 1


class CommitKey(NamedTuple):
    """The common fields of a transaction's commit events of one source partition."""

    incarnation: int
    transaction: int
    epoch: int
    topic: str
    partition: int


def decide_opening(app: str, log_partitions: int, log_partition: int, incarnation: int, transaction: int) -> LogOpened:
    """The first event of a partition of the offset log."""
    return LogOpened(
        app=app,
        hash_name=HASH_NAME,
        log_partition=log_partition,
        log_partitions=log_partitions,
        incarnation=incarnation,
        transaction=transaction,
    )


def decide_grant(
    ledger: Ledger,
    turn: Turn,
    place: SourcePartition,
    incarnation: int,
    within: KeyRange = WHOLE,
    *,
    move: int = NO_MOVE,
) -> list[RangesGranted]:
    """Grant points of a partition to an incarnation, from the edges in the ledger, at the next epoch.

    ``turn``: of the writer. Correct only for free points (group/cells.py). Free are points that were never granted,
    points that the owner released in the offset log as read, and points of a fenced owner if the offset log was read
    to an own append since the fence.
    """
    partition = ledger.partition(place)
    edges = partition.edges(ledger.control.started[place])
    bands = [Band(a, b, edge) for a, b, edge in edges.pieces(within.first, within.end)]
    older = [(partition.parts[epoch], a, b) for a, b, epoch in partition.newest.pieces(within.first, within.end)]
    hot_bounds = {at for part, a, b in older if part.released.pieces(a, b) for at in part.bounds}
    # A bound at an end of the range counts, too: the new owner may join the range with a range beside.
    bounds = tuple(sorted(at for at in hot_bounds if within.first <= at <= within.end))
    writers = tuple(Writer(*writer) for writer in sorted(partition.changed.items())[-WRITERS_MAX:])
    return [
        RangesGranted(
            *turn.next(),
            move=move,
            incarnation=incarnation,
            epoch=partition.epoch_next,
            topic=place[0],
            partition=place[1],
            bands=tuple(chunk),
            bounds=bounds,
            writers=writers,
        )
        for chunk in _chunks(bands, _BANDS_MAX)
    ]


def decide_stores(control: Control, turn: Turn, wanted: Sequence[StoreSpec]) -> list[StoreDeclared]:
    """Declare the stores without a number, each with the next number; stores that are not wanted any more stay.

    Raises StoreChanged when a store of the same name is of another kind, ValueError when no numbers are left.
    """
    known = {name: spec_of(declared) for name, declared in control.stores.items()}
    number = max((declared.store for declared in control.stores.values()), default=-1)
    new: list[StoreDeclared] = []
    for spec in wanted:
        if spec.name not in known:
            number += 1
            if number > STORE_NUMBER_MAX:
                raise ValueError(
                    f"store {spec.name!r}: the application has had {number} stores, which is all there can be; "
                    "start under a new application name"
                )
            new.append(StoreDeclared(*turn.next(), number, *spec))
        known.setdefault(spec.name, spec)
        if known[spec.name] != spec:
            raise StoreChanged(
                f"store {spec.name!r} was {_describe_store(known[spec.name])}; it is {_describe_store(spec)} now, and "
                "what is kept in it would be read wrongly. Give the new store another name, or start under a new "
                "application name."
            )
    return new


def spec_of(store: StoreDeclared | StoreAsked) -> StoreSpec:
    """The declaration of a store, or the request for a store, without its number."""
    return StoreSpec(*(getattr(store, name) for name in StoreSpec._fields))


def stores_hash(specs: Iterable[StoreSpec]) -> int:
    """A hash of the stores of a handler, in any order; 0 without stores."""
    seed = 0
    for spec in sorted(specs):
        for field in spec:
            seed = hash_chain_text(field, seed)
    return seed


def _describe_store(spec: StoreSpec) -> str:
    keys = f" by {spec.key_type}" if spec.key_type else ""
    return f"a {spec.kind} of {spec.value_type}{keys} for {spec.topic} as {spec.codec}"


def tiles_of(advances: Iterable[WorkerAdvance]) -> list[tuple[Tile, WorkerAdvance]]:
    """Tiles, each with the summed production of its advances. Neighbours with the same offsets become a single tile.

    Advances come in order of points; all advances of a call lie in one grant.
    """
    totals = join_neighbours(advances, _join_advances)
    return [
        (
            Tile(
                worker=t.worker,
                count=t.workers,
                first=t.first,
                end=t.end,
                offset_from=t.offset_from,
                offset_to=t.offset_to,
            ),
            t,
        )
        for t in totals
    ]


def decide_commits(
    commits: Sequence[tuple[CommitKey, Sequence[WorkerAdvance]]], tiles_max: int = _TILES_MAX
) -> list[Committed]:
    """The commit events of a transaction, with numbered parts. ``commits``: for each source partition the advances of
    its workers, in order of points. ``tiles_max`` limits the tiles of an event.
    """
    chunks = [(key, chunk) for key, advances in commits for chunk in _chunks(tiles_of(advances), tiles_max)]
    return [_commit_event(key, part, len(chunks), chunk) for part, (key, chunk) in enumerate(chunks)]


def _commit_event(key: CommitKey, part: int, parts: int, chunk: Sequence[tuple[Tile, WorkerAdvance]]) -> Committed:
    tiles: list[Tile] = []
    outputs = dead_letters = digest = 0
    for tile, total in chunk:
        tiles.append(tile)
        outputs += total.outputs
        dead_letters += total.dead_letters
        digest += total.digest
    return Committed(
        incarnation=key.incarnation,
        transaction=key.transaction,
        part=part,
        parts=parts,
        epoch=key.epoch,
        topic=key.topic,
        partition=key.partition,
        tiles=tuple(tiles),
        outputs=outputs,
        dead_letters=dead_letters,
        digest=digest % (1 << 64),
    )


def _join_advances(left: WorkerAdvance, right: WorkerAdvance) -> WorkerAdvance | None:
    is_next = left.worker + left.workers == right.worker
    if not is_next or left.offset_from != right.offset_from or left.offset_to != right.offset_to:
        return None
    return WorkerAdvance(
        worker=left.worker,
        first=left.first,
        end=right.end,
        offset_from=left.offset_from,
        offset_to=left.offset_to,
        outputs=left.outputs + right.outputs,
        dead_letters=left.dead_letters + right.dead_letters,
        digest=left.digest + right.digest,
        workers=left.workers + right.workers,
    )


def _chunks(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))
