"""What the application should have published, computed from the source by Spark alone: a second opinion in SQL.

No code of the application is used. The audit compares destination, place of the source record, key and value, byte by
byte.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "carrier string, flight int, dest string, dep_time int, arr_delay int"


def expected_outputs(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """From the flights that are done to their outputs; for ``--expected`` of the audit."""
    place = (
        F.col("topic").alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.col("key"),
    )
    # A generator, because Spark copies a plain column into every filter and field that reads it.
    flight = F.inline(F.array(F.from_json(F.col("value").cast("string"), SCHEMA)))
    flown = done.select(*place, "value", flight).where("dep_time is not null")
    message = F.to_json(F.struct("carrier", "flight", "dest", F.col("arr_delay").alias("minutes")))
    is_lost = F.col("arr_delay").isNull()
    return flown.where("arr_delay is null or arr_delay > 15").select(
        F.when(is_lost, "flights.dead").otherwise("late").alias("destination"),
        F.when(is_lost, F.col("value")).otherwise(message.cast("binary")).alias("value"),
        "source_topic",
        "source_partition",
        "source_offset",
        "key",
    )
