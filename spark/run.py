"""One audit at work: the session, the pins, and the verdicts until now. The stages are in judge_*.py."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from .access import Access
from .brokers import Place, Span
from .pins import Pins
from .report import Check, Example

_KINDS = {"int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}


class AuditContext:
    """Makes, persists and judges frames for the stages. Verdicts stand in the order of the calls."""

    def __init__(self, spark: SparkSession, access: Access, pins: Pins, examples_max: int) -> None:
        self.spark = spark
        self.access = access
        self.pins = pins
        self.found: list[Check] = []
        self.notes: list[str] = [*pins.doubts]
        self.not_looked_at: list[str] = []
        self.seconds: dict[str, float] = {}
        self.sources = sorted(pins.sources)
        """All source partitions. The place in this list is the number of a source partition in the frames."""
        self.numbers = {source: number for number, source in enumerate(self.sources)}
        self.examples_max = examples_max
        self._persisted: list[DataFrame] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the seconds of a stage."""
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)

    def persist(self, frame: DataFrame) -> DataFrame:
        """Persist a frame until ``unpersist``: Spark computes the frame once, at the first use."""
        self._persisted.append(frame.persist())
        return frame

    def unpersist(self) -> None:
        """Let go of the persisted frames."""
        for frame in self._persisted:
            frame.unpersist()

    def read(self, kind: str, spans: Mapping[Place, Span], columns: str, **options: str) -> DataFrame:
        """Rows of the data source ``kind`` between pinned offsets."""
        return (
            self.spark.read.format(kind)
            .options(**self.access.options())
            .option("spans", json.dumps([[*place, *span] for place, span in spans.items()]))
            .option("sources", json.dumps(self.sources))
            .option("columns", columns)
            .options(**options)
            .load()
        )

    def frame(self, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
        """A small frame from plain rows."""
        fields = pa.schema([(name, _KINDS[kind]) for name, kind in (item.split() for item in schema.split(", "))])
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return self.spark.createDataFrame(pa.table(arrays, schema=fields))

    def judge(self, name: str, statement: str, checked: int, bad: int, examples: Iterable[Example] = ()) -> None:
        """Add a verdict."""
        shown = tuple(self._name_source(example) for example in list(examples)[: self.examples_max])
        self.found.append(Check(name=name, statement=statement, checked=checked, violations=bad, examples=shown))

    def judge_rows(
        self,
        name: str,
        statement: str,
        checked: int,
        bad: DataFrame,
        columns: Sequence[str],
        known: Sequence[Example] = (),
    ) -> None:
        """Judge by contradictions of the statement: the rows of ``bad`` and the ``known`` examples.

        One row more than the examples tells whether all rows were fetched; only else the rows are counted.
        """
        rows = bad.select(*columns).limit(self.examples_max + 1).collect()
        count = len(rows) if len(rows) <= self.examples_max else bad.count()
        self.judge(name, statement, checked, len(known) + count, [*known, *(row.asDict() for row in rows)])

    def judge_counted(
        self, name: str, statement: str, checked: int, count: int, bad: DataFrame, columns: Sequence[str]
    ) -> None:
        """Judge by a known count of contradictions. Rows of ``bad`` are fetched as examples if ``count`` is not 0."""
        rows = bad.select(*columns).limit(self.examples_max).collect() if count else []
        self.judge(name, statement, checked, count, [row.asDict() for row in rows])

    def _name_source(self, example: Example) -> Example:
        """The example with topic and partition in place of the number of the source partition."""
        if "source" not in example:
            return example
        number = example["source"]
        topic, partition = self.sources[number] if number is not None and number >= 0 else ("unknown", -1)
        return {"topic": topic, "partition": partition, **{k: v for k, v in example.items() if k != "source"}}
