"""Looking at state from inside the process, beside the handlers: what is committed, nothing that only is done.

A read is one step on the event loop: as long as nothing is awaited between two of them, or while a scan is consumed,
they see the same transactions. A table that the broker keeps is written by the broker, large transactions in a thread:
there two reads, and two pages of a scan, may lie before and behind one. A range that is not restored yet raises
StateNotReady, one that another process of the application has Elsewhere; the others answer. ``stale_ms_max`` lets
copies answer, which follow with the changelog: they may hold a part of a transaction. Who answers: answers.py.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ...errors import OutputRefused, StateNotReady
from ...keyrange.ranges import WHOLE, KeyRange
from ...state.keys import MapKey, encode_map_key
from ...state.lookup import Entry, KeyInSeveral, entries_of_key, entries_of_store
from ...state.tables import StoreInfo
from ..handlers.stores import Binding
from .answers import Answering
from .key_places import KeyPlaces

V = TypeVar("V")


class StoreEntry(NamedTuple, Generic[V]):
    """A value of a store. ``map_key`` None: of a value store. ``deadline_ms``: from then on no record sees it."""

    partition: int
    key: bytes
    map_key: MapKey | None
    value: V
    deadline_ms: int | None


class DeclaredStore(NamedTuple):
    """A store, as it is declared and bound, all partitions of its topic, and where keys lie in them."""

    info: StoreInfo
    binding: Binding
    partitions: Mapping[int, Answering]
    places: KeyPlaces

    def partition_of(self, key: bytes) -> int:
        """Of the topic, by its partitioner. Raises as ``KeyPlaces.partition_of``."""
        return self.places.partition_of(self.info.topic, key, len(self.partitions))


class StoreView(Generic[V]):
    """One store of a running application. ``find``: what there is of it now."""

    def __init__(self, name: str, find: Callable[[], DeclaredStore]) -> None:
        self.name = name
        self._find = find

    def get(
        self,
        key: bytes | str,
        map_key: MapKey | None = None,
        *,
        partition: int | None = None,
        stale_ms_max: int | None = None,
    ) -> V | None:
        """The value of a record's key (of a map: at ``map_key``); None when there is none.

        Without ``partition`` all that this process holds are asked; raises when none of them has the key and there are
        others: None says that no partition has it. ``partition_of`` says which one to name. Raises Elsewhere when
        another member has it, StateNotReady when nobody has it now, or when nothing is found in the partition that was
        named and the topic is written by another partitioner than the one that it is said to have. Its time to live is
        not judged: there is no record here whose timestamp could be. Raises ValueError when several partitions hold the
        key: then name one.

        ``stale_ms_max``: where this process does not have it, its copy answers if that is at most so old.
        """
        found = self._find()
        if (found.info.kind == "map") is (map_key is None):
            raise ValueError(f"store {self.name!r} is a {found.info.kind}: map_key is {map_key!r}")
        entries = self._entries(found, key, map_key, self._partitions(found, partition, stale_ms_max))
        return found.binding.decode(entries[0].payload) if entries else None

    def items(
        self, key: bytes | str, *, partition: int | None = None, stale_ms_max: int | None = None
    ) -> list[tuple[MapKey, V]]:
        """The map of a record's key, in order of the map's keys. Raises as ``get`` does."""
        found = self._find()
        if found.info.kind != "map":
            raise ValueError(f"store {self.name!r} is a value; get() gives it")
        items = []
        for entry in self._entries(found, key, None, self._partitions(found, partition, stale_ms_max)):
            assert entry.map_key is not None, "it is a map"
            items.append((entry.map_key, found.binding.decode(entry.payload)))
        return items

    def scan(
        self, *, partition: int | None = None, within: KeyRange = WHOLE, stale_ms_max: int | None = None
    ) -> Iterator[StoreEntry[V]]:
        """All entries, or those of one partition, of a key range; in order of partitions and points.

        Await nothing while it is consumed, or take what it gives as a mixture of transactions. Raises StateNotReady, or
        Elsewhere, when something of it can't be answered here: ``held`` says what can.
        """
        found = self._find()
        for number, asked in self._partitions(found, partition, stale_ms_max).items():
            for entry in entries_of_store(found.info, number, asked.scan_committed(within)):
                value = found.binding.decode(entry.payload)
                yield StoreEntry(number, entry.key, entry.map_key, value, entry.deadline_ms)

    def held(self, *, stale_ms_max: int | None = None) -> list[tuple[int, KeyRange]]:
        """The partitions and key ranges that can be asked for here now: a scan of each of them answers."""
        partitions = self._partitions(self._find(), None, stale_ms_max)
        return [(number, within) for number, asked in partitions.items() for within in asked.answered()]

    def partition_of(self, key: bytes | str) -> int:
        """The partition that the topic's partitioner (``App(partitioners=…)``) gives a key. Raises StateNotReady, also
        where the topic is written by another one; OutputRefused when it is a function that fails.
        """
        return self._find().partition_of(_bytes_of(key))

    def _entries(
        self, found: DeclaredStore, key: bytes | str, map_key: MapKey | None, partitions: Mapping[int, Answering]
    ) -> list[Entry]:
        data = _bytes_of(key)
        at = None if map_key is None else encode_map_key(map_key, found.info.key_type)
        try:
            entries = entries_of_key(found.info, data, at, partitions.items())
        except KeyInSeveral as error:
            raise ValueError(f"store {self.name!r} holds this key in partitions {error.partitions}; name one") from None
        except StateNotReady as unread:
            if len(partitions) == 1:
                raise
            return self._where_it_belongs(found, data, at, partitions, unread)
        if not entries and len(partitions) == 1:
            found.places.confirm((found.info.topic, next(iter(partitions))))
        return entries

    def _where_it_belongs(
        self,
        found: DeclaredStore,
        key: bytes,
        at: bytes | None,
        partitions: Mapping[int, Answering],
        unread: StateNotReady,
    ) -> list[Entry]:
        """Raises for a key that no partition has that is held here: whoever has the one that the partitioner gives it
        is to be asked. That it has none there does not say that it has none: it may be placed by hand.
        """
        try:
            number = found.partition_of(key)
        except OutputRefused:
            raise unread from None
        if entries := entries_of_key(found.info, key, at, [(number, partitions[number])]):
            return entries  # it has come here this moment
        raise StateNotReady(
            f"store {self.name!r} has nothing for this key in partition {number}, where its topic's partitioner puts "
            f"it; if all writers of {found.info.topic!r} use that one, ask with partition={number}. Another partition "
            f"may have it: {unread}"
        ) from None

    def _partitions(
        self, found: DeclaredStore, partition: int | None, stale_ms_max: int | None
    ) -> dict[int, Answering]:
        topic = found.info.topic
        if stale_ms_max is not None and (not isinstance(stale_ms_max, int) or stale_ms_max < 0):
            raise ValueError(f"stale_ms_max is a whole number of ms, 0 or more, or None; seen {stale_ms_max!r}")
        chosen = {
            number: asked._replace(stale_ms_max=stale_ms_max)
            for number, asked in sorted(found.partitions.items())
            if partition in (None, number)
        }
        if not chosen:
            what = "partitions" if partition is None else f"partition {partition}"
            raise StateNotReady(
                f"store {self.name!r}: {what} of {topic!r} can't be read; the application is not that far"
            )
        return chosen


def _bytes_of(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else key
