"""Looking at state from inside the process, beside the handlers: what is committed, nothing that only is done.

A read is one step on the event loop: as long as nothing is awaited between two of them, or while a scan is consumed,
they see the same transactions. A table that the broker keeps is written by the broker, large transactions in a thread:
there two reads, and two pages of a scan, may lie before and behind one. A range that is not restored yet raises
StateNotReady; the others answer meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import StateError, StateNotReady
from ...keyrange.hashing import point_of_key
from ...keyrange.ranges import WHOLE, KeyRange
from ...offsets.ledger import Place
from ...state.changelog import Stored, decode_stored
from ...state.keys import MapKey, decode_map_key, encode_map_key, parse_key, prefix_end, state_key
from ..handlers.partition_state import PartitionState
from ..handlers.stores import Binding


class StoreEntry(NamedTuple):
    """A value of a store. ``map_key`` None: of a value store. ``deadline_ms``: from then on no record sees it."""

    partition: int
    key: bytes
    map_key: MapKey | None
    value: Any
    deadline_ms: int | None


class StoreView:
    """One store of a running application. ``find``: (its topic, its binding, the states of all partitions) now."""

    def __init__(self, name: str, find: Callable[[], tuple[str, Binding, Mapping[Place, PartitionState]]]) -> None:
        self.name = name
        self._find = find

    def get(self, key: bytes | str, map_key: MapKey | None = None, *, partition: int | None = None) -> Any:
        """The value of a record's key (of a map: at ``map_key``); None when there is none.

        Without ``partition`` all are asked. Its time to live is not judged: there is no record here whose timestamp
        could be. Raises StateNotReady, and ValueError when several partitions hold the key: then name one.
        """
        topic, binding, states = self._find()
        data = key.encode() if isinstance(key, str) else key
        is_map = binding.declaration.kind == "map"
        if is_map is (map_key is None):
            raise ValueError(f"store {self.name!r} is a {binding.declaration.kind}: map_key is {map_key!r}")
        point = point_of_key(data)
        at = state_key(point, binding.number, data)
        if map_key is not None:
            at += encode_map_key(map_key, binding.declaration.key_type)
        found = {
            number: stored
            for number, state in self._partitions(topic, states, partition)
            if (stored := state.read_committed(at, point)) is not None
        }
        if len(found) > 1:
            raise ValueError(f"store {self.name!r} holds this key in partitions {sorted(found)}; name one")
        return next((self._decoded(binding, stored)[0] for stored in found.values()), None)

    def items(self, key: bytes | str, *, partition: int | None = None) -> list[tuple[MapKey, Any]]:
        """The map of a record's key, in order of the map's keys. Raises as ``get`` does."""
        topic, binding, states = self._find()
        if binding.declaration.kind != "map":
            raise ValueError(f"store {self.name!r} is a value; get() gives it")
        data = key.encode() if isinstance(key, str) else key
        point = point_of_key(data)
        prefix = state_key(point, binding.number, data)
        found = {
            number: entries
            for number, state in self._partitions(topic, states, partition)
            if (entries := list(state.span_committed(prefix, prefix_end(prefix), KeyRange(point, point + 1))))
        }
        if len(found) > 1:
            raise ValueError(f"store {self.name!r} holds this key in partitions {sorted(found)}; name one")
        return [
            (self._map_key(binding, parse_key(at).map_key), self._decoded(binding, stored)[0])
            for entries in found.values()
            for at, stored in entries
        ]

    def scan(self, *, partition: int | None = None, within: KeyRange = WHOLE) -> Iterator[StoreEntry]:
        """All entries, or those of one partition, of a key range; in order of partitions and points.

        Await nothing while it is consumed, or take what it gives as a mixture of transactions. Raises StateNotReady.
        """
        topic, binding, states = self._find()
        is_map = binding.declaration.kind == "map"
        for number, state in self._partitions(topic, states, partition):
            for at, data in state.scan_committed(within):
                place = parse_key(at)
                if place.store == binding.number:
                    value, stored = self._decoded(binding, data)
                    map_key = self._map_key(binding, place.map_key) if is_map else None
                    yield StoreEntry(number, place.key, map_key, value, stored.deadline_ms)

    def _partitions(
        self, topic: str, states: Mapping[Place, PartitionState], partition: int | None
    ) -> list[tuple[int, PartitionState]]:
        found = [(p, state) for (name, p), state in sorted(states.items()) if name == topic and partition in (None, p)]
        if not found:
            what = "partitions" if partition is None else f"partition {partition}"
            raise StateNotReady(
                f"store {self.name!r}: {what} of {topic!r} can't be read; the application is not that far"
            )
        return found

    def _decoded(self, binding: Binding, data: bytes) -> tuple[Any, Stored]:
        try:
            stored = decode_stored(data)
        except ValueError as error:
            raise StateError(f"the state of store {self.name!r} is damaged: {error}") from None
        return binding.decode(stored.payload), stored

    def _map_key(self, binding: Binding, data: bytes) -> MapKey:
        try:
            return decode_map_key(data, binding.declaration.key_type)
        except ValueError as error:
            raise StateError(f"the state of store {self.name!r} is damaged: {error}") from None
