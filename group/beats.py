"""PURE. The time when each member was heard last, for people. The rules for silence are in silence.py."""

from dataclasses import dataclass, field

from ..offsets.control import Control
from ..offsets.signals import Beat, CoordinatorBeat, LeaveAsked, Signal
from .signals_fold import COORDINATORS, partition_of


@dataclass(slots=True)
class Beats:
    """The fold of the signals, in any order. ``last_ms``: by birth, the time of the last record of each member."""

    control: Control
    last_ms: dict[str, int] = field(default_factory=dict)

    def hear(self, append_ms: int, signal: Signal) -> None:
        """Take one record, with its timestamp."""
        match signal:
            case Beat(birth=birth) | LeaveAsked(birth=birth):
                self.last_ms[birth] = max(append_ms, self.last_ms.get(birth, 0))
            case CoordinatorBeat(term=term) if term == self.control.term and self.control.coordinator:
                birth = self.control.coordinator
                self.last_ms[birth] = max(append_ms, self.last_ms.get(birth, 0))

    def partitions_unheard(self) -> set[int]:
        """The partitions of the signals in which members that were not heard yet may be heard."""
        silent = [member for member in self.control.unfenced_members() if member.birth not in self.last_ms]
        partitions = {partition_of(member.joined.instance, member.birth) for member in silent}
        return partitions | ({COORDINATORS} if partitions else set())
