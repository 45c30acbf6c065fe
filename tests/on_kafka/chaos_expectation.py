"""What the application under chaos should have published and kept, computed from the source by Spark alone.

No code of the application is used, only what it promises: ``count``, ``sum``, ``last`` and ``weighted`` of each key so
far, a record at a time in the order of its partition; a dead letter for a poisoned value and for a record without key.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

POISON = 500


def expected_outputs(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """For ``--expected`` of the audit."""
    place = (
        F.col("topic").alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )
    late = _folded(done).select(
        *place, F.regexp_replace("topic", "^source", "late").alias("destination"), "key", _seen().alias("value")
    )
    dead = done.where(~_is_sound()).select(
        *place, F.regexp_replace("topic", "^source", "dead").alias("destination"), "key", "value"
    )
    return late.unionByName(dead)


def expected_state(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """For ``--state`` of the audit."""
    newest = Window.partitionBy("partition", "key").orderBy(F.desc("offset"))
    last = _folded(done).withColumn("age", F.row_number().over(newest)).where("age = 1")
    return last.select(F.lit("seen").alias("store"), "partition", "key", _seen().alias("value"))


def _number() -> Column:
    return F.col("value").cast("string").cast("bigint")


def _is_sound() -> Column:
    return F.col("key").isNotNull() & (_number() % POISON != 7)


def _folded(done: DataFrame) -> DataFrame:
    """Each sound record with the fold of its key up to it."""
    so_far = Window.partitionBy("topic", "partition", "key").orderBy("offset")
    sound = done.where(_is_sound()).select("topic", "partition", "offset", "key", _number().alias("last"))
    counted = sound.withColumn("count", F.row_number().over(so_far).cast("bigint"))
    return counted.withColumn("sum", F.sum("last").over(so_far)).withColumn(
        "weighted", F.sum(F.col("count") * F.col("last")).over(so_far)
    )


def _seen() -> Column:
    return F.to_json(F.struct("count", "sum", "last", "weighted")).cast("binary")
