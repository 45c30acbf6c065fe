"""How decisions get into the control log: in turn, once each, and each behind a settled predecessor.

Control events are plain appends, and an append with a lost answer may still arrive. Therefore each decision carries the
*term* for which its writer was elected, never the term that the writer read last: P is elected for term 1 and pauses, Q
is elected for term 2, fences P and works; P wakes, reads on, and writes a grant; with term 2, just read, the grant
would count. And each decision carries its *number* in the term: a grant that is given up after a lost answer, and
arrives behind another decision, would make a second owner at the same epoch. Readers take the numbers of a term once
and in turn. A decision without an acknowledgement is sent again, unchanged: a copy that arrives late counts for
nothing.
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
    """The decisions of a process. ``control``: the partition of the control log; ``ends`` finds the end of the log when
    the broker does not tell the offset of an append.

    Decisions have an appender of their own: nothing else waits behind a decision, and no decision waits for other
    appends.
    """

    def __init__(self, broker: Broker, control: TopicPartition, ends: TrueEnds, settings: Settings) -> None:
        self.control = control
        self.ends = ends
        self.settings = settings
        self.end = 0
        """The position behind the last acknowledged append: a reader at this position has read all decisions."""
        self._appender = broker.appender()
        self.turn = Turn(0)
        """The turn in the term for which this process was elected; term 0 before an election."""
        self._unsettled: list[Decision] = []

    def stand(self, term: int) -> None:
        """Decide in ``term`` from here on."""
        self.turn = Turn(term)
        self._unsettled = []

    def add(self, events: Sequence[Decision]) -> None:
        """Add decisions, with the numbers of ``turn``; the next ``settle`` writes them."""
        self._unsettled += events

    async def settle(self) -> None:
        """Write all decisions without an acknowledgement. Raises BrokerTimeout; the decisions may be written then."""
        events = list(self._unsettled)
        await self.append(events)
        del self._unsettled[: len(events)]

    async def append(self, events: Sequence[ControlEvent]) -> None:
        """Write events. Raises BrokerTimeout; the events may be written then."""
        if events:
            records = [Outgoing(*self.control, None, encode(event)) for event in events]
            limit = self.settings.call_limit_ms
            ends = await within_limit(self._appender.append(records), limit, f"appending to {self.control.topic}")
            self.end = ends[self.control] if self.control in ends else await self.ends.control()

    async def close(self) -> None:
        """Drop the connections; bounded in time."""
        await self._appender.close()
