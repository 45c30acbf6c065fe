"""The commit alarm: which news end the wait of the commit cycle, and when."""

import asyncio

import pytest

from keylanes.brokers.throttling import Throttling
from keylanes.keyrange.ranges import KeyRange
from keylanes.runtime.engine.commit_alarm import HOLD_BACK_MS, CommitAlarm, Releases
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.wishes import ReleaseWish
from keylanes.runtime.partition.worker import WorkerNumbers

from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

HALF = 1 << 31
LONG_S = 60.0


class Waiting:
    """An alarm, and a partition of two workers; the last commit began now."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.releases = Releases(merge_hold_ms=100)
        self.throttling = Throttling()
        self.alarm = CommitAlarm(self.releases, self.throttling.writing)
        self.alarm.began_s = self.began_s = self.loop.time()
        self.dispatch = PartitionDispatch("in", 0, 0, 1 << 20, WorkerNumbers())
        self.leaving, self.staying = self.dispatch.add_workers([0, HALF, 2 * HALF], lambda first: 0)

    def release(self) -> None:
        """Begin to give up the first worker."""
        wish = ReleaseWish(self.dispatch, KeyRange(0, HALF))
        self.releases.wishes.ask(wish)
        self.releases.begin(wish, self.loop.time())

    async def waited_s(self) -> float:
        """How long after the commit the next wait ends."""
        await self.alarm.pause(LONG_S)
        return self.loop.time() - self.began_s


@pytest.mark.parametrize("is_throttled", [False, True])
@virtual
async def test_a_full_memory_commits_at_once_unless_a_quota_sets_the_pace(is_throttled: bool) -> None:
    """A commit under a quota would have to wait for the quota."""
    waiting = Waiting()
    if is_throttled:
        waiting.throttling.writing.note_bytes(1_000_000, 1.0, waiting.loop.time())
    waiting.alarm.note_full()
    assert await waiting.waited_s() == (LONG_S if is_throttled else 0.0)


@virtual
async def test_a_worker_that_is_given_up_commits_soon() -> None:
    """Not at once, for more workers may come to their ends; any other worker on hold waits for the interval."""
    waiting = Waiting()
    waiting.release()
    waiting.alarm.note_held(waiting.staying)
    assert await waiting.waited_s() == LONG_S
    waiting.alarm.began_s = waiting.began_s = waiting.loop.time()
    waiting.alarm.note_held(waiting.leaving)
    assert await waiting.waited_s() == pytest.approx(HOLD_BACK_MS / 1000)
