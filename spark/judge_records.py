"""Third stage: the records of the sources, each in one tile, of the worker with the record's key in its range."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..offsets.starts import EARLIEST
from . import checks
from .brokers import Span
from .judge_logs import LogFold
from .judge_plane import Plane, Tiles
from .plane import Band
from .report import SourceFigures
from .run import AuditContext


@dataclass(slots=True)
class Records:
    """The records of the sources. ``places``: see checks.py. ``counts``: a row of counts, by number of the source.

    ``all_done``: every record lies in one tile with all outputs in view.
    """

    places: DataFrame
    counts: dict[int, Any]
    all_done: bool
    source: DataFrame | None
    """The records with their values, where hooks need the values."""
    done: DataFrame | None = None
    """See ``done_records``."""


def read_places(run: AuditContext, history: LogFold, tiles: Tiles, *, for_hooks: bool) -> Records:
    """Every record from the start of the audit on, with the record's tiles. ``for_hooks``: read the values, too."""
    pins = run.pins
    _note_trimmed(run)
    spans = {
        source: Span(max(span.start, pins.grants.starts[source]), span.end)
        for source, span in pins.sources.items()
        if source in pins.grants.starts
    }
    point = checks.point(F.col("key"), F.col("partition"), F.col("offset")).alias("point")
    whole = None
    if for_hooks:  # persisted: one read for all stages and hooks
        whole = run.persist(run.read("keylanes_records", spans, "source,topic,partition,offset,timestamp,key,value"))
    read = whole or run.read("keylanes_records", spans, "source,partition,offset,key")
    records = read.select("source", "offset", "key", point)
    counted = _with_before(run, history, tiles.tiles)
    offset_max = max((span.end for span in spans.values()), default=0)
    widest = max((span.end - span.start for span in spans.values()), default=0)
    # Columns of some tiles' length: narrow columns repeat the tiles, wide columns compare records with more tiles.
    width = max(64, 3 * tiles.length_mean, widest // checks.COLUMNS_MAX + 1)
    places = run.persist(checks.in_tiles(records, counted, width, offset_max))
    counts = (
        places.groupBy("source")
        .agg(
            F.count("*").alias("records"),
            F.count_if(F.col("tiles") > 0).alias("done"),
            F.min(F.when(F.col("tiles") == 0, F.col("offset"))).alias("waits_from"),
            F.count_if(F.col("tiles") > 1).alias("doubled"),
            F.count_if(~F.col("worker_right")).alias("misplaced"),
            F.count_if((F.col("tiles") == 1) & F.col("judged")).alias("settled"),
        )
        .collect()
    )
    all_done = all(row["settled"] == row["records"] for row in counts)
    return Records(places, {row["source"]: row for row in counts}, all_done, whole)


def done_records(run: AuditContext, records: Records) -> DataFrame:
    """For hooks: topic, partition, offset, timestamp, key and value of every record with all outputs in view."""
    assert records.source is not None, "they were read for hooks"
    if records.done is None:
        records.done = records.source
        if not records.all_done:  # persisted: else each branch of a hook would join again
            done = records.places.where("tiles = 1 and judged").select("source", "offset")
            records.done = run.persist(records.source.join(done, ["source", "offset"], "left_semi"))
    return records.done.drop("source")


def judge_records(run: AuditContext, records: Records, plane: Plane, *, level: bool) -> tuple[SourceFigures, ...]:
    """Judge that every record lies in one tile, of the right worker; ``level``: no record may wait."""
    _judge_places(run, records, plane)
    _list_not_begun(run)
    figures = _figures(run, plane, records.counts)
    if level:
        waiting = [
            {"topic": f.topic, "partition": f.partition, "frontier": f.frontier, "waiting": f.waiting}
            for f in figures
            if f.waiting
        ]
        total = sum(f.records for f in figures)
        run.judge("level", "no record waits", total, sum(f.waiting for f in figures), waiting)
    return figures


def _note_trimmed(run: AuditContext) -> None:
    for source, start in sorted(run.pins.grants.starts.items()):
        begins = run.pins.sources[source].start
        if begins > start:
            run.notes.append(
                f"{source[0]}[{source[1]}] begins at offset {begins}: the records from {start} on are gone, and what "
                "became of them can't be proven any more"
            )


def _list_not_begun(run: AuditContext) -> None:
    """Report the partitions without any work of the application, a line for each topic."""
    stateful = {store.topic for store in run.pins.grants.stores.values()}
    for topic, group in groupby(run.pins.not_begun, key=lambda source: source[0]):
        spans = {partition: run.pins.sources[topic, partition] for _, partition in group}
        offsets = sum(span.end - span.start for span in spans.values())
        numbers = ", ".join(map(str, spans))
        line = f"{topic}[{numbers}], {offsets:,} offsets: the application has never worked on these partitions"
        moved = "; if they were added, keys have moved there and their state has not: docs/partitioners.md"
        run.not_looked_at.append(line + (moved if topic in stateful else ""))


def _with_before(run: AuditContext, history: LogFold, tiles: DataFrame) -> DataFrame:
    """The counted tiles, and for each band with a snapshot's edge as start a tile over the offsets in front."""
    columns = ["source", "offset_from", "offset_to", "first", "end", *checks.EVENT_KEY, "judged", "worker_right"]
    starts = run.pins.grants.starts
    rows = [
        (run.numbers[source], starts[source], left, first, end, -1, -1, False, True)
        for source, edges in history.left.items()
        for first, end, left in edges.pieces()
        if left > starts[source]
    ]
    if not rows:
        return tiles.select(*columns)
    schema = (
        "source int, offset_from bigint, offset_to bigint, first bigint, end bigint, log_partition int, "
        "position bigint, judged boolean, worker_right boolean"
    )
    return tiles.select(*columns).unionByName(run.frame(rows, schema))


def _judge_places(run: AuditContext, records: Records, plane: Plane) -> None:
    counts, places = records.counts, records.places
    total = sum(row["records"] for row in counts.values())
    frontiers = {run.numbers[source]: _frontier(own) for source, own in plane.bands.items()}
    bad = places.where("tiles > 1")
    lost = {n for n, row in counts.items() if row["waits_from"] is not None and row["waits_from"] < frontiers[n]}
    if lost:
        frame = run.frame([(n, frontiers[n]) for n in lost], "source int, frontier bigint")
        bad = places.join(F.broadcast(frame), "source", "left").where("tiles > 1 or (tiles = 0 and offset < frontier)")
    run.judge_counted(
        "record-tile",
        "every record below the frontier lies in exactly one tile",
        total,
        bad.count() if lost else sum(row["doubled"] for row in counts.values()),
        bad.orderBy("source", "offset"),
        ["source", "offset", "point", "tiles"],
    )
    run.judge_counted(
        "record-worker",
        "every record lies in a tile of the worker whose range holds its key",
        total,
        sum(row["misplaced"] for row in counts.values()),
        places.where("not worker_right").orderBy("source", "offset"),
        ["source", "offset", "point", *checks.EVENT_KEY],
    )


def _frontier(bands: list[Band]) -> int:
    return min((band.edge for band in bands), default=0)


def _figures(run: AuditContext, plane: Plane, counts: Mapping[int, Any]) -> tuple[SourceFigures, ...]:
    figures, not_begun = [], {*run.pins.not_begun}
    for source in (source for source in run.sources if source not in not_begun):
        row = counts.get(run.numbers[source])
        records, done = (row["records"], row["done"]) if row else (0, 0)
        own, span = plane.bands[source], run.pins.sources[source]
        figures.append(
            SourceFigures(
                *source,
                start=min((band.left for band in own), default=span.start),
                frontier=_frontier(own),
                edge_max=max((band.edge for band in own), default=0),
                source_start=span.start,
                source_end=span.end,
                records=records,
                done=done,
                waiting=records - done,
                started_from=run.pins.grants.started_from.get(source, EARLIEST),
                started_at=run.pins.grants.starts.get(source, span.start),
            )
        )
    return tuple(figures)
