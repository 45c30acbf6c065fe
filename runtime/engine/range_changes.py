"""Changes of ranges while the process runs: the host of partition/wishes.py.

The host has the future that the caller of each wish waits for, starts workers that may run again, and gives changes to
a generation.
"""

import asyncio
from collections.abc import Iterable, Sequence

from ...keyrange.ranges import KeyRange
from ...offsets.ledger import EpochPart
from ..partition.cut import Change
from ..partition.dispatch import PartitionDispatch
from ..partition.generation import Generation
from ..partition.wishes import ReleaseWish, Reshaped, Wish
from ..partition.worker import Worker
from ..settings import Settings
from .commit_alarm import Releases
from .partition_run import PartitionRun
from .slots import Slots


class RangeChanges:
    """The changes of all partitions of this process. ``runs``: the partitions; the list grows and shrinks later."""

    def __init__(self, runs: list[PartitionRun], slots: Slots, releases: Releases, settings: Settings) -> None:
        self.runs = runs
        self.slots = slots
        self.settings = settings
        self.releases = releases
        self.wishes = releases.wishes
        self._waiting: dict[Wish, asyncio.Future[None]] = {}
        """The future of each open wish."""

    def ask(self, wish: Wish) -> "asyncio.Future[None]":
        """Hand in a wish. The future ends with the commit of the wish's changes, or with ValueError for a refusal.

        Raises ValueError for a wish that is refused at once.
        """
        self.wishes.ask(wish)
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()
        self._waiting[wish] = settled
        if isinstance(wish, ReleaseWish):
            self.releases.begin(wish, loop.time())
        return settled

    def withdraw(self, wish: ReleaseWish) -> None:
        """Withdraw a release: workers that are not released yet go on at once."""
        self.wishes.withdraw(wish)
        self.releases.end(wish)
        self._waiting.pop(wish).cancel()
        self._activate(wish.dispatch, wish.dispatch.runnable())

    def add_grant(
        self,
        dispatch: PartitionDispatch,
        epoch: int,
        part: EpochPart | None,
        within: Iterable[KeyRange],
        wanted: Sequence[int],
    ) -> None:
        """Add workers for ranges of a grant at once; see ``Wishes.add_grant``. The ranges' state has to be complete."""
        self.wishes.add_grant(dispatch, epoch, part, within, wanted)
        share_buffer(self.runs, self.settings.limits.buffer_bytes_max)

    # --- steps of the commit cycle -----------------------------------------------------------------------------------

    def take_opening(self) -> tuple[list[Change], list[tuple[Worker, int]]]:
        """Take the opening of the next generation, and the workers that the opening's splits made."""
        return self.wishes.take_opening()

    def change(self, generation: Generation, now: float) -> None:
        """Release finished workers, merge neighbours with one edge, split: all written with ``generation``."""
        self._withdraw(self.wishes.splitting)
        reshaped = self.wishes.change(now)
        generation.add(reshaped.changes, reshaped.heirs)
        self._refuse(reshaped)
        for dispatch, workers in reshaped.ready:
            self._activate(dispatch, workers)

    def begin_holds(self, now: float) -> None:
        """Begin holds on neighbours to be merged, for a bounded time each."""
        self._withdraw(self.wishes.merging)
        self._refuse(self.wishes.begin_holds(now))

    def settle(self) -> bool:
        """Settle the wishes fulfilled in the generation that was just committed. Returns whether it released ranges."""
        has_released = bool(self.wishes.uncommitted_releases)
        for wish in self.wishes.settle():
            settled = self._waiting.pop(wish)
            self.releases.end(wish)
            if not settled.done():
                settled.set_result(None)
            # Workers that a merge or a split made have records queued and no task. Perhaps no new record starts them.
            self._activate(wish.dispatch, wish.dispatch.runnable())
        return has_released

    def end(self) -> None:
        """Cancel all wishes but releases."""
        for wish, settled in self._waiting.items():
            if not isinstance(wish, ReleaseWish):
                settled.cancel()

    def close(self) -> None:
        """Cancel all wishes: no commit comes any more."""
        for settled in self._waiting.values():
            settled.cancel()

    def _activate(self, dispatch: PartitionDispatch, workers: Sequence[Worker]) -> None:
        """Start workers of a partition, unless the partition has just left this process."""
        for run in self.runs:
            if run.dispatch is dispatch:
                self.slots.activate(run, workers)

    def _withdraw(self, wishes: Iterable[Wish]) -> None:
        """Withdraw the wishes whose callers have cancelled."""
        for wish in list(wishes):
            if self._waiting[wish].done():
                self.wishes.withdraw(wish)
                del self._waiting[wish]

    def _refuse(self, reshaped: Reshaped) -> None:
        """Answer refused wishes with a ValueError, unless the caller has cancelled."""
        for wish, why in reshaped.refused:
            settled = self._waiting.pop(wish)
            if not settled.done():
                settled.set_exception(ValueError(why))


def share_buffer(runs: Sequence[PartitionRun], bytes_max: int) -> None:
    """Divide the bytes of all queues equally among all workers; workers that will be merged count, too."""
    workers = sum(len(run.dispatch.workers) for run in runs)
    for run in runs:
        run.dispatch.quota_bytes = max(1, bytes_max // max(1, workers))
        run.lacks.set()
