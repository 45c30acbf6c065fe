"""What processes tell of how far they are behind: the greatest lag over all of them is that of the logs."""

import asyncio
import logging

import pytest

from keylanes import App, Context, State
from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.ends_watch import ENDS_INTERVAL_MS

from ...stage.engine import OUT, SOURCE, Engine, application
from .group import Group, coordinators, in_group, until

SENT = 40
ENDS_S = 2 * ENDS_INTERVAL_MS / 1000


def gated(gate: asyncio.Event) -> App:
    """Passes on values, and counts keys, when the gate is open."""
    app = application()

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def pass_on(value: bytes, _: Context, count: State[int]) -> bytes:
        await gate.wait()
        count.put(1 + (count.get() or 0))
        return value

    return app


def opened() -> asyncio.Event:
    """A gate that is open."""
    gate = asyncio.Event()
    gate.set()
    return gate


def lag_of_logs(group: Group, engine: Engine) -> dict[int, int]:
    """How far each partition is committed in the logs from its end; of those that are not at their end."""
    ledger, places = engine.member.own_ledger.ledger, [TopicPartition(SOURCE, p) for p in range(group.partitions)]
    lags = {place.partition: group.cluster.watermarks(place).high - ledger.frontier(place) for place in places}
    return {partition: lag for partition, lag in lags.items() if lag}


def greatest_lag(*engines: Engine) -> dict[int, int]:
    """What the processes tell, by partition."""
    told: dict[int, int] = {}
    for statistics in (engine.member.statistics(0) for engine in engines):
        lags = [(one.partition, one.lag) for one in statistics.partitions]
        lags += [(one.partition, one.lag) for one in statistics.unowned]
        for partition, lag in lags:
            if lag:
                told[partition] = max(told.get(partition, 0), lag)
    return told


@in_group(partitions=1)
async def test_a_member_tells_the_lag_of_what_it_holds(group: Group) -> None:
    """Also where another one has the rest of the partition: who is through is not behind, whoever is."""
    gate = opened()
    a, b = group.process("a", gated(gate)), group.process("b", gated(opened()))
    for engine in (a, b):
        await engine.start()
    lower, upper = WHOLE.split(SPACE_END // 2)
    await a.member.work.requests.grant((SOURCE, 0), lower)
    await b.member.work.requests.grant((SOURCE, 0), upper)
    group.send(SENT)
    await group.done()
    await asyncio.sleep(ENDS_S)
    assert [engine.member.statistics(0).lag for engine in (a, b)] == [0, 0]
    gate.clear()
    group.send(SENT)
    await until(lambda: b.member.statistics(0).lag == 0 and b.member.statistics(0).partitions[0].end == 2 * SENT)
    (first,) = coordinators(a, b)
    await first.member.own_ledger.read()
    assert greatest_lag(a, b) == lag_of_logs(group, first)
    assert a.member.statistics(0).lag > 0
    gate.set()
    await group.done()
    await asyncio.sleep(ENDS_S)
    assert greatest_lag(a, b) == {}


@in_group(partitions=2)
async def test_what_has_no_owner_is_told_by_who_coordinates(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """A process with a name is killed: its keys wait for the name. That is a warning at once, and their lag is told."""
    a, b = await group.sharing("ab", gated(opened()))
    group.send(SENT)
    await group.done()
    (first,) = coordinators(a, b)
    other = b if first is a else a
    (mine,) = (run.dispatch.partition for run in other.member.runs)
    await other.crash()
    group.send(SENT)
    with caplog.at_level(logging.WARNING):
        await until(lambda: first.member.statistics(0).unowned != ())
        await asyncio.sleep(ENDS_S)
    told = first.member.statistics(0)
    (unowned,) = told.unowned
    assert (unowned.topic, unowned.partition, unowned.share) == (SOURCE, mine, 1.0)
    assert (told.lag, {mine: unowned.lag}) == (0, lag_of_logs(group, first))
    (said,) = [message for record in caplog.records if "no owner" in (message := record.getMessage())]
    assert said == (
        f"app: keys have no owner and wait up to 60 s for {other.name!r}, which keeps their state: 100% of in[{mine}]; "
        "was group_instance_id changed? With return_ms=0 they wait for nobody"
    )
    await group.done()
    await asyncio.sleep(ENDS_S)
    assert (first.member.statistics(0).unowned, greatest_lag(first)) == ((), {})


@in_group(partitions=2)
async def test_all_that_start_again_under_other_names_wait_for_nobody(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as there were before."""
    before = await group.sharing("ab", gated(opened()))
    group.send(SENT)
    await group.done()
    for engine in before:
        await engine.crash()
    group.send(SENT)
    began_s = asyncio.get_running_loop().time()
    for name in "cd":
        await group.process(name, gated(opened())).start()
    await group.done()
    assert asyncio.get_running_loop().time() < began_s + 30
