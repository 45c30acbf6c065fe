"""Whether a group with ``until="level"`` has caught up: the host of engine/ends.py, in the coordinator.

An event in the control log pins the ends: the successor of a coordinator uses the same ends. A source topic that the
application itself writes to has its end later. The offset log names such topics: while a member runs with
``until="level"``, each member adds the name of a topic to the transaction of its first write to the topic. The
coordinator knows all such topics once every member has read that a member with ``until="level"`` exists.
"""

from ...brokers.patience import within_limit
from ...brokers.protocol import TopicPartition
from ...group.signals_fold import Heard
from ...offsets.control import Control
from ...offsets.event_values import PinnedEnd
from ..engine.ends import Ends
from ..logs.own_ledger import OwnLedger


class CatchUpCheck:
    """The check of a coordinator in a term."""

    def __init__(self, own_ledger: OwnLedger, heard: Heard) -> None:
        self.own_ledger = own_ledger
        self.heard = heard
        self._ends: Ends | None = None
        self._pinned: tuple[PinnedEnd, ...] | None = None
        self._reached: tuple[PinnedEnd, ...] | None = None
        """The pinned ends that were reached."""
        self._position = 0
        """The position of the control log when the coordinator first saw the pinned ends."""

    @property
    def is_wanted(self) -> bool:
        """Whether a member runs with ``until="level"``, and the ends are pinned."""
        return self.own_ledger.ledger.control.pinned is not None

    @property
    def has_caught_up(self) -> bool:
        """Whether the group has reached the present pinned ends."""
        return self.is_wanted and self._reached is self.own_ledger.ledger.control.pinned

    async def look(self) -> None:
        """Check whether everything is committed up to the final ends. Raises LogError, BrokerError."""
        own_ledger, identity = self.own_ledger, self.own_ledger.identity
        if len(own_ledger.ledger.control.members) > 1:
            await own_ledger.read()  # a single member knows all commits without reading
        ledger, pinned = own_ledger.ledger, own_ledger.ledger.control.pinned
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
        if self._ends.is_caught_up(edges) and self._has_everybody_read(ledger.control):
            self._reached = pinned

    def _has_everybody_read(self, control: Control) -> bool:
        own = self.own_ledger.identity.birth
        others = [i for i, m in control.members.items() if not m.expelled and m.birth != own]
        beats = (self.heard.beats.get(incarnation) for incarnation in others)
        return all(beat is not None and beat.control_position >= self._position for beat in beats)
