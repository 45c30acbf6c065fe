"""PURE. Looks up values of a store in the state of its partitions: in a process and in a folder alike."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..errors import StateError, StateNotReady, caused
from ..keyrange.hashing import point_of_key
from ..keyrange.ranges import KeyRange
from .changelog import BEACONS_END, decode_stored, is_beacon_key
from .keys import MapKey, decode_map_key, is_state_key, parse_key, prefix_end, state_key
from .overlay import laid_over
from .tables import Change, StoreInfo, Table

PAGE_ENTRIES: Final = 256


class Lookup(Protocol):
    """The committed state of one partition."""

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """The stored value of a state key with this point; raises StateNotReady."""

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The entries of ``[first, end)`` (None: to the last one) in order of keys. The interval lies in the key range
        ``within``. Raises StateNotReady at once.
        """


class Entry(NamedTuple):
    """A value of a store, not decoded. ``map_key`` None: of a value store; ``deadline_ms`` None: without a deadline."""

    partition: int
    key: bytes
    map_key: MapKey | None
    payload: bytes
    deadline_ms: int | None


class KeyInSeveral(ValueError):
    """Several ``partitions``, in order, hold a key: the caller has to name a partition."""

    def __init__(self, partitions: Sequence[int]) -> None:
        super().__init__(f"partitions {list(partitions)} hold this key")
        self.partitions = list(partitions)


def entries_of_key(
    store: StoreInfo, key: bytes, map_key: bytes | None, partitions: Iterable[tuple[int, Lookup]]
) -> list[Entry]:
    """The entries of a record's key: at most one; or the whole map, in order of map keys, where ``store`` is a map and
    ``map_key`` (as bytes) is None. Raises KeyInSeveral, StateError.

    An entry in a partition that can be read is the answer, whatever the other partitions have. Raises StateNotReady
    when no readable partition has the key, and some partitions can't be read.
    """
    point = point_of_key(key)
    at = state_key(point, store.number, key, map_key or b"")
    found: dict[int, list[tuple[bytes, bytes]]] = {}
    unread: StateNotReady | None = None
    for number, partition in partitions:
        try:
            if store.kind == "map" and map_key is None:
                pairs = list(partition.span_committed(at, prefix_end(at), KeyRange(point, point + 1)))
            else:
                stored = partition.read_committed(at, point)
                pairs = [] if stored is None else [(at, stored)]
        except StateNotReady as error:
            unread = unread or error
            continue
        if pairs:
            found[number] = pairs
    if len(found) > 1:
        raise KeyInSeveral(sorted(found))
    if unread is not None and not found:
        raise unread
    return [_entry(store, number, at, data) for number, pairs in found.items() for at, data in pairs]


def entries_of_store(store: StoreInfo, partition: int, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[Entry]:
    """The entries of one store among the entries of a partition; raises StateError."""
    for at, data in pairs:
        if not is_state_key(at):
            raise StateError(f"{store.topic}[{partition}] holds the key {at[:40]!r}, which is none of a state")
        if parse_key(at).store == store.number:
            yield _entry(store, partition, at, data)


def _entry(store: StoreInfo, partition: int, at: bytes, data: bytes) -> Entry:
    place = parse_key(at)
    try:
        stored = decode_stored(data)
        map_key = decode_map_key(place.map_key, store.key_type) if store.kind == "map" else None
    except ValueError as error:
        raise caused(StateError(f"the state of store {store.name!r} is damaged: {error}"), None)
    return Entry(
        partition=partition, key=place.key, map_key=map_key, payload=stored.payload, deadline_ms=stored.deadline_ms
    )


def walk_table(
    table: Table, first: bytes, end: bytes | None, over: Sequence[Change] = ()
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a table in ``[first, end)`` (None: to the last one) in order of keys, with the sorted changes
    ``over`` laid over them. Memory holds one page at a time. Beacons in the table of a broker are left out.
    """
    at, i = first, 0
    while True:
        page = table.page(at, end, PAGE_ENTRIES)
        is_last = len(page) < PAGE_ENTRIES
        stop = i  # the changes [i, stop) belong to this page
        while stop < len(over) and (is_last or over[stop][0] <= page[-1][0]):
            stop += 1
        entries = page if at >= BEACONS_END else [entry for entry in page if not is_beacon_key(entry[0])]
        yield from laid_over(entries, over[i:stop])
        if is_last:
            return
        at, i = page[-1][0] + b"\x00", stop  # the first key behind the page
