"""PURE. What the runtime needs of a store of state: one table for each source partition.

There are two kinds. A *table* of the embedded broker is written by the broker itself, in the write that makes a
transaction visible. A *copy* is written from the changelog after the commit, and has markers for how far it has come. A
marker is a lower bound: the copy has all changes of its points below the marker's position, and perhaps some above. Of
points without a marker the copy has nothing that counts. Methods are plain calls that may block on a disk. Several
threads may call them.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps

TABLE_CONFIG: Final = {"keylanes.storage": "table"}
"""The setting of a topic that a broker keeps by key, where the broker can; other topics leave the setting out."""

Change: TypeAlias = tuple[bytes, bytes | None]
"""A state key and its new stored value; None: deleted."""


class Marker(NamedTuple):
    """The copy has all changes below ``position`` of the changelog partition. ``time_ms``: a time of the wall clock; no
    record from ``position`` on is older.
    """

    position: int
    time_ms: int


Mark: TypeAlias = tuple[int, int, Marker]
"""(first, end, marker): the marker of a run of points, as ``Steps`` takes it."""


class StoreInfo(NamedTuple):
    """A store as it was declared.

    ``kind``: value or map; ``key_type``: the type of a map's keys, else empty; ``value_type``: the shape of the values
    (int, str, struct, …); ``codec``: the name of the codec.
    """

    number: int
    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class Table(Protocol):
    """The state of one source partition."""

    def get(self, key: bytes) -> bytes | None:
        """The stored value of a state key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The stored values of state keys, in their order."""

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        """Up to ``entries_max`` entries of ``[first, end)`` (None: to the last one) in order of keys."""


class LocalCopy(Table, Protocol):
    """A table that is written from the changelog."""

    def markers(self) -> Steps[Marker]:
        """The positions up to which the copy has the changelog, by points."""

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        """Write changes and set the markers of some points in one step, all or none. Other points keep their markers.

        Calls for one partition may come from several threads; each call keeps the markers that the others set.
        """

    def clear(self, within: KeyRange) -> None:
        """Drop all entries and markers of a range, in one step."""


class LocalCopies(Protocol):
    """The copies of one application in one place."""

    def copy(self, topic: str, partition: int) -> LocalCopy:
        """The copy for a source partition; an empty copy at the first call."""

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        """Note the stores, for readers of the place without the application."""

    def close(self) -> None:
        """Let go; a second call does nothing."""
