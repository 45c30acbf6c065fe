"""The state of an application, read by the witness: the changelog of a source topic, newest record of each key.

The fold shares only the name of the changelog with the runtime. The embedded broker itself keeps a changelog by key:
the fold reads the broker's table, also beside a running application. On Kafka the newest offset of each key wins, and a
tombstone removes the key. Spark's own functions take apart the bytes of keys and values (their meaning: state/keys.py
and state/changelog.py). Therefore a layout that the runtime writes and reads wrong alike does not pass.

Frames:

- ``newest``: partition, key, value: one row for each present key, keys of beacons included.
- ``entries``: partition, point, store, key, map_key, value, deadline_ms (null: no deadline), and ``is_whole``: whether
  the bytes are a state key and a stored value. Other columns except partition are null where ``is_whole`` is false.
"""

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ..state.changelog import changelog_topic
from .access import Access
from .brokers import AuditError, Place, Span, WitnessBroker
from .checks import point
from .source import register

HEAD_BYTES = 10
"""Point, store and length of the key in front of a state key."""
BEACON_KEY_BYTES = 9
"""A byte 0 and the incarnation."""
STATE_COLUMNS = ("partition", "point", "store", "key", "map_key", "value", "deadline_ms")


def state_frame(
    spark: SparkSession, broker: str, app: str, source: str, *, security: Mapping[str, str] | None = None
) -> DataFrame:
    """The present state of an application for the keys of a source topic.

    Columns: partition int, point bigint, store int, key, map_key, value binary, deadline_ms bigint. ``map_key`` is
    empty in a value store. Raises AuditError. Taking the rows raises an error if some rows are no state.
    """
    register(spark)
    access = Access(broker, security or {})
    opened = access.open()
    try:
        topics = opened.topics()
        if source not in topics:
            raise AuditError(f"source: no topic {source!r} at this broker")
        spans = pin_changelog(opened, app, source, topics[source].partitions)
    finally:
        opened.close()
    read = newest(spark, access, spans)
    found = entries(read)
    whole = F.assert_true("is_whole", F.concat(F.lit(f"no state in the changelog of {source}: key "), F.hex("raw")))
    return found.where(F.coalesce(whole.cast("boolean"), F.lit(True))).select(*STATE_COLUMNS)


def pin_changelog(broker: WitnessBroker, app: str, source: str, partitions: int) -> dict[Place, Span | None]:
    """The decided spans of the partitions of a changelog; None for a partition that the broker keeps by key.

    The changelog has as many partitions as its source had when the state was begun. Raises AuditError when the
    changelog is missing, or has more partitions than the source has now (``partitions``).
    """
    name = changelog_topic(app, source)
    places = [(name, partition) for partition in range(partitions)]
    if by_key := [place for place in places if broker.table(place) is not None]:
        return dict.fromkeys(by_key)
    topics = broker.topics()
    if name not in topics:
        raise AuditError(f"the changelog {name!r} is missing at this broker")
    if topics[name].partitions > partitions:
        raise AuditError(f"{name} has {topics[name].partitions} partitions; {source} has {partitions}")
    spans = broker.spans(places[: topics[name].partitions])
    broker.wait_decided(spans)
    return dict(spans)


def newest(spark: SparkSession, access: Access, places: Mapping[Place, Span | None]) -> DataFrame:
    """The frame ``newest`` of one changelog."""
    is_kept_by_key = None in places.values()
    spans: Sequence[Sequence[object]] = [[*place, *(span or (0, 0))] for place, span in places.items()]
    read = (
        spark.read.format("keylanes_records")
        .options(**access.options())
        .option("spans", json.dumps(spans))
        .option("columns", "partition,key,value" if is_kept_by_key else "partition,offset,key,value")
        .option("by_key", str(is_kept_by_key).lower())
        .load()
    )
    if is_kept_by_key:
        return read
    last = read.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("value"))
    return last.where("value is not null")


def entries(read: DataFrame) -> DataFrame:
    """The frame ``entries``, and the key's bytes as ``raw``."""
    key, value = F.col("key"), F.col("value")
    length = _number(key, 7, 4)
    has_head = F.length(key) >= HEAD_BYTES
    has_key = has_head & (F.length(key) >= HEAD_BYTES + length)
    kind = F.hex(F.substring(value, 1, 1))
    has_deadline = (kind == "01") & (F.length(value) >= 9)
    is_whole = F.coalesce(has_key & ((kind == "00") | has_deadline), F.lit(False))
    parts = F.struct(
        F.when(is_whole, _number(key, 1, 4)).alias("point"),
        F.when(is_whole, _number(key, 5, 2)).cast("int").alias("store"),
        F.when(is_whole, _part(key, F.lit(HEAD_BYTES + 1), length)).alias("key"),
        F.when(is_whole, _part(key, length + HEAD_BYTES + 1, F.length(key) - HEAD_BYTES - length)).alias("map_key"),
        F.when(is_whole, _part(value, F.when(has_deadline, 10).otherwise(2), F.length(value))).alias("value"),
        F.when(is_whole & has_deadline, _number(value, 2, 8)).alias("deadline_ms"),
        is_whole.alias("is_whole"),
        key.alias("raw"),
    )
    return read.where(~_is_beacon(key)).select("partition", F.inline(F.array(parts)))


def point_in(key: str) -> Column:
    """The point of a state key."""
    return _number(F.col(key), 1, 4)


def overview(read: DataFrame) -> DataFrame:
    """partition, keys, beacons: the number of keys without beacons; incarnation and transaction of each beacon.

    The transaction of a damaged beacon is null.
    """
    key, value = F.col("key"), F.col("value")
    parts = F.struct(
        _number(key, 2, 8).alias("incarnation"),
        F.when(F.length(value) == 8, _number(value, 1, 8)).alias("transaction"),
    )
    return read.groupBy("partition").agg(
        F.count_if(~_is_beacon(key)).alias("keys"),
        F.collect_list(F.when(_is_beacon(key), parts)).alias("beacons"),
    )


def entries_misplaced(found: DataFrame, stores: Sequence[int]) -> DataFrame:
    """Entries that are no state of ``stores`` at the point of the entry's key."""
    own_point = point(F.col("key"), F.lit(0), F.lit(0))
    right = F.col("is_whole") & (F.col("point") == own_point) & F.col("store").isin(list(stores))
    return found.where(~F.coalesce(right, F.lit(False)))


def keys_in_several(found: DataFrame) -> DataFrame:
    """Record keys with state in several partitions: key, partitions."""
    return (
        found.where("is_whole")
        .groupBy("key")
        .agg(F.sort_array(F.collect_set("partition")).alias("partitions"))
        .where(F.size("partitions") > 1)
    )


def unlike_keys(expected: DataFrame, seen: DataFrame, columns: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Keys without exactly one row of the same values in each frame: both counts, ``expected_*`` and ``seen_*``.

    A full outer join that also meets duplicate keys.
    """
    nothing = [F.lit(None).cast(expected.schema[name].dataType).alias(f"seen_{name}") for name in values]
    wanted = expected.select(
        *columns, F.lit(1).alias("e"), F.lit(0).alias("s"), *_named_columns("expected", values), *nothing
    )
    nothing = [F.lit(None).cast(expected.schema[name].dataType).alias(f"expected_{name}") for name in values]
    there = seen.select(*columns, F.lit(0).alias("e"), F.lit(1).alias("s"), *nothing, *_named_columns("seen", values))
    both = [f"{side}_{name}" for side in ("expected", "seen") for name in values]
    judged = (
        wanted.unionByName(there)
        .groupBy(*columns)
        .agg(F.sum("e").alias("expected"), F.sum("s").alias("seen"), *(F.max(name).alias(name) for name in both))
    )
    same = (F.col("expected") == 1) & (F.col("seen") == 1)
    for name in values:
        same = same & F.col(f"expected_{name}").eqNullSafe(F.col(f"seen_{name}"))
    return judged.where(~same)


def _is_beacon(key: Column) -> Column:
    return (F.length(key) == BEACON_KEY_BYTES) & (F.hex(F.substring(key, 1, 1)) == "00")


def _named_columns(side: str, values: Sequence[str]) -> list[Column]:
    return [F.col(name).alias(f"{side}_{name}") for name in values]


def _number(data: Column, start: int, length: int) -> Column:
    """The big-endian number in ``length`` bytes from byte ``start`` on, counted from 1; 0 where no bytes are left."""
    return F.coalesce(F.conv(F.hex(F.substring(data, start, length)), 16, 10).cast("bigint"), F.lit(0))


def _part(data: Column, start: Column, length: Column) -> Column:
    return F.substring(data, start.cast("int"), length.cast("int"))
