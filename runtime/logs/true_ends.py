"""The ends of an application's logs by own appends, which only the true leader of a partition can acknowledge.

The end as told by a broker is not enough: a deposed leader that still answers tells an old end.
"""

from collections.abc import Collection, Sequence
from typing import Final

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, BrokerTimeout, Outgoing, TopicPartition
from ...keyrange.hashing import HASH_NAME
from ...offsets.codec import encode
from ...offsets.control_events import AppCreated
from ...offsets.decide import decide_opening
from ..settings import Settings
from .reader import LogReader

UNTOLD_MAX: Final = 3
"""How many appends in a row the broker may leave without an offset; after more, something else is wrong."""
OPENS: Final = 0
"""The transaction number of LOG OPENED, which belongs to no generation."""


class TrueEnds:
    """The ends of the logs, as a process finds them with an appender of its own.

    The process appends the first event of a log once more: APP CREATED to the control log, LOG OPENED to a partition of
    the offset log. No reader counts a second event of these. The append is plain: a record in a transaction would stop
    all readers until the end of the transaction.
    """

    def __init__(self, broker: Broker, logs: LogReader, settings: Settings) -> None:
        self.logs = logs
        self.settings = settings
        self._appender = broker.appender()

    async def control(self) -> int:
        """The position behind an append to the control log that begins after this call. Raises BrokerError."""
        logs = self.logs
        event = AppCreated(logs.app, HASH_NAME, logs.log_partitions)
        ends = await self._append([Outgoing(*logs.control, None, encode(event))])
        return ends[logs.control]

    async def offsets(self, log_partitions: Collection[int], incarnation: int) -> dict[TopicPartition, int]:
        """The positions behind appends to partitions of the offset log, in the name of ``incarnation``; the appends
        begin after this call. Raises BrokerError.
        """
        logs, records = self.logs, []
        for number in sorted(log_partitions):
            event = decide_opening(logs.app, logs.log_partitions, number, incarnation, OPENS)
            records.append(Outgoing(*logs.offsets(number), None, encode(event)))
        return await self._append(records)

    async def _append(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        untold = list(records)
        for _ in range(UNTOLD_MAX):
            topic = untold[0].topic
            ends |= await within_limit(
                self._appender.append(untold), self.settings.call_limit_ms, f"appending to {topic}"
            )
            untold = [record for record in untold if TopicPartition(record.topic, record.partition) not in ends]
            if not untold:
                return ends
        raise BrokerTimeout(f"{untold[0].topic}: the broker does not tell where it has appended")

    async def close(self) -> None:
        """Drop the connections; bounded in time."""
        await self._appender.close()
