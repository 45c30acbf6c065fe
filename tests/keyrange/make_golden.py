"""Writes golden_xxhash64.json: what Spark's own xxhash64 says about keys, places and chained columns.

Run by hand, with pyspark and Java: ``python tests/keyrange/make_golden.py``. The tests only read the file.
"""

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as t

GOLDEN = Path(__file__).parent / "golden_xxhash64.json"

KEYS = [
    b"",
    b"\x00",
    b"\xff",
    b"a",
    b"N14228",
    b"abcd",
    b"abcdefg",
    b"abcdefgh",
    b"0123456789abcdef0123456789abcde",
    b"0123456789abcdef0123456789abcdef",
    b"0123456789abcdef0123456789abcdef!",
    "Zürich ✈ 東京".encode(),
    bytes(range(256)),
    b"\x00" * 100,
]
PLACES = [
    (0, 0),
    (0, 1),
    (1, 0),
    (7, 336_775),
    (2**31 - 1, 2**63 - 1),
    (12, 2**32),
    (-1, -1),
    (-(2**31), -(2**63)),
]
OUTPUTS = [
    ("flights", 0, 0, 0, "late"),
    ("flights", 3, 336_775, 1, "flights.dead"),
    ("", 0, 0, 0, ""),
    ("Zürich ✈", 2**31 - 1, 2**63 - 1, 2**31 - 1, "東京"),
]


def golden(spark: SparkSession) -> dict[str, list[dict[str, object]]]:
    """All vectors. Points as Spark computes them; digests as unsigned 64-bit numbers."""
    key_type = t.StructType([t.StructField("key", t.BinaryType())])
    place_type = t.StructType([t.StructField("partition", t.IntegerType()), t.StructField("offset", t.LongType())])
    output_type = t.StructType(
        [
            t.StructField("topic", t.StringType()),
            t.StructField("partition", t.IntegerType()),
            t.StructField("offset", t.LongType()),
            t.StructField("i", t.IntegerType()),
            t.StructField("destination", t.StringType()),
        ]
    )
    point = "shiftrightunsigned(xxhash64({}), 32)"
    keys = spark.createDataFrame([(bytearray(key),) for key in KEYS], key_type)
    places = spark.createDataFrame(PLACES, place_type)
    outputs = spark.createDataFrame(OUTPUTS, output_type)
    every = "topic, partition, offset, i, destination"
    return {
        "keys": [
            {"key": row.key.hex(), "point": row.point}
            for row in keys.selectExpr("key", f"{point.format('key')} AS point").collect()
        ],
        "ints": [
            {"value": row.partition, "hash": row.hash % 2**64}
            for row in places.selectExpr("partition", "xxhash64(partition) AS hash").collect()
        ],
        "longs": [
            {"value": row.offset, "hash": row.hash % 2**64}
            for row in places.selectExpr("offset", "xxhash64(offset) AS hash").collect()
        ],
        "places": [
            {"partition": row.partition, "offset": row.offset, "point": row.point}
            for row in places.selectExpr("*", f"{point.format('partition, offset')} AS point").collect()
        ],
        "outputs": [
            {**{name: row[name] for name in every.split(", ")}, "digest": row.digest % 2**64}
            for row in outputs.selectExpr("*", f"xxhash64({every}) AS digest").collect()
        ],
    }


def as_text(version: str, vectors: dict[str, list[dict[str, object]]]) -> str:
    """JSON with one vector a line."""
    groups = [f'"spark": {json.dumps(version)}']
    for name, rows in vectors.items():
        groups.append(f'"{name}": [\n  ' + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]")
    return "{\n" + ",\n".join(groups) + "\n}\n"


def main() -> None:
    """Ask Spark and write the file."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        GOLDEN.write_text(as_text(spark.version, golden(spark)), encoding="utf-8")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
