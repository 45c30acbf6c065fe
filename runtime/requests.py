"""What is asked of a process while it works: to release, grant, split and merge ranges of its source partitions."""

import asyncio
from collections.abc import Callable, Sequence

from ..brokers.protocol import BrokerError
from ..brokers.waiting import fatal_of
from ..keyrange.ranges import KeyRange
from ..offsets.ledger import Place
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun, run_of
from .logs.office import Standing
from .membership.coordinator import Coordinator
from .partition.reshape import MergeWish, ReleaseWish, SplitWish, TakeUpWish, Wish


class Requests:
    """``runs``: all partitions that are worked on. ``has_ended``: whether the run is over, and connections close."""

    def __init__(
        self,
        runs: Sequence[PartitionRun],
        cycle: CommitCycle,
        standing: Standing,
        coordinator: Coordinator,
        has_ended: Callable[[], bool],
    ) -> None:
        self.runs, self.cycle, self.standing, self.coordinator = runs, cycle, standing, coordinator
        self._has_ended = has_ended
        self._granting: dict[Place, asyncio.Lock] = {}

    async def release(self, place: Place, within: KeyRange) -> None:
        """Give up a range of a source partition; returns when that is committed. Its records that run are finished.

        Raises ValueError when not all of it is held here, CancelledError when the run ends before.
        """
        run = self._run_of(place)
        await self._ask(ReleaseWish(run.dispatch, within, run.cut))

    async def grant(self, place: Place, within: KeyRange) -> None:
        """Grant this process a range that it released, and work on it; returns when its cut into workers is committed.

        Raises ValueError when part of it is held here, or is being given up, BrokerUnavailable when the grant can't be
        written, CancelledError when the run ends before.
        """
        run = self._run_of(place)
        async with self._granting.setdefault(place, asyncio.Lock()):
            if (leaving := self.cycle.reshape.wishes.is_leaving(run.dispatch, within)) is not None:
                raise ValueError(f"{run.label}: {within} overlaps {leaving}, which is being given up")
            # Whatever is held here is held by a grant in force: another one over it would end that one in mid-work.
            held = [w for w in run.dispatch.workers if w.first < within.end and within.first < w.end]
            if held:
                raise ValueError(f"{run.label}: not all of {within} was released: worker {held[0].number} holds a part")
            try:
                epoch = await self.coordinator.grant(self.standing.ledger, place, self.standing.incarnation, within)
            except BrokerError as error:
                if self._has_ended():  # its connections were closed under it
                    raise asyncio.CancelledError from error
                raise fatal_of(error) from error
            await self.take_up(place, epoch)

    async def split(self, place: Place, at: int) -> None:
        """Cut the worker that owns a point in two, the second beginning there; returns when that is committed.

        Raises ValueError when no worker owns the points on both sides, CancelledError when the run ends before.
        """
        await self._ask(SplitWish(self._run_of(place).dispatch, at))

    async def merge(self, place: Place, within: KeyRange) -> None:
        """Make one worker of those that make up a range; returns when that is committed.

        They are held until they are level, at most ``merge_hold_ms``. Raises ValueError when they do not make it up,
        are of several grants, or did not get level; CancelledError when the run ends before.
        """
        await self._ask(MergeWish(self._run_of(place).dispatch, within))

    async def take_up(self, place: Place, epoch: int) -> None:
        """Work on a grant that stands in the control log; returns when its cut into workers is committed.

        Raises ValueError when it is no grant to this process or overlaps what it holds, CancelledError when the run
        ends before.
        """
        run = self._run_of(place)
        await self._ask(TakeUpWish(run.dispatch, epoch, run.cut))

    async def _ask(self, wish: Wish) -> None:
        """Have a wish fulfilled in the next commit cycles; returns when that is committed."""
        settled = self.cycle.reshape.ask(wish)
        self.cycle.wake()
        await settled

    def _run_of(self, place: Place) -> PartitionRun:
        return run_of(self.runs, place, self.coordinator.app)
