"""Local copies of state in a RocksDB folder, written from the changelogs of one application.

One column family, these keys (integers big-endian, so that they sort as numbers):

    "i"                                              the application of these copies: msgpack [application, birth]
    "s" store (2)                                    a declared store: msgpack StoreInfo
    "t" topic                                        the number of a source topic here: msgpack
    "m" topic number (2) partition (4)               markers: msgpack [[first, end, position, time_ms]…] in order
    "d" topic number (2) partition (4) state key     a stored value

A key range of a partition is one contiguous scan. Dropping the range is one ``delete_range``, in one write with the
markers. The log of RocksDB is on: when ``write`` returns, changes and markers survive the death of the process. After
the death of the machine the last changes may be missing, and then the markers above them are missing, too (see
``follower`` in rocks.py). The copy reads the missing changes from the changelog again.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Final, TypeVar

import msgspec

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .keys import bounds_of, prefix_end
from .rocks import CACHE_BYTES, Mode, Rocks, RocksError, WriteBatch, open_rocks
from .tables import Change, Mark, Marker, StoreInfo

KIND: Final = "state"
FORMAT: Final = 1
TOPICS_MAX: Final = 1 << 16
_IDENTITY: Final = b"i"
_STORE_KEY: Final = Struct(">cH")
_PLACE: Final = Struct(">cHI")
_REBUILT: Final = "delete this one (the state is read from the changelogs again, as far as these are still there)"

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decode_identity = msgspec.msgpack.Decoder(tuple[str, str]).decode
_decode_number = msgspec.msgpack.Decoder(int).decode
_decode_store = msgspec.msgpack.Decoder(StoreInfo).decode
_decode_markers = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]]).decode


class NoStateYet(RocksError):
    """A folder of copies without an identity: no process has begun to fill the folder."""


class RocksCopies:
    """The copies in a folder; made by ``open_copies``. Its methods may be called from several threads."""

    def __init__(self, rocks: Rocks, identity: tuple[str, str], *, writable: bool) -> None:
        """Use ``open_copies``."""
        self.app, self.birth = identity
        self.folder = rocks.folder
        self._rocks = rocks
        self._writable = writable
        self._writing = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._load()

    def copy(self, topic: str, partition: int) -> "RocksCopy":
        """The copy for a source partition; an empty copy at the first call. Raises RocksError."""
        if self._writable:
            self._number(topic)
        return RocksCopy(self, topic, partition)

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        """Note these stores, beside the stores under other numbers."""
        writes = self._writes()
        for store in stores:
            writes.put(_STORE_KEY.pack(b"s", store.number), _encode(store))
        self._rocks.write(writes)

    def stores(self) -> list[StoreInfo]:
        """The stores that were declared, in order of their numbers."""
        with self._rocks.entries(b"s", b"t") as entries:
            return [self._decode(_decode_store, value, "a store") for _, value in entries]

    def topics(self) -> list[str]:
        """The source topics that have had a copy here, by name."""
        return sorted(self._numbers)

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a source topic that have entries or markers here, in order."""
        number = self._numbers.get(topic)
        if number is None:
            return []
        found: set[int] = set()
        for tag in (b"m", b"d"):
            first, end = _PLACE.pack(tag, number, 0), prefix_end(_STORE_KEY.pack(tag, number))
            assert end is not None
            while page := self._rocks.page(first, end, 1):
                place = page[0][0][: _PLACE.size]
                found.add(_PLACE.unpack(place)[2])
                following = prefix_end(place)
                assert following is not None
                first = following
        return sorted(found)

    def refresh(self) -> None:
        """See later writes, in copies opened beside a writer."""
        self._rocks.catch_up()
        self._load()

    def close(self) -> None:
        """Wait for a write under way and let go of the folder; a second call does nothing."""
        with self._writing:
            self._rocks.close()

    def _load(self) -> None:
        with self._rocks.entries(b"t", b"u") as entries:
            self._numbers = {
                key[1:].decode(): self._decode(_decode_number, value, "a topic's number") for key, value in entries
            }

    def _number(self, topic: str) -> int:
        """The number of a topic, made on first use."""
        with self._writing:
            number = self._numbers.get(topic)
            if number is None:
                number = len(self._numbers)
                if number >= TOPICS_MAX:
                    raise RocksError(f"{self.folder} holds {TOPICS_MAX} topics; there is no room for {topic!r}")
                writes = self._writes()
                writes.put(b"t" + topic.encode(), _encode(number))
                self._rocks.write(writes)
                self._numbers[topic] = number
            return number

    def _writes(self) -> WriteBatch:
        if not self._writable:
            raise RocksError(f"{self.folder} was opened for reading only")
        return WriteBatch()

    def _decode(self, decode: Callable[[bytes], T], value: bytes, what: str) -> T:
        try:
            return decode(value)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise RocksError(f"{self.folder} is damaged: {what} can't be read ({error}); {_REBUILT}") from error


class RocksCopy:
    """The copy for one source partition; made by ``RocksCopies.copy``. Its methods raise RocksError."""

    __slots__ = ("_copies", "partition", "topic")

    def __init__(self, copies: RocksCopies, topic: str, partition: int) -> None:
        self._copies = copies
        self.topic = topic
        self.partition = partition

    def get(self, key: bytes) -> bytes | None:
        """The stored value of a state key."""
        prefix = self._prefix(b"d")
        return None if prefix is None else self._copies._rocks.get(prefix + key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The stored values of state keys, in their order. Other threads run meanwhile."""
        prefix = self._prefix(b"d")
        if prefix is None:
            return [None] * len(keys)
        return self._copies._rocks.get_many([prefix + key for key in keys])

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        """Up to ``entries_max`` entries of ``[first, end)`` (None: to the last one) in order of keys."""
        prefix = self._prefix(b"d")
        if prefix is None:
            return []
        found = self._copies._rocks.page(prefix + first, _end(prefix, end), entries_max)
        return [(key[_PLACE.size :], value) for key, value in found]

    def markers(self) -> Steps[Marker]:
        """The positions up to which the copy has the changelog, by points."""
        prefix = self._prefix(b"m")
        stored = None if prefix is None else self._copies._rocks.get(prefix)
        if stored is None:
            return Steps()
        return self._copies._decode(_steps, stored, f"the marker of {self.topic}[{self.partition}]")

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        """Write changes and set the markers of points in one step, all or none. Other points keep their markers."""
        writes = self._copies._writes()
        prefix = self._writable_prefix(b"d")
        for key, value in changes:
            if value is None:
                writes.delete(prefix + key)
            else:
                writes.put(prefix + key, value)
        self._commit(writes, list(marks))

    def clear(self, within: KeyRange) -> None:
        """Drop all entries and markers of a range, in one step."""
        writes = self._copies._writes()
        prefix = self._writable_prefix(b"d")
        first, end = bounds_of(within)
        writes.delete_range(prefix + first, _end(prefix, end))
        self._commit(writes, [(within.first, within.end, None)])

    def _commit(self, writes: WriteBatch, marks: Sequence[tuple[int, int, Marker | None]]) -> None:
        """Do the writes and change the markers of these points in one step; None removes a marker."""
        with self._copies._writing:  # two threads that change markers must not undo each other
            if marks:
                markers = self.markers().replace(marks)
                pieces = [(first, end, *marker) for first, end, marker in markers.pieces()]
                if pieces:
                    writes.put(self._writable_prefix(b"m"), _encode(pieces))
                else:
                    writes.delete(self._writable_prefix(b"m"))
            self._copies._rocks.write(writes)

    def _prefix(self, tag: bytes) -> bytes | None:
        """The prefix of the copy's keys with a tag; None: the folder is read beside a writer, and the writer has made
        no copy for the topic yet.
        """
        number = self._copies._numbers.get(self.topic)
        return None if number is None else _PLACE.pack(tag, number, self.partition)

    def _writable_prefix(self, tag: bytes) -> bytes:
        return _PLACE.pack(tag, self._copies._numbers[self.topic], self.partition)


def open_copies(
    folder: Path | str,
    *,
    app: str | None = None,
    birth: str | None = None,
    mode: Mode = "write",
    cache_bytes: int = CACHE_BYTES,
) -> RocksCopies:
    """Open the copies in a folder.

    ``write``: alone, for the application ``app`` with the logs ``birth``; makes the folder and the database where
    missing. ``beside``: reads earlier writes while a writer may be running; without ``app`` or ``birth``, of any
    application. Raises RocksError: the folder is in use, foreign, damaged, full, or another application's.
    """
    if mode == "write" and (app is None or birth is None):
        raise ValueError("to write copies, say for which application (app) and for which logs of it (birth)")
    rocks = open_rocks(Path(folder), KIND, FORMAT, mode, cache_bytes=cache_bytes, follower=True)
    try:
        identity = _identity(rocks)
        if identity is None:
            if app is None or birth is None or mode != "write":
                raise NoStateYet(f"{rocks.folder} holds no state yet")
            identity = (app, birth)
            writes = WriteBatch()
            writes.put(_IDENTITY, _encode(identity))
            rocks.write(writes, sync=True)
        wanted = (identity[0] if app is None else app, identity[1] if birth is None else birth)
        if identity != wanted:
            raise RocksError(_foreign(rocks.folder, identity, wanted))
        return RocksCopies(rocks, identity, writable=mode == "write")
    except BaseException:
        rocks.close()
        raise


def check_copies(folder: Path | str, *, app: str, cache_bytes: int = CACHE_BYTES) -> None:
    """Check that the folder can be opened for this application, when the birth of its logs is not known yet: open the
    folder, made if missing, and close it. Raises RocksError as ``open_copies`` does.
    """
    rocks = open_rocks(Path(folder), KIND, FORMAT, "write", cache_bytes=cache_bytes, follower=True)
    try:
        identity = _identity(rocks)
        if identity is not None and identity[0] != app:
            raise RocksError(_foreign(rocks.folder, identity, (app, None)))
    finally:
        rocks.close()


def _foreign(folder: Path, held: tuple[str, str], wanted: tuple[str, str | None]) -> str:
    """The reason why copies are not for this application, and the remedies."""
    said = f"{folder} holds the state of application {held[0]!r}, born {held[1]}; this is application {wanted[0]!r}"
    if wanted[1] is not None:
        said += f", born {wanted[1]}"
    if held[0] != wanted[0]:
        return (
            f"{said}: name another folder, or delete this one ({held[0]!r} then has to read its state from its "
            "changelogs, if they are still there)"
        )
    return (
        f"{said}: its logs were made anew since, and nothing of what the folder holds can be had from them. Delete the "
        "folder to start without that state, or bring back the logs that it belongs to, or name another folder"
    )


def _identity(rocks: Rocks) -> tuple[str, str] | None:
    """The application and birth of the copies in a database; None: the database is empty."""
    stored = rocks.get(_IDENTITY)
    if stored is None:
        if rocks.page(b"", b"\xff", 1):
            raise RocksError(f"{rocks.folder} is damaged: it does not say whose state it holds; {_REBUILT}")
        return None
    try:
        return _decode_identity(stored)
    except msgspec.MsgspecError as error:
        raise RocksError(f"{rocks.folder} is damaged: whose state it holds can't be read; {_REBUILT}") from error


def _end(prefix: bytes, end: bytes | None) -> bytes:
    if end is not None:
        return prefix + end
    behind = prefix_end(prefix)
    assert behind is not None  # it begins with a tag
    return behind


def _steps(stored: bytes) -> Steps[Marker]:
    """The decoded markers; raises ValueError for damaged bytes."""
    pieces = _decode_markers(stored)
    if not pieces or any(before[1] > after[0] for before, after in pairwise(pieces)):
        raise ValueError("its pieces are none, or not in order")
    return Steps((first, end, Marker(position, time_ms)) for first, end, position, time_ms in pieces)
