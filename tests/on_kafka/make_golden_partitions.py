"""Writes golden_partitions.json: to which partitions the real clients send keys.

Run by hand, with the full set of dependencies and Java: ``python tests/on_kafka/make_golden_partitions.py``.
Kafka's Java clients are asked for the partition that their producer computes for a key (its jar is one of the
development broker's); confluent-kafka has no such question, so it writes to a development broker, by its default
partitioner, and its delivery reports say where. The tests only read the file.
"""

import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from keylanes.devkafka.jars import KAFKA_VERSION, class_path
from keylanes.devkafka.java import java_home
from keylanes.devkafka.server import KafkaServer

GOLDEN = Path(__file__).parent / "golden_partitions.json"

PARTITIONS = (1, 2, 3, 7, 12, 64)
KEYS = [
    b"\x00",
    b"\xff",
    b"a",
    b"ab",
    b"abc",
    b"abcd",
    b"c19",
    b"N14228",
    b"0123456789abcdef0123456789abcde",
    b"\x80\x81\x82\x83\xfe",
    b"\x00" * 100,
    "Zürich ✈ 東京".encode(),
    bytes(range(256)),
]


def javas(keys: list[bytes]) -> list[list[int]]:
    """Of each key the partitions that Kafka's Java producer computes."""
    (jar,) = (path for path in class_path(java_home()).split(os.pathsep) if "kafka-clients-" in path)
    spark = SparkSession.builder.master("local[1]").config("spark.driver.extraClassPath", jar).getOrCreate()
    try:
        partitioner = spark._jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner
        return [[partitioner.partitionForKey(bytearray(key), count) for count in PARTITIONS] for key in keys]
    finally:
        spark.stop()


def confluents(keys: list[bytes], bootstrap: str) -> list[list[int]]:
    """Of each key the partitions that confluent-kafka sends it to."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(f"keys-{count}", count, 1) for count in PARTITIONS]).values():
        made.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    found: dict[tuple[bytes, int], int] = {}

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        found[message.key(), int(message.topic().removeprefix("keys-"))] = message.partition()

    for count in PARTITIONS:
        for key in keys:
            producer.produce(f"keys-{count}", b"", key, on_delivery=delivered)
    producer.flush(30)
    return [[found[key, count] for count in PARTITIONS] for key in keys]


def main() -> None:
    """Ask both and write the file, a key a line."""
    with tempfile.TemporaryDirectory() as folder, KafkaServer(folder) as server:
        crc32 = confluents(KEYS, server.bootstrap)
    rows = [
        json.dumps({"key": key.hex(), "murmur2": java, "crc32": confluent})
        for key, java, confluent in zip(KEYS, javas(KEYS), crc32, strict=True)
    ]
    head = {
        "kafka-clients": KAFKA_VERSION,
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "partitions": PARTITIONS,
    }
    heads = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
    GOLDEN.write_text("{\n" + heads + ',\n"keys": [\n  ' + ",\n  ".join(rows) + "\n]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
