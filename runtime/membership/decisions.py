"""How decisions get into the control log: in turn, once each, and none before the one in front of it is settled.

Control events are plain appends, and an append whose answer was lost may still arrive. So each decision carries the
*term* that its writer was elected for, never the term that it read last: P is elected for term 1 and pauses, Q is
elected for 2, fences P and works; P wakes, reads on, and a grant that it wrote under the 2 it has just read would
count. And each carries its *number* in that term: a grant that is given up after a lost answer and arrives behind
another decision would be a second owner at the same epoch. Readers take the numbers of a term once and in turn. What is
not known to be written is sent again, the same, until it is acknowledged: a copy that arrives late counts for nothing.
"""

from collections.abc import Sequence

from ...brokers.protocol import Broker, Outgoing, TopicPartition
from ...brokers.waiting import within_limit
from ...offsets.codec import encode
from ...offsets.control_events import ControlEvent, Decision
from ...offsets.decide import Turn
from ..logs.true_ends import TrueEnds
from ..settings import Settings


class Decisions:
    """Those of one process. ``control``: the partition of the control log; ``ends``: of the logs, if the broker does
    not tell where it has appended.

    They have an appender of their own, so that nothing else waits behind a decision, nor a decision behind it.
    """

    def __init__(self, broker: Broker, control: TopicPartition, ends: TrueEnds, settings: Settings) -> None:
        self.control, self.ends, self.settings = control, ends, settings
        self.end = 0
        """The position behind what was acknowledged last: whoever has read to it has read all that is decided."""
        self._appender = broker.appender()
        self.turn = Turn(0)
        """Of the term that this process was elected for; of none before."""
        self._unsettled: list[Decision] = []

    def stand(self, term: int) -> None:
        """Decide in this term from here on."""
        self.turn = Turn(term)
        self._unsettled = []

    def add(self, events: Sequence[Decision]) -> None:
        """These are decided, with the numbers of ``turn``; they are written with the next ``settle``."""
        self._unsettled += events

    async def settle(self) -> None:
        """Write all that is decided and not known to be written; raises BrokerTimeout, and then it may be written."""
        events = list(self._unsettled)
        await self.append(events)
        del self._unsettled[: len(events)]

    async def append(self, events: Sequence[ControlEvent]) -> None:
        """Write events; raises BrokerTimeout, and then they may be written."""
        if events:
            records = [Outgoing(*self.control, None, encode(event)) for event in events]
            limit = self.settings.call_limit_ms
            ends = await within_limit(self._appender.append(records), limit, f"appending to {self.control.topic}")
            self.end = ends[self.control] if self.control in ends else await self.ends.control()

    async def close(self) -> None:
        """Let go of the connections; bounded in time."""
        await self._appender.close()
