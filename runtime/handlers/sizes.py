"""PURE. What a record in memory counts, in bytes."""

from typing import Final

from ...brokers.protocol import ConsumerRecord

RECORD_OVERHEAD_BYTES: Final = 200
"""What a queued record costs beside its key and value: objects, headers, its place in the queue."""


def bytes_of(record: ConsumerRecord) -> int:
    """What a queued record counts against the quota of its worker."""
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
