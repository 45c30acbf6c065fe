"""Spark's native hash against the package's own, on the values that decide where records and outputs belong."""

import random
from typing import TYPE_CHECKING

import pytest

from keylanes.keyrange.hashing import point_of
from keylanes.offsets.provenance import DIGEST_MASK, output_digest, place_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_computes_the_same_points_and_digests(spark: "SparkSession") -> None:
    """Keys of every length, null keys at every kind of place, and the digests of outputs."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from keylanes.spark.checks import digest, point

    random_ = random.Random(11)
    keys = [b"", b"\x00", *(random_.randbytes(n % 70) for n in range(300)), *([None] * 60)]
    partitions = [random_.choice((0, 1, 7, 2**31 - 1)) for _ in keys]
    offsets = [random_.choice((0, 1, random_.getrandbits(31), random_.getrandbits(62))) for _ in keys]
    names = [random_.choice(("late", "flights.dead", "späte-flüge", "")) for _ in keys]
    frame = spark.createDataFrame(
        pa.table(
            {
                "key": pa.array(keys, pa.binary()),
                "partition": pa.array(partitions, pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "i": pa.array(range(len(keys)), pa.int32()),
                "name": pa.array(names, pa.string()),
            }
        )
    )
    key, partition, offset = F.col("key"), F.col("partition"), F.col("offset")
    rows = frame.select(
        point(key, partition, offset), digest(F.lit("flights"), partition, offset, F.col("i"), F.col("name"))
    ).collect()
    assert [row[0] for row in rows] == [point_of(*place) for place in zip(keys, partitions, offsets, strict=True)]
    assert [row[1] & DIGEST_MASK for row in rows] == [
        output_digest(place_seed("flights", p), o, i, name)
        for i, (p, o, name) in enumerate(zip(partitions, offsets, names, strict=True))
    ]
