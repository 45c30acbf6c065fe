"""What handlers of the simulation do with state, and a plain twin of it that says what each record had to write."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from keylanes.errors import NoKey
from keylanes.keyrange.hashing import point_of_key
from keylanes.runtime.handlers.store_declarations import Store
from keylanes.runtime.handlers.stores import MapState, State
from keylanes.state.changelog import decode_stored, encode_stored
from keylanes.state.keys import decode_map_key, encode_map_key, parse_key, state_key

TTL_MS: Final = 400
SEEN, BY, RECENT = "seen", "by", "recent"
OrdersSeen: TypeAlias = Annotated[State[int], Store(name="orders.seen")]
OrdersBy: TypeAlias = Annotated[MapState[int, int], Store(name="orders.by")]
OrdersRecent: TypeAlias = Annotated[MapState[str, int], Store(name="orders.recent", ttl_ms=TTL_MS)]
BillsSeen: TypeAlias = Annotated[State[int], Store(name="bills.seen")]
BillsBy: TypeAlias = Annotated[MapState[int, int], Store(name="bills.by")]
BillsRecent: TypeAlias = Annotated[MapState[str, int], Store(name="bills.recent", ttl_ms=TTL_MS)]


class Value(Protocol):
    """What handlers ask of a State."""

    def get(self) -> int | None: ...
    def put(self, value: int) -> None: ...
    def delete(self) -> None: ...


class Entries(Protocol):
    """What handlers ask of a MapState."""

    def put(self, key: Any, value: int) -> None: ...
    def delete(self, key: Any) -> None: ...
    def items(self) -> Iterator[tuple[Any, int]]: ...


def change(number: int, key: bytes | None, is_big: bool, seen: Value, by: Entries, recent: Entries) -> str:
    """What a record does with the state of its key; what it saw, in words that its outputs carry.

    A record whose outputs may be refused afterwards changes nothing: that would stop the application. One without a key
    asks for state all the same, now and then.
    """
    if key is None and number % 3:
        return ""
    if is_big:
        return f" saw {seen.get()}"
    count = (seen.get() or 0) + 1
    if count == 6:
        seen.delete()
    else:
        seen.put(count)
    by.put(number % 4, count)
    if number % 5 == 0:
        by.delete((number + 1) % 4)
    faded = list(recent.items())
    recent.put("abc"[number % 3], number)
    return f" saw {count} {list(by.items())} {faded}"


# --- the twin --------------------------------------------------------------------------------------------------------

Writes: TypeAlias = dict[bytes, bytes | None]


class TwinStore:
    """A store of one key while one record is worked: reads the state of before and its own writes."""

    def __init__(self, state: dict[bytes, bytes], writes: Writes, number: int, key: bytes | None, now_ms: int) -> None:
        self.state, self.writes, self.now_ms = state, writes, now_ms
        self.prefix = b"" if key is None else state_key(point_of_key(key), number, key)

    def read(self, at: bytes) -> int | None:
        """The value, unless its time is over: then it is deleted."""
        data = self.writes[at] if at in self.writes else self.state.get(at)
        if data is None:
            return None
        payload, deadline = decode_stored(data)
        if deadline is not None and deadline <= self.now_ms:
            self.writes[at] = None
            return None
        return int(payload)

    def remove(self, at: bytes) -> None:
        """No change when there is nothing."""
        if at in self.writes or at in self.state:
            self.writes[at] = None


class TwinValue(TwinStore):
    """Of a State."""

    def get(self) -> int | None:
        return self.read(self._at())

    def put(self, value: int) -> None:
        self.writes[self._at()] = encode_stored(msgspec.json.encode(value))

    def delete(self) -> None:
        self.remove(self._at())

    def _at(self) -> bytes:
        if not self.prefix:
            raise NoKey
        return self.prefix


class TwinMap(TwinStore):
    """Of a MapState, ``kind`` being that of its keys."""

    kind = "int"
    ttl_ms: int | None = None

    def of(self, kind: str, ttl_ms: int | None) -> "TwinMap":
        """With keys of this kind, and values that stay for so long."""
        self.kind, self.ttl_ms = kind, ttl_ms
        return self

    def put(self, key: Any, value: int) -> None:
        deadline = None if self.ttl_ms is None else self.now_ms + self.ttl_ms
        self.writes[self.prefix + encode_map_key(key, self.kind)] = encode_stored(msgspec.json.encode(value), deadline)

    def delete(self, key: Any) -> None:
        self.remove(self.prefix + encode_map_key(key, self.kind))

    def items(self) -> Iterator[tuple[Any, int]]:
        for at in sorted(at for at in {*self.state, *self.writes} if at.startswith(self.prefix)):
            value = self.read(at)
            if value is not None:
                yield decode_map_key(parse_key(at).map_key, self.kind), value


class Twin:
    """The state of one source partition. ``numbers``: of the stores, by name."""

    def __init__(self, topic: str, numbers: dict[str, int]) -> None:
        self.topic, self.numbers = topic, numbers
        self.state: dict[bytes, bytes] = {}

    def work(self, number: int, key: bytes | None, is_big: bool, at_ms: int) -> tuple[str, Writes]:
        """What a record sees, and what it writes; raises NoKey. ``apply`` makes the writes count."""
        writes: Writes = {}
        a, b, c = (self.numbers[f"{self.topic}.{name}"] for name in (SEEN, BY, RECENT))
        seen = TwinValue(self.state, writes, a, key, at_ms)
        by = TwinMap(self.state, writes, b, key, at_ms).of("int", None)
        recent = TwinMap(self.state, writes, c, key, at_ms).of("str", TTL_MS)
        return change(number, key, is_big, seen, by, recent), writes

    def apply(self, writes: Writes) -> None:
        """A record is done."""
        for at, data in writes.items():
            if data is None:
                self.state.pop(at, None)
            else:
                self.state[at] = data
