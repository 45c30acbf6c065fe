"""Fencing as an application does it: by a new producer of the transactional id."""

from keylanes.brokers.protocol import Broker

TRANSACTION_TIMEOUT_MS = 10_000
"""It is asked for, and no transaction is begun."""


async def fence(broker: Broker, transactional_id: str) -> None:
    """Fence all producers of an id; its last transaction is decided and visible to reads then."""
    producer = await broker.producer(transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
    await producer.close()
