"""Whether a group that runs to its level is there: the host of engine/ends.py, in the process that coordinates.

The ends are pinned by an event, so that a successor keeps them. Which topics the application writes to itself stands in
the offset log, in the transactions of the first writes; members write it down while somebody runs to the level. So what
the coordinator reads is enough, once every member has read that somebody does.
"""

from ...brokers.protocol import TopicPartition
from ...brokers.waiting import within_limit
from ...group.heard import Heard
from ...offsets.control import Control
from ...offsets.event_values import PinnedEnd
from ..engine.ends import Ends
from ..logs.office import OwnLedger


class Levelling:
    """Of one term."""

    def __init__(self, standing: OwnLedger, heard: Heard) -> None:
        self.standing, self.heard = standing, heard
        self._ends: Ends | None = None
        self._pinned: tuple[PinnedEnd, ...] | None = None
        self._level: tuple[PinnedEnd, ...] | None = None
        """The pinned ends that were reached."""
        self._position = 0
        """Up to which the control log was read when the ends were first seen."""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody runs to the level, and the ends are pinned."""
        return self.standing.ledger.control.pinned is not None

    @property
    def is_level(self) -> bool:
        """Whether the ends that are pinned now were reached."""
        return self.is_wanted and self._level is self.standing.ledger.control.pinned

    async def look(self) -> None:
        """See whether all is committed up to the ends, and these are final. Raises LogError, BrokerError."""
        standing, identity = self.standing, self.standing.identity
        if len(standing.ledger.control.members) > 1:
            await standing.read()  # alone, it knows all that is committed
        ledger, pinned = standing.ledger, standing.ledger.control.pinned
        if pinned is None:
            return
        if self._ends is None or pinned is not self._pinned:
            self._pinned = pinned
            self._ends = Ends({TopicPartition(end.topic, end.partition): end.offset for end in pinned})
            self._position = identity.logs.positions[identity.logs.control]
        for (topic, _), fold in ledger.partitions.items():
            for destination in fold.destinations:
                self._ends.discover(topic, destination)
        edges = {source: ledger.frontier(source) for source in self._ends.ends}
        if wanted := self._ends.to_pin(edges):
            limit = identity.settings.call_limit_ms
            marks = await within_limit(identity.broker.watermarks(wanted), limit, "ends of the sources")
            self._ends.pin({source: mark.high for source, mark in marks.items()})
        if self._ends.is_level(edges) and self._has_everybody_read(ledger.control):
            self._level = pinned

    def _has_everybody_read(self, control: Control) -> bool:
        own = self.standing.identity.birth
        others = [i for i, m in control.members.items() if not m.expelled and m.birth != own]
        beats = (self.heard.beats.get(incarnation) for incarnation in others)
        return all(beat is not None and beat.control_position >= self._position for beat in beats)
