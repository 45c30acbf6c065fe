"""An honest run of a group in which ranges of one source partition move between three members. See honest_group.py.

Sixteenths of the points, named by their number:

    1  has all, at epoch 1           2  joins
    2  gets  8-15 in two parts: 8-11 at epoch 2, then 12-15 at epoch 3, while 1 works on with what it has
    2  shall get 0-3: 0 and 1 come at epoch 4, then the deadline is over, and 1 keeps 2 and 3
    2  has its two ranges granted anew as one, at epoch 5
    1  is silent, expelled and fenced; 3 joins, and has 2-7 at epoch 6
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from keylanes.offsets.control_events import (
    MemberExpelled,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import NO_MOVE, Band, Edge, PlannedMove, Tile
from keylanes.offsets.events import Committed, RangesReleased, WorkersCut

from ..stage.log_events import NO_NUMBER, coordinator_elected, member_fenced, member_joined, partition_started
from .honest import APP, SOURCE, Output, Planner, Run

FIRST, SECOND, THIRD = 1, 2, 3
"""The members."""
SIXTEENTH = 1 << 28


@dataclass
class RangePlanner(Planner):
    """See the module. Workers are one sixteenth each, and stand at uneven edges."""

    partitions: int = 1
    log_partitions: int = 1
    records: int = 400
    step: int = 20
    lag: float = 0.5

    def run(self) -> Run:
        """The plan."""
        run = self._begun()
        self._epochs: list[int] = [0] * self.workers
        """Of the grant of each worker; ``_numbers``: what its owner calls it."""
        self._numbers: list[int] = [0] * self.workers
        self._owners: dict[int, int] = {}

        self._cut = dict.fromkeys((FIRST, SECOND, THIRD), 0)
        self._front = 0
        birth = f"{self.process} 0"
        run.control += [coordinator_elected(1, birth), member_joined(1, FIRST, birth, f"{APP}-1")]
        run.control.append(partition_started(1, SOURCE, 0, 0, "earliest", 1))
        self._grants(run, FIRST, 1, range(16))
        self._works(run, 100)
        self._moves_in_parts(run)
        self._moves_a_part_of_it(run)
        self._is_granted_as_one(run)
        self._loses_a_member(run)
        self._works(run, self.records)
        self._ends(run)
        return run

    # --- what happens ------------------------------------------------------------------------------------------------

    def _moves_in_parts(self, run: Run) -> None:
        run.control.append(member_joined(1, SECOND, f"{self.process} 1", f"{APP}-2"))
        self._asks(run, 1, FIRST, SECOND, 1, range(8, 16))
        self._works(run, 120)
        self._commits(run, FIRST, self._front + 9, {1: range(8, 12)}, move=1)
        self._grants(run, SECOND, 2, range(8, 12), move=1)
        self._works(run, 160)
        self._commits(run, FIRST, self._front + 9, {1: range(12, 16)}, move=1)
        self._grants(run, SECOND, 3, range(12, 16), move=1)
        self._works(run, 200)

    def _moves_a_part_of_it(self, run: Run) -> None:
        self._asks(run, 2, FIRST, SECOND, 1, range(4))
        self._commits(run, FIRST, self._front, {1: range(2)}, move=2)
        run.control.append(ReleaseWithdrawn(1, NO_NUMBER, 2, "deadline"))
        self._grants(run, SECOND, 4, range(2), move=2)
        self._works(run, 240)

    def _is_granted_as_one(self, run: Run) -> None:
        self._asks(run, 3, SECOND, SECOND, 2, range(8, 12))
        self._asks(run, 4, SECOND, SECOND, 3, range(12, 16))
        self._commits(run, SECOND, self._front, {2: range(8, 12)}, move=3)
        self._commits(run, SECOND, self._front, {3: range(12, 16)}, move=4)
        self._grants(run, SECOND, 5, range(8, 16), move=4)
        self._works(run, 300)

    def _loses_a_member(self, run: Run) -> None:
        run.control.append(member_joined(1, THIRD, f"{self.process} 2", f"{APP}-3"))
        run.control += [MemberExpelled(1, NO_NUMBER, FIRST, "silent", 0), member_fenced(1, FIRST)]
        self._grants(run, THIRD, 6, range(2, 8))

    def _ends(self, run: Run) -> None:
        self.lag = 0.0
        for incarnation in (SECOND, THIRD):
            held: dict[int, Sequence[int]] = {epoch: self._held(epoch) for epoch in self._epochs_of(incarnation)}
            self._commits(run, incarnation, self.records, held)
            run.control += [MemberExpelled(1, NO_NUMBER, incarnation, "left", 0), member_fenced(1, incarnation)]

    # --- its steps ---------------------------------------------------------------------------------------------------

    def _asks(self, run: Run, move: int, origin: int, target: int, epoch: int, over: range) -> None:
        first, end = self.bounds[over.start], self.bounds[over.stop]
        planned = PlannedMove(move, SOURCE, 0, first, end, origin, target, 0, 0.0, 0)
        run.control += [
            PlanMade(1, NO_NUMBER, move, move, "change", 0, 0, 1, (planned,)),
            ReleaseAsked(1, NO_NUMBER, move, origin, epoch, SOURCE, 0, first, end, 30_000),
        ]

    def _grants(self, run: Run, incarnation: int, epoch: int, over: range, move: int = NO_MOVE) -> None:
        """The grant, and its workers in a transaction of their own."""
        bands = tuple(Band(*level) for level in self._levels(0, over))
        run.control.append(RangesGranted(1, NO_NUMBER, move, incarnation, epoch, SOURCE, 0, bands, (), ()))
        number, self._cut[incarnation] = self._cut[incarnation], self._cut[incarnation] + len(over)
        bounds = tuple(self.bounds[over.start : over.stop + 1])
        run.events[0].append(WorkersCut(incarnation, self._next(incarnation), epoch, SOURCE, 0, number, bounds))
        self._owners[epoch] = incarnation
        for w in over:
            self._epochs[w], self._numbers[w] = epoch, number + w - over.start

    def _works(self, run: Run, until: int) -> None:
        while self._front < until:
            self._front = min(self._front + self.step, until)
            for incarnation in sorted({self._owners[epoch] for epoch in self._epochs if epoch}):
                self._commits(run, incarnation, self._front)

    def _commits(
        self,
        run: Run,
        incarnation: int,
        front: int,
        releases: Mapping[int, Sequence[int]] | None = None,
        move: int = NO_MOVE,
    ) -> None:
        """One transaction: a commit event for each epoch of the member, and what it releases of these."""
        transaction = self._next(incarnation)
        commits: list[Committed] = []
        made: list[Output] = []
        for epoch in self._epochs_of(incarnation):
            if not (moved := self._moved(epoch, front)):
                continue
            outputs = self._outputs(run, 0, moved)
            made += outputs
            commits.append(self._committed(incarnation, transaction, epoch, 0, self._tiles(moved), outputs))
            for w, _, to in moved:
                self.edges[0][w] = to
        numbered = [replace(commit, part=part, parts=len(commits)) for part, commit in enumerate(commits)]
        run.events[0] += numbered
        run.outputs += made
        run.transactions.append(([(0, commit) for commit in numbered], made))
        for epoch, over in (releases or {}).items():
            bands = tuple(Edge(*level) for level in self._levels(0, over))
            run.events[0].append(RangesReleased(incarnation, transaction, epoch, SOURCE, 0, move, bands, ()))
            for w in over:
                self._epochs[w] = 0

    def _moved(self, epoch: int, front: int) -> list[tuple[int, int, int]]:
        """(worker, from, to) of those that came further."""
        found: list[tuple[int, int, int]] = []
        for w in self._held(epoch):
            edge = self.edges[0][w]
            to = self.random.randint(edge, front) if self.random.random() < self.lag else front
            found += [(w, edge, to)] * (to > edge)
        return found

    def _tiles(self, moved: list[tuple[int, int, int]]) -> tuple[Tile, ...]:
        return tuple(replace(tile, worker=self._numbers[tile.worker]) for tile in super()._tiles(moved))

    def _held(self, epoch: int) -> list[int]:
        return [w for w, held in enumerate(self._epochs) if held == epoch]

    def _epochs_of(self, incarnation: int) -> list[int]:
        return sorted({epoch for epoch in self._epochs if epoch and self._owners[epoch] == incarnation})
