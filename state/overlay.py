"""PURE. The state of one partition that is not in its table yet: what is done, and what was committed.

A record's writes come in when it is done (``add``), alone or in a *layer* with those of its neighbours; they become
visible outside when their transaction is committed (``commit``), and leave when the table holds all layers that they
are in (``settle``). Handlers see the newest value that is done; readers from outside see the newest that is committed.
Ranges are disjoint and a worker runs one record at a time, so there is no lock: a value is in the next place before it
leaves the one above, and whoever looks from above to below meets it.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

from .keys import map_prefix
from .tables import Change

Writes: TypeAlias = dict[bytes, bytes | None]
"""Values by state key, None for a deleted one."""


class Absent:
    """The overlay says nothing about a key."""


ABSENT: Final = Absent()


class Overlay:
    """See the module. Keys are state keys; a value None stands for a deleted one."""

    __slots__ = ("_committed", "_counts", "_maps", "newest")

    def __init__(self) -> None:
        self.newest: dict[bytes, bytes | None] = {}
        """The newest value that is done, of each key that the table may not hold it of; to be read only."""
        self._counts: dict[bytes, int] = {}
        """In how many layers a key is that are not in the table."""
        self._maps: dict[bytes, dict[bytes, None]] = {}
        """The keys of map entries, by what the entries of one map begin with."""
        self._committed: dict[bytes, bytes | None] = {}

    def __len__(self) -> int:
        return len(self.newest)

    def __contains__(self, key: bytes) -> bool:
        return key in self.newest

    def get(self, key: bytes) -> bytes | Absent | None:
        """The newest value that is done."""
        return self.newest.get(key, ABSENT)

    def get_committed(self, key: bytes) -> bytes | Absent | None:
        """The newest value that is committed."""
        return self._committed.get(key, ABSENT)

    def add(self, writes: Writes, layer: Writes | None = None) -> None:
        """A record is done: its writes. They are a layer by themselves, or are put into one (``layer``)."""
        counts, newest = self._counts, self.newest
        for key, value in writes.items():
            newest[key] = value
            if layer is not None:
                before = len(layer)
                layer[key] = value
                if len(layer) == before:
                    continue
            count = counts.get(key, 0)
            counts[key] = count + 1
            if not count and (prefix := map_prefix(key)) is not None:
                self._maps.setdefault(prefix, {})[key] = None

    def commit(self, changes: Writes) -> None:
        """A transaction with these changes, the last of each key, was committed."""
        self._committed.update(changes)

    def committed(self) -> dict[bytes, bytes | None]:
        """All that is committed and not settled."""
        return self._committed.copy()

    def settle(self, layers: Iterable[Writes]) -> None:
        """The table holds what these layers wrote, which were committed."""
        counts, newest, committed = self._counts, self.newest, self._committed
        for layer in layers:
            for key in layer:
                count = counts[key] - 1
                if count:
                    counts[key] = count
                else:
                    del counts[key], newest[key]
                    if (prefix := map_prefix(key)) is not None:
                        del self._maps[prefix][key]
                        if not self._maps[prefix]:
                            del self._maps[prefix]
                committed.pop(key, None)

    def entries(self, prefix: bytes) -> list[Change]:
        """What is done of the map whose keys begin with a prefix (see ``map_prefix``), in order."""
        found = [(key, self.newest.get(key, ABSENT)) for key in sorted(self._maps.get(prefix, ()))]
        # A handler looks from a thread: what was settled in between is in the table now.
        return [(key, value) for key, value in found if not isinstance(value, Absent)]

    def committed_within(self, first: bytes, end: bytes | None) -> list[Change]:
        """What is committed of ``[first, end)`` (None: to the last one), in order."""
        changes = list(self._committed.items())
        return sorted((key, value) for key, value in changes if first <= key and (end is None or key < end))


def laid_over(entries: Iterable[tuple[bytes, bytes]], over: Iterable[Change]) -> list[tuple[bytes, bytes]]:
    """Entries with changes laid over them, in order of keys."""
    merged: dict[bytes, bytes | None] = dict(entries)
    merged.update(over)
    return sorted((key, value) for key, value in merged.items() if value is not None)
