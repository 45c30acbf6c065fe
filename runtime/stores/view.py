"""Queries: reads of state inside the process, beside the handlers. A query sees committed values only, no value of a
handler in progress.

A read is a single step on the event loop. Reads without an await between them see the same transactions, and so does a
scan that is consumed without an await. One exception: the embedded broker writes its tables itself, large transactions
in a thread. There a transaction may come between two reads, or between two pages of a scan. A range that is not
restored yet raises StateNotReady, a range of another process of the application raises Elsewhere; the other ranges
answer. With ``stale_ms_max`` copies answer, too. A copy follows the changelog, and may hold a part of a transaction.
answers.py decides who answers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ...errors import OutputRefused, StateNotReady
from ...keyrange.ranges import WHOLE, KeyRange
from ...offsets.ledger import SourcePartition
from ...state.keys import MapKey, encode_map_key
from ...state.lookup import Entry, KeyInSeveral, entries_of_key, entries_of_store
from ...state.tables import StoreInfo
from ..handlers.handler import Handler
from ..handlers.stores import Binding
from .answers import FollowedCopies, GroupView, LocalAnswers
from .key_places import KeyPlaces
from .storage import Storage

V = TypeVar("V")


class StoreEntry(NamedTuple, Generic[V]):
    """A value of a store. ``map_key`` is None in a value store. No record from ``deadline_ms`` on sees the value."""

    partition: int
    key: bytes
    map_key: MapKey | None
    value: V
    deadline_ms: int | None


class DeclaredStore(NamedTuple):
    """A declared store with its number, with all partitions of its topic, and with the samples of where keys lie."""

    info: StoreInfo
    binding: Binding
    partitions: Mapping[int, LocalAnswers]
    places: KeyPlaces

    def partition_of(self, key: bytes) -> int:
        """The partition that the topic's partitioner gives a key. Raises as ``KeyPlaces.partition_of``."""
        return self.places.partition_of(self.info.topic, key, len(self.partitions))


@dataclass
class Queries:
    """The stores of one process, for readers outside of handlers. ``infos``: the stores by name, once they are open.
    ``withheld``: the reason why no query is answered any more; None: queries are answered.
    """

    handlers: Mapping[str, Handler]
    infos: Mapping[str, StoreInfo]
    storages: Mapping[SourcePartition, Storage]
    group: GroupView
    copies: FollowedCopies
    key_places: KeyPlaces
    withheld: str | None = None

    def find(self, name: str) -> DeclaredStore:
        """A store with all partitions of its topic; raises StateNotReady."""
        info = self.infos.get(name)
        if self.withheld is not None:
            raise StateNotReady(f"store {name!r} can't be read: {self.withheld}")
        if info is None:
            raise StateNotReady(f"store {name!r} can't be read yet: the application is starting")
        declared = next(d for d in self.handlers[info.topic].stores if d.name == name)
        if (doubt := self.group.doubt()) is not None:
            raise StateNotReady(f"store {name!r} can't be read: {doubt}")
        partitions = {
            place[1]: LocalAnswers(place, storage.state, self.group, self.copies)
            for place, storage in self.storages.items()
            if place[0] == info.topic
        }
        return DeclaredStore(info, Binding(info.number, declared), partitions, self.key_places)


class StoreView(Generic[V]):
    """A store of a running application. ``find`` returns the store with its present partitions."""

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
        """The value of a record's key (in a map: at ``map_key``); None when no partition has the key.

        Without ``partition`` the call looks in all partitions that this process holds, and raises when all of them lack
        the key while other partitions exist elsewhere. ``partition_of`` says which partition to name. Raises Elsewhere
        when another member has the key, StateNotReady when nobody has the key now, or when the named partition lacks
        the key and the topic is written by another partitioner than the application says. The time to live is not
        checked: without a record no timestamp exists to check against. Raises ValueError when several partitions hold
        the key: name a partition then.

        ``stale_ms_max``: where this process does not own the key, a copy of at most this age, in ms, answers.
        """
        found = self._find()
        if (found.info.kind == "map") is (map_key is None):
            raise ValueError(f"store {self.name!r} is a {found.info.kind}: map_key is {map_key!r}")
        entries = self._entries(found, key, map_key, self._partitions(found, partition, stale_ms_max))
        return found.binding.decode(entries[0].payload) if entries else None

    def items(
        self, key: bytes | str, *, partition: int | None = None, stale_ms_max: int | None = None
    ) -> list[tuple[MapKey, V]]:
        """The entries of a record key's map, in order of the map's keys. Raises as ``get`` does."""
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
        """All entries of a key range, or the entries of a single partition, in order of partitions and points.

        Await nothing while the scan is consumed, or the result mixes several transactions. Raises StateNotReady, or
        Elsewhere, when a part of the range can't be answered here: ``held`` lists the ranges that can.
        """
        found = self._find()
        for number, state in self._partitions(found, partition, stale_ms_max).items():
            for entry in entries_of_store(found.info, number, state.scan_committed(within)):
                value = found.binding.decode(entry.payload)
                yield StoreEntry(
                    partition=number, key=entry.key, map_key=entry.map_key, value=value, deadline_ms=entry.deadline_ms
                )

    def held(self, *, stale_ms_max: int | None = None) -> list[tuple[int, KeyRange]]:
        """The partitions and key ranges that this process can answer for now: a scan of each pair answers."""
        partitions = self._partitions(self._find(), None, stale_ms_max)
        return [(number, within) for number, state in partitions.items() for within in state.answered_ranges()]

    def partition_of(self, key: bytes | str) -> int:
        """The partition that the topic's partitioner (``App(partitioners=…)``) gives a key. Raises StateNotReady, also
        where the topic is written by another partitioner; OutputRefused when a partitioner function fails.
        """
        return self._find().partition_of(_bytes_of(key))

    def _entries(
        self, found: DeclaredStore, key: bytes | str, map_key: MapKey | None, partitions: Mapping[int, LocalAnswers]
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
        partitions: Mapping[int, LocalAnswers],
        unread: StateNotReady,
    ) -> list[Entry]:
        """Look for a key that all readable partitions lack in the partition that the partitioner gives the key. Raises
        Elsewhere or StateNotReady for a partition that can't be read here, and StateNotReady when the partition lacks
        the key: another partition may have a key placed by hand.
        """
        try:
            number = found.partition_of(key)
        except OutputRefused:
            raise unread from None
        if entries := entries_of_key(found.info, key, at, [(number, partitions[number])]):
            return entries  # they have come since the first look
        raise StateNotReady(
            f"store {self.name!r} has nothing for this key in partition {number}, where its topic's partitioner puts "
            f"it; if all writers of {found.info.topic!r} use that one, ask with partition={number}. Another partition "
            f"may have it: {unread}"
        ) from None

    def _partitions(
        self, found: DeclaredStore, partition: int | None, stale_ms_max: int | None
    ) -> dict[int, LocalAnswers]:
        topic = found.info.topic
        if stale_ms_max is not None and (not isinstance(stale_ms_max, int) or stale_ms_max < 0):
            raise ValueError(f"stale_ms_max is a whole number of ms, 0 or more, or None; seen {stale_ms_max!r}")
        chosen = {
            number: state._replace(stale_ms_max=stale_ms_max)
            for number, state in sorted(found.partitions.items())
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
