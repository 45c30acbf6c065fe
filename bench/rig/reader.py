"""What a committed reader sees of a topic, of one partition or of ``partitions``.

Called as ``-m rig.reader ORDER.json``.

With ``live`` it reads ``records`` records of an output as they come and writes how long after their scheduled time it
saw each (u64 nanoseconds). With ``changelog_of`` it reads a changelog and says how many keys have another last count
than the file ``expected`` has. Else it reads an output to its end and says what is missing, doubled, out of order in
its key, or wrong inside, and when the broker wrote the last of it; with ``is_paced``, where values hold no index of
their own, by what ``expected`` says of keys. A record whose own key is another one than its value's, or that lacks the
``header`` that is asked for, is wrong too.
"""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from rig.counts import read_counts
from rig.records import key_bytes, keys_of, value_of

HEAD_BYTES = 16
_head = Struct("<IIQ").unpack_from


def source_of(value: bytes) -> bytes:
    """The value that W4 made this one of."""
    return value[:HEAD_BYTES] + value[: HEAD_BYTES - 1 : -1]


class Found:
    """Counts what comes of the records of these keys. The stuck one, an index or -1, shall not come; each shall have
    this header, if one is named.
    """

    def __init__(self, keys: "array[int]", distinct: int, stuck: int = -1, header: str = "") -> None:
        self.indexes: list[array[int]] = [array("I") for _ in range(distinct)]
        """Of each key: where in the source its records are."""
        for index, key in enumerate(keys):
            self.indexes[key].append(index)
        self.next = [0] * distinct
        self.times = array("I", bytes(4 * len(keys)))
        self.stuck, self.header = stuck, header
        self.seen = self.out_of_order = self.damaged = 0

    def take(self, record: Any) -> None:
        """One record of the output: with ``key``, ``value`` and ``headers``, pairs that begin with a name."""
        value = record.value
        key, number, third = _head(value)
        self.seen += 1
        if key >= len(self.indexes) or number >= len(self.indexes[key]):
            self.damaged += 1
            return
        # Gaps are for ``missing`` to say: a stuck record leaves one.
        if number < self.next[key]:
            self.out_of_order += 1
        self.next[key] = number + 1
        index = self.indexes[key][number]
        self.times[index] += 1
        is_right = source_of(value) == value_of(key, number, third, index, len(value)) and index != self.stuck
        if not is_right or lacks(record, key, self.header):
            self.damaged += 1

    def event(self) -> dict[str, Any]:
        """What the harness is told."""
        return {
            "event": "result",
            "seen": self.seen,
            "missing": self.times.count(0) - (self.stuck >= 0 and not self.times[self.stuck]),
            "doubled": sum(times - 1 for times in self.times if times > 1),
            "out_of_order": self.out_of_order,
            "damaged": self.damaged,
        }


class Turns:
    """Counts what comes by the keys alone: each has its numbers from 0 on, one after the other."""

    def __init__(self, expected: Sequence[int], header: str = "") -> None:
        self.expected, self.next, self.header = expected, [0] * len(expected), header
        self.seen = self.doubled = self.out_of_order = self.damaged = 0

    def take(self, record: Any) -> None:
        """One record of the output."""
        key, number, _ = _head(record.value)
        self.seen += 1
        self.damaged += lacks(record, key, self.header)
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
            "damaged": self.damaged,
        }


def lacks(record: Any, key: int, header: str) -> bool:
    """Whether a record has another key than its value says, or not the header that is asked for."""
    return record.key != key_bytes(key) or bool(header and all(name != header for name, *_ in record.headers))


# --- changelogs ---------------------------------------------------------------------------------------------------

Count = Callable[[bytes, bytes], tuple[bytes, int] | None]
"""(key, count) that a record of a changelog holds; None: it holds none."""


def count_of_keylanes(key: bytes, value: bytes) -> tuple[bytes, int] | None:
    """State keys and stored values; beacons hold no state."""
    from keylanes.state.changelog import decode_stored, is_beacon_key
    from keylanes.state.keys import parse_key

    return None if is_beacon_key(key) else (parse_key(key).key, int(decode_stored(value).payload))


def count_of_streams(key: bytes, value: bytes) -> tuple[bytes, int]:
    """A long, big-endian."""
    return key, int.from_bytes(value, "big")


def count_of_quix(key: bytes, value: bytes) -> tuple[bytes, int]:
    """JSON, under the record's key and the state's own."""
    return key.removesuffix(b'|"seen"'), int(value)


def count_of_flechtwerk(key: bytes, value: bytes) -> tuple[bytes, int]:
    """A JSON object with all of a key's state."""
    return key, int(json.loads(value)["seen"])


COUNTS: dict[str, Count] = {
    "keylanes": count_of_keylanes,
    "keylanes-2": count_of_keylanes,
    "streams-eos": count_of_streams,
    "streams-eos-2": count_of_streams,
    "streams-alo": count_of_streams,
    "quix-eos": count_of_quix,
    "quix-alo": count_of_quix,
    "flechtwerk": count_of_flechtwerk,
}


def changelog_of(arm: str, group: str, source: str) -> str:
    """The topic in which an arm keeps W3's counts."""
    if arm == "flechtwerk":
        return f"{group}-changelog"
    if arm.startswith("streams"):
        return f"{group}-counts-changelog"
    return f"changelog__{group}--{source}--default" if arm.startswith("quix") else f"{group}.changelog.{source}"


def wrong_keys(counts: dict[bytes, int], expected: "array[int]") -> int:
    """How many keys have another count than they should, those that should not be there included."""
    wanted = {b"key-%06d" % key: count for key, count in enumerate(expected) if count}
    return sum(counts.get(key) != count for key, count in wanted.items()) + len(counts.keys() - wanted.keys())


# --- reading ------------------------------------------------------------------------------------------------------


async def to_end(consumer: AIOKafkaConsumer, places: list[TopicPartition], bootstrap: str) -> AsyncIterator[Any]:
    """Records up to the ends that the logs themselves have now: beyond an open transaction, once it is decided."""
    plain = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await plain.start()
    ends = await plain.end_offsets(places)
    await plain.stop()
    while any([await consumer.position(place) < end for place, end in ends.items()]):
        for records in (await consumer.getmany(timeout_ms=50)).values():
            for record in records:
                yield record


async def check(consumer: AIOKafkaConsumer, places: list[TopicPartition], order: dict[str, Any]) -> dict[str, Any]:
    """All of an output."""
    found: Found | Turns
    if order.get("is_paced"):
        found = Turns(read_counts(order["expected"]), order["header"])
    else:
        keys = keys_of(order["distribution"], order["records"], order["keys"])
        found = Found(keys, order["keys"], order["stuck"], order["header"])
    written_ms = 0
    async for record in to_end(consumer, places, order["bootstrap"]):
        found.take(record)
        written_ms = record.timestamp
    return {**found.event(), "written_at_s": written_ms / 1e3}


async def count(consumer: AIOKafkaConsumer, places: list[TopicPartition], order: dict[str, Any]) -> dict[str, Any]:
    """All of a changelog."""
    read, counts = COUNTS[order["changelog_of"]], dict[bytes, int]()
    async for record in to_end(consumer, places, order["bootstrap"]):
        if (held := read(record.key, record.value)) is not None:
            counts[held[0]] = held[1]
    return {"event": "result", "wrong_keys": wrong_keys(counts, read_counts(order["expected"]))}


async def watch(consumer: AIOKafkaConsumer, order: dict[str, Any]) -> dict[str, Any]:
    """How long it takes until a record is seen. What is seen is checked afterwards, by another reader."""
    latencies = array("Q")
    print(json.dumps({"event": "ready"}), flush=True)
    while len(latencies) < order["records"]:
        for records in (await consumer.getmany(timeout_ms=50)).values():
            now_ns = time.time_ns()
            latencies.extend(max(now_ns - _head(record.value)[2], 0) for record in records)
    write(order["latency_ns"], latencies)
    return {"event": "result", "seen": len(latencies), "latency_ns": order["latency_ns"]}


def write(path: str, latencies: "array[int]") -> None:
    """A file of u64."""
    Path(path).write_bytes(latencies.tobytes())


async def main(order: dict[str, Any]) -> None:
    """Read."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=order["bootstrap"], group_id=None, isolation_level="read_committed", fetch_max_wait_ms=50
    )
    places = [TopicPartition(order["topic"], partition) for partition in range(order.get("partitions", 1))]
    await consumer.start()
    try:
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        if order.get("live"):
            result = await watch(consumer, order)
        else:
            result = await (count if "changelog_of" in order else check)(consumer, places, order)
        print(json.dumps(result), flush=True)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
