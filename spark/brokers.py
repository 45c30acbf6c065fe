"""How the witness reads a broker: with clients of its own, committed records only, between offsets pinned before.

The runtime's client is not used: a fault in it would be seen by both sides alike. A pin is a high watermark. Reading
up to it is right only when every transaction below it is decided, so whoever pins waits for that first.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ..offsets.provenance import HEADER

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from ..state.topics import TopicTable

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""

CHUNK_RECORDS = 8_192
CONSUME_S = 0.05
"""The client fills a chunk for so long: at the end of a partition it would wait for records that don't come."""

ANSWER_S_MAX = 30.0
DECIDED_S_MAX = 180.0
"""Longer than any transaction may stay open (brokers allow 15 minutes, keylanes itself far less)."""


class AuditError(Exception):
    """The audit can't be made: wrong settings, a broker that does not answer, or a log it does not understand."""


class Topic(NamedTuple):
    """A topic that exists."""

    partitions: int


class Span(NamedTuple):
    """The offsets ``[start, end)`` of a partition, pinned."""

    start: int
    end: int


class Columns(NamedTuple):
    """Committed records of one partition in offset order, as columns. ``provenance`` is the raw header, or None."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    provenance: list[bytes | None]


class WitnessBroker(Protocol):
    """What the audit asks of a broker."""

    def topics(self) -> dict[str, Topic]:
        """All topics by name."""

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        """First existing offset and high watermark; raises AuditError for a place that does not exist."""

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        """Return when every transaction below the ends is decided; raises AuditError after ``DECIDED_S_MAX``."""

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        """The committed records of ``[start, end)``.

        Raises AuditError when some were deleted meanwhile, unless ``head_may_go``: then it reads what is left.
        """

    def table(self, place: Place) -> Iterator[Columns] | None:
        """The newest record of each key, where the broker itself keeps a topic by key; None: it is a log, or missing.

        All of it is as it was at one moment. Offsets and timestamps mean nothing.
        """

    def close(self) -> None:
        """Let go of files and connections."""


def open_broker(url: str, security: Mapping[str, str] | None = None) -> WitnessBroker:
    """The broker at ``kafka://host:port[,host:port]`` or ``embedded:folder``; raises AuditError."""
    scheme, _, rest = url.partition(":")
    if scheme == "kafka" and rest.startswith("//") and len(rest) > 2:
        return KafkaWitness(rest[2:].rstrip("/"), dict(security or {}))
    if scheme == "embedded" and rest:
        return EmbeddedWitness(Path(rest))
    raise AuditError(f"broker: expected kafka://host:port or embedded:folder; seen {url!r}")


def absolute_url(url: str) -> str:
    """The same broker, for processes with another working directory."""
    scheme, _, rest = url.partition(":")
    return f"{scheme}:{Path(rest).resolve()}" if scheme == "embedded" and rest else url


def provenance_of(headers: Iterable[tuple[str, Any]] | None) -> bytes | None:
    """The raw provenance header, if there is one; the last counts."""
    found = None
    for name, value in headers or ():
        if name == HEADER:
            found = value if value is not None else b""
    return found


class EmbeddedWitness:
    """The embedded broker's folder, read beside its owner."""

    def __init__(self, folder: Path) -> None:
        from ..state.topics import TopicStore

        if not folder.is_dir():
            raise AuditError(f"broker: no such folder: {folder}")
        try:
            self._store = TopicStore.open_read_only(folder)
        except Exception as error:  # whatever RocksDB says, the folder can't be read
            raise AuditError(f"broker: {folder} can't be read: {error}") from error

    def topics(self) -> dict[str, Topic]:
        """The logs: what the broker keeps by key has no records to be read."""
        return {name: Topic(topic.partitions) for name, topic in self._store.topics().items() if not topic.by_key}

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
                [record.offset for record in records],
                [record.timestamp for record in records],
                [record.key for record in records],
                [record.value for record in records],
                [provenance_of(record.headers) for record in records],
            )

    def table(self, place: Place) -> Iterator[Columns] | None:
        from ..state.topics import TopicMissing

        try:
            found = self._store.table(*place)
        except TopicMissing:
            return None
        return None if found is None else _pages(found)

    def close(self) -> None:
        self._store.close()


def _pages(table: "TopicTable") -> Iterator[Columns]:
    first = b""
    while page := table.page(first, None, CHUNK_RECORDS):
        keys, values = [key for key, _ in page], [value for _, value in page]
        nothing = [0] * len(page)
        yield Columns(nothing, nothing, list(keys), list(values), [None] * len(page))
        first = keys[-1] + b"\0"


class KafkaWitness:
    """A Kafka cluster, read with librdkafka. ``security`` holds client settings such as ``security.protocol``."""

    def __init__(self, servers: str, security: dict[str, str]) -> None:
        self._common: dict[str, Any] = {**security, "bootstrap.servers": servers, "log_level": 2}
        self._admin_client: AdminClient | None = None

    def _admin(self) -> "AdminClient":
        if self._admin_client is None:
            try:
                from confluent_kafka import KafkaException
                from confluent_kafka.admin import AdminClient
            except ImportError:
                raise AuditError("broker: reading Kafka needs the package confluent-kafka") from None
            try:
                self._admin_client = AdminClient(self._common)
            except (KafkaException, ValueError) as error:
                raise AuditError(f"broker: wrong client settings: {error}") from None
        return self._admin_client

    def topics(self) -> dict[str, Topic]:
        from confluent_kafka import KafkaException

        try:
            listed = self._admin().list_topics(timeout=ANSWER_S_MAX).topics
        except KafkaException as error:
            raise AuditError(f"broker: no answer: {error}") from None
        return {name: Topic(len(topic.partitions)) for name, topic in listed.items() if topic.error is None}

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        wanted = list(places)
        starts = self._offsets(wanted, latest=False, committed=False)
        ends = self._offsets(wanted, latest=True, committed=False)
        return {place: Span(starts[place], ends[place]) for place in wanted}

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        waiting = {place: span.end for place, span in spans.items() if span.end > span.start}
        deadline = time.monotonic() + DECIDED_S_MAX
        while waiting:
            stable = self._offsets(list(waiting), latest=True, committed=True)
            waiting = {place: end for place, end in waiting.items() if stable[place] < end}
            if waiting and time.monotonic() > deadline:
                raise AuditError(f"broker: a transaction stays open for more than {DECIDED_S_MAX:.0f} s: {waiting}")
            if waiting:
                time.sleep(0.05)

    def _offsets(self, places: list[Place], *, latest: bool, committed: bool) -> dict[Place, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if not places:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {
            TopicPartition(topic, partition): OffsetSpec.latest() if latest else OffsetSpec.earliest()
            for topic, partition in places
        }
        try:
            answers = self._admin().list_offsets(asked, isolation_level=level, request_timeout=ANSWER_S_MAX)
            return {(tp.topic, tp.partition): answer.result().offset for tp, answer in answers.items()}
        except KafkaException as error:
            raise AuditError(f"broker: offsets of {places[0][0]} and others: {error}") from None

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        if start >= end:
            return
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        # The default back-off of 1 s and the small queue make a full scan three times slower.
        consumer = Consumer(
            {
                **self._common,
                "group.id": "keylanes-audit",  # asked for by the client; no group is joined, nothing is stored
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest" if head_may_go else "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.queue.backoff.ms": 10,
                "queued.max.messages.kbytes": 262_144,
                "fetch.message.max.bytes": 8_388_608,
            }
        )
        try:
            consumer.assign([TopicPartition(*place, start)])
            yield from _consume(consumer, place, start, end)
        except KafkaException as error:
            raise AuditError(f"broker: {place[0]}[{place[1]}] from offset {start}: {error}") from None
        finally:
            consumer.close()

    def table(self, place: Place) -> Iterator[Columns] | None:
        """Kafka keeps logs."""

    def close(self) -> None:
        self._admin_client = None


def _consume(consumer: Any, place: Place, start: int, end: int) -> Iterator[Columns]:
    from confluent_kafka import KafkaError

    deadline = time.monotonic() + ANSWER_S_MAX
    while True:
        columns = Columns([], [], [], [], [])
        done = False
        for message in consumer.consume(CHUNK_RECORDS, CONSUME_S):
            deadline = time.monotonic() + ANSWER_S_MAX
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise AuditError(f"broker: {place[0]}[{place[1]}]: {error.str()}")
            offset = message.offset()
            if offset >= end:  # also the end of the partition, which passes aborted records and markers
                done = True
                break
            if error is not None or offset < start:  # below: of a topic that was made anew meanwhile
                continue
            columns.offsets.append(offset)
            columns.timestamps.append(message.timestamp()[1])
            columns.keys.append(message.key())
            columns.values.append(message.value())
            columns.provenance.append(provenance_of(message.headers()))
        if columns.offsets:
            yield columns
        if done or (columns.offsets and columns.offsets[-1] == end - 1):
            return
        if time.monotonic() > deadline:
            raise AuditError(f"broker: {place[0]}[{place[1]}]: no answer for {ANSWER_S_MAX:.0f} s below offset {end}")


def parse_security(text: str) -> dict[str, str]:
    """Client settings from JSON or from lines ``name=value``; raises AuditError without showing a value."""
    if text.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(text).items()}
        except json.JSONDecodeError as error:
            raise AuditError(f"client settings: no JSON: line {error.lineno}") from None
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise AuditError(f"client settings: line {number}: expected name=value")
        settings[name.strip()] = value.strip()
    return settings
