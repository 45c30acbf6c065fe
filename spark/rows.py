"""PURE. Events and records as flat columns for Spark.

An event of several items (the tiles of a commit, the bands of a grant, the workers of a cut, the pieces of a snapshot,
the incarnations that a change of state succeeds, as ``worker``) is several rows, numbered by ``item`` of ``items``. An
event without items is one row with ``item`` null. Rare kinds carry the bytes of the event in ``event`` on the first
row: a reader need not put the items together again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..offsets.codec import decode
from ..offsets.control_events import RangesGranted
from ..offsets.events import (
    Committed,
    Event,
    RangesReleased,
    SnapshotTaken,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from ..offsets.provenance import ATTEMPTS_HEADER, ERROR_HEADER, HEADER, decode_provenance

EVENT_SCHEMA = (
    "log string, log_partition int, position bigint, timestamp bigint, kind string, incarnation bigint, "
    "transaction bigint, epoch bigint, source int, topic string, partition int, part int, parts int, outputs bigint, "
    "dead_letters bigint, digest_high bigint, digest_low bigint, item int, items int, worker bigint, count int, "
    "first bigint, end bigint, offset_from bigint, offset_to bigint, event binary"
)
"""``offset_to`` is a tile's right edge or a snapshot piece's edge; ``digest`` comes as its upper and lower 32 bits."""

RECORD_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary, source int, "
    "kl_app binary, kl_topic string, kl_source int, kl_partition int, kl_offset bigint, kl_i int, kl_n int, "
    "kl_damaged boolean, kl_letter boolean"
)
"""``source`` and ``kl_source`` number the audited source partitions; ``kl_*`` come from the provenance header.
``kl_letter``: the record has the headers of a dead letter, too."""

Sources: TypeAlias = Mapping[tuple[str, int], int]
"""The number of each audited source partition."""

_INT_MAX = (1 << 31) - 1
_COMMIT_KIND = str(Committed.__struct_config__.tag).encode()
_Row: TypeAlias = tuple[Any, ...]


def schema_of(schema: str, columns: str | None) -> str:
    """The named columns of a schema, names with commas between; raises ValueError for an unknown name."""
    if not columns:
        return schema
    kinds = dict(column.split() for column in schema.split(", "))
    names = columns.split(",")
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise ValueError(f"columns: unknown: {', '.join(unknown)}; known are {', '.join(kinds)}")
    return ", ".join(f"{name} {kinds[name]}" for name in names)


def is_commit(data: bytes) -> bool:
    """Whether the bytes are a commit event, by the event's kind alone: a short string behind the array's head."""
    return _COMMIT_KIND in data[:24]


def event_rows(
    log: str, log_partition: int, position: int, timestamp: int, data: bytes, sources: Sources
) -> list[_Row]:
    """The rows of one event, in the order of ``EVENT_SCHEMA``; raises EventError for an unknown event."""
    event = decode(data)
    kind = str(event.__struct_config__.tag).partition("/")[0]
    topic, partition = getattr(event, "topic", None), getattr(event, "partition", None)
    head = (
        log,
        log_partition,
        position,
        timestamp,
        kind,
        getattr(event, "incarnation", None),
        getattr(event, "transaction", None),
        getattr(event, "epoch", None),
        None if topic is None else sources.get((topic, partition or 0), -1),
        topic,
        partition,
        getattr(event, "part", None),
        getattr(event, "parts", None),
    )
    if isinstance(event, Committed):
        sums = (event.outputs, event.dead_letters, event.digest >> 32, event.digest & 0xFFFFFFFF)
        if not event.tiles:
            return [(*head, *sums, None, 0, None, None, None, None, None, None, None)]
        n = len(event.tiles)
        return [
            (*head, *sums, i, n, t.worker, t.count, t.first, t.end, t.offset_from, t.offset_to, None)
            for i, t in enumerate(event.tiles)
        ]
    items = _items(event)
    if not items:
        return [(*head, None, None, None, None, None, 0, None, None, None, None, None, None, data)]
    n = len(items)
    return [(*head, None, None, None, None, i, n, *item, data if i == 0 else None) for i, item in enumerate(items)]


def _items(event: Event) -> list[_Row]:
    """(worker, count, first, end, offset_from, offset_to) of each item of a rare event."""
    match event:
        case WorkersCut():
            bounds = event.bounds
            return [(event.worker + i, 1, bounds[i], bounds[i + 1], None, None) for i in range(len(bounds) - 1)]
        case RangesGranted():
            return [(None, None, band.first, band.end, band.offset_from, None) for band in event.bands]
        case SnapshotTaken():
            return [
                (piece.worker, 1, piece.first, piece.end, piece.offset_from, piece.offset_edge)
                for fold in event.epochs
                for piece in fold.pieces
            ]
        case StateChanged():
            return [(incarnation, 1, None, None, None, None) for incarnation in event.succeeded]
        case WorkerSplit():
            return [(event.worker, 1, None, None, None, None)]
        case WorkersMerged():
            return [(event.worker, 1, None, None, None, None)]
        case RangesReleased():
            return [(None, None, band.first, band.end, None, band.edge) for band in event.bands]
        case _:
            return []


class OriginHeaders(NamedTuple):
    """The origin of a record, from its headers. ``header``: the raw provenance header.

    ``is_letter``: the record has the headers of a dead letter.
    """

    header: bytes
    is_letter: bool


def origin_of(headers: Sequence[tuple[str, Any]] | None) -> OriginHeaders | None:
    """The origin in these headers; None without a provenance header. The last provenance header counts."""
    found = None
    for name, value in headers or ():
        if name == HEADER:
            found = value if value is not None else b""
    if found is None:
        return None
    return OriginHeaders(found, {ERROR_HEADER, ATTEMPTS_HEADER} <= {name for name, _ in headers or ()})


class Provenances:
    """Decodes provenance headers of records into columns."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def columns(self, origins: Iterable[OriginHeaders | None]) -> dict[str, Sequence[Any]]:
        """The columns ``kl_app`` to ``kl_letter``."""
        rows = [_NO_PROVENANCE if origin is None else self._fields(*origin) for origin in origins]
        return dict(zip(_PROVENANCE_NAMES, zip(*rows, strict=True), strict=True)) if rows else _EMPTY

    def _fields(self, header: bytes, is_letter: bool) -> _Row:
        try:
            p = decode_provenance(header)
        except ValueError:
            return _DAMAGED
        if not (
            0 <= p.partition <= _INT_MAX and 0 <= p.offset < 1 << 63 and 0 <= p.i <= _INT_MAX and 0 < p.n <= _INT_MAX
        ):
            return _DAMAGED
        number = self._sources.get((p.topic, p.partition), -1)
        return p.app_id, p.topic, number, p.partition, p.offset, p.i, p.n, False, is_letter


_NO_PROVENANCE: _Row = (None, None, None, None, None, None, None, None, None)
_DAMAGED: _Row = (None, None, None, None, None, None, None, True, False)
_PROVENANCE_NAMES = [column.split()[0] for column in RECORD_SCHEMA.split(", ") if column.startswith("kl_")]
_EMPTY: dict[str, Sequence[Any]] = dict.fromkeys(_PROVENANCE_NAMES, ())
