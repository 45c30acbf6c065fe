"""An honest run of a group whose topic has a store: ranges move behind copies of their state. See honest_group.py.

2  joins; learns partition 1, and gets it; 1 keeps its copy as a standby until that is ended
2  is asked for a standby of partition 0
1  shall have half of partition 1 back, and learns it, until that is ended
1  is silent, expelled and fenced; 2 owns partition 0, of which it has a copy
3  joins, is asked for a standby of partition 0, and stays
"""

from collections.abc import Sequence
from dataclasses import dataclass

from keylanes.offsets.control_events import CopyAsked, CopyEnded, ReleaseAsked
from keylanes.offsets.event_values import PlannedMove, Span

from ..stage.log_events import NO_NUMBER, coordinator_elected, member_fenced, partition_started, store_declared
from .honest import SOURCE, Run
from .honest_group import FIRST, SECOND, WHOLE, GroupPlanner

THIRD = 3
HALF = WHOLE // 2
MOVED, DEMOTED, STANDBY, DROPPED, TAKEN, LAST = range(1, 7)
"""The numbers of moves and copies."""
STATE_BYTES = 5_000_000


@dataclass
class CopyPlanner(GroupPlanner):
    """See the module. It takes 40 ms to learn partition 1, and 25 ms to move it."""

    def run(self) -> Run:
        """The plan."""
        run = self._begun()

        run.events_ms = [[] for _ in run.events]
        run.control += [coordinator_elected(1, f"{self.process} 0"), self._joined(1, FIRST)]
        run.control += [partition_started(1, SOURCE, p, 0, "earliest", 2) for p in range(self.partitions)]
        run.control.append(store_declared(1, 0, "seen", SOURCE, "value", "", "int", "json"))
        self._granted(run, 1, FIRST, 1, (0, 1))
        self._works(run, FIRST, {0: 1, 1: 1}, 100)
        self._moves_behind_a_copy(run)
        self._learns_in_vain(run)
        self._loses_a_member(run)
        self._works(run, SECOND, {0: 2, 1: 2}, self.records)
        for p in range(self.partitions):
            self._releases(run, SECOND, 2, p)
        run.control += [self._expelled(2, SECOND, "left"), member_fenced(2, SECOND)]
        self._stamp(run, 10)
        return run

    def _moves_behind_a_copy(self, run: Run) -> None:
        run.control += [
            self._joined(1, SECOND),
            self._plan(1, 1, PlannedMove(MOVED, SOURCE, 1, 0, WHOLE, FIRST, SECOND, STATE_BYTES, 0.0, 0)),
            asked(1, MOVED, SECOND, 1, "learner"),
        ]
        self._stamp(run, 5)
        self._works(run, FIRST, {0: 1, 1: 1}, 150)
        run.control.append(ReleaseAsked(1, NO_NUMBER, MOVED, FIRST, 1, SOURCE, 1, 0, WHOLE, 30_000))
        self._stamp(run, 30)
        self._releases(run, FIRST, 1, 1)
        self._granted(run, 1, SECOND, 2, (1,), move=MOVED)
        run.control += [
            asked(1, DEMOTED, FIRST, 1, "standby"),
            asked(1, STANDBY, SECOND, 0, "standby"),
            CopyEnded(1, NO_NUMBER, DEMOTED, "its next owner is at work"),
        ]

    def _learns_in_vain(self, run: Run) -> None:
        run.control += [
            self._plan(1, 2, PlannedMove(DROPPED, SOURCE, 1, 0, HALF, SECOND, FIRST, STATE_BYTES, 0.0, 0)),
            asked(1, DROPPED, FIRST, 1, "learner", [(0, HALF // 2), (HALF // 2, HALF)]),
            CopyEnded(1, NO_NUMBER, DROPPED, "its move was withdrawn"),
        ]
        self._works(run, FIRST, {0: 1}, 200)
        self._works(run, SECOND, {1: 2}, 200)

    def _loses_a_member(self, run: Run) -> None:
        run.control += [coordinator_elected(2, f"{self.process} 1"), self._expelled(2, FIRST, "silent")]
        self._stamp(run, 10_000)
        run.control += [
            member_fenced(2, FIRST),
            self._plan(2, 3, PlannedMove(TAKEN, SOURCE, 0, 0, WHOLE, 0, SECOND, STATE_BYTES, 0.0, 0)),
        ]
        self._stamp(run, 50)
        self._granted(run, 2, SECOND, 2, (0,), move=TAKEN)
        run.control += [self._joined(2, THIRD), asked(2, LAST, THIRD, 0, "standby")]


def asked(
    term: int, number: int, incarnation: int, p: int, role: str, bands: Sequence[tuple[int, int]] = ((0, WHOLE),)
) -> CopyAsked:
    """A copy of a partition, or of these bands of it."""
    spans = tuple(Span(*band) for band in bands)
    return CopyAsked(term, NO_NUMBER, number, incarnation, SOURCE, p, spans, role, 0)
