"""What a committed reader sees of an output topic of one partition. Called as ``_reader.py ORDER.json``.

With ``live`` it reads ``records`` records as they come and writes how long after their scheduled time it saw each (u64
nanoseconds). Else it reads all there is and says what is missing, doubled, out of order in its key, or wrong inside;
with ``is_paced``, where a value's third field is a time and not its index, by what the file ``expected`` says of keys.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from _loader import value_of
from aiokafka import AIOKafkaConsumer, TopicPartition

HEAD_BYTES = 16
_head = Struct("<IIQ").unpack_from


def source_of(value: bytes) -> bytes:
    """The value that W4 made this one of."""
    return value[:HEAD_BYTES] + value[: HEAD_BYTES - 1 : -1]


class Found:
    """Counts what comes."""

    def __init__(self, keys: int, records: int) -> None:
        self.next = [0] * keys
        self.times = array("I", bytes(4 * records))
        self.seen = self.out_of_order = self.damaged = 0

    def take(self, value: bytes) -> None:
        """One record of the output."""
        key, number, index = _head(value)
        self.seen += 1
        # Gaps are for ``missing`` to say: a stuck record leaves one.
        if number < self.next[key]:
            self.out_of_order += 1
        self.next[key] = number + 1
        self.times[index] += 1
        if source_of(value) != value_of(key, number, index, index, len(value)):
            self.damaged += 1

    def event(self) -> dict[str, Any]:
        """What the harness is told."""
        return {
            "event": "result",
            "seen": self.seen,
            "missing": self.times.count(0),
            "doubled": sum(times - 1 for times in self.times if times > 1),
            "out_of_order": self.out_of_order,
            "damaged": self.damaged,
        }


class Turns:
    """Counts what comes by the keys alone: each has its numbers from 0 on, one after the other."""

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected, self.next = expected, [0] * len(expected)
        self.seen = self.doubled = self.out_of_order = 0

    def take(self, value: bytes) -> None:
        """One record of the output."""
        key, number, _ = _head(value)
        self.seen += 1
        if number == self.next[key]:
            self.next[key] += 1
        elif number < self.next[key]:
            self.doubled += 1
        else:
            self.out_of_order += 1
            self.next[key] = number + 1

    def event(self) -> dict[str, Any]:
        """What the harness is told. What came late counts as doubled, and its gap as out of order."""
        missing = sum(self.expected) - (self.seen - self.doubled)
        return {
            "event": "result",
            "seen": self.seen,
            "missing": missing,
            "doubled": self.doubled,
            "out_of_order": self.out_of_order,
        }


async def check(consumer: AIOKafkaConsumer, place: TopicPartition, order: dict[str, Any]) -> None:
    """Read to the end that the log itself has now: beyond an open transaction, once it is decided."""
    plain = AIOKafkaConsumer(bootstrap_servers=order["bootstrap"], group_id=None)
    await plain.start()
    end = (await plain.end_offsets([place]))[place]
    await plain.stop()
    found: Found | Turns
    if order.get("is_paced"):
        found = Turns(read(order["expected"]))
    else:
        found = Found(order["keys"], order["records"])
    while await consumer.position(place) < end:
        for records in (await consumer.getmany(timeout_ms=50)).values():
            for record in records:
                found.take(record.value)
    print(json.dumps(found.event()), flush=True)


async def watch(consumer: AIOKafkaConsumer, order: dict[str, Any]) -> None:
    """How long it takes until a record is seen."""
    latencies = array("Q")
    print(json.dumps({"event": "ready"}), flush=True)
    while len(latencies) < order["records"]:
        for records in (await consumer.getmany(timeout_ms=50)).values():
            now_ns = time.time_ns()
            latencies.extend(max(now_ns - _head(record.value)[2], 0) for record in records)
    write(order["latency_ns"], latencies)
    print(json.dumps({"event": "result", "seen": len(latencies), "latency_ns": order["latency_ns"]}), flush=True)


def read(path: str) -> "array[int]":
    """A file of u32."""
    return array("I", Path(path).read_bytes())


def write(path: str, latencies: "array[int]") -> None:
    """A file of u64."""
    Path(path).write_bytes(latencies.tobytes())


async def main(order: dict[str, Any]) -> None:
    """Read."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=order["bootstrap"], group_id=None, isolation_level="read_committed", fetch_max_wait_ms=50
    )
    place = TopicPartition(order["topic"], 0)
    await consumer.start()
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        await (watch(consumer, order) if order.get("live") else check(consumer, place, order))
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
