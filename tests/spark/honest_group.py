"""An honest run of a group: a partition moves in order, a member is expelled, and the last one leaves.

Both source partitions have their events in one partition of the offset log. See honest.py.
"""

from dataclasses import dataclass

from keylanes.offsets.control_events import MemberExpelled, MemberJoined, PlanMade, RangesGranted, ReleaseAsked
from keylanes.offsets.event_values import Edge, PlannedMove
from keylanes.offsets.events import RangesReleased, WorkersCut

from ..stage.log_events import NO_NUMBER, coordinator_elected, member_fenced, member_joined, partition_started
from .honest import APP, SOURCE, Planner, Run

WHOLE = 1 << 32
FIRST, SECOND = 1, 2
"""The members."""


@dataclass
class GroupPlanner(Planner):
    """Two members. The second one joins, gets partition 1 in order, then partition 0 of the first, which is silent.

    Times: a commit takes 10 ms, the move takes 25 ms from its release on, and who is silent is so for 10 s.
    """

    partitions: int = 2
    log_partitions: int = 1
    records: int = 300
    lag: float = 0.0
    now_ms: int = 1_000_000

    def run(self) -> Run:
        """The plan."""
        run = self._begun()

        run.events_ms = [[] for _ in run.events]
        run.control += [coordinator_elected(1, f"{self.process} 0"), self._joined(1, FIRST)]
        run.control += [partition_started(1, SOURCE, p, 0, "earliest", 2) for p in range(self.partitions)]
        self._granted(run, 1, FIRST, 1, (0, 1))
        self._works(run, FIRST, {0: 1, 1: 1}, 100)
        run.control += [
            self._joined(1, SECOND),
            self._plan(1, 1, PlannedMove(1, SOURCE, 1, 0, WHOLE, FIRST, SECOND, 0, 0.0, 0)),
            ReleaseAsked(1, NO_NUMBER, 1, FIRST, 1, SOURCE, 1, 0, WHOLE, 30_000),
        ]
        self._stamp(run, 5)
        self._works(run, FIRST, {0: 1, 1: 1}, 150)
        self._releases(run, FIRST, 1, 1)
        self._granted(run, 1, SECOND, 2, (1,), move=1)
        self._works(run, FIRST, {0: 1}, 200)
        self._works(run, SECOND, {1: 2}, 200)
        run.control += [coordinator_elected(2, f"{self.process} 1"), self._expelled(2, FIRST, "silent")]
        self._stamp(run, 10_000)
        run.control += [
            member_fenced(2, FIRST),
            self._plan(2, 2, PlannedMove(2, SOURCE, 0, 0, WHOLE, 0, SECOND, 0, 0.0, 0)),
        ]
        self._stamp(run, 50)
        self._granted(run, 2, SECOND, 2, (0,), move=2)
        self._works(run, SECOND, {0: 2, 1: 2}, self.records)
        for p in range(self.partitions):
            self._releases(run, SECOND, 2, p)
        run.control += [self._expelled(2, SECOND, "left"), member_fenced(2, SECOND)]
        self._stamp(run, 10)
        return run

    def _joined(self, term: int, incarnation: int) -> MemberJoined:
        birth = f"{self.process} {incarnation - 1}"
        return member_joined(term, incarnation, birth, f"{APP}-{incarnation}")

    def _expelled(self, term: int, incarnation: int, cause: str) -> MemberExpelled:
        return MemberExpelled(term, NO_NUMBER, incarnation, cause, 0)

    def _plan(self, term: int, plan: int, move: PlannedMove) -> PlanMade:
        return PlanMade(term, NO_NUMBER, plan, plan, "change", 0, 0, 1, (move,))

    def _granted(
        self, run: Run, term: int, incarnation: int, epoch: int, partitions: tuple[int, ...], move: int = 0
    ) -> None:
        for p in partitions:
            run.control.append(
                RangesGranted(term, NO_NUMBER, move, incarnation, epoch, SOURCE, p, self._bands(p), (), ())
            )
        self._stamp(run, 5)
        for p in partitions:
            transaction = self._next(incarnation)
            run.events[0].append(WorkersCut(incarnation, transaction, epoch, SOURCE, p, 0, self.bounds))
        self._stamp(run, 20)

    def _works(self, run: Run, incarnation: int, epochs: dict[int, int], until: int) -> None:
        front = min(min(self.edges[p]) for p in epochs)
        while front < until:
            front = min(front + self.step, until)
            self._commit(run, incarnation, self._next(incarnation), epochs, front)
            self._stamp(run, 10)

    def _releases(self, run: Run, incarnation: int, epoch: int, p: int) -> None:
        """In the transaction of the last tiles."""
        bands = tuple(Edge(*level) for level in self._levels(p))
        transaction = self._transactions[incarnation]
        run.events[0].append(RangesReleased(incarnation, transaction, epoch, SOURCE, p, 0, bands, ()))
        self._stamp(run, 0)

    def _stamp(self, run: Run, after_ms: int) -> None:
        """What was written since the last time was so much later."""
        self.now_ms += after_ms
        run.control_ms += [self.now_ms] * (len(run.control) - len(run.control_ms))
        for own, times in zip(run.events, run.events_ms, strict=True):
            times += [self.now_ms] * (len(own) - len(times))
