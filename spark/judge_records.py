"""Third stage: the records of the sources, each in one tile and of the worker whose range holds its key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from . import checks
from .judge_logs import History
from .judge_plane import Plane
from .report import SourceFigures
from .run import Run


@dataclass(slots=True)
class Records:
    """``places``: see checks.py, with ``start`` and ``frontier`` of the source partition."""

    places: DataFrame
    figures: tuple[SourceFigures, ...]


def judge_records(run: Run, history: History, plane: Plane, *, level: bool) -> Records:
    """Judge every record from the start of the audit on; ``level`` demands that none waits."""
    pins = run.pins
    _note_trimmed(run)
    sources = run.frame(
        [
            (
                run.numbers[source],
                pins.grants.starts.get(source, span.end),
                min((band.edge for band in plane.bands[source]), default=0),
            )
            for source, span in pins.sources.items()
        ],
        "source int, start bigint, frontier bigint",
    )
    read = run.read("keylanes_records", pins.sources, "source,partition,offset,key")
    points = checks.point(F.col("key"), F.col("partition"), F.col("offset")).alias("point")
    offset_max = max((span.end for span in pins.sources.values()), default=0)
    widest = max((span.end - span.start for span in pins.sources.values()), default=0)
    held = checks.in_tiles(
        read.select("source", "offset", "key", points),
        _with_before(run, history, plane.tiles),
        max(64, widest // checks.COLUMNS + 1),
        offset_max,
    )
    places = run.keep(held.join(F.broadcast(sources), "source").where("offset >= start"))
    counts = (
        places.groupBy("source")
        .agg(
            F.count("*").alias("records"),
            F.count_if(F.col("tiles") > 0).alias("done"),
            F.count_if((F.col("tiles") == 0) & (F.col("offset") < F.col("frontier"))).alias("lost"),
            F.count_if(F.col("tiles") > 1).alias("doubled"),
            F.count_if(~F.col("worker_right")).alias("misplaced"),
        )
        .collect()
    )
    per_source = {row["source"]: row for row in counts}
    _judge_places(run, places, per_source)
    figures = _figures(run, plane, per_source)
    if level:
        waiting = [
            {"topic": f.topic, "partition": f.partition, "frontier": f.frontier, "waiting": f.waiting}
            for f in figures
            if f.waiting
        ]
        records = sum(f.records for f in figures)
        run.judge("level", "no record waits", records, sum(f.waiting for f in figures), waiting)
    return Records(places, figures)


def _note_trimmed(run: Run) -> None:
    for source, start in sorted(run.pins.grants.starts.items()):
        kept = run.pins.sources[source].start
        if kept > start:
            run.notes.append(
                f"{source[0]}[{source[1]}] begins at offset {kept}: the records from {start} on are gone, and what "
                "became of them can't be proven any more"
            )


def _with_before(run: Run, history: History, tiles: DataFrame) -> DataFrame:
    """The counted tiles, and for each band that a snapshot moved one for all that lies in front of it."""
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


def _judge_places(run: Run, places: DataFrame, per_source: Mapping[int, Any]) -> None:
    total = sum(row["records"] for row in per_source.values())
    run.judge_counted(
        "record-tile",
        "every record below the frontier lies in exactly one tile",
        total,
        sum(row["lost"] + row["doubled"] for row in per_source.values()),
        places.where("tiles > 1 or (tiles = 0 and offset < frontier)").orderBy("source", "offset"),
        ["source", "offset", "point", "tiles", "frontier"],
    )
    run.judge_counted(
        "record-worker",
        "every record lies in a tile of the worker whose range holds its key",
        total,
        sum(row["misplaced"] for row in per_source.values()),
        places.where("not worker_right").orderBy("source", "offset"),
        ["source", "offset", "point", *checks.EVENT_KEY],
    )


def _figures(run: Run, plane: Plane, per_source: Mapping[int, Any]) -> tuple[SourceFigures, ...]:
    figures = []
    for source in run.sources:
        row = per_source.get(run.numbers[source])
        records, done = (row["records"], row["done"]) if row else (0, 0)
        own, span = plane.bands[source], run.pins.sources[source]
        figures.append(
            SourceFigures(
                *source,
                start=min((band.left for band in own), default=span.start),
                frontier=min((band.edge for band in own), default=0),
                edge_max=max((band.edge for band in own), default=0),
                source_start=span.start,
                source_end=span.end,
                records=records,
                done=done,
                waiting=records - done,
            )
        )
    return tuple(figures)
