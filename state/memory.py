"""Copies of state in memory: the plain twin of copies.py, and the storage of the simulated broker.

Such copies stand for a folder: they outlive ``close`` and their user, as a folder outlives its process.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .keys import bounds_of
from .tables import Change, Mark, Marker, StoreInfo


class MemoryCopies:
    """See the module and ``tables.Copies``. Methods may be called from several threads."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], MemoryCopy] = {}
        self._stores: dict[int, StoreInfo] = {}

    def copy(self, topic: str, partition: int) -> "MemoryCopy":
        """The copy for a source partition; an empty copy at the first call."""
        return self._copies.setdefault((topic, partition), MemoryCopy())

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        """Note these stores, beside the stores under other numbers."""
        self._stores.update((store.number, store) for store in stores)

    def stores(self) -> list[StoreInfo]:
        """The stores that were declared, in order of their numbers."""
        return [store for _, store in sorted(self._stores.items())]

    def topics(self) -> list[str]:
        """The source topics that have had a copy here, by name."""
        return sorted({topic for topic, _ in self._copies})

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a source topic that have entries or markers here, in order."""
        return sorted(number for (name, number), copy in self._copies.items() if name == topic and not copy.empty)

    def close(self) -> None:
        """Do nothing: the copies outlive their user; see the module."""


class MemoryCopy:
    """The copy for one source partition. Threads take turns: no thread sees half a write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []  # sorted
        self._markers: Steps[Marker] = Steps()

    @property
    def empty(self) -> bool:
        """Whether the copy has neither entries nor markers."""
        return not self._keys and self._markers == Steps()

    def get(self, key: bytes) -> bytes | None:
        """The stored value of a state key."""
        return self._values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The stored values of state keys, in their order."""
        with self._lock:
            return [self._values.get(key) for key in keys]

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        """Up to ``entries_max`` entries of ``[first, end)`` (None: to the last one) in order of keys."""
        with self._lock:
            a, b = self._span(first, end)
            return [(key, self._values[key]) for key in self._keys[a : min(b, a + entries_max)]]

    def markers(self) -> Steps[Marker]:
        """The positions up to which the copy has the changelog, by points."""
        return self._markers

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        """Write changes and set the markers of points in one step, all or none. Other points keep their markers."""
        last, pieces = dict(changes), list(marks)  # an iterable that fails half way has changed nothing
        with self._lock:
            for key, value in last.items():
                if value is not None:
                    if key not in self._values:
                        insort(self._keys, key)
                    self._values[key] = value
                elif self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            self._markers = self._markers.replace(pieces)

    def clear(self, within: KeyRange) -> None:
        """Drop all entries and markers of a range, in one step."""
        with self._lock:
            a, b = self._span(*bounds_of(within))
            for key in self._keys[a:b]:
                del self._values[key]
            del self._keys[a:b]
            self._markers = self._markers.replace([(within.first, within.end, None)])

    def _span(self, first: bytes, end: bytes | None) -> tuple[int, int]:
        """The indexes of ``[first, end)`` in the sorted keys."""
        return bisect_left(self._keys, first), len(self._keys) if end is None else bisect_left(self._keys, end)
