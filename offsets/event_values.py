"""The base of events of our logs, and the values in events.

Offsets are half-open, ``[offset_from, offset_to)``; points are half-open, ``[first, end)``.
"""

from typing import Annotated, Final, Protocol

import msgspec

LEVEL: Final = 1
"""The highest level of events that this version reads. A log begins at level 0; the first join raises it."""
RATE_PER_S_MAX: Final = 1_000_000.0
"""The largest value of a limited rate."""
NO_MOVE: Final = 0
"""The move of an event that belongs to no move."""


class _Located(Protocol):
    """Whatever names a source partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


class OfPartition:
    """The place of an event, or of a value, of one source partition."""

    __slots__ = ()

    @property
    def topic_partition(self: _Located) -> tuple[str, int]:
        """The source partition as (topic, partition)."""
        return (self.topic, self.partition)


class LogEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Shared settings: an event is a msgpack array whose first item is its tag."""


class Band(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Points ``[first, end)`` that a grant covers from ``offset_from`` on."""

    first: int
    end: int
    offset_from: int


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Points ``[first, end)``."""

    first: int
    end: int


class Edge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Points ``[first, end)`` with everything below offset ``edge`` committed; None: the edge was not written down."""

    first: int
    end: int
    edge: int | None


class Tile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rectangle ``[offset_from, offset_to) x [first, end)``, a common commit of neighbouring workers.

    ``worker`` is the number of the first worker in order of points, ``count`` the number of workers. The numbers of the
    workers are consecutive.
    """

    worker: int
    count: int
    first: int
    end: int
    offset_from: int
    offset_to: int


class Writer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last transaction of an incarnation that changed the state of a source partition."""

    incarnation: int
    transaction: int


class Sourced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic that a member can handle. ``factor``: its ``parallelising_factor``; ``start``: in words (see starts.py);
    ``stores_hash``: hash of the stores that its handler declares, 0 for none; ``rate_per_s``: the limit of attempts
    that begin in a second, over all members, 0.0 for no limit.
    """

    topic: str
    factor: int
    start: str
    stores_hash: int
    rate_per_s: Annotated[float, msgspec.Meta(ge=0, le=RATE_PER_S_MAX)]


class PlannedMove(OfPartition, msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Points ``[first, end)`` of a source partition are to go from one incarnation (0: nobody) to another.

    ``move``: its number, never used again. ``state_bytes``: the state to copy; ``gain``: the fall of the plan's
    objective, as a share of a member's mean load; ``cost_us``: processor time at the target.
    """

    move: int
    topic: str
    partition: int
    first: int
    end: int
    origin: int
    target: int
    state_bytes: int
    gain: float
    cost_us: int


class PinnedEnd(OfPartition, msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a source partition: members with ``until_level`` stop when all before the end is committed."""

    topic: str
    partition: int
    offset: int


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of the ledger's fold in a snapshot: points ``[first, end)`` with equal values. None: not defined there."""

    first: int
    end: int
    offset_from: int
    offset_edge: int
    offset_until: int | None
    worker: int | None
    released: bool


class EpochFold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One epoch of one source partition in a snapshot. ``bounds``: the cuts that were released with the epoch."""

    epoch: int
    incarnation: int
    pieces: tuple[Piece, ...]
    bounds: tuple[int, ...]
