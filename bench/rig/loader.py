"""Writes source records: all at once, or in an open loop at one rate. Called as ``-m rig.loader ORDER.json``."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from rig.records import key_bytes, keys_of, records_of, value_of

BATCH_BYTES = 64 * 1024
TICK_S = 0.001
START_S = 0.5
"""From the loader's start to the first scheduled time of an open loop."""


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
    producer = AIOKafkaProducer(
        bootstrap_servers=order["bootstrap"], max_batch_size=BATCH_BYTES, max_request_size=4 * BATCH_BYTES
    )
    await producer.start()
    try:
        await (open_loop if order.get("per_second") else fill)(producer, order)
    finally:
        await producer.stop()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
