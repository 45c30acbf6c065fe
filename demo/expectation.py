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
    flight = F.from_json(F.col("value").cast("string"), SCHEMA)
    flown = done.select("*", flight.alias("f")).where("f.dep_time is not null")
    message = F.to_json(F.struct("f.carrier", "f.flight", "f.dest", F.col("f.arr_delay").alias("minutes")))
    late = flown.where("f.arr_delay > 15").select(
        F.lit("late").alias("destination"), message.cast("binary").alias("value"), *place
    )
    lost = flown.where("f.arr_delay is null").select(F.lit("flights.dead").alias("destination"), "value", *place)
    return late.unionByName(lost)
