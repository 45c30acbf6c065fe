"""Second stage: the tiles. Finds the commits that count, and whether their tiles cover the plane exactly once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..keyrange.steps import Steps
from . import checks
from .brokers import Span
from .history import Source
from .judge_logs import LogFold
from .plane import Band, Corner, bands_of, defects
from .report import Example
from .run import AuditContext

COMMIT_COLUMNS = (
    "log_partition,position,incarnation,transaction,epoch,source,part,parts,outputs,dead_letters,digest_high,digest_low,"
    "item,worker,count,first,end,offset_from,offset_to"
)
CORNERS_SHOWN = 4_000
"""Corners to be fetched and turned into rectangles: the lowest of all corners that did not cancel."""

TILE_SHOWN = (
    "source",
    "log_partition",
    "position",
    "incarnation",
    "transaction",
    "epoch",
    "worker",
    "count",
    "first",
    "end",
    "offset_from",
    "offset_to",
)


@dataclass(slots=True)
class Tiles:
    """The tiles of the audit. ``committed``: the rows of the audited commit events; ``tiles``: the counted tiles."""

    committed: DataFrame
    commits: int
    tiles: DataFrame
    length_mean: int


@dataclass(slots=True)
class Plane:
    """The judged plane. ``bands``: the bands of each source partition, from left to right edge."""

    bands: dict[Source, list[Band]]
    tiles_counted: int


def judge_commits(run: AuditContext, history: LogFold) -> Tiles:
    """Judge the shape of tiles and which commits count."""
    committed = run.persist(_commit_rows(run, history))
    has_tile = F.col("item").isNotNull()
    numbers = committed.agg(
        F.count("item"),
        F.count_if(F.coalesce("item", F.lit(0)) == 0),
        F.count_if(has_tile & ~checks.well_formed()),
        F.count_if(has_tile & ~F.col("in_part")),
        F.avg(F.when(has_tile & checks.well_formed(), F.col("offset_to") - F.col("offset_from"))),
    ).first()
    assert numbers is not None  # an aggregate without groups has one row
    n, commits, misshapen, suspects, length_mean = numbers
    tiles = committed.where(has_tile)
    bad = tiles.where(~checks.well_formed())
    run.judge_counted("tile-shape", "every tile is a rectangle inside the plane", n, misshapen, bad, TILE_SHOWN)
    shaped = tiles.where(checks.well_formed()) if misshapen else tiles
    stale = _judge_stale(run, history, shaped, commits) if suspects else None
    if stale is None:
        run.judge("stale-commit", _STALE, commits, len(_known_examples(history)), _known_examples(history))
    counted = shaped if stale is None else shaped.join(F.broadcast(stale), checks.EVENT_KEY, "left_anti")
    return Tiles(committed, commits, counted, int(length_mean or 0))


def _commit_rows(run: AuditContext, history: LogFold) -> DataFrame:
    """Commit rows from the snapshots on, with ``judged``, ``in_part`` and ``worker_right``."""
    judged = {log: pin for log, pin in run.pins.judged.items() if pin < run.pins.logs[run.pins.offset_log, log].end}
    late = F.lit(False)  # a condition by hand instead of a join: few logs or none have grown since the first pin
    for log, pin in judged.items():
        late = late | ((F.col("log_partition") == log) & (F.col("position") >= pin))
    spans = {
        (name, log): Span(max(span.start, history.position_from(log)), span.end)
        for (name, log), span in run.pins.logs.items()
    }
    counted = run.read("keylanes_events", spans, COMMIT_COLUMNS, only="commits").withColumn("judged", ~late)
    return checks.with_workers(checks.with_part(counted, _parts(run)), *_workers(run, history))


def _parts(run: AuditContext) -> DataFrame:
    return run.frame(
        [
            (run.numbers[p.source], p.epoch, p.incarnation, p.first, p.end, p.offset_from, p.offset_until)
            for p in run.pins.grants.parts
        ],
        "source int, epoch bigint, incarnation bigint, first bigint, end bigint, offset_from bigint, "
        "offset_until bigint",
    )


_STALE = "every commit lies inside its own epoch's part"


def _known_examples(history: LogFold) -> list[Example]:
    """The violations that the application itself found before a snapshot."""
    return [
        {"log_partition": log, "position": position, "problem": "found by the application before its snapshot"}
        for log, snapshot in history.snapshots.items()
        for taken in snapshot.taken
        for position in taken.violations
    ]


def _judge_stale(run: AuditContext, history: LogFold, tiles: DataFrame, commits: int) -> DataFrame | None:
    """Judge the tiles outside of all single pieces of parts; returns the keys of stale commits, None without any."""
    outside = run.persist(checks.tiles_outside_parts(tiles.where("not in_part"), _parts(run)))
    shown = outside.select(*TILE_SHOWN).limit(100).collect()
    if not shown:
        return None
    stale = outside.select(*checks.EVENT_KEY).distinct()
    known = _known_examples(history)
    run.judge("stale-commit", _STALE, commits, stale.count() + len(known), [row.asDict() for row in shown] + known)
    return stale


def judge_plane(run: AuditContext, history: LogFold, tiles: Tiles) -> Plane:
    """Judge that the tiles cover each band once, in order, by the right workers, and that no tile is missing."""
    run.judge_rows(
        "transaction-parts",
        "every transaction is there with all its commit events",
        tiles.commits,
        _without_trimmed(
            run, history, tiles.committed, checks.torn_transactions(tiles.committed.where("coalesce(item, 0) = 0"))
        ),
        ["incarnation", "transaction", "seen", "parts_min", "parts_max"],
    )
    return _judge_cover(run, history, tiles.tiles)


def _without_trimmed(run: AuditContext, history: LogFold, committed: DataFrame, torn: DataFrame) -> DataFrame:
    """The torn transactions, except transactions with a part that may lie in front of a snapshot.

    The transactions of an incarnation rise. Therefore a transaction above the lowest visible one in every log partition
    that begins with a snapshot has all its parts in view.
    """
    if not history.snapshots:
        return torn
    trimmed = run.frame([(log,) for log in history.snapshots], "log_partition int")
    visible = committed.select("log_partition", "incarnation", "transaction")
    everywhere = visible.select("incarnation").distinct().crossJoin(F.broadcast(trimmed))
    lowest = (
        everywhere.join(visible, ["incarnation", "log_partition"], "left")
        .groupBy("incarnation", "log_partition")
        .agg(F.min("transaction").alias("lowest"))
        .groupBy("incarnation")
        .agg(F.max(F.coalesce("lowest", F.lit((1 << 63) - 1))).alias("lowest"))
    )
    return torn.join(lowest, "incarnation").where("transaction > lowest")


def _workers(run: AuditContext, history: LogFold) -> tuple[DataFrame, DataFrame | None]:
    """All workers, and the odd workers apart (see history.py); None without odd workers."""
    known = [(run.numbers[w.source], w) for w in history.workers if w.source in run.numbers]
    workers = run.frame(
        [
            (n, w.incarnation, w.worker, w.first, w.end, w.run, w.run_born, w.odd_before, w.odd_before + w.is_odd)
            for n, w in known
        ],
        "source int, incarnation bigint, worker bigint, first bigint, end bigint, run int, run_born bigint, "
        "odd_before int, odd_to int",
    )
    odd = [(n, w.incarnation, w.worker, w.born, w.died) for n, w in known if w.is_odd]
    if not odd:
        return workers, None
    return workers, run.frame(odd, "source int, incarnation bigint, odd_worker bigint, born bigint, died bigint")


def _judge_cover(run: AuditContext, history: LogFold, tiles: DataFrame) -> Plane:
    """Judge the cover, the order and the workers of the counted tiles; returns the bands."""
    runs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    table = (
        tiles.groupBy("source", "first", "end")
        .agg(
            F.max("offset_to").alias("offset_to"),
            F.count("*").alias("tiles"),
            F.count_if(~F.col("worker_right")).alias("misnamed"),
        )
        .toArrow()
    )
    columns = [table[i].to_pylist() for i in range(6)]
    for number, first, end, offset_to in zip(*columns[:4], strict=True):
        runs[number].append((first, end, offset_to))
    counted, misnamed = sum(columns[4]), sum(columns[5])
    bands = {
        source: bands_of(runs[number], history.left.get(source, Steps())) for source, number in run.numbers.items()
    }
    target = run.frame(
        [
            (run.numbers[source], band.left, band.edge, band.first, band.end)
            for source, own in bands.items()
            for band in own
            if band.left < band.edge
        ],
        "source int, offset_from bigint, offset_to bigint, first bigint, end bigint",
    )
    left_over = checks.cover(tiles, target).orderBy("x", "source", "y").limit(CORNERS_SHOWN).collect()
    wrong = _defects(run, left_over)
    run.judge(
        "tile-cover",
        "the tiles cover each band from its start to its edge exactly once",
        counted,
        len(wrong),
        wrong,
    )
    run.judge_rows(
        "tile-order",
        "every tile starts at the edge that its band had when it was committed",
        counted,
        checks.tiles_out_of_order(tiles),
        TILE_SHOWN,
    )
    run.judge_counted(
        "tile-worker",
        "every tile names the workers whose ranges it covers",
        counted,
        misnamed,
        tiles.where("not worker_right"),
        TILE_SHOWN,
    )
    return Plane(bands, counted)


def _defects(run: AuditContext, left_over: Sequence[Any]) -> list[Example]:
    """The gaps and overlaps behind the corners that did not cancel. Where not all corners were fetched, rectangles that
    end at or behind the last fetched offset are left out: their corners may be incomplete.
    """
    by_source: dict[int, list[Corner]] = defaultdict(list)
    for row in left_over:
        by_source[row["source"]].append(Corner(row["x"], row["y"], row["weight"]))
    x_last = left_over[-1]["x"] if len(left_over) == CORNERS_SHOWN else None
    if x_last is not None:
        run.notes.append(f"tile-cover: more defects end at offsets from {x_last} on than are counted")
    found = [
        (number, defect)
        for number, corners in by_source.items()
        for defect in defects([c for c in corners if x_last is None or c.x < x_last])
    ]
    found.sort(key=lambda item: (item[1].offset_from, item[0], item[1].first))
    examples: list[Example] = [
        {"source": number, "kind": "gap" if d.cover < 0 else "overlap", **d._asdict()} for number, d in found
    ]
    return examples or [{"problem": "corners do not cancel"} for _ in left_over[:1]]
