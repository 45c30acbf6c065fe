"""The witness reads a broker with its own clients: committed records only, between pinned offsets.

EmbeddedWitness reads the folder of the embedded broker, KafkaWitness in kafka.py a Kafka cluster; access.py opens both.

The witness does not use the runtime's client: both sides would see a fault of the client alike. A pin is the high
watermark of a confirmed leader. Reading up to a pin is right only when every transaction below the pin is decided.
Therefore ``wait_decided`` comes before the first read.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from .rows import OriginHeaders, origin_of

if TYPE_CHECKING:
    from ..state.topics import TopicTable

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""

CHUNK_RECORDS = 8_192
DECIDED_S_MAX = 180.0
"""Far longer than an application leaves a transaction open by default (5 s); brokers allow up to 15 minutes."""


class AuditError(Exception):
    """The audit can't be made: wrong settings, a broker without an answer, or a log that can't be understood."""


class Topic(NamedTuple):
    """A topic that exists."""

    partitions: int


class Span(NamedTuple):
    """The offsets ``[start, end)`` of a partition, pinned."""

    start: int
    end: int


class Columns(NamedTuple):
    """Committed records of one partition in offset order, as columns. ``origins``: None without a provenance header."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    origins: list[OriginHeaders | None]


class WitnessBroker(Protocol):
    """The questions of the audit to a broker."""

    def topics(self) -> dict[str, Topic]:
        """All topics by name."""

    def refuse_unread(self, topics: Mapping[str, str]) -> None:
        """Raise AuditError with the missing rights of this user to read ``topics``, whether or not a topic exists.

        ``topics``: by topic, the beginning of names for which the error asks the right; "": for the topic's own name.
        """

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        """First existing offset and high watermark; raises AuditError for a place that does not exist."""

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        """Return when every transaction below the ends is decided; raises AuditError after ``DECIDED_S_MAX``."""

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        """The committed records of ``[start, end)``.

        Raises AuditError when records were deleted meanwhile. With ``head_may_go`` the remaining records are read.
        """

    def table(self, place: Place) -> Iterator[Columns] | None:
        """The newest record of each key, where the broker itself keeps a topic by key; None: a log, or no topic.

        All records are of one moment. Offsets and timestamps mean nothing.
        """

    def doubts(self) -> list[str]:
        """The assumptions without proof behind the spans, in sentences."""

    def close(self) -> None:
        """Let go of files and connections."""


class EmbeddedWitness:
    """The embedded broker's folder, read beside its owner."""

    def __init__(self, folder: Path) -> None:
        from ..state.topics import TopicStore

        if not folder.is_dir():
            raise AuditError(f"broker: no such folder: {folder}")
        try:
            self._store = TopicStore.open_read_only(folder)
        except Exception as error:  # any error of RocksDB means an unreadable folder
            raise AuditError(f"broker: {folder} can't be read: {error}") from error

    def topics(self) -> dict[str, Topic]:
        """The logs by name. Topics kept by key have no records to read."""
        return {name: Topic(topic.partitions) for name, topic in self._store.topics().items() if not topic.by_key}

    def refuse_unread(self, topics: Mapping[str, str]) -> None:
        """Refuse nothing: a user of the folder may read all topics."""

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        self._store.refresh()
        known = self.topics()
        spans = {}
        for topic, partition in places:
            if topic not in known or partition >= known[topic].partitions:
                raise AuditError(f"{topic}[{partition}] does not exist")
            spans[topic, partition] = Span(*self._store.watermarks(topic, partition))
        return spans

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        """The folder holds decided transactions only."""

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        topic, partition = place
        first = self._store.watermarks(topic, partition)[0]
        if head_may_go:
            start = max(start, first)
        elif first > start:
            raise AuditError(f"{topic}[{partition}] was trimmed beyond offset {start} during the audit: run it again")
        while start < end:
            records, start = self._store.read(topic, partition, start, min(CHUNK_RECORDS, end - start))
            while records and records[-1].offset >= end:
                records.pop()
            yield Columns(
                offsets=[record.offset for record in records],
                timestamps=[record.timestamp for record in records],
                keys=[record.key for record in records],
                values=[record.value for record in records],
                origins=[origin_of(record.headers) for record in records],
            )

    def table(self, place: Place) -> Iterator[Columns] | None:
        from ..state.topics import TopicMissing

        try:
            found = self._store.table(*place)
        except TopicMissing:
            return None
        return None if found is None else _pages(found)

    def doubts(self) -> list[str]:
        """No assumption: the folder has one writer."""
        return []

    def close(self) -> None:
        self._store.close()


def _pages(table: "TopicTable") -> Iterator[Columns]:
    first = b""
    while page := table.page(first, None, CHUNK_RECORDS):
        keys, values = [key for key, _ in page], [value for _, value in page]
        nothing = [0] * len(page)
        yield Columns(
            offsets=nothing, timestamps=nothing, keys=list(keys), values=list(values), origins=[None] * len(page)
        )
        first = keys[-1] + b"\0"
