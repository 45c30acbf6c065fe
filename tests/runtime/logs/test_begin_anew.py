"""A member whose log was trimmed below what it has read begins with the newest snapshot, while it commits."""

import asyncio

from keylanes.brokers.simulated.virtual_loop import run_virtual

from ...tiers.marks import tier
from .test_own_ledger import PLACE, Group

pytestmark = tier("check")

AT_MS = range(40)
"""When the member's transaction begins, after it has begun to read."""


def commits_while_it_begins_anew(at_ms: int) -> None:
    """Others have taken a snapshot and trimmed the log. A member reads it on, and commits at the same time."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        await group.commit(member, 0, 3)
        await group.snapshot()
        reading = asyncio.create_task(member.read())
        await asyncio.sleep(at_ms / 1000)
        async with member.transaction_lock:
            await group.commit(member, 3, 5)
        await reading
        await group.commit(member, 5, 6)
        await member.read()
        assert member.ledger.violations() == []
        assert member.ledger.frontier(PLACE) == 6

    run_virtual(story(), seed=at_ms)


def test_what_is_committed_while_the_log_is_begun_anew_counts_once() -> None:
    """At whatever moment: the folds that come of it are those of all transactions."""
    for at_ms in AT_MS:
        commits_while_it_begins_anew(at_ms)
