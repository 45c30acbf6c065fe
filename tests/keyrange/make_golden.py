"""Writes golden_xxhash64.json anew: what Spark's own xxhash64 says about the keys, places and outputs that are in it.

Run by hand, with pyspark and Java: ``python tests/keyrange/make_golden.py``. The tests only read the file. For another
vector, add one with any hash, and run this.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden_xxhash64.json"
POINT = "shiftrightunsigned(xxhash64({}), 32)"
ASKED = {
    "keys": ("key string", POINT.format("unhex(key)")),
    "ints": ("value int", "xxhash64(value)"),
    "longs": ("value long", "xxhash64(value)"),
    "places": ("partition int, offset long", POINT.format("partition, offset")),
    "outputs": (
        "topic string, partition int, offset long, i int, destination string",
        "xxhash64(topic, partition, offset, i, destination)",
    ),
}
"""Of each kind of vector the columns, and what Spark is asked."""
Vectors: TypeAlias = list[dict[str, Any]]


def answered(spark: SparkSession, vectors: Vectors, columns: str, question: str) -> Vectors:
    """The vectors with Spark's answer as their last field, as an unsigned number."""
    *names, last = vectors[0]
    given = [tuple(vector[name] for name in names) for vector in vectors]
    answers = spark.createDataFrame(given, columns).selectExpr(f"{question} AS answer").collect()
    return [{**vector, last: row.answer % 2**64} for vector, row in zip(vectors, answers, strict=True)]


def as_text(version: str, golden: dict[str, Vectors]) -> str:
    """JSON with one vector a line."""
    groups = [f'"spark": {json.dumps(version)}']
    for name, rows in golden.items():
        groups.append(f'"{name}": [\n  ' + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]")
    return "{\n" + ",\n".join(groups) + "\n}\n"


def main() -> None:
    """Ask Spark and write the file."""
    held = json.loads(GOLDEN.read_text(encoding="utf-8"))
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        golden = {name: answered(spark, held[name], *asked) for name, asked in ASKED.items()}
        GOLDEN.write_text(as_text(spark.version, golden), encoding="utf-8")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
