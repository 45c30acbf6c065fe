"""Requests to a working process. The process splits and merges by itself; moves of ranges go to the coordinator."""

import asyncio
from collections.abc import Callable, Sequence

from ..keyrange.ranges import KeyRange
from ..offsets.ledger import SourcePartition
from ..offsets.signals import MoveAsked
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun, run_of
from .holding import Holding
from .membership.member_signals import MemberSignals
from .partition.wishes import MergeWish, SplitWish, Wish
from .partition.worker import Worker

ANYBODY = 0
"""As the target of a move: any other member."""
ANY_EPOCH = 0
"""As the epoch of a move: the request counts whatever the epoch of the range."""


class Requests:
    """The requests to a process."""

    def __init__(
        self,
        holding: Holding,
        cycle: CommitCycle,
        member_signals: MemberSignals,
    ) -> None:
        self.holding = holding
        self.cycle = cycle
        self.member_signals = member_signals
        self._moves_requested = 0

    @property
    def runs(self) -> Sequence[PartitionRun]:
        """The partitions with ranges in this process."""
        return self.holding.runs

    async def release(self, place: SourcePartition, within: KeyRange) -> None:
        """Ask to move a range to another member; the range comes back when no other member can have the range. Returns
        when the release is committed, after the running records of the range were finished.

        Raises ValueError when this process does not hold the whole range, CancelledError when the run ends before.
        """
        run = self._run_of(place)
        if _points_here(run, within) < within.size:
            raise ValueError(f"{run.label}: not all of {within} is held here")
        epochs = {worker.epoch for worker in _workers_in(run, within)}
        # The epoch bounds the request: a repeat that arrives after the move would move the range once more. A range
        # with several epochs can't name one.
        epoch = max(epochs) if len(epochs) == 1 else ANY_EPOCH
        request = self._ask_move(place, within, ANYBODY, epoch)

        def is_given_up() -> bool:
            has_workers = any(worker.epoch in epochs for worker in _workers_in(run, within))
            return not has_workers and not self.holding.is_giving_up(place)

        await self._until(is_given_up, request)

    async def grant(self, place: SourcePartition, within: KeyRange) -> None:
        """Ask to move a range to this process; returns when the workers of the range run. Raises CancelledError when
        the run ends before.
        """
        own = self.member_signals.own_ledger.incarnation
        request = self._ask_move(place, within, own, ANY_EPOCH)

        def is_here() -> bool:
            runs = [run for run in self.runs if run.dispatch.place == place]
            return sum(_points_here(run, within) for run in runs) == within.size

        await self._until(is_here, request)

    async def split(self, place: SourcePartition, at: int) -> None:
        """Cut the worker that owns point ``at`` in two; the second half begins at ``at``. Returns after the commit.

        Raises ValueError when no single worker owns the points on both sides of the cut, CancelledError when the run
        ends before.
        """
        await self._ask(SplitWish(self._run_of(place).dispatch, at))

    async def merge(self, place: SourcePartition, within: KeyRange) -> None:
        """Merge the workers of a range into a single worker; returns after the commit.

        Workers that are ahead wait for the others, a second at most. Raises ValueError when the workers do not cover
        exactly the range, come from several grants, or did not reach a common edge in time; CancelledError when the run
        ends before.
        """
        await self._ask(MergeWish(self._run_of(place).dispatch, within))

    def _ask_move(self, place: SourcePartition, within: KeyRange, target: int, epoch: int) -> MoveAsked:
        by = self.member_signals.identity.birth
        self._moves_requested += 1
        request = MoveAsked(
            request=f"{by}.{self._moves_requested}",
            by=by,
            topic=place[0],
            partition=place[1],
            first=within.first,
            end=within.end,
            target=target,
            epoch=epoch,
        )
        self.member_signals.ask_move(request)
        return request

    async def _until(self, is_reached: Callable[[], bool], request: MoveAsked) -> None:
        """Wait until ``is_reached``. Repeats the request, which may have been lost; a repeat does no harm."""
        loop, again_s = asyncio.get_running_loop(), self.member_signals.identity.settings.session_timeout_ms / 1000
        again_at = loop.time() + again_s
        while not is_reached():
            try:
                # A fixed time: with a time-out for each wait, the changes of each interval would put off the repeat.
                async with asyncio.timeout_at(again_at):
                    await self.holding.wait_for_change()
            except TimeoutError:
                again_at = loop.time() + again_s
                self.member_signals.ask_move(request)

    async def _ask(self, wish: Wish) -> None:
        """Hand a wish to the commit cycle, which fulfils wishes between two transactions; returns after the commit."""
        settled = self.cycle.range_changes.ask(wish)
        self.cycle.wake()
        await settled

    def _run_of(self, place: SourcePartition) -> PartitionRun:
        return run_of(self.runs, place, self.member_signals.identity.app)


def _workers_in(run: PartitionRun, within: KeyRange) -> list[Worker]:
    """The workers that hold points of a range."""
    return [w for w in run.dispatch.workers if w.first < within.end and within.first < w.end]


def _points_here(run: PartitionRun, within: KeyRange) -> int:
    """How many points of a range the workers of a partition hold."""
    return sum(min(w.end, within.end) - max(w.first, within.first) for w in _workers_in(run, within))
