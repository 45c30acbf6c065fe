"""Records that no client library would make: batches encoded by hand, byte for byte, and sent as they are.

Source of the layouts: https://kafka.apache.org/documentation/#recordbatch, and #messageset for the formats before it.
"""

import asyncio
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c, encode_varint

from keylanes.brokers.kafka.link import KafkaLink, LinkSettings
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.security import Security

from .ground import Ground


class Raw(NamedTuple):
    """A record in bytes; names of headers, too. ``timestamp`` in ms since the epoch; -1: none."""

    key: bytes | None = b"k"
    value: bytes | None = b"1"
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int = 1_700_000_000_000


def batch(records: Sequence[Raw], base: int = 0) -> bytes:
    """A record batch (format 2), not compressed, of a producer without an id. ``base``: the first offset."""
    first = records[0].timestamp
    body = b"".join(_record(i, record, first) for i, record in enumerate(records))
    last = max(record.timestamp for record in records)
    checked = struct.pack(">hiqqqhii", 0, len(records) - 1, first, last, -1, -1, -1, len(records)) + body
    return struct.pack(">qiibI", base, len(checked) + 9, -1, 2, calc_crc32c(checked)) + checked


def old_message(magic: int, key: bytes, value: bytes, timestamp: int, base: int = 0) -> bytes:
    """A message of format 0 or 1, as Kafka kept them before version 0.11; format 0 has no timestamp."""
    checked = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp) if magic else b"")
    checked += struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", base, len(checked) + 4, zlib.crc32(checked)) + checked


def send(ground: Ground, data: bytes, topic: str = "") -> int:
    """Send a batch to partition 0 of the source; the broker's error code, 0 when it took it."""

    async def work() -> int:
        link = KafkaLink(LinkSettings(ground.servers, "raw", Security(), 5_000, 5_000, 1_000))
        await link.open()
        place = TopicPartition(topic or ground.source, 0)
        deadline = link.deadline("sending")
        try:
            assert not await link.missing_partitions([place], deadline)
            request = ProduceRequest(
                transactional_id=None, required_acks=-1, timeout=5_000, topics=[(place.topic, [(0, data)])]
            )
            leader = link.leaders.leader(place)
            assert leader is not None
            reply = await link.ask(leader, request, deadline)
            ((_, ((_, code, *_),)),) = reply.topics
            return int(code)
        finally:
            await link.close()

    return asyncio.run(work())


def log_file(folder: Path, topic: str, partition: int = 0) -> Path:
    """The first segment of a partition in the folder of a Kafka."""
    return folder / "data" / f"{topic}-{partition}" / f"{0:020}.log"


def flip_byte(path: Path, at: int) -> None:
    """Change a byte of a file; once more, and it is as it was."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


def _record(number: int, record: Raw, first: int) -> bytes:
    body = bytearray(b"\0")
    for delta in (record.timestamp - first, number):
        encode_varint(delta, body.append)
    for data in (record.key, record.value):
        _sized(data, body)
    encode_varint(len(record.headers), body.append)
    for name, data in record.headers:
        _sized(name, body)
        _sized(data, body)
    whole = bytearray()
    encode_varint(len(body), whole.append)
    return bytes(whole + body)


def _sized(data: bytes | None, to: bytearray) -> None:
    encode_varint(-1 if data is None else len(data), to.append)
    to += data or b""
