"""Topics in a RocksDB folder: written by the embedded broker and read by the audit.

One column family, these keys (integers big-endian, so that they sort as numbers):

    "t" name                                   topic: msgpack [id, partitions, {setting: value}]
    "w" topic id (4) partition (4)             watermarks: msgpack [start, high]
    "r" topic id (4) partition (4) base (8)    a chunk: msgpack [[offset, timestamp, key, value, [[name, value]…]]…]
    "e" transactional id                       its producer epoch: msgpack

    "s" topic id (4) partition (4) record key  of a topic kept by key: the newest value

A topic is a log, or, created with ``tables.TABLE_CONFIG``, a table. A table keeps only the newest value of each key,
None deletes the key, and timestamps and headers are dropped. Its high watermark counts the records ever written.

A chunk holds up to a thousand records of one partition of one append, and is never changed. An append is one write:
its chunks or values and the watermarks of its partitions. So a log has a record at every offset between ``start`` and
``high``, and a table always shows whole transactions.
A trim moves ``start`` and drops the chunks that lie wholly below the new start.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

import msgspec

from .keys import prefix_end
from .rocks import Rocks, RocksError, WriteBatch, open_rocks
from .tables import TABLE_CONFIG

KIND: Final = "topics"
FORMAT: Final = 1
CHUNK_RECORDS_MAX: Final = 1_000
CHUNK_BYTES_MAX: Final = 256 * 1024  # of keys and values; a larger record has a chunk of its own
_CHUNKS_CACHED: Final = 32
SCAN_RECORDS: Final = 1_000  # at a time, where a record is looked for by its timestamp

_PLACE_KEY: Final = Struct(">cII")
_CHUNK_KEY: Final = Struct(">cIIQ")
_PREFIX: Final = _PLACE_KEY.size  # bytes of a key in front of what lies in the place: a base offset, a record's key

Headers = Sequence[tuple[str, bytes | None]]


class Appended(Protocol):
    """A record to append. ``timestamp`` in ms since the epoch; None: the default in the call of ``append``."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def timestamp(self) -> int | None: ...


class NewRecord(NamedTuple):
    """A record to be appended."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


class StoredRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as it is stored and read; ``timestamp`` in ms since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class StoredTopic(NamedTuple):
    """A topic that exists."""

    name: str
    partitions: int
    config: Mapping[str, str]

    @property
    def by_key(self) -> bool:
        """Whether the topic is kept by key: a table, no log."""
        return TABLE_CONFIG.items() <= self.config.items()


class Marks(NamedTuple):
    """``start``: the first offset that still exists; ``high``: the offset of the next record."""

    start: int
    high: int


class TopicMissing(LookupError):
    """A topic or partition does not exist."""


class NotALog(LookupError):
    """A topic is kept by key: reads by offset and trims are for logs."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"{topic!r} is kept by key, it is no log; read it as a table")


class OffsetMissing(LookupError):
    """An offset lies below the start or above the high watermark of its partition."""

    def __init__(self, topic: str, partition: int, offset: int, marks: Marks) -> None:
        super().__init__(f"{topic}[{partition}] holds offsets {marks.start} to {marks.high}, not {offset}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.marks = marks


class EpochStale(Exception):
    """A guarded append came from a producer that a newer producer has fenced."""

    def __init__(self, transactional_id: str, held: int, current: int) -> None:
        super().__init__(f"transactional id {transactional_id!r} is at epoch {current}; this producer holds {held}")


class Guard(NamedTuple):
    """An append by this producer counts only while its transactional id has this epoch."""

    transactional_id: str
    epoch: int


class _TopicFound(msgspec.Struct, array_like=True, frozen=True):
    number: int
    partitions: int
    config: dict[str, str]

    @property
    def by_key(self) -> bool:
        return TABLE_CONFIG.items() <= self.config.items()


_encode = msgspec.msgpack.Encoder().encode
_decode_chunk = msgspec.msgpack.Decoder(list[StoredRecord]).decode
_decode_topic = msgspec.msgpack.Decoder(_TopicFound).decode
_decode_marks = msgspec.msgpack.Decoder(tuple[int, int]).decode
_decode_int = msgspec.msgpack.Decoder(int).decode


class TopicStore:
    """An open folder of topics; see the module. Methods may be called from several threads."""

    def __init__(self, rocks: Rocks, *, writable: bool) -> None:
        """Use ``open`` or ``open_read_only``."""
        self.folder = rocks.folder
        self._rocks = rocks
        self._writable = writable
        self._writing = threading.Lock()
        self._topics: dict[str, _TopicFound] = {}
        self._marks: dict[tuple[str, int], Marks] = {}
        self._chunks: OrderedDict[bytes, list[StoredRecord]] = OrderedDict()
        self._chunks_lock = threading.Lock()
        self._load()

    @classmethod
    def open(cls, path: Path | str) -> "TopicStore":
        """Open the folder for writing, for one process at a time; made if missing. Raises RocksError."""
        return _open_store(open_rocks(Path(path), KIND, FORMAT, "write"), writable=True)

    @classmethod
    def open_read_only(cls, path: Path | str) -> "TopicStore":
        """A view of earlier writes, also while a writer is running. Raises RocksError."""
        return _open_store(open_rocks(Path(path), KIND, FORMAT, "beside"), writable=False)

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way in some thread: another write would wait for its end."""
        return self._writing.locked()

    def refresh(self) -> None:
        """See later writes, in a read-only view."""
        self._rocks.catch_up()
        self._load()

    def topics(self) -> dict[str, StoredTopic]:
        """All topics by name."""
        return {name: StoredTopic(name, topic.partitions, topic.config) for name, topic in self._topics.items()}

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Create a topic; False, and nothing changes, when the topic exists."""
        with self._writing:
            if name in self._topics:
                return False
            number = 1 + max((topic.number for topic in self._topics.values()), default=0)
            topic = _TopicFound(number, partitions, dict(config))
            writes = self._writes()
            writes.put(b"t" + name.encode(), _encode(topic))
            for partition in range(partitions):
                writes.put(_PLACE_KEY.pack(b"w", number, partition), _encode((0, 0)))
            self._rocks.write(writes, sync=True)
            self._marks.update({(name, partition): Marks(0, 0) for partition in range(partitions)})
            self._topics[name] = topic
            return True

    def watermarks(self, topic: str, partition: int) -> Marks:
        """Start and high watermark; raises TopicMissing."""
        found = self._marks.get((topic, partition))
        if found is not None:
            return found
        if topic not in self._topics:
            raise TopicMissing(f"topic {topic!r} does not exist")
        raise TopicMissing(f"{topic!r} has {self._topics[topic].partitions} partitions, not a partition {partition}")

    def append(
        self,
        records: Sequence[Appended],
        *,
        timestamp_default: int = 0,
        guard: Guard | None = None,
    ) -> dict[tuple[str, int], int]:
        """Append records (``NewRecord``) to their partitions, in their order, all or none. Returns the new high
        watermarks.

        After the return the records survive the death of the process, not that of the machine. A record without a
        timestamp gets ``timestamp_default`` (ms). Raises TopicMissing, EpochStale (see ``Guard``), RocksError, and
        ValueError for a record without a key in a topic that is kept by key.
        """
        grouped: dict[tuple[str, int], list[Appended]] = {}
        for record in records:
            topic, partition = record.topic, record.partition
            grouped.setdefault((topic, partition), []).append(record)
        with self._writing:
            if guard is not None:
                current = self.epoch(guard.transactional_id)
                if current != guard.epoch:
                    raise EpochStale(guard.transactional_id, guard.epoch, current)
            writes = self._writes()
            moved: dict[tuple[str, int], Marks] = {}
            for (name, partition), group in grouped.items():
                marks = self.watermarks(name, partition)
                number = self._topics[name].number
                if self._topics[name].by_key:
                    _put_values(writes, _PLACE_KEY.pack(b"s", number, partition), group)
                else:
                    for chunk in _chunks(group, marks.high, timestamp_default):
                        writes.put(_CHUNK_KEY.pack(b"r", number, partition, chunk[0].offset), _encode(chunk))
                moved[name, partition] = Marks(marks.start, marks.high + len(group))
                writes.put(_PLACE_KEY.pack(b"w", number, partition), _encode(moved[name, partition]))
            if moved:
                self._rocks.write(writes)
                self._marks.update(moved)
        return {place: marks.high for place, marks in moved.items()}

    def table(self, topic: str, partition: int) -> "TopicTable | None":
        """A partition of a topic that is kept by key; None for a log. Raises TopicMissing."""
        self.watermarks(topic, partition)
        found = self._topics[topic]
        if not found.by_key:
            return None
        return TopicTable(self._rocks, _PLACE_KEY.pack(b"s", found.number, partition))

    def read(
        self, topic: str, partition: int, offset: int, records_max: int, bytes_max: int | None = None
    ) -> tuple[list[StoredRecord], int]:
        """Records from ``offset`` on and the offset behind them; at the high watermark none.

        ``bytes_max`` counts keys and values; the first record comes in any case. Raises TopicMissing, OffsetMissing,
        NotALog.
        """
        marks = self._log_marks(topic, partition)
        if not marks.start <= offset <= marks.high:
            raise OffsetMissing(topic, partition, offset, marks)
        if offset == marks.high or records_max <= 0:
            return [], offset
        found = self._read(self._topics[topic].number, partition, offset, marks.high, records_max, bytes_max)
        if not found or found[0].offset != offset:
            marks = self.watermarks(topic, partition)
            if offset < marks.start:  # trimmed in another thread meanwhile
                raise OffsetMissing(topic, partition, offset, marks)
            raise RocksError(f"{self.folder} is damaged: {topic}[{partition}] has no record at offset {offset}")
        return found, found[-1].offset + 1

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first offset with a record that is not older than ``timestamp`` (ms); None: all are older. Looks at one
        record after the other.

        Raises TopicMissing, NotALog.
        """
        position, high = self._log_marks(topic, partition)
        while position < high:
            try:
                found, offset_next = self.read(topic, partition, position, SCAN_RECORDS)
            except OffsetMissing as error:  # trimmed in another thread meanwhile
                position = error.marks.start
                continue
            for record in found:
                if record.timestamp >= timestamp:
                    return record.offset
            position = offset_next
        return None

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below ``before``; raises TopicMissing, NotALog, OffsetMissing (above the high one)."""
        with self._writing:
            marks = self._log_marks(topic, partition)
            if not 0 <= before <= marks.high:
                raise OffsetMissing(topic, partition, before, marks)
            if before <= marks.start:
                return
            number = self._topics[topic].number
            keep = _CHUNK_KEY.pack(b"r", number, partition, before)
            if before < marks.high:  # the chunk with the record at ``before`` stays as a whole
                with self._rocks.entries(keep, _CHUNK_KEY.pack(b"r", number, partition, marks.high), before=True) as at:
                    keep, _ = next(at)
            writes = self._writes()
            writes.delete_range(_CHUNK_KEY.pack(b"r", number, partition, 0), keep)
            trimmed = Marks(before, marks.high)
            writes.put(_PLACE_KEY.pack(b"w", number, partition), _encode(trimmed))
            # Readers look at the marks first. In the other order a reader would find counted records gone.
            self._marks[topic, partition] = trimmed
            self._rocks.write(writes)

    def epoch(self, transactional_id: str) -> int:
        """The current producer epoch of an id; 0: the id has had no producer."""
        stored = self._rocks.get(b"e" + transactional_id.encode())
        return 0 if stored is None else _decode_int(stored)

    def bump_epoch(self, transactional_id: str) -> int:
        """Fence all producers of an id. Returns the new epoch. Waits for an append under way."""
        with self._writing:
            epoch = self.epoch(transactional_id) + 1
            writes = self._writes()
            writes.put(b"e" + transactional_id.encode(), _encode(epoch))
            self._rocks.write(writes)
            return epoch

    def close(self) -> None:
        """Wait for a write under way and let go of the folder; a second call does nothing."""
        with self._writing:
            self._rocks.close()

    def _log_marks(self, topic: str, partition: int) -> Marks:
        marks = self.watermarks(topic, partition)
        if self._topics[topic].by_key:
            raise NotALog(topic)
        return marks

    def _writes(self) -> WriteBatch:
        if not self._writable:
            raise RocksError(f"{self.folder} was opened for reading only")
        return WriteBatch()

    def _load(self) -> None:
        topics: dict[str, _TopicFound] = {}
        marks: dict[tuple[str, int], Marks] = {}
        with self._rocks.entries(b"t", b"u") as entries:
            for key, value in entries:
                topics[key[1:].decode()] = _decode_topic(value)
        names = {topic.number: name for name, topic in topics.items()}
        with self._rocks.entries(b"w", b"x") as entries:
            for key, value in entries:
                _, number, partition = _PLACE_KEY.unpack(key)
                if number in names:
                    marks[names[number], partition] = Marks(*_decode_marks(value))
        self._topics, self._marks = topics, marks

    def _read(
        self, number: int, partition: int, offset: int, high: int, records_max: int, bytes_max: int | None
    ) -> list[StoredRecord]:
        """The records from ``offset`` on, within the limits; see ``read``."""
        found: list[StoredRecord] = []
        first = _CHUNK_KEY.pack(b"r", number, partition, offset)
        with self._rocks.entries(first, _CHUNK_KEY.pack(b"r", number, partition, high), before=True) as chunks:
            for key, value in chunks:
                if key[:_PREFIX] != first[:_PREFIX]:
                    break
                chunk = self._decode_records(key, value)
                skip = max(0, offset - chunk[0].offset)
                bite = chunk[skip : skip + records_max - len(found)]
                if bytes_max is not None:
                    bite, bytes_max = _within(bite, bytes_max, at_least=0 if found else 1)
                found.extend(bite)
                if len(found) >= records_max or (bytes_max is not None and bytes_max <= 0):
                    break
        return found

    def _decode_records(self, key: bytes, value: bytes) -> list[StoredRecord]:
        """The records of a chunk; a reader that takes a chunk in several bites decodes the chunk once."""
        with self._chunks_lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
                return chunk
        try:
            chunk = _decode_chunk(value)
        except msgspec.MsgspecError as error:
            raise RocksError(f"{self.folder} is damaged: a chunk of records can't be decoded ({error})") from error
        with self._chunks_lock:
            self._chunks[key] = chunk
            if len(self._chunks) > _CHUNKS_CACHED:
                self._chunks.popitem(last=False)
        return chunk


class TopicTable:
    """A partition of a topic that is kept by key: a ``tables.Table`` of committed values. Methods raise RocksError."""

    def __init__(self, rocks: Rocks, prefix: bytes) -> None:
        self._rocks = rocks
        self._prefix = prefix
        end = prefix_end(prefix)
        assert end is not None
        self._end = end

    def get(self, key: bytes) -> bytes | None:
        """The newest value of a key."""
        return self._rocks.get(self._prefix + key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The newest values of keys, in their order."""
        return self._rocks.get_many([self._prefix + key for key in keys])

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        """Up to ``entries_max`` entries of ``[first, end)`` (None: to the last one) in order of keys."""
        last = self._end if end is None else self._prefix + end
        found = self._rocks.page(self._prefix + first, last, entries_max)
        return [(key[_PREFIX:], value) for key, value in found]


def _open_store(rocks: Rocks, *, writable: bool) -> TopicStore:
    try:
        return TopicStore(rocks, writable=writable)
    except BaseException:
        rocks.close()
        raise


def _put_values(writes: WriteBatch, prefix: bytes, group: Sequence[Appended]) -> None:
    """Write the records of one partition by key, in their order: the last value of a key stays."""
    for record in group:
        if record.key is None:
            raise ValueError(f"{record.topic!r} is kept by key and a record has no key")
        if record.value is None:
            writes.delete(prefix + record.key)
        else:
            writes.put(prefix + record.key, record.value)


def _chunks(group: Sequence[Appended], offset: int, timestamp_default: int) -> list[list[StoredRecord]]:
    """Cut the records of one partition into chunks, numbered from ``offset`` on."""
    chunks: list[list[StoredRecord]] = []
    size = CHUNK_BYTES_MAX + 1  # the first record starts a chunk
    for record in group:
        key, value, timestamp = record.key, record.value, record.timestamp
        length = len(key or b"") + len(value or b"")
        if size + length > CHUNK_BYTES_MAX or len(chunks[-1]) >= CHUNK_RECORDS_MAX:
            chunks.append([])
            size = 0
        stamped = timestamp_default if timestamp is None else timestamp
        chunks[-1].append(
            StoredRecord(offset=offset, timestamp=stamped, key=key, value=value, headers=tuple(record.headers))
        )
        offset += 1
        size += length
    return chunks


def _within(records: Sequence[StoredRecord], room: int, *, at_least: int) -> tuple[list[StoredRecord], int]:
    """The first records that fit into ``room`` bytes, and the rest of the room; 0 when a record did not fit. The first
    ``at_least`` records come in any case.
    """
    for count, record in enumerate(records):
        size = len(record.key or b"") + len(record.value or b"")
        if size > room and count >= at_least:
            return list(records[:count]), 0
        room -= size
    return list(records), room
