"""PURE. What the runtime asks of a place that keeps state: one table for each source partition.

Two kinds. A *table* of the embedded broker is written by the broker itself, in the write that makes a transaction
visible. A *copy* follows the changelog: it is written after the commit and knows by its markers how far it is.
A marker is a lower bound: the copy holds all changes below its position, maybe some above. Points without a marker are
not held. Methods are plain calls that may block on a disk; they may be called from several threads.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps

TABLE_CONFIG: Final = {"keylanes.storage": "table"}
"""A topic created with this setting is kept by key by a broker that can; the others leave the setting out."""

Change: TypeAlias = tuple[bytes, bytes | None]
"""A state key and its new stored value; None: deleted."""


class Marker(NamedTuple):
    """All changes below ``position`` of the changelog partition are there; ``time_ms`` (wall clock): when that held."""

    position: int
    time_ms: int


Mark: TypeAlias = tuple[int, int, Marker]
"""(first, end, marker): the marker of a run of points, as ``Steps`` takes it."""


class StoreInfo(NamedTuple):
    """A store as it was declared.

    ``kind``: value or map; ``key_type``: of a map's keys, else empty; ``value_type``: the shape of its values (int,
    str, struct, …); ``codec``: its name.
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
        """At most so many entries of ``[first, end)`` (None: to the last one) in order of keys."""


class LocalCopy(Table, Protocol):
    """A table that follows the changelog."""

    def markers(self) -> Steps[Marker]:
        """How far the copy has followed, by points."""

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        """Write changes and set the markers of some points, those of others stay, in one step: all is there or none.

        Calls for one partition may come from several threads: each sets its points' markers on what the others set.
        """

    def clear(self, within: KeyRange) -> None:
        """Drop all entries and markers of a range, in one step."""


class LocalCopies(Protocol):
    """The copies of one application in one place."""

    def copy(self, topic: str, partition: int) -> LocalCopy:
        """The copy for a source partition; an empty one when there was none."""

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        """Note which stores there are, for those who read the place without the application."""

    def close(self) -> None:
        """Let go; a second call does nothing."""
