"""Commits before their time: releases wait for a commit, and so does a full memory."""

import asyncio
from typing import Final

from ...brokers.patience import rest
from ...brokers.throttling import Allowance
from ..partition.dispatch import PartitionDispatch
from ..partition.wishes import ReleaseWish, Wish, Wishes
from ..partition.worker import Worker

HOLD_BACK_MS: Final = 20
"""How long a release waits for running records; an ordinary commit waits with the release. Workers whose records finish
later are released by commits of their own, with at least this time between two commits.
"""


class Releases:
    """The open releases of all partitions of this process, among all open ``wishes``."""

    def __init__(self, merge_hold_ms: int) -> None:
        self.wishes = Wishes(merge_hold_ms)
        self._began_s: dict[Wish, float] = {}
        """When each open release began, in seconds."""

    def begin(self, wish: ReleaseWish, now: float) -> None:
        """A release begins now."""
        self._began_s[wish] = now

    def end(self, wish: Wish) -> None:
        """A release is committed, or was withdrawn; other wishes are none."""
        self._began_s.pop(wish, None)

    def has_new_release(self, now: float) -> bool:
        """Whether a release began less than ``HOLD_BACK_MS`` ago and a record of the release still runs."""
        since = now - HOLD_BACK_MS / 1000
        return any(
            worker.running is not None
            for wish, leaving in self.wishes.leaving.items()
            if self._began_s[wish] > since
            for worker in leaving.workers
        )

    def has_releasable(self, dispatch: PartitionDispatch | None = None) -> bool:
        """Whether a release, of a partition or of any (None), has a worker that runs nothing and can be released."""
        wishes = self.wishes
        return any(wishes.has_releasable(wish) for wish in wishes.leaving if dispatch in (None, wish.dispatch))

    def is_given_up(self, worker: Worker) -> bool:
        """Whether a worker is being given up."""
        return any(worker in leaving.workers for leaving in self.wishes.leaving.values())


class CommitAlarm:
    """Wakes the commit cycle before its interval is over. ``began_s``: when the last commit began. ``allowance``: what
    the cluster lets this process write.
    """

    def __init__(self, releases: Releases, allowance: Allowance) -> None:
        self.releases = releases
        self.began_s = 0.0
        self._allowance = allowance
        self._wake = asyncio.Event()

    def note_held(self, worker: Worker) -> None:
        """A worker on hold runs nothing any more: if the worker is being given up, commit soon, but not too often."""
        if self.releases.is_given_up(worker):
            loop = asyncio.get_running_loop()
            is_new = self.releases.has_new_release(loop.time())
            loop.call_at(loop.time() if is_new else self.began_s + HOLD_BACK_MS / 1000, self.wake)

    def note_full(self) -> None:
        """The memory for done records is full: commit at once, unless a quota sets the pace."""
        if self._allowance.rate is None:
            self.wake()

    def wake(self) -> None:
        """End the present wait of the cycle: the next commit comes soon, not at the end of the interval."""
        self._wake.set()

    async def pause(self, seconds: float) -> None:
        """Wait for some time, or until the alarm goes off."""
        await rest(seconds, self._wake)
        self._wake.clear()
