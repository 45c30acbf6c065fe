"""Has ranges change while the process runs: the host of partition/reshape.py.

It keeps who waits for which wish, starts the workers that may run again, and gives what changed to the generation that
is taken next.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...keyrange.ranges import KeyRange
from ...offsets.ledger import EpochPart
from ..partition.cut import Change
from ..partition.dispatch import PartitionDispatch
from ..partition.generation import Generation
from ..partition.reshape import ReleaseWish, Reshaped, Wish, Wishes
from ..partition.worker import Worker
from ..settings import Settings
from .partition_run import PartitionRun
from .slots import Slots

HOLD_BACK_MS: Final = 20
"""For so long a release waits for records that run, and an ordinary commit with it. What comes to its end later is
released by itself, at most so often.
"""


class Reshaping:
    """What is changing, over all partitions of this process. ``runs``: these, also those that are added later.

    ``on_released`` is called when something of a release is committed.
    """

    def __init__(self, runs: Sequence[PartitionRun], slots: Slots, settings: Settings) -> None:
        self.runs, self.slots, self.settings = runs, slots, settings
        self.wishes = Wishes(settings.merge_hold_ms)
        self.on_released: Callable[[], None] = _nobody
        self._waiting: dict[Wish, asyncio.Future[None]] = {}
        self._asked_s: dict[Wish, float] = {}
        """When each release was asked for."""

    def ask(self, wish: Wish) -> "asyncio.Future[None]":
        """Have a wish fulfilled; the result is there when that is committed, ValueError when it is refused.

        Raises ValueError when it is refused at once.
        """
        self.wishes.ask(wish)
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()
        self._waiting[wish] = settled
        if isinstance(wish, ReleaseWish):
            self._asked_s[wish] = loop.time()
        return settled

    def withdraw(self, wish: ReleaseWish) -> None:
        """What is left of a release goes on at once."""
        self.wishes.withdraw(wish)
        self._asked_s.pop(wish, None)
        self._waiting.pop(wish).cancel()
        self._activate(wish.dispatch, wish.dispatch.runnable())

    def take_up(
        self,
        dispatch: PartitionDispatch,
        epoch: int,
        part: EpochPart | None,
        within: Iterable[KeyRange],
        wanted: Sequence[int],
    ) -> None:
        """Workers for ranges of a grant, at once; see ``Wishes.take_up``. Their state is whole."""
        self.wishes.take_up(dispatch, epoch, part, within, wanted)
        share_buffer(self.runs, self.settings.buffer_bytes_max)

    # --- what is given up --------------------------------------------------------------------------------------------

    def is_fresh(self, now: float) -> bool:
        """Whether a release was asked for a moment ago, and a record of it runs that may soon have come to its end."""
        since = now - HOLD_BACK_MS / 1000
        return any(
            worker.running is not None
            for wish, leaving in self.wishes.leaving.items()
            if self._asked_s[wish] > since
            for worker in leaving.workers
        )

    def has_idle(self, dispatch: PartitionDispatch | None = None) -> bool:
        """Whether something that is being given up, of a partition or of any, runs nothing: it can go."""
        wishes = self.wishes
        return any(wishes.has_idle(wish) for wish in wishes.leaving if dispatch in (None, wish.dispatch))

    def is_given_up(self, worker: Worker) -> bool:
        """Whether a worker is being given up."""
        return any(worker in leaving.workers for leaving in self.wishes.leaving.values())

    # --- what the commit cycle does ----------------------------------------------------------------------------------

    def opened(self) -> tuple[list[Change], list[tuple[Worker, int]]]:
        """What the generation begins with that is about to be taken."""
        return self.wishes.opened()

    def change(self, generation: Generation, now: float) -> None:
        """Release what is through, merge what is level, split: all written with this generation."""
        self._withdraw(self.wishes.splitting)
        reshaped = self.wishes.change(now)
        generation.add(reshaped.changes, reshaped.heirs)
        self._refuse(reshaped)
        for dispatch, workers in reshaped.ready:
            self._activate(dispatch, workers)

    def begin_holds(self, now: float) -> None:
        """Hold neighbours that shall become one, a bounded time each."""
        self._withdraw(self.wishes.merging)
        self._refuse(self.wishes.begin_holds(now))

    def settle(self) -> None:
        """The generation was committed, and with it what was asked for."""
        has_released = bool(self.wishes.going)
        for wish in self.wishes.settle():
            settled = self._waiting.pop(wish)
            self._asked_s.pop(wish, None)
            if not settled.done():
                settled.set_result(None)
            # What was held for it, and was cut off from it, goes on: nobody else may come to hand it a record.
            self._activate(wish.dispatch, wish.dispatch.runnable())
        if has_released:
            self.on_released()

    def end(self) -> None:
        """Of what was asked for only what is given up still comes about."""
        for wish, settled in self._waiting.items():
            if not isinstance(wish, ReleaseWish):
                settled.cancel()

    def close(self) -> None:
        """Nothing more will be settled."""
        for settled in self._waiting.values():
            settled.cancel()

    def _activate(self, dispatch: PartitionDispatch, workers: Sequence[Worker]) -> None:
        for run in self.runs:  # none: it has just ended
            if run.dispatch is dispatch:
                self.slots.activate(run, workers)

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
        run.lacks.set()


def _nobody() -> None:
    """Nobody hears it."""
