"""How decisions get into the control log: in order, each counted once, and each behind its acknowledged predecessor.

Control events are plain appends, and an append with a lost answer may still arrive. Therefore each decision carries two
numbers:

- The *term* for which its writer was elected, never the term that the writer read last. With the term read last:
  1. P is elected for term 1 and pauses.
  2. Q is elected for term 2, fences P and works.
  3. P wakes, reads on up to term 2, and writes a grant with term 2: the grant counts, although P was replaced.
- Its *number* in the term. Without numbers:
  1. A grant has no answer, and the coordinator gives the grant up.
  2. The coordinator grants the range to another process.
  3. The first grant arrives behind: the range has a second owner at the same epoch.

A reader counts each number of a term once, and only behind the number before. A decision without an acknowledgement is
sent again, unchanged: a copy that arrives late counts for nothing.
"""

from collections.abc import Sequence

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, Outgoing, TopicPartition
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
        """The decisions without an acknowledgement, in order."""

    def begin_term(self, term: int) -> None:
        """Write the decisions of ``term`` from here on; decisions of an earlier term are dropped."""
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
