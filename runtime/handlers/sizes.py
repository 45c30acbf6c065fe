"""PURE. The size of a record in memory, in bytes."""

from typing import Final

from ...brokers.protocol import ConsumerRecord

RECORD_OVERHEAD_BYTES: Final = 200
"""The bytes of a queued record beside its key and value: objects, headers, a place in the queue."""


def bytes_of(record: ConsumerRecord) -> int:
    """The bytes of a queued record, as counted by the quota of its worker."""
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
