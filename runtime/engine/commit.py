"""The commit cycle: take a generation of finished records and make the generation visible, while handlers run on.

Between two transactions ranges change: workers are split, held, merged and released (wishes.py). transaction.py makes
a generation visible.
"""

import asyncio
from collections.abc import Callable, Mapping

from ...brokers.throttling import BYTES_LEAST
from ..partition.dispatch import PartitionDispatch
from ..partition.generation import Generation, take_generation
from ..settings import Settings
from ..stores.keeper import Keeper
from ..watch.steps import Step
from .commit_alarm import HOLD_BACK_MS, CommitAlarm
from .range_changes import RangeChanges, share_buffer
from .slots import Slots
from .straight_runner import STRETCHES_MIN
from .transaction import Transactions


class CommitCycle:
    """One transaction at a time, for all partitions of this process. ``on_release_settled`` is called when the commit
    of a release is through.
    """

    def __init__(
        self,
        transactions: Transactions,
        range_changes: RangeChanges,
        slots: Slots,
        alarm: CommitAlarm,
        keeper: Keeper,
        settings: Settings,
        on_step: Callable[[Step], None],
        on_release_settled: Callable[[], None],
    ) -> None:
        self.transactions = transactions
        self.runs = range_changes.runs
        self.keeper = keeper
        self.settings = settings
        self.is_sending = False
        """A generation is taken and not committed yet: to take another would skip a tile."""
        self.on_step = on_step
        self.on_release_settled = on_release_settled
        self.alarm = alarm
        self.releases = alarm.releases
        self.range_changes = range_changes
        self.slots = slots
        self._is_more_done = False
        """The last generation was full, so more records may be done, and nothing throttles."""

    # --- the cycle -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit in intervals until cancelled; between two transactions this process has no open transaction.

        An interval begins where a commit begins, not where a commit ends: then a crash repeats the records of one
        interval, of the lead and of one transaction. Otherwise a crash would repeat the records of the transaction
        before, too. The next commit begins at once after a commit that took longer than an interval, or that could not
        take all done records.

        Lines are drawn a *lead* before the commit: most workers then finish their records below the line in time.
        """
        loop = asyncio.get_running_loop()
        interval_ms = self.settings.commit_interval_ms
        interval, lead = interval_ms / 1000, min(self.settings.limits.commit_lead_ms, interval_ms - 1) / 1000
        self.alarm.began_s = loop.time()
        while True:
            lines = None
            if not self._is_more_done:
                wait = HOLD_BACK_MS / 1000 if self.releases.has_releasable() else interval - lead
                await self.alarm.pause(max(self.alarm.began_s + wait - loop.time(), 0.0))
                if not (self.releases.has_releasable() or self.releases.has_new_release(loop.time())):
                    lines = self._lines()
                    await self.alarm.pause(lead)
            await self._hold_back()
            self.alarm.began_s = loop.time()
            await self.commit(lines)
            await self.keeper.write_when_due()

    async def _hold_back(self) -> None:
        """Wait for the running records of a new release: otherwise the release would wait until an ordinary transaction
        is through.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + HOLD_BACK_MS / 1000
        while self.releases.has_new_release(now := loop.time()) and now < until:
            await self.alarm.pause(until - now)

    def _lines(self) -> Mapping[PartitionDispatch, int] | None:
        """The fronts, as the lines at which the next generation is cut. None while few workers lag behind: a commit of
        all done records stays small then, and no record has to wait for a line.
        """
        more = self.settings.limits.commit_all_workers_max
        for run in self.runs:
            more -= run.dispatch.count_behind(more + 1)
            if more < 0:
                return {run.dispatch: run.dispatch.draw_line() for run in self.runs}
        return None

    def _in_turn(self, lines: Mapping[PartitionDispatch, int]) -> list[tuple[PartitionDispatch, int]]:
        """All partitions in the order in which a generation takes them, each with its line; a new line where ``lines``
        has none, or where a release has a worker that can be released.
        """
        listed: list[tuple[PartitionDispatch, int]] = []
        for dispatch in (run.dispatch for run in self.runs):  # partitions may have come or gone since the lines
            has_line = dispatch in lines and not self.releases.has_releasable(dispatch)
            listed.append((dispatch, lines[dispatch] if has_line else dispatch.draw_line()))
        # Each time another partition is first: where the limits end a generation, the last one would never have a turn.
        turn = self.transactions.commits % max(1, len(listed))
        listed = [*listed[turn:], *listed[:turn]]
        # Releases come first: other members wait.
        listed.sort(key=lambda pair: not self.releases.has_releasable(pair[0]))
        return listed

    async def commit(self, lines: Mapping[PartitionDispatch, int] | None = None) -> bool:
        """Commit a generation: the done records below the lines (None: all done records). False: nothing to commit."""
        self.on_step("take")
        opening, heirs = self.range_changes.take_opening()
        below = self._in_turn(lines or {})
        now = asyncio.get_running_loop().time()
        self.transactions.bound_done(now)
        bytes_max = self.transactions.bytes_max(now)
        most = self.settings.limits.generation_bytes_max // STRETCHES_MIN
        self.slots.bound_stretches(min(most, max(BYTES_LEAST, bytes_max)))
        generation = take_generation(
            below, records_max=self.settings.limits.generation_records_max, bytes_max=bytes_max
        )
        self._is_more_done = generation.is_full and not self.transactions.is_throttled
        generation.opening += opening
        generation.add([], heirs)
        self.range_changes.change(generation, now)
        self.range_changes.begin_holds(now)
        if generation.structure:
            share_buffer(self.runs, self.settings.limits.buffer_bytes_max)
        if generation or self.transactions.snapshots.is_due:
            await self.send(generation)
        if self.range_changes.settle():
            self.on_release_settled()
        return bool(generation)

    async def send(self, generation: Generation) -> None:
        """Make a generation visible, by as many transactions as needed; raises a FatalError for a failure for good."""
        self.is_sending = True
        await self.transactions.send(generation)
        self.is_sending = False

    def wake(self) -> None:
        """The next commit comes soon, see ``CommitAlarm``."""
        self.alarm.wake()

    async def close(self) -> None:
        """Let go of the producer; aborts an open transaction."""
        self.range_changes.close()
        await self.transactions.close()
