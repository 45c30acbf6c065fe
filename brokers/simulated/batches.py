"""The cutting of records into batches, as the adapter for Kafka does, and the size of a batch there. Pure.

Nothing is compressed here: with a codec, more records fit into a batch of Kafka.
"""

from collections.abc import Sequence

from ..protocol import Outgoing
from ..refusal import BATCH_OVERHEAD


def count_fitting(records: Sequence[Outgoing], indexes: Sequence[int], first: int, limit: int) -> tuple[int, int]:
    """How many of the indexed records of one partition, from ``first`` on, fit into a batch of ``limit`` bytes, and
    their size. At least one record, of any size.
    """
    size, begun_ms = BATCH_OVERHEAD, records[indexes[first]].timestamp or 0
    for number, at in enumerate(range(first, len(indexes))):
        record = records[indexes[at]]
        more = _record_bytes(record, number, (record.timestamp or begun_ms) - begun_ms)
        if number and size + more > limit:
            return number, size
        size += more
    return len(indexes) - first, size


def batch_bytes(records: Sequence[Outgoing]) -> int:
    """The bytes of a batch in the log."""
    first = records[0].timestamp or 0
    return BATCH_OVERHEAD + sum(
        _record_bytes(record, number, (record.timestamp or first) - first) for number, record in enumerate(records)
    )


def _record_bytes(record: Outgoing, number: int, later_ms: int) -> int:
    """The bytes of a record in batch format 2. ``number`` and ``later_ms`` count from the first record of the batch."""
    size = 1 + _varint_bytes(later_ms) + _varint_bytes(number) + _varint_bytes(len(record.headers))
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    size += sum(1 if part is None else _varint_bytes(len(part)) + len(part) for part in parts)
    return size + _varint_bytes(size)


def _varint_bytes(value: int) -> int:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    return max(1, -(-zigzag.bit_length() // 7))
