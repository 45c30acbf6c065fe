"""The expected outputs and the expected state of the application, computed from the sources by Spark alone.

The computation is a second opinion: it uses no code of the application. The audit compares outputs (destination, place
of the source record, key and value) and state (store, partition, key and value) byte by byte.
"""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

SCHEMA = "carrier string, flight int, dest string, dep_time int, arr_delay int"


def expected_outputs(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """The outputs of the records that are done; for ``--expected`` of the audit."""
    place = (
        F.col("topic").alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    )
    flown = _flights(done, *place, "key", "value").where("dep_time is not null")
    is_lost, is_late = F.col("arr_delay").isNull(), F.col("arr_delay") > 15
    late = F.to_json(F.struct("carrier", "flight", "dest", F.col("arr_delay").alias("minutes")))
    arrival = F.to_json(F.struct(F.col("arr_delay").alias("minutes")))
    outputs = F.array(
        _output(F.when(is_lost, "flights.dead"), F.col("key"), F.col("value")),
        _output(F.when(~is_lost, "flights.by-destination"), F.col("dest").cast("binary"), arrival.cast("binary")),
        _output(F.when(is_late, "late"), F.col("key"), late.cast("binary")),
    )
    places = ("source_topic", "source_partition", "source_offset")
    return flown.select(*places, F.inline(outputs)).where("destination is not null")


def expected_state(_spark: SparkSession, done: DataFrame) -> DataFrame:
    """The state that the records that are done leave; for ``--state`` of the audit.

    Chains of late arrivals depend on the order of the arrivals. The arrivals of one airport have the order in which the
    application wrote them to their topic. Therefore the chains of airports are computed from this topic. All figures
    that do not depend on the order are computed from the flights.
    """
    flown = _flights(done, "partition", "offset", "key").where("arr_delay is not null")
    flown = flown.select("partition", "offset", "key", "dest", "arr_delay").persist()  # parsed once for both stores
    arrived = F.inline(F.array(F.from_json(F.col("value").cast("string"), "minutes int")))
    arrivals = done.where("topic = 'flights.by-destination'").select("partition", "offset", "key", arrived)
    by_aircraft = _totals(flown.withColumnRenamed("arr_delay", "minutes"))
    by_destination = (
        flown.groupBy(F.col("dest").cast("binary").alias("key"))
        .agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("minutes"))
        .join(_totals(arrivals).drop("flights", "minutes"), "key", "full")
    )
    return _stored(by_aircraft, "by_aircraft").unionByName(_stored(by_destination, "by_destination"))


def _flights(done: DataFrame, *columns: Column | str) -> DataFrame:
    # A generator, because Spark copies a plain column into every filter and field that reads it.
    flight = F.inline(F.array(F.from_json(F.col("value").cast("string"), SCHEMA)))
    return done.where("topic = 'flights'").select(*columns, flight)


def _output(destination: Column, key: Column, value: Column) -> Column:
    return F.struct(destination.alias("destination"), key.alias("key"), value.alias("value"))


def _totals(arrivals: DataFrame) -> DataFrame:
    """The totals by partition and key. Each arrival in time begins a chain of late arrivals, maybe an empty chain."""
    before = Window.partitionBy("partition", "key").orderBy("offset")
    is_late = F.col("minutes") > 15
    chains = (
        arrivals.select("partition", "key", "minutes", F.count_if(~is_late).over(before).alias("chain"))
        .groupBy("partition", "key", "chain")
        .agg(F.count("*").alias("flights"), F.sum("minutes").alias("minutes"), F.count_if(is_late).alias("length"))
    )
    return chains.groupBy("partition", "key").agg(
        F.sum("flights").alias("flights"),
        F.sum("minutes").alias("minutes"),
        F.max_by("length", "chain").alias("late_in_a_row"),
        F.max("length").alias("longest"),
    )


def _stored(totals: DataFrame, store: str) -> DataFrame:
    value = F.to_json(F.struct("flights", "minutes", "late_in_a_row", "longest"))
    return totals.select(F.lit(store).alias("store"), "partition", "key", value.alias("value"))
