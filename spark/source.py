"""Python data sources for Spark: ``keylanes_records`` and ``keylanes_events``.

Options of both:

- ``broker``: ``kafka://host:port`` or ``embedded:folder``.
- ``topics``: names with commas between, or ``spans``: JSON ``[[topic, partition, start, end], …]``, pinned by the
  caller: several reads see the same records.
- ``sources``: JSON ``[[topic, partition], …]``; a source partition's place in this list is its number in the rows.
- ``client_secrets``: JSON of client settings. Spark keeps options with ``secret`` in the name out of plans and logs.
- ``default_api_timeout_ms``: the limit of a question to Kafka with all attempts, and of a read that brings nothing.
- ``split_records``: the most offsets that a task reads.
- ``columns``: the names of the wanted columns with commas between; rows.py lists all columns. Spark does not tell a
  Python source the columns that Spark needs, and each column costs.

Options of ``keylanes_records`` alone:

- ``headed``: "true" wants only records with a provenance header. Retention may delete from a topic's head meanwhile:
  most topics are not the application's.
- ``by_key``: "true" reads topics that the embedded broker keeps by key. The ``spans`` name places; their offsets mean
  nothing.

Option of ``keylanes_events`` alone: ``only``: "commits" or "others".

No jar is needed; the client libraries must be installed where the tasks run.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .access import Access
from .brokers import AuditError, Columns, Place, WitnessBroker
from .kafka_clients import API_TIMEOUT_MS
from .rows import EVENT_SCHEMA, RECORD_SCHEMA, Provenances, event_rows, is_commit, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT_RECORDS = 50_000
ROWS_MAX = 20_000
"""About the most rows of an Arrow batch: the last event may bring some thousands more."""


@dataclass
class Split(InputPartition):
    """The pieces ``(topic, partition, start, end)`` that a task reads, in order."""

    pieces: tuple[tuple[str, int, int, int], ...]


class _Reader(DataSourceReader):
    def __init__(self, options: MutableMapping[str, str], schema: str) -> None:
        if "broker" not in options:
            raise AuditError("the option broker is missing: kafka://host:port or embedded:folder")
        security: dict[str, str] = json.loads(options.get("client_secrets", "{}"))
        self._access = Access(options["broker"], security, int(options.get("default_api_timeout_ms", API_TIMEOUT_MS)))
        self._spans: list[list[Any]] | None = json.loads(options["spans"]) if "spans" in options else None
        self._topics = [name for name in options.get("topics", "").split(",") if name]
        self._sources = {(t, p): i for i, (t, p) in enumerate(json.loads(options.get("sources", "[]")))}
        self._split_records = int(options.get("split_records", SPLIT_RECORDS))
        self._columns = dict(column.split() for column in schema.split(", "))
        self._is_headed = options.get("headed", "false") == "true"
        self._is_by_key = options.get("by_key", "false") == "true"

    def _open(self) -> WitnessBroker:
        return self._access.open()

    def partitions(self) -> Sequence[InputPartition]:
        """Pieces of at most ``split_records`` offsets; small ones share a task."""
        if self._is_by_key:
            return [Split(((topic, partition, 0, 0),)) for topic, partition, _, _ in self._spans or ()]
        splits: list[Split] = []
        pieces: list[tuple[str, int, int, int]] = []
        room = self._split_records
        for topic, partition, start, end in self._spans if self._spans is not None else self._pin():
            while start < end:
                stop = min(end, start + room)
                pieces.append((topic, partition, start, stop))
                room -= stop - start
                start = stop
                if not room:
                    splits.append(Split(tuple(pieces)))
                    pieces, room = [], self._split_records
        if pieces or not splits:
            splits.append(Split(tuple(pieces)))
        return splits

    def _pin(self) -> list[list[Any]]:
        broker = self._open()
        try:
            known = broker.topics()
            missing = [name for name in self._topics if name not in known]
            if missing or not self._topics:
                raise AuditError(f"topics: missing on the broker: {missing}; the option topics: {self._topics}")
            spans = broker.spans((name, p) for name in self._topics for p in range(known[name].partitions))
            broker.wait_decided(spans)
            return [[topic, partition, *span] for (topic, partition), span in spans.items()]
        finally:
            broker.close()

    def _chunks(self, split: InputPartition) -> Iterator[tuple[str, int, Columns]]:
        assert isinstance(split, Split)
        broker = self._open()
        try:
            for topic, partition, start, end in split.pieces:
                for chunk in self._read(broker, (topic, partition), start, end):
                    yield topic, partition, chunk
        finally:
            broker.close()

    def _read(self, broker: WitnessBroker, place: Place, start: int, end: int) -> Iterator[Columns]:
        if not self._is_by_key:
            return broker.read(place, start, end, head_may_go=self._is_headed)
        table = broker.table(place)
        if table is None:
            raise AuditError(f"{place[0]}[{place[1]}] is not kept by key at this broker")
        return table

    def _batch(self, columns: Mapping[str, Sequence[Any]]) -> "pa.RecordBatch":
        import pyarrow as pa  # here: Spark starts a process to plan each source, without need of Arrow

        kinds = {
            "string": pa.string(),
            "int": pa.int32(),
            "bigint": pa.int64(),
            "binary": pa.binary(),
            "boolean": pa.bool_(),
        }
        schema = pa.schema([(name, kinds[kind]) for name, kind in self._columns.items()])
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )


class RecordsReader(_Reader):
    """Reads records, one Arrow batch per chunk."""

    def __init__(self, options: MutableMapping[str, str], schema: str) -> None:
        super().__init__(options, schema)
        self._has_provenance = any(name.startswith("kl_") for name in self._columns)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        provenances = Provenances(self._sources)
        for topic, number, chunk in self._chunks(partition):
            if self._is_headed:
                headed = [i for i, origin in enumerate(chunk.origins) if origin is not None]
                if not headed:
                    continue
                if len(headed) < len(chunk.offsets):
                    chunk = Columns(*([column[i] for i in headed] for column in chunk))  # type: ignore[arg-type]  # same
            n = len(chunk.offsets)
            columns: dict[str, Sequence[Any]] = {
                "topic": [topic] * n,
                "partition": [number] * n,
                "offset": chunk.offsets,
                "timestamp": chunk.timestamps,
                "key": chunk.keys,
                "value": chunk.values,
                "source": [self._sources.get((topic, number))] * n,
            }
            if self._has_provenance:
                columns |= provenances.columns(chunk.origins)
            yield self._batch(columns)


class EventsReader(_Reader):
    """Reads logs of an application, flattened to rows."""

    def __init__(self, options: MutableMapping[str, str], schema: str) -> None:
        super().__init__(options, schema)
        self._only = options.get("only")
        if self._only not in (None, "commits", "others"):
            raise AuditError(f"the option only: commits or others; seen {self._only!r}")

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        rows: list[tuple[Any, ...]] = []
        for log, number, chunk in self._chunks(partition):
            for offset, timestamp, value in zip(chunk.offsets, chunk.timestamps, chunk.values, strict=True):
                data = value or b""
                if self._only and is_commit(data) != (self._only == "commits"):
                    continue
                rows += event_rows(log, number, offset, timestamp, data, self._sources)
                if len(rows) >= ROWS_MAX:
                    yield self._rows(rows)
                    rows = []
        if rows:
            yield self._rows(rows)

    def _rows(self, rows: list[tuple[Any, ...]]) -> "pa.RecordBatch":
        return self._batch(dict(zip(_EVENT_NAMES, zip(*rows, strict=True), strict=True)))


_EVENT_NAMES = [column.split()[0] for column in EVENT_SCHEMA.split(", ")]


class KeylanesRecords(DataSource):
    """Records of topics, with their provenance."""

    @classmethod
    def name(cls) -> str:
        return "keylanes_records"

    def schema(self) -> str:
        return schema_of(RECORD_SCHEMA, self.options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # our own
        return RecordsReader(self.options, self.schema())


class KeylanesEvents(DataSource):
    """Events of an application's logs."""

    @classmethod
    def name(cls) -> str:
        return "keylanes_events"

    def schema(self) -> str:
        return schema_of(EVENT_SCHEMA, self.options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # our own
        return EventsReader(self.options, self.schema())


def register(spark: SparkSession) -> None:
    """Make both sources known to a session."""
    spark.dataSource.register(KeylanesRecords)
    spark.dataSource.register(KeylanesEvents)
