"""The state of handlers: stores that a handler gets by annotation.

``seen: State[int]`` is a single value, ``by_day: MapState[str, int]`` a map, each scoped to the record's key and source
topic: two keys never see each other's values. The store has the name of the parameter; ``Annotated[State[int],
Store(name="seen", ttl_ms=60_000)]`` gives the store another name. A change becomes visible together with the record's
outputs and offset, or not at all. A record without a key has no state: any use raises NoKey.
"""

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ...brokers.protocol import ConsumerRecord
from ...errors import NoKey, StateError, caused
from ...keyrange.hashing import point_of_key
from ...state.keys import MapKey, decode_map_key, encode_map_key, parse_key, state_key
from ...state.overlay import Absent, Overlay, OverlayEntry
from .partition_state import Scope
from .values import Codec

T = TypeVar("T")
K = TypeVar("K", str, bytes, int)
V = TypeVar("V")

KEYS_REMEMBERED: Final = 65_536


@dataclass(slots=True)
class StoreDeclaration:
    """A checked declaration of a store of one handler.

    ``kind``: "value" or "map". ``key_type``: the type of a map's keys, else empty. ``value_type``: the shape of the
    values, see ``shape_of``.
    """

    name: str
    kind: str
    key_type: str
    value_type: str
    ttl_ms: int | None
    codec: Codec
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    sure_type: type | None
    """An encoded value of exactly this type can be decoded again; None: ``Binding.encode`` has to try."""


class MapPrefixes(dict[bytes, bytes]):
    """By record's key, the common prefix of the state keys of its map entries. Remembered for some keys: a key comes
    again and again.
    """

    def __init__(self, store: int) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, key: bytes) -> bytes:
        if len(self) >= KEYS_REMEMBERED:
            self.clear()
        prefix = self[key] = state_key(point_of_key(key), self._store, key)
        return prefix


class Binding:
    """A store with its number in this application's logs, for the state of one partition."""

    __slots__ = ("_cells", "declaration", "number", "places")

    def __init__(self, number: int, declaration: StoreDeclaration) -> None:
        self.number = number
        self.declaration = declaration
        self.places = MapPrefixes(number)
        self._cells: dict[bytes, OverlayEntry] = {}
        """By record's key, the overlay entry of its value; of some keys, and only in a store of values."""

    def entry_of(self, overlay: Overlay, key: bytes) -> OverlayEntry:
        """The overlay entry of the value of a record's key, in a store of values."""
        cells = self._cells
        cell = cells.get(key)
        if cell is None or not cell.is_here:
            if len(cells) >= KEYS_REMEMBERED:
                cells.clear()
            cell = cells[key] = overlay.entry_of(state_key(point_of_key(key), self.number, key))
        return cell

    def bound(self, scope: Scope, key: bytes | None) -> "State[Any] | MapState[Any, Any]":
        """The store for an attempt at a record of the key."""
        return MapState(self, scope, key) if self.declaration.kind == "map" else State(self, scope, key)

    def encode(self, value: Any) -> bytes:
        """A value's bytes. Raises TypeError for None and for a value that can't be decoded again, and errors of the
        codec.
        """
        if value is None:
            raise TypeError(f"None is no value of store {self.declaration.name!r}; delete() says that there is none")
        payload = self.declaration.encode(value)
        if type(value) is self.declaration.sure_type:
            return payload
        try:
            self.declaration.decode(payload)  # or the next record of the key would stop the application for ever
        except Exception as error:  # noqa: BLE001  # a codec may raise anything
            what = f"a {type(value).__name__} is no value of store {self.declaration.name!r} as it is declared"
            raise caused(TypeError(f"{what}, it could not be read again: {error}"), error)
        return payload

    def decode(self, payload: bytes) -> Any:
        """The value of some bytes. Raises StateError for bytes that other code wrote: nothing may be guessed."""
        try:
            return self.declaration.decode(payload)
        except Exception as error:  # noqa: BLE001  # a codec may raise anything
            damaged = StateError(
                f"a value of store {self.declaration.name!r} ({len(payload)} bytes) can't be decoded as declared: "
                f"{error}. Declare it as it was, or give the changed store another name"
            )
            raise caused(damaged, error)


Bindings: TypeAlias = tuple[Binding | None, ...]
"""The arguments of a handler behind the value; None: the context."""


class State(Generic[T]):
    """One value for the record's key."""

    __slots__ = ("_binding", "_cell", "_decode", "_encode", "_scope", "_sure_type", "_ttl_ms")

    def __init__(self, binding: Binding, scope: Scope, key: bytes | None) -> None:
        self._binding = binding
        self._scope = scope
        declared = binding.declaration
        self._decode = declared.decode
        self._encode = declared.encode
        self._ttl_ms = declared.ttl_ms
        self._sure_type = declared.sure_type
        self.begin(key)

    def begin(self, key: bytes | None) -> None:
        """The store for a record of this key, in what its scope is now; for the runtime."""
        self._cell: OverlayEntry | None = (
            None if key is None else self._binding.entry_of(self._scope.state.overlay, key)
        )

    def begin_at(self, cell: OverlayEntry) -> None:
        """The store for a record whose overlay entry was looked up before; for the runtime."""
        self._cell = cell

    def get(self) -> T | None:
        """The value; None when there is none."""
        payload = self._scope.read(self._cell or _with_key(self._cell, self._binding))
        if payload is None:
            return None
        try:
            value: T = self._decode(payload)
        except Exception:  # noqa: BLE001  # a codec may raise anything; ``Binding.decode`` makes a StateError of it
            return typing.cast("T", self._scope.run_step(self._binding.decode, payload))
        return value

    def put(self, value: T) -> None:
        """Set the value. Raises StateValueTooLarge, TypeError for None."""
        cell = self._cell or _with_key(self._cell, self._binding)
        is_sure = type(value) is self._sure_type
        self._scope.write(cell, self._encode(value) if is_sure else self._binding.encode(value), self._ttl_ms)

    def delete(self) -> None:
        """Remove the value."""
        self._scope.delete(_with_key(self._cell, self._binding))


class MapState(Generic[K, V]):
    """A map for the record's key. The map's keys are str, bytes or int (64 bits); iteration is in order of the keys."""

    __slots__ = ("_binding", "_prefix", "_scope")

    def __init__(self, binding: Binding, scope: Scope, key: bytes | None) -> None:
        self._binding = binding
        self._scope = scope
        self.begin(key)

    def begin(self, key: bytes | None) -> None:
        """The store for a record of this key, in what its scope is now; for the runtime."""
        self._prefix = None if key is None else self._binding.places[key]

    def get(self, key: K) -> V | None:
        """The value of a key; None when there is none."""
        payload = self._scope.read(self._scope.entry_of(self._state_key(key)))
        return None if payload is None else self._scope.run_step(self._binding.decode, payload)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key. Raises StateValueTooLarge, TypeError for None."""
        self._scope.write_at(self._state_key(key), self._binding.encode(value), self._binding.declaration.ttl_ms)

    def delete(self, key: K) -> None:
        """Remove the value of a key."""
        self._scope.delete(self._scope.entry_of(self._state_key(key)))

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values in the order of the keys, as of the start of the iteration."""
        prefix = _with_key(self._prefix, self._binding)
        kind = self._binding.declaration.key_type
        for key, payload in self._scope.walk(prefix):
            yield typing.cast("K", _map_key(key, kind)), self._scope.run_step(self._binding.decode, payload)

    def keys(self) -> Iterator[K]:
        """The keys, in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """The values, in order of their keys."""
        return (value for _, value in self.items())

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __contains__(self, key: K) -> bool:
        return self._scope.read(self._scope.entry_of(self._state_key(key))) is not None

    def _state_key(self, key: K) -> bytes:
        """The state key of a map's key; raises NoKey, ValueError for an empty key."""
        prefix = _with_key(self._prefix, self._binding)
        map_key = encode_map_key(key, self._binding.declaration.key_type)
        if not map_key:
            raise ValueError(f"a key of the map {self._binding.declaration.name!r} is not empty")
        return prefix + map_key


def look_up_entries(
    overlay: Overlay, bindings: Sequence[Binding | None], records: Sequence[ConsumerRecord]
) -> tuple[list[OverlayEntry | None], list[OverlayEntry]]:
    """The overlay entries that a handler will read for ``records``. First list: for each record the entry of the only
    store, where the handler has one store and the store has values; else empty. Second list: over all stores the
    entries whose values are not in memory, each once.
    """
    stores = [binding for binding in bindings if binding is not None]
    cells: list[OverlayEntry | None] = []
    lacking: dict[OverlayEntry, None] = {}
    for binding in stores:
        if binding.declaration.kind == "value":
            cells = []
            for record in records:
                key = record.key
                cell = None if key is None else binding.entry_of(overlay, key)
                cells.append(cell)
                if cell is not None and isinstance(cell.value, Absent):
                    lacking[cell] = None
    overlay.keep_bound()
    return cells if len(stores) == 1 else [], [*lacking]


def _with_key(at: T | None, binding: Binding) -> T:
    """``at``, made of the record's key; raises NoKey where the record has no key."""
    if at is None:
        raise NoKey(f"the record has no key, so it has no state: store {binding.declaration.name!r} can't be used")
    return at


def _map_key(key: bytes, kind: str) -> MapKey:
    try:
        return decode_map_key(parse_key(key).map_key, kind)
    except ValueError as error:
        raise caused(StateError(f"the state is damaged: {error}"), None)
