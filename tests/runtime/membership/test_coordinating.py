"""What a process does for the others while it coordinates, and has little or nothing to do itself."""

import asyncio
from collections.abc import Sequence
from typing import Any

from keylanes.brokers.protocol import BrokerTimeout, Outgoing, TopicPartition
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import CoordinatorElected, EndsPinned

from ...stage.engine import SOURCE, Engine
from ...stage.passing import Passing
from ...stage.virtual import virtual
from .group import BEAT_S, PROCESSED_S, Group, coordinators, held, in_group, passing_on, until


@in_group()
async def test_a_second_run_to_the_level_has_ends_of_its_own(group: Group) -> None:
    """The coordinator stays; who runs to the level later comes to what was sent until then."""
    stays = group.process("stays")
    await stays.start()
    for number in range(2):
        group.send(500)
        runs = group.process(f"runs-{number}")
        await runs.start(until_level=True)
        async with asyncio.timeout(PROCESSED_S):
            await runs.task
        assert coordinators(stays) == [stays]
        events = [decode(record.value or b"") for record in group.cluster.committed_records("app.control")]
        newest = [event for event in events if isinstance(event, EndsPinned)][-1]
        assert sum(end.offset for end in newest.ends) == group.sent
        await until(lambda: stays.member.own_ledger.ledger.control.pinned is None)


@in_group(partitions=1)
async def test_a_coordinator_that_commits_nothing_takes_snapshots(group: Group) -> None:
    """One partition for two: the one that has none coordinates, and the offset log stays short all the same."""
    app = passing_on(snapshot_every_commits=50, commit_interval_ms=40, history_ms=0)
    works, idles = (group.process(name, app) for name in ("works", "idles"))
    await works.start()
    await idles.start()
    await until(lambda: bool(held(works)) and not held(idles))
    await works.crash()
    await until(lambda: bool(held(idles)))
    back = group.process("works-again", app)
    await back.start()
    release = idles.member.work.requests.release((SOURCE, 0), KeyRange(0, SPACE_END))
    async with asyncio.timeout(PROCESSED_S):
        await release
    await until(lambda: bool(held(back)) and not held(idles))
    assert coordinators(idles, back) == [idles]
    for _ in range(400):
        group.send(1)
        await asyncio.sleep(0.1)
    await until(lambda: group.cluster.watermarks(TopicPartition("app.offsets", 0)).start > 100)
    await group.done()


class Unelectable(Passing):
    """A connection by which no election comes to be written: each ends at once with an error. ``tries``: how many."""

    tries = 0

    def appender(self) -> Any:
        """One that refuses elections."""
        appender: Any = Passing(self.real.appender())
        real = appender.append

        async def append(records: Sequence[Outgoing]) -> Any:
            own = [decode(record.value or b"") for record in records if record.topic == "app.control"]
            if any(isinstance(event, CoordinatorElected) for event in own):
                Unelectable.tries += 1
                raise BrokerTimeout("no leader")
            return await real(records)

        appender.append = append
        return appender


@virtual
async def test_an_election_that_fails_is_not_repeated_before_a_beat_is_over() -> None:
    """Some of what ended with an error may be in the log, which keeps each for ever."""
    engine, Unelectable.tries = Engine(passing_on()), 0
    engine.cluster.wrap = Unelectable
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(20 * BEAT_S)
    assert 10 <= Unelectable.tries <= 21
    starting.cancel()
    await asyncio.wait([starting])
    await engine.crash()
