"""Records written outside of transactions, by somebody who comes and goes."""

from collections.abc import Sequence

from keylanes.brokers.protocol import Broker, Outgoing


async def append(broker: Broker, records: Sequence[Outgoing]) -> None:
    """Write them, with an appender of their own."""
    appender = broker.appender()
    try:
        await appender.append(records)
    finally:
        await appender.close()
