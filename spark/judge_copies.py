"""Stage beside the state: copies in folders, against their changelogs.

The markers of a copy tell how far the copy has followed its changelog. A copy holds all changes below the marker of a
point, and maybe some changes above. Therefore the value of a key is the value of the key's newest record below the
marker, or of any record above.

Compaction removes a record when a newer record has the same key, and after some time removes tombstones. Keys left
undecided by compaction are passed over, counted, and noted:

- A key has records above the marker only. Compaction may have removed the records below, but only if compaction has
  come as far as the first remaining record of the key. The compacted part of a log holds each key once. Therefore
  compaction has not come so far if a record in front of the remaining record has the key of an earlier record.
- A key has no record at all, or none below the marker, and the marker is old. The tombstone of the key may be gone.

The stage reads the folders first, and then pins and reads the changelogs. Therefore the changelogs hold all changes of
the copies, also beside a process at work.
"""

import json
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..state.changelog import CHANGELOG_CONFIG
from . import state
from .brokers import AuditError, Place, Span
from .folders import copies_in, read_copies
from .report import Example
from .run import AuditContext

STATEMENT: Final = "each copy of state in these folders is what its changelog says at its markers"
OLD_MS: Final = int(CHANGELOG_CONFIG["delete.retention.ms"]) // 2
"""The age at which a marker is old: a tombstone above the marker may be gone. Half of the limit, for clocks differ."""
SHOWN: Final = ("topic", "partition", "marker", "raw", "held", "newest_below", "problem")
_PIECES: Final = "copy int, partition int, first bigint, end bigint, position bigint, time_ms bigint"
_NEVER: Final = (1 << 63) - 1


def judge_copies(run: AuditContext, *, app: str, folders: Sequence[str]) -> int:
    """Judge the copies in folders; returns the number of compared keys. Raises AuditError."""
    paths = copies_in(folders, app, run.pins.grants)
    copied = run.persist(read_copies(run.spark, paths))
    pieces = [tuple(row) for row in copied.where("key is null").drop("key", "value").collect()]
    names = dict(enumerate(map(str, paths)))
    ends: dict[tuple[str, int], Span] = {}
    judged: list[DataFrame] = []
    for topic in sorted({piece[1] for piece in pieces}):
        own = [piece for piece in pieces if piece[1] == topic]
        spans = _pin(run, app, topic, {piece[2] for piece in own}, names[own[0][0]])
        ends |= {(topic, partition): span for (_, partition), span in spans.items()}
        frame = run.frame([(piece[0], *piece[2:]) for piece in own], _PIECES)
        judged.append(_judge_keys(topic, _records(run, spans), frame, copied.where(F.col("topic") == topic)))
    ahead = list(_ahead(pieces, ends, names))
    if not judged:
        run.judge("copy-state", STATEMENT, 0, 0)
        return 0
    every = run.persist(reduce(DataFrame.unionAll, judged))
    counts: dict[str, int] = {row["verdict"]: row["count"] for row in every.groupBy("verdict").count().collect()}
    rows = every.where("verdict = 'wrong'").limit(run.examples_max).collect()
    examples = [{"folder": names[row["copy"]], **{name: row[name] for name in SHOWN}} for row in rows]
    compared = counts.get("right", 0) + counts.get("wrong", 0)
    run.judge("copy-state", STATEMENT, compared, counts.get("wrong", 0) + len(ahead), [*ahead, *examples])
    if undecided := counts.get("undecided", 0):
        run.notes.append(f"{undecided:,} keys of copies were not compared: compaction may have taken what they are of")
    return compared


def _pin(run: AuditContext, app: str, topic: str, wanted: set[int], folder: str) -> dict[Place, Span]:
    """The present spans of the wanted partitions of a topic's changelog."""
    partitions = sum(name == topic for name, _ in run.pins.sources)
    if strange := sorted(p for p in wanted if (topic, p) not in run.pins.grants.starts):
        raise AuditError(f"copies: {folder} has a copy for {topic}[{strange[0]}], which {app!r} does not read")
    broker = run.access.open()
    try:
        pinned = state.pin_changelog(broker, app, topic, partitions)
    finally:
        broker.close()
    spans = {place: span for place, span in pinned.items() if place[1] in wanted and span is not None}
    if len(spans) < len(wanted):
        raise AuditError(f"copies: this broker keeps the changelog of {topic} by key; {folder} can't be a copy of it")
    return spans


def _records(run: AuditContext, spans: dict[Place, Span]) -> DataFrame:
    """partition, offset, key, value of a changelog."""
    named = json.dumps([[*place, *span] for place, span in spans.items()])
    reader = run.spark.read.format("keylanes_records").options(**run.access.options())
    return run.persist(reader.option("spans", named).option("columns", "partition,offset,key,value").load())


def _ahead(
    pieces: Iterable[tuple[Any, ...]], ends: dict[tuple[str, int], Span], names: dict[int, str]
) -> Iterable[Example]:
    for copy, topic, partition, first, end, position, _ in pieces:
        if position > ends[topic, partition].end:
            shown = {"folder": names[copy], "topic": topic, "partition": partition, "first": first, "end": end}
            problem = f"its marker lies ahead of the end of its changelog, {ends[topic, partition].end}"
            yield {**shown, "marker": position, "problem": problem}


def _judge_keys(topic: str, records: DataFrame, pieces: DataFrame, copied: DataFrame) -> DataFrame:
    """Each key of each copy, and each key of the changelog at points with a marker, with its ``verdict``."""
    keyed = records.where(F.length("key") >= state.HEAD_BYTES).withColumn("point", state.point_in("key"))
    is_held = (keyed["partition"] == pieces["partition"]) & keyed["point"].between(pieces["first"], pieces["end"] - 1)
    written = keyed.join(F.broadcast(pieces), is_held).select(
        "copy", pieces["partition"], "key", "offset", "value", "position", "time_ms"
    )
    renamed = {"value": "held", "position": "held_position", "time_ms": "held_ms"}
    there = copied.where("key is not null").withColumnsRenamed(renamed).drop("topic", "first", "end")
    is_below = F.col("offset") < F.col("position")
    found = (
        written.join(there, ["copy", "partition", "key"], "full_outer")
        .groupBy("copy", "partition", "key")
        .agg(
            F.max(F.coalesce("position", "held_position")).alias("marker"),
            F.max(F.coalesce("time_ms", "held_ms")).alias("time_ms"),
            F.max("held").alias("held"),
            F.max_by("value", F.when(is_below, F.col("offset"))).alias("newest_below"),
            F.count_if(is_below).alias("below"),
            F.count_if(~is_below).alias("above"),
            F.coalesce(F.bool_or(~is_below & F.col("value").eqNullSafe(F.col("held"))), F.lit(False)).alias("is_above"),
            F.min("offset").alias("offset_first"),
        )
    )
    judged = found.join(F.broadcast(_first_repeated(records)), "partition", "left")
    return judged.select(
        "copy",
        F.lit(topic).alias("topic"),
        "partition",
        F.col("key").alias("raw"),
        "marker",
        "held",
        "newest_below",
        _problem().alias("problem"),
        _verdict().alias("verdict"),
    )


def _verdict() -> Column:
    is_of_below = F.col("held").eqNullSafe(F.col("newest_below"))  # also null on both sides: no record, no value
    is_old = F.col("time_ms") < int(time.time() * 1000) - OLD_MS
    is_compacted = (F.col("above") > 0) & (F.col("offset_first") < F.coalesce("repeats_at", F.lit(_NEVER)))
    return (
        F.when(is_of_below | F.col("is_above"), "right")
        .when((F.col("below") == 0) & (is_old | is_compacted), "undecided")
        .otherwise("wrong")
    )


def _problem() -> Column:
    return (
        F.when(F.col("held").isNull(), "missing")
        .when((F.col("below") == 0) & (F.col("above") == 0), "the changelog has no such key")
        .otherwise("neither the newest below the marker nor one above")
    )


def _first_repeated(records: DataFrame) -> DataFrame:
    """By partition, the offset of the first record with the key of an earlier record."""
    firsts = records.groupBy("partition", "key").agg(F.min("offset").alias("offset_first"))
    again = records.join(firsts, ["partition", "key"]).where("offset > offset_first")
    return again.groupBy("partition").agg(F.min("offset").alias("repeats_at"))
