"""Has ranges change while the process runs: the host of partition/reshape.py.

It keeps who waits for which wish, starts the workers that may run again, and gives what changed to the generation that
was just taken.
"""

import asyncio
from collections.abc import Iterable, Sequence

from ...offsets.ledger import Ledger
from ..partition.cut import Change
from ..partition.generation import Generation
from ..partition.reshape import ReleaseWish, Reshaped, TakeUpWish, Wish, Wishes
from ..settings import Settings
from .partition_run import PartitionRun
from .slots import Slots


class Reshaping:
    """What is changing, over all partitions of this process. ``runs``: these, also those that are added later."""

    def __init__(self, runs: Sequence[PartitionRun], slots: Slots, settings: Settings) -> None:
        self.runs, self.slots = runs, slots
        self.wishes = Wishes(settings.merge_hold_ms)
        self._waiting: dict[Wish, asyncio.Future[None]] = {}

    def ask(self, wish: Wish) -> "asyncio.Future[None]":
        """Have a wish fulfilled; the result is there when that is committed, ValueError when it is refused.

        Raises ValueError when it is refused at once; not for what nobody waits for any more.
        """
        self._withdraw(self.wishes.leaving)
        self.wishes.ask(wish)
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[wish] = settled
        return settled

    # --- what the commit cycle does ----------------------------------------------------------------------------------

    def take_up(self, whole: Iterable[TakeUpWish], ledger: Ledger, incarnation: int) -> list[Change]:
        """Workers for grants. ``ledger``: both logs, read to their ends after these were asked for."""
        whole = list(whole)
        self._withdraw(whole)
        reshaped = self.wishes.take_up(whole, ledger, incarnation)
        self._refuse(reshaped)
        return reshaped.changes

    def change(self, generation: Generation, now: float) -> None:
        """Release what is through, merge what is level, split: all written with this generation."""
        self._withdraw([*self.wishes.splitting, *self.wishes.leaving])
        reshaped = self.wishes.change(now)
        generation.add(reshaped.changes, reshaped.heirs)
        self._refuse(reshaped)
        for dispatch, workers in reshaped.ready:
            for run in self.runs:  # none: it has just ended
                if run.dispatch is dispatch:
                    self.slots.activate(run, workers)

    def begin_holds(self, now: float) -> None:
        """Hold neighbours that shall become one, a bounded time each."""
        self._withdraw(self.wishes.merging)
        self._refuse(self.wishes.begin_holds(now))

    def settle(self) -> None:
        """The generation was committed, and with it what was asked for."""
        for wish in self.wishes.settle():
            settled = self._waiting.pop(wish)
            if not settled.done():
                settled.set_result(None)

    def end(self) -> None:
        """Of what was asked for only what is given up still comes about."""
        for wish, settled in self._waiting.items():
            if not isinstance(wish, ReleaseWish):
                settled.cancel()

    def close(self) -> None:
        """Nothing more will be settled."""
        for settled in self._waiting.values():
            settled.cancel()

    def _withdraw(self, wishes: Iterable[Wish]) -> None:
        """Those among them that nobody waits for any more."""
        for wish in list(wishes):
            if self._waiting[wish].done():
                self.wishes.withdraw(wish)
                del self._waiting[wish]

    def _refuse(self, reshaped: Reshaped) -> None:
        """Answer with a ValueError, unless nobody waits any more."""
        for wish, why in reshaped.refused:
            settled = self._waiting.pop(wish)
            if not settled.done():
                settled.set_exception(ValueError(why))


def share_buffer(runs: Sequence[PartitionRun], bytes_max: int) -> None:
    """What all queues together may hold, in equal parts for the workers there are: those still to be merged, too."""
    workers = sum(len(run.dispatch.workers) for run in runs)
    for run in runs:
        run.dispatch.quota_bytes = max(1, bytes_max // max(1, workers))
