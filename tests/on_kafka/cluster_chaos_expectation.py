"""What the application under cluster chaos should have published and kept, computed by Spark alone from its sources.

No code of the application is used, only what it promises (see cluster_check.py, which says it a third time, in plain
Python).
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

POISON, GROUPS = 500, 97


def expected_outputs(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """For ``--expected`` of the audit."""
    source, mid = done.where("topic = 'source'"), done.where("topic = 'mid'")
    middle = _of_keys(source).select(
        *_place(),
        F.lit("mid").alias("destination"),
        F.concat(F.lit("g"), (F.col("number") % GROUPS).cast("string")).cast("binary").alias("key"),
        _json(F.col("key").cast("string").alias("key"), F.col("number").alias("value"), "count", "sum"),
    )
    dead = source.where(~_is_sound()).select(*_place(), F.lit("dead").alias("destination"), "key", "value")
    last = _of_groups(mid).select(
        *_place(),
        F.lit("fin").alias("destination"),
        "key",
        _json(F.col("number").alias("value"), "count", "sum", "weighted"),
    )
    return middle.unionByName(dead).unionByName(last)


def expected_state(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """For ``--state`` of the audit."""
    keys = _newest(_of_keys(done.where("topic = 'source'")))
    groups = _newest(_of_groups(done.where("topic = 'mid'")))
    return keys.select(F.lit("of_key").alias("store"), "partition", "key", _json("count", "sum")).unionByName(
        groups.select(F.lit("of_group").alias("store"), "partition", "key", _json("count", "sum", "weighted"))
    )


def _place() -> tuple[Column, ...]:
    return (
        F.col("topic").alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )


def _json(*columns: Column | str) -> Column:
    return F.to_json(F.struct(*columns)).cast("binary").alias("value")


def _number() -> Column:
    return F.col("value").cast("string").cast("bigint")


def _is_sound() -> Column:
    return F.col("key").isNotNull() & (_number() % POISON != 7)


def _of_keys(source: DataFrame) -> DataFrame:
    """Each sound record of the source with the fold of its key up to it."""
    return _folded(source.where(_is_sound()).withColumn("number", _number()))


def _of_groups(mid: DataFrame) -> DataFrame:
    """Each record of mid with the fold of its group up to it."""
    number = F.get_json_object(F.col("value").cast("string"), "$.value").cast("bigint")
    return _folded(mid.withColumn("number", number))


def _folded(records: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("topic", "partition", "key").orderBy("offset")
    counted = records.withColumn("count", F.row_number().over(so_far).cast("bigint"))
    return counted.withColumn("sum", F.sum("number").over(so_far)).withColumn(
        "weighted", F.sum(F.col("count") * F.col("number")).over(so_far)
    )


def _newest(folded: DataFrame) -> DataFrame:
    newest = Window.partitionBy("partition", "key").orderBy(F.desc("offset"))
    return folded.withColumn("age", F.row_number().over(newest)).where("age = 1")
