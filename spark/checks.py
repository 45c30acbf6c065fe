"""The audit's statements as DataFrame -> DataFrame: functions for the contradictions, and for the frames in between.

Frames, besides those of rows.py:

- ``tiles``: the rows of commit events with a tile, with ``judged`` (false: written after the first pin, and some
  outputs may be out of view), ``in_part`` and ``worker_right``.
- ``parts``: source, epoch, incarnation, first, end, offset_from, offset_until: where an epoch holds.
- ``places``: one row per source record: source, offset, key, point, ``tiles`` (number of tiles over the record),
  log_partition and position of the commit, ``judged``, ``worker_right``.
- ``outputs``: one row per visible output or dead letter of the application.

A join of tiles with records, or with tiles, has a condition on ranges. Spark is fast only with equal keys. Therefore a
grid divides the plane into *boxes*: a box is where a column of offsets and a row of points meet. Both sides are joined
by their box, or by their row alone, and then by the exact condition.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..keyrange.hashing import SPACE_END

ROW_SHIFT = 26
"""A row of the grid is 2**26 points high: 64 rows."""
COLUMNS_MAX = 2_048
"""The most columns of the grid over the widest partition."""

EVENT_KEY = ["log_partition", "position"]


def point(key: Column, partition: Column, offset: Column) -> Column:
    """The point of a record, by Spark's own hash: of the record's key, or without a key of the record's place."""
    keyed = F.shiftrightunsigned(F.xxhash64(key), 32)
    placed = F.shiftrightunsigned(F.xxhash64(partition.cast("int"), offset.cast("bigint")), 32)
    return F.when(key.isNotNull(), keyed).otherwise(placed)


def digest(topic: Column, partition: Column, offset: Column, i: Column, destination: Column) -> Column:
    """The hash of one output, as a signed 64-bit integer."""
    return F.xxhash64(topic, partition.cast("int"), offset.cast("bigint"), i.cast("int"), destination)


# --- tiles ------------------------------------------------------------------------------------------------------------


def well_formed() -> Column:
    """Whether a tile is a rectangle inside the plane; an inverted rectangle would be negative cover."""
    return (
        (F.col("offset_from") >= 0)
        & (F.col("offset_from") < F.col("offset_to"))
        & (F.col("first") >= 0)
        & (F.col("first") < F.col("end"))
        & (F.col("end") <= SPACE_END)
        & (F.col("count") >= 1)
    )


def with_part(tiles: DataFrame, parts: DataFrame) -> DataFrame:
    """Tiles with ``in_part``: whether one piece of the part of the tile's epoch and incarnation holds the tile.

    The parts of one epoch do not overlap: a tile finds at most one piece.
    """
    p = F.broadcast(parts.select([F.col(name).alias(f"p_{name}") for name in parts.columns]))
    found = tiles.join(
        p,
        _same_part("p_") & (F.col("p_first") <= F.col("first")) & (F.col("end") <= F.col("p_end")),
        "left",
    )
    return found.withColumn("in_part", F.col("p_first").isNotNull()).drop(*(f"p_{name}" for name in parts.columns))


def tiles_outside_parts(suspects: DataFrame, parts: DataFrame) -> DataFrame:
    """Suspects (tiles that no single piece holds) that the pieces of their part together do not hold either.

    Neighbours that moved alike may have come with different offsets in one grant. Their tile lies over several pieces.
    """
    p = F.broadcast(parts.select([F.col(name).alias(f"p_{name}") for name in parts.columns]))
    overlap = F.least("end", "p_end") - F.greatest("first", "p_first")
    meeting = suspects.join(p, _same_part("p_") & (F.col("p_first") < F.col("end")) & (F.col("first") < F.col("p_end")))
    whole = (
        meeting.groupBy(*EVENT_KEY, "item", "first", "end")
        .agg(F.sum(overlap).alias("width"))
        .where(F.col("width") == F.col("end") - F.col("first"))
        .select(*EVENT_KEY, "item")
    )
    return suspects.join(whole, [*EVENT_KEY, "item"], "left_anti")


def _same_part(p: str) -> Column:
    """Whether a piece, in columns with the prefix ``p``, is of the tile's epoch and holds the tile's offsets."""
    return (
        (F.col("source") == F.col(f"{p}source"))
        & (F.col("epoch") == F.col(f"{p}epoch"))
        & (F.col("incarnation") == F.col(f"{p}incarnation"))
        & (F.col(f"{p}offset_from") <= F.col("offset_from"))
        & (F.col("offset_to") <= F.col(f"{p}offset_until"))
    )


def cover(tiles: DataFrame, target: DataFrame) -> DataFrame:
    """The signed corners that do not cancel: source, x, y, weight. Empty if and only if the tiles cover the target."""
    weighed = tiles.select("source", "offset_from", "offset_to", "first", "end", F.lit(1).alias("w")).unionAll(
        target.select("source", "offset_from", "offset_to", "first", "end", F.lit(-1).alias("w"))
    )
    corner = F.array(
        *(
            F.struct(F.col(x).alias("x"), F.col(y).alias("y"), (F.col("w") * sign).alias("weight"))
            for x, y, sign in (
                ("offset_from", "first", 1),
                ("offset_from", "end", -1),
                ("offset_to", "first", -1),
                ("offset_to", "end", 1),
            )
        )
    )
    return (
        weighed.select("source", F.inline(corner))
        .groupBy("source", "x", "y")
        .agg(F.sum("weight").alias("weight"))
        .where("weight <> 0")
    )


def tiles_out_of_order(tiles: DataFrame) -> DataFrame:
    """Tiles written before their left neighbour: at the commit, the band's edge was not the start of the tile.

    The search has two steps. Suspects start at an offset at which a later tile of the source partition ends. The exact
    join then keeps suspects that share points with such a later tile.
    """
    last = tiles.groupBy("source", F.col("offset_to").alias("x")).agg(F.max("position").alias("position_last"))
    suspects = tiles.join(
        last, (tiles.source == last.source) & (tiles.offset_from == last.x) & (tiles.position < last.position_last)
    ).select(tiles["*"])
    later = _rows(tiles).select("source", "row", "offset_to", "first", "end", "position").alias("l")
    early = _rows(suspects).alias("e")
    pairs = early.join(
        later,
        (F.col("l.source") == F.col("e.source"))
        & (F.col("l.row") == F.col("e.row"))
        & (F.col("l.offset_to") == F.col("e.offset_from"))
        & (F.col("l.position") > F.col("e.position"))
        & (F.col("l.first") < F.col("e.end"))
        & (F.col("e.first") < F.col("l.end")),
        "left_semi",
    )
    return pairs.drop("row").dropDuplicates([*EVENT_KEY, "item"])


def with_workers(tiles: DataFrame, workers: DataFrame, odd: DataFrame | None) -> DataFrame:
    """Tiles with ``worker_right``: whether the tile's workers exist, were alive and own exactly the tile's points.

    ``workers``: source, incarnation, worker, first, end, run, run_born, odd_before, odd_to; see history.py. ``odd``:
    source, incarnation, odd_worker, born, died of the odd workers; None without odd workers.

    A tile names its lowest worker and the number of its workers. Two look-ups, of the lowest and the highest worker,
    judge them all: the workers between are neighbours if both are of one run. Without odd workers among them all are
    alive from ``run_born`` on. Only tiles with odd workers are compared with the life of each odd worker.
    """
    low = F.broadcast(workers.select([F.col(name).alias(f"low_{name}") for name in workers.columns]))
    high = F.broadcast(workers.select([F.col(name).alias(f"high_{name}") for name in workers.columns]))
    last = F.col("worker") + F.col("count") - 1
    joined = tiles.join(
        low,
        (F.col("source") == F.col("low_source"))
        & (F.col("incarnation") == F.col("low_incarnation"))
        & (F.col("worker") == F.col("low_worker")),
        "left",
    ).join(
        high,
        (F.col("source") == F.col("high_source"))
        & (F.col("incarnation") == F.col("high_incarnation"))
        & (last == F.col("high_worker")),
        "left",
    )
    placed = (
        (F.col("low_run") == F.col("high_run"))
        & (F.col("low_first") == F.col("first"))
        & (F.col("high_end") == F.col("end"))
    )
    alive = (F.col("low_odd_before") == F.col("high_odd_to")) & (F.col("transaction") >= F.col("low_run_born"))
    if odd is not None:
        beyond = ~F.col("transaction").between(F.col("born"), F.col("died"))
        at_odd = ["source", "incarnation"]
        dead = (
            tiles.join(F.broadcast(odd), at_odd)
            .where(F.col("odd_worker").between(F.col("worker"), last) & beyond)
            .select(*EVENT_KEY, "item", F.lit(True).alias("dead"))
            .distinct()
        )
        joined = joined.join(dead, [*EVENT_KEY, "item"], "left")
        alive = F.col("dead").isNull() & (alive | (F.col("low_odd_before") < F.col("high_odd_to")))
    return joined.select(*tiles.columns, F.coalesce(placed & alive, F.lit(False)).alias("worker_right"))


# --- records ----------------------------------------------------------------------------------------------------------


def _rows(tiles: DataFrame) -> DataFrame:
    """Tiles with ``row``: each tile once for each row of the grid that the tile meets."""
    rows = F.sequence(F.shiftright("first", ROW_SHIFT), F.shiftright(F.col("end") - 1, ROW_SHIFT))
    return tiles.withColumn("row", F.explode(rows))


def in_tiles(records: DataFrame, tiles: DataFrame, width: int, offset_max: int) -> DataFrame:
    """The frame ``places``. ``width``: offsets in a column of the grid; no record lies at or above ``offset_max``."""
    clipped = tiles.where(F.col("offset_from") < offset_max).withColumn(
        "offset_to", F.least("offset_to", F.lit(offset_max))
    )
    columns = F.sequence(F.expr(f"offset_from div {width}"), F.expr(f"(offset_to - 1) div {width}"))
    boxes = (
        _rows(clipped.withColumn("column", F.explode(columns)))
        .select(
            "source", "column", "row", "offset_from", "offset_to", "first", "end", *EVENT_KEY, "judged", "worker_right"
        )
        .alias("t")
    )
    placed = records.select(
        "source",
        "offset",
        "key",
        "point",
        F.expr(f"offset div {width}").alias("column"),
        F.shiftright("point", ROW_SHIFT).alias("row"),
    ).alias("r")
    found = placed.join(
        boxes,
        (F.col("r.source") == F.col("t.source"))
        & (F.col("r.column") == F.col("t.column"))
        & (F.col("r.row") == F.col("t.row"))
        & (F.col("r.offset") >= F.col("t.offset_from"))
        & (F.col("r.offset") < F.col("t.offset_to"))
        & (F.col("r.point") >= F.col("t.first"))
        & (F.col("r.point") < F.col("t.end")),
        "left",
    )
    # Grouped by the join's own keys, too: Spark need not move the rows.
    return (
        found.groupBy("r.source", "r.column", "r.row", "r.offset", "r.point", "r.key")
        .agg(
            F.count("t.position").alias("tiles"),
            F.max("t.log_partition").alias("log_partition"),
            F.max("t.position").alias("position"),
            F.min("t.judged").alias("judged"),
            F.min("t.worker_right").alias("worker_right"),
        )
        .drop("column", "row")
    )


# --- outputs ----------------------------------------------------------------------------------------------------------


def locate_outputs(outputs: DataFrame, places: DataFrame, gone: DataFrame | None) -> DataFrame:
    """Outputs with their source place: source_key, ``tiles``, log_partition, position, ``judged``, ``astray``.

    ``astray``: no counted tile holds the place. ``gone``: kl_source, gone_from, gone_to of places lost to the source's
    retention, None without a loss. An output of a lost place is never astray, nor is an output with a damaged header.
    """
    known = places.select(
        F.col("source").alias("at_source"),
        F.col("offset").alias("at_offset"),
        F.col("key").alias("source_key"),
        "tiles",
        *EVENT_KEY,
        "judged",
    )
    at_place = (F.col("kl_source") == F.col("at_source")) & (F.col("kl_offset") == F.col("at_offset"))
    joined = outputs.join(known, at_place, "left").drop("at_source", "at_offset")
    astray = ~F.col("kl_damaged") & (F.coalesce("tiles", F.lit(0)) == 0)
    if gone is None:
        return joined.withColumn("astray", astray)
    lost = F.coalesce(F.col("kl_offset").between(F.col("gone_from"), F.col("gone_to") - 1), F.lit(False))
    return (
        joined.join(F.broadcast(gone), "kl_source", "left")
        .withColumn("astray", astray & ~lost)
        .drop("gone_from", "gone_to")
    )


def incomplete_places(outputs: DataFrame) -> DataFrame:
    """Source places without outputs 0 … n - 1, each exactly once.

    Columns: ``seen`` (visible outputs), ``distinct`` (different numbers i), ``n_min`` and ``n_max`` (of the n that the
    outputs name), ``i_max``.
    """
    return (
        outputs.groupBy("kl_source", "kl_topic", "kl_partition", "kl_offset", "kl_i")
        .agg(F.count("*").alias("copies"), F.min("kl_n").alias("n_min"), F.max("kl_n").alias("n_max"))
        .groupBy("kl_source", "kl_topic", "kl_partition", "kl_offset")
        .agg(
            F.sum("copies").alias("seen"),
            F.count("*").alias("distinct"),
            F.min("n_min").alias("n_min"),
            F.max("n_max").alias("n_max"),
            F.max("kl_i").alias("i_max"),
        )
        .where("seen <> distinct or n_min <> n_max or distinct <> n_max or i_max <> n_max - 1")
    )


def recount_outputs(located_outputs: DataFrame, dead_letters: list[str]) -> DataFrame:
    """Per commit: the numbers of visible outputs and dead letters, and their digest as two halves of 32 bits."""
    h = digest(F.col("kl_topic"), F.col("kl_partition"), F.col("kl_offset"), F.col("kl_i"), F.col("topic"))
    low, high = h.bitwiseAND(F.lit(0xFFFFFFFF)), F.shiftrightunsigned(h, 32)  # halves, because sums of longs overflow
    dead = F.col("topic").isin(dead_letters) if dead_letters else F.lit(False)
    sums = (
        located_outputs.where("tiles >= 1")
        .groupBy(*EVENT_KEY)
        .agg(
            F.count_if(~dead).alias("outputs"),
            F.count_if(dead).alias("dead_letters"),
            F.sum(low).alias("low"),
            F.sum(high).alias("high"),
        )
    )
    return sums.select(
        *EVENT_KEY,
        "outputs",
        "dead_letters",
        (F.col("high") + F.shiftright("low", 32)).bitwiseAND(F.lit(0xFFFFFFFF)).alias("digest_high"),
        F.col("low").bitwiseAND(F.lit(0xFFFFFFFF)).alias("digest_low"),
    )


def commits_against(commits: DataFrame, seen: DataFrame, *, apart: bool) -> DataFrame:
    """Commit events with counts or a digest that differ from the visible outputs.

    ``apart``: count outputs and dead letters apart; else together, because the topics of dead letters are unknown.
    """
    found = seen.select(*EVENT_KEY, *(F.col(name).alias(f"seen_{name}") for name in _SUMS))
    both = commits.join(found, EVENT_KEY, "left")
    both = both.fillna(0, [f"seen_{name}" for name in _SUMS])
    counts = (
        (F.col("outputs") == F.col("seen_outputs")) & (F.col("dead_letters") == F.col("seen_dead_letters"))
        if apart
        else F.col("outputs") + F.col("dead_letters") == F.col("seen_outputs") + F.col("seen_dead_letters")
    )
    digests = (F.col("digest_high") == F.col("seen_digest_high")) & (F.col("digest_low") == F.col("seen_digest_low"))
    return both.withColumn("counts_right", counts).withColumn("digest_right", digests).where(~counts | ~digests)


_SUMS = ("outputs", "dead_letters", "digest_high", "digest_low")


def torn_transactions(commits: DataFrame) -> DataFrame:
    """Transactions without commit events of parts 0 … parts - 1, each exactly once."""
    return (
        commits.groupBy("incarnation", "transaction")
        .agg(
            F.count("*").alias("seen"),
            F.size(F.collect_set("part")).alias("distinct"),
            F.min("part").alias("part_min"),
            F.max("part").alias("part_max"),
            F.min("parts").alias("parts_min"),
            F.max("parts").alias("parts_max"),
        )
        .where(
            "seen <> distinct or parts_min <> parts_max or distinct <> parts_max "
            "or part_min <> 0 or part_max <> parts_max - 1"
        )
    )


def out_of_key_order(located_outputs: DataFrame, *, exact: bool = True) -> DataFrame:
    """Outputs behind an output of a later record of the same source key, in the same output partition.

    Not ``exact``: a hash tells keys apart. The hash is faster, and finds at least one row if an exact search would find
    any: where several keys have one hash, a step back of one key is a step back of all.
    """
    names = ("topic", "partition", "kl_source", "source_key")
    group = names if exact else (F.xxhash64(*names),)
    before = Window.partitionBy(*group).orderBy("offset")
    return (
        located_outputs.where("source_key is not null")
        .withColumn("offset_before", F.lag("kl_offset").over(before))
        .where("offset_before > kl_offset")
    )


def rows_differing(expected: DataFrame, visible: DataFrame, columns: list[str]) -> DataFrame:
    """Rows with different counts in both frames: ``surplus`` > 0 is visible too often, < 0 is missing."""
    weighed = visible.select(*columns, F.lit(1).alias("w")).unionAll(expected.select(*columns, F.lit(-1).alias("w")))
    return weighed.groupBy(*columns).agg(F.sum("w").alias("surplus")).where("surplus <> 0")
