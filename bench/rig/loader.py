"""Writes source records: all at once, or in an open loop at one rate. Called as ``-m rig.loader ORDER.json``.

The records are the same in every run: keys are drawn with a seed (uniform, Zipf(1.0) by rank), all distinct, or each in
turn (even), and the filler does not compress, as keys and values of real systems mostly do not.
"""

import asyncio
import json
import random
import sys
import time
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Any

from rig.records import FILLER, SEED, VALUE_BYTES, key_bytes, uniform_keys

BATCH_BYTES = 64 * 1024
TICK_S = 0.001
START_S = 0.5
"""From the loader's start to the first scheduled time of an open loop."""

_head = Struct("<IIQ")


def keys_of(distribution: str, records: int, keys: int) -> "array[int]":
    """Which key each record has, the same in every process and run."""
    if distribution == "distinct":
        return array("I", range(records))
    if distribution == "even":
        return array("I", (i % keys for i in range(records)))
    if distribution == "zipf":
        weights = list(accumulate(1 / (rank + 1) for rank in range(keys)))
        return array("I", random.Random(SEED).choices(range(keys), cum_weights=weights, k=records))
    return uniform_keys(records, keys)


def keys_of_order(order: dict[str, Any]) -> "array[int]":
    """The keys of an order's records. The last key is for the record at ``lone`` alone, where there is one."""
    lone = order.get("lone", -1)
    keys = keys_of(order["distribution"], order["records"], order["keys"] - (lone >= 0))
    if lone >= 0:
        keys[lone] = order["keys"] - 1
    return keys


def counts_of(keys: "array[int]", distinct: int) -> "array[int]":
    """How many records each key has."""
    counts = array("I", bytes(4 * distinct))
    for key in keys:
        counts[key] += 1
    return counts


def partition_of(key: bytes, partitions: int) -> int:
    """Where a key's records go."""
    return zlib.crc32(key) % partitions


def value_of(key: int, number: int, third: int, place: int, size: int = VALUE_BYTES) -> bytes:
    """A value: its head, and filler that differs from record to record; below 16 bytes a part of the head."""
    start = place % (len(FILLER) - VALUE_BYTES)
    rest = max(size - _head.size, 0)
    filler = FILLER[start : start + rest] if rest <= VALUE_BYTES else (FILLER * (rest // len(FILLER) + 1))[:rest]
    return (_head.pack(key, number, third) + filler)[:size]


def records_of(order: dict[str, Any]) -> Iterator[tuple[int, bytes, bytes]]:
    """(partition, key, value) of all records; the third field of a value is the running index."""
    keys, partitions = keys_of_order(order), order["partitions"]
    numbers = [0] * order["keys"]
    size = order.get("value_bytes", VALUE_BYTES)
    for i, key in enumerate(keys):
        name = key_bytes(key)
        yield partition_of(name, partitions), name, value_of(key, numbers[key], i, i, size)
        numbers[key] += 1


async def fill(producer: Any, order: dict[str, Any]) -> None:
    """Everything at once, in batches of ``BATCH_BYTES``."""
    builders = [producer.create_batch() for _ in range(order["partitions"])]
    sent = []

    async def send(partition: int) -> None:
        builder, builders[partition] = builders[partition], producer.create_batch()
        if builder.record_count():
            sent.append(await producer.send_batch(builder, order["topic"], partition=partition))

    now_ms = int(time.time() * 1_000)
    for partition, key, value in records_of(order):
        if builders[partition].append(key=key, value=value, timestamp=now_ms) is None:
            await send(partition)
            builders[partition].append(key=key, value=value, timestamp=now_ms)
    for partition in range(order["partitions"]):
        await send(partition)
    await asyncio.gather(*sent)


async def open_loop(producer: Any, order: dict[str, Any]) -> None:
    """At ``per_second`` whatever happens: a value carries when it was to be sent, in ns since the epoch.

    What comes due before the last batch is acknowledged goes as one: the producer sends a partition's batches one after
    the other, and after a stall of the broker a queue of small ones would take a round trip each. With ``backlog_s``
    the timetable began so many seconds ago: it is told when what was due is sent.
    """
    keys, numbers, topic = keys_of("uniform", order["records"], order["keys"]), [0] * order["keys"], order["topic"]
    gap_ns, tick_s = 1e9 / order["per_second"], order.get("tick_s", TICK_S)
    backlog_s = order.get("backlog_s", 0.0)
    began_ns, i = time.time_ns() + int((START_S - backlog_s) * 1e9), 0
    while i < len(keys):
        sent = []
        due = min(int((time.time_ns() - began_ns) / gap_ns) + 1, len(keys))
        is_up_to_date = due - i <= order["per_second"]
        while i < due:
            builder, now_ms = producer.create_batch(), int(time.time() * 1_000)
            while i < due:
                key = keys[i]
                value = value_of(key, numbers[key], began_ns + int(i * gap_ns), i)
                if builder.append(key=key_bytes(key), value=value, timestamp=now_ms) is None:
                    break
                numbers[key] += 1
                i += 1
            sent.append(await producer.send_batch(builder, topic, partition=0))
        await asyncio.gather(asyncio.sleep(tick_s), *sent)
        if backlog_s and is_up_to_date:
            backlog_s = 0.0
            print(json.dumps({"event": "backlog"}), flush=True)


async def main(order: dict[str, Any]) -> None:
    """Fill, or send at a rate."""
    from aiokafka import AIOKafkaProducer  # the harness takes the rest of this file where it needs no client

    size = max(BATCH_BYTES, 2 * order.get("value_bytes", 0))
    producer = AIOKafkaProducer(bootstrap_servers=order["bootstrap"], max_batch_size=size, max_request_size=4 * size)
    await producer.start()
    try:
        await (open_loop if order.get("per_second") else fill)(producer, order)
    finally:
        await producer.stop()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
