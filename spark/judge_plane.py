"""Second stage: the tiles. Which commits count, and whether their tiles cover the plane exactly once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..keyrange.steps import Steps
from . import checks
from .history import Source
from .judge_logs import History
from .plane import Band, Corner, bands_of, defects
from .report import Example
from .run import Run

CORNERS_SHOWN = 4_000
"""Corners that did not cancel and are fetched to be turned into rectangles: the lowest ones."""

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
class Plane:
    """``committed``: the rows of commit events that count from a snapshot on. ``tiles``: the tiles that count.

    ``bands``: the bands of each source partition, from its left to its right edges.
    """

    committed: DataFrame
    commits: int
    tiles: DataFrame
    tiles_counted: int
    bands: dict[Source, list[Band]]


def judge_plane(run: Run, history: History) -> Plane:
    """Judge which commits count, and that the tiles of these cover each band once, in order, by the right workers."""
    committed = _committed(run, history)
    tiles = committed.where("item is not null")
    numbers = committed.agg(
        F.count("item"),
        F.count_if(F.coalesce("item", F.lit(0)) == 0),
        F.count_if(F.col("item").isNotNull() & ~checks.well_formed()),
    ).first()
    assert numbers is not None  # an aggregate without groups has one row
    n, commits, misshapen = numbers
    run.judge_counted(
        "tile-shape",
        "every tile is a rectangle inside the plane",
        n,
        misshapen,
        tiles.where(~checks.well_formed()),
        TILE_SHOWN,
    )
    shaped = tiles.where(checks.well_formed()) if misshapen else tiles
    stale = _judge_stale(run, history, shaped, commits)
    run.judge_rows(
        "transaction-parts",
        "every transaction is there with all its commit events",
        commits,
        _without_trimmed(run, history, committed, checks.torn(committed.where("coalesce(item, 0) = 0"))),
        ["incarnation", "transaction", "seen", "parts_min", "parts_max"],
    )
    counted = shaped if stale is None else shaped.join(F.broadcast(stale), checks.EVENT_KEY, "left_anti")
    placed = run.keep(checks.with_workers(counted, _workers(run, history)))
    bands, tiles_counted = _judge_cover(run, history, placed)
    return Plane(committed, commits, placed, tiles_counted, bands)


def _committed(run: Run, history: History) -> DataFrame:
    """Commit rows from the snapshots on, with ``judged``: whether the outputs must all be in view."""
    logs = run.frame(
        [(log, history.position_from(log), run.pins.judged[log]) for _, log in run.pins.logs],
        "log_partition int, position_from bigint, position_judged bigint",
    )
    return (
        history.events.where("kind = 'committed'")
        .join(F.broadcast(logs), "log_partition")
        .where("position >= position_from")
        .withColumn("judged", F.col("position") < F.col("position_judged"))
        .drop("position_from", "position_judged", "event", "kind")
    )


def _judge_stale(run: Run, history: History, tiles: DataFrame, commits: int) -> DataFrame | None:
    """Judge the commits of stale epochs; returns the keys of those, or None if there are none."""
    parts = run.frame(
        [
            (run.numbers[p.source], p.epoch, p.incarnation, p.first, p.end, p.offset_from, p.offset_until)
            for p in run.pins.grants.parts
        ],
        "source int, epoch bigint, incarnation bigint, first bigint, end bigint, offset_from bigint, "
        "offset_until bigint",
    )
    outside = checks.outside(tiles, parts)
    shown = outside.select(*TILE_SHOWN).limit(100).collect()
    stale = run.keep(outside.select(*checks.EVENT_KEY).distinct()) if shown else None
    known: list[Example] = [
        {"log_partition": log, "position": position, "problem": "found by the application before its snapshot"}
        for log, snapshot in history.snapshots.items()
        for taken in snapshot.taken
        for position in taken.violations
    ]
    run.judge(
        "stale-commit",
        "every commit lies inside its own epoch's part",
        commits,
        (stale.count() if stale is not None else 0) + len(known),
        [row.asDict() for row in shown] + known,
    )
    return stale


def _without_trimmed(run: Run, history: History, committed: DataFrame, torn: DataFrame) -> DataFrame:
    """Leaves out transactions of which a part may lie in front of a snapshot."""
    if not history.snapshots:
        return torn
    trimmed = run.frame([(log,) for log in history.snapshots], "log_partition int")
    kept = committed.select("log_partition", "incarnation", "transaction")
    everywhere = kept.select("incarnation").distinct().crossJoin(F.broadcast(trimmed))
    lowest = (
        everywhere.join(kept, ["incarnation", "log_partition"], "left")
        .groupBy("incarnation", "log_partition")
        .agg(F.min("transaction").alias("lowest"))
        .groupBy("incarnation")
        .agg(F.max(F.coalesce("lowest", F.lit((1 << 63) - 1))).alias("lowest"))
    )
    return torn.join(lowest, "incarnation").where("transaction > lowest")


def _workers(run: Run, history: History) -> DataFrame:
    return run.frame(
        [
            (run.numbers[w.source], w.incarnation, w.worker, w.first, w.end, w.born, w.died, w.run)
            for w in history.workers
            if w.source in run.numbers
        ],
        "source int, incarnation bigint, worker bigint, first bigint, end bigint, born bigint, died bigint, run bigint",
    )


def _judge_cover(run: Run, history: History, tiles: DataFrame) -> tuple[dict[Source, list[Band]], int]:
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
        checks.disordered(tiles),
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
    return bands, counted


def _defects(run: Run, left_over: Sequence[Any]) -> list[Example]:
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
