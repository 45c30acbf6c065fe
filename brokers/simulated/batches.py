"""How records are cut into batches, as the adapter for Kafka cuts them, and what a batch takes there. Pure.

Nothing is compressed here: with a codec Kafka takes more than this.
"""

from collections.abc import Sequence
from typing import Final

from ..protocol import Outgoing
from ..refusal import BATCH_OVERHEAD

BATCH_BYTES_MAX: Final = 1_000_000


def cut(records: Sequence[Outgoing], indexes: Sequence[int], limit: int) -> list[list[int]]:
    """Indexes of one partition's records, batch by batch: as many as fit into ``limit`` bytes, at least one."""
    batches: list[list[int]] = []
    size = first = 0
    for index in indexes:
        record = records[index]
        if batches:
            more = _record_bytes(record, len(batches[-1]), (record.timestamp or first) - first)
            if size + more <= min(limit, BATCH_BYTES_MAX):
                batches[-1].append(index)
                size += more
                continue
        batches.append([index])
        first = record.timestamp or 0
        size = BATCH_OVERHEAD + _record_bytes(record, 0, 0)
    return batches


def batch_bytes(records: Sequence[Outgoing]) -> int:
    """What a batch takes in the log."""
    first = records[0].timestamp or 0
    return BATCH_OVERHEAD + sum(
        _record_bytes(record, number, (record.timestamp or first) - first) for number, record in enumerate(records)
    )


def _record_bytes(record: Outgoing, number: int, later_ms: int) -> int:
    """A record of the batch format 2: ``number`` and ``later_ms`` count from the first of its batch."""
    size = 1 + _varint_bytes(later_ms) + _varint_bytes(number) + _varint_bytes(len(record.headers))
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    size += sum(1 if part is None else _varint_bytes(len(part)) + len(part) for part in parts)
    return size + _varint_bytes(size)


def _varint_bytes(value: int) -> int:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    return max(1, -(-zigzag.bit_length() // 7))
