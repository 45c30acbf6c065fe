"""Looking at state from inside the process, beside the handlers: what is committed, nothing that only is done.

A read is one step on the event loop: as long as nothing is awaited between two of them, or while a scan is consumed,
they see the same transactions. A table that the broker keeps is written by the broker, large transactions in a thread:
there two reads, and two pages of a scan, may lie before and behind one. A range that is not restored yet, or that
another process of the application holds, raises StateNotReady; the others answer.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ...errors import StateNotReady
from ...keyrange.ranges import WHOLE, KeyRange
from ...offsets.ledger import Place
from ...state.keys import MapKey, encode_map_key
from ...state.lookup import Entry, KeyInSeveral, entries_of_key, entries_of_store
from ...state.tables import StoreInfo
from ..handlers.partition_state import PartitionState
from ..handlers.stores import Binding

V = TypeVar("V")


class StoreEntry(NamedTuple, Generic[V]):
    """A value of a store. ``map_key`` None: of a value store. ``deadline_ms``: from then on no record sees it."""

    partition: int
    key: bytes
    map_key: MapKey | None
    value: V
    deadline_ms: int | None


class Found(NamedTuple):
    """A store, as it is declared and bound, and the states of all partitions."""

    info: StoreInfo
    binding: Binding
    states: Mapping[Place, PartitionState]


class StoreView(Generic[V]):
    """One store of a running application. ``find``: what there is of it now."""

    def __init__(self, name: str, find: Callable[[], Found]) -> None:
        self.name = name
        self._find = find

    def get(self, key: bytes | str, map_key: MapKey | None = None, *, partition: int | None = None) -> V | None:
        """The value of a record's key (of a map: at ``map_key``); None when there is none.

        Without ``partition`` all that this process holds are asked; raises StateNotReady when none of them has the key
        and there are others: None says that no partition has it. Its time to live is not judged: there is no record
        here whose timestamp could be. Raises ValueError when several partitions hold the key: then name one.
        """
        found = self._find()
        if (found.info.kind == "map") is (map_key is None):
            raise ValueError(f"store {self.name!r} is a {found.info.kind}: map_key is {map_key!r}")
        entries = self._entries(found, key, map_key, partition)
        return found.binding.decode(entries[0].payload) if entries else None

    def items(self, key: bytes | str, *, partition: int | None = None) -> list[tuple[MapKey, V]]:
        """The map of a record's key, in order of the map's keys. Raises as ``get`` does."""
        found = self._find()
        if found.info.kind != "map":
            raise ValueError(f"store {self.name!r} is a value; get() gives it")
        items = []
        for entry in self._entries(found, key, None, partition):
            assert entry.map_key is not None, "it is a map"
            items.append((entry.map_key, found.binding.decode(entry.payload)))
        return items

    def scan(self, *, partition: int | None = None, within: KeyRange = WHOLE) -> Iterator[StoreEntry[V]]:
        """All entries, or those of one partition, of a key range; in order of partitions and points.

        Await nothing while it is consumed, or take what it gives as a mixture of transactions. Raises StateNotReady.
        """
        found = self._find()
        for number, state in self._partitions(found, partition):
            for entry in entries_of_store(found.info, number, state.scan_committed(within)):
                value = found.binding.decode(entry.payload)
                yield StoreEntry(number, entry.key, entry.map_key, value, entry.deadline_ms)

    def _entries(self, found: Found, key: bytes | str, map_key: MapKey | None, partition: int | None) -> list[Entry]:
        data = key.encode() if isinstance(key, str) else key
        at = None if map_key is None else encode_map_key(map_key, found.info.key_type)
        try:
            return entries_of_key(found.info, data, at, self._partitions(found, partition))
        except KeyInSeveral as error:
            raise ValueError(f"store {self.name!r} holds this key in partitions {error.partitions}; name one") from None

    def _partitions(self, found: Found, partition: int | None) -> list[tuple[int, PartitionState]]:
        topic = found.info.topic
        chosen = [(p, s) for (name, p), s in sorted(found.states.items()) if name == topic and partition in (None, p)]
        if not chosen:
            what = "partitions" if partition is None else f"partition {partition}"
            raise StateNotReady(
                f"store {self.name!r}: {what} of {topic!r} can't be read; the application is not that far"
            )
        return chosen
