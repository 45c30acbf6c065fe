"""The end of the control log by an own append, which only the true leader of the log can acknowledge."""

from typing import Final

from ...brokers.protocol import Broker, BrokerTimeout, Outgoing
from ...brokers.waiting import bounded
from ...keyrange.hashing import HASH_NAME
from ...offsets.codec import encode
from ...offsets.control_events import AppCreated
from ..settings import Settings
from .reader import LogReader

UNTOLD_MAX: Final = 3
"""Appends in a row of which the broker does not tell the offset; then something else is wrong."""


class ControlEnd:
    """The end of the control log, as one process finds it with an appender of its own.

    The process appends APP CREATED once more, which counts nowhere. The append is a plain one: a record in a
    transaction would stop all readers of the log for as long as the transaction is open.
    """

    def __init__(self, broker: Broker, logs: LogReader, settings: Settings) -> None:
        self.logs, self.settings = logs, settings
        self._appender = broker.appender()

    async def find(self) -> int:
        """The position behind an append that begins after this call. Raises BrokerError."""
        logs = self.logs
        event = AppCreated(logs.app, HASH_NAME, logs.log_partitions)
        record = Outgoing(*logs.control, None, encode(event))
        for _ in range(UNTOLD_MAX):
            appending = self._appender.append([record])
            ends = await bounded(appending, self.settings.call_limit_ms, f"appending to {logs.control.topic}")
            if logs.control in ends:
                return ends[logs.control]
        raise BrokerTimeout(f"{logs.control.topic}: the broker does not tell where it has appended")

    async def close(self) -> None:
        """Let go of the connections; bounded in time."""
        await self._appender.close()
