"""A topic with state that got more partitions is refused before anything is started."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from keylanes import App, SettingsError, State
from keylanes.brokers.partitioner import partition_by_crc32, partition_of_key
from keylanes.brokers.protocol import Batch
from keylanes.brokers.simulated.broker import Latency
from keylanes.runtime.membership.ends_read import LOOK_S_MAX

from ...stage.cluster import Cluster
from ...stage.engine import OUT, SOURCE, Engine
from ...stage.passing import Passing
from ...stage.virtual import virtual

CUSTOMERS = 120


def totals(**given: Any) -> App:
    """Sums up by customer."""
    app = App("totals", broker="embedded:never-opened", **given)

    @app.handler(SOURCE, to=OUT)
    async def total(value: int, sums: State[int]) -> int:
        sums.put((sums.get() or 0) + value)
        return sums.get() or 0

    return app


def grown(app: App, before: int = 2, now: int = 4, *, keys: int = CUSTOMERS) -> Engine:
    """Old records lie where so many partitions put them; a new one of each customer where as many as now do."""
    cluster = Cluster(1, Latency())
    cluster.create_topic(SOURCE, now)
    engine = Engine(app, partitions=now, cluster=cluster)
    for partitions, value in ((before, b"150"), (now, b"189")):
        for n in range(keys):
            key = b"customer %d" % n
            engine.send(key, value, partition=partition_of_key(key, partitions))
    return engine


@virtual
async def test_a_topic_with_state_that_has_grown_is_refused() -> None:
    """With exit code 2, at each start; its logs hold nothing, nobody has joined."""
    engine = grown(totals())
    for _ in range(2):
        with pytest.raises(SettingsError) as refused:
            await engine.start()
    said = str(refused.value)
    assert refused.value.exit_code == 2
    assert f"{SOURCE} has 4 partitions and had 2: of " in said
    assert "docs/partitioners.md has the program" in said
    assert f'App(accept_moved_keys=("{SOURCE}",))' in said
    assert engine.cluster.committed_records("totals.control") == []


@virtual
async def test_what_is_accepted_is_started() -> None:
    """A customer has two states then; that is what is accepted."""
    engine = grown(totals(accept_moved_keys=(SOURCE,)))
    await engine.start()
    await engine.level()
    await engine.stop()
    assert {tuple(values) for values in engine.values().values()} > {(b"150", b"189")}


@pytest.mark.parametrize("start", ["latest", "no state", "few keys", "crc32", "never grew"])
@virtual
async def test_what_does_not_tell_of_a_growth_is_started(start: str) -> None:
    """Old records that are not read, a topic without state, few keys, and the partitioner that is named."""
    app, before, keys = totals(), 2, CUSTOMERS
    if start in ("latest", "no state"):
        app = App("totals", broker="embedded:never-opened")
    if start == "latest":

        @app.handler(SOURCE, start="latest")
        async def total(value: int, sums: State[int]) -> None: ...

    elif start == "no state":

        @app.handler(SOURCE)
        async def look(value: int) -> None: ...

    elif start == "few keys":
        keys = 8
    elif start == "never grew":
        before = 4
    engine = grown(app, before, keys=keys) if start != "crc32" else Engine(totals(partitioners={SOURCE: "crc32"}))
    for n in range(CUSTOMERS if start == "crc32" else 0):
        engine.send(b"customer %d" % n, b"1", partition=partition_by_crc32(b"customer %d" % n, 1))
    await engine.start()
    await engine.level()
    await engine.stop()


@virtual
async def test_growth_is_found_by_the_partitioner_that_is_named() -> None:
    """By that of the topic, not by the default."""
    app = totals(partitioners={SOURCE: "crc32"})
    engine = grown(app, keys=0)
    for n in range(CUSTOMERS):
        engine.send(b"customer %d" % n, b"1", partition=partition_by_crc32(b"customer %d" % n, 2))
    with pytest.raises(SettingsError, match=f"{SOURCE} has 4 partitions and had 2"):
        await engine.start()


@virtual
async def test_the_last_records_are_looked_at_too() -> None:
    """The first ones may be of a key that lies where it did."""
    engine = grown(totals(), keys=0)
    stays = next(key for key in (b"%d" % n for n in range(99)) if partition_of_key(key, 4) == 0)
    for _ in range(1_000):
        engine.send(stays, b"1", partition=0)
    for n in range(400):
        if (where := partition_of_key(b"%d" % n, 2)) == 0:
            engine.send(b"%d" % n, b"1", partition=where)
    with pytest.raises(SettingsError, match=f"{SOURCE} has 4 partitions and had 2"):
        await engine.start()


class Slow(Passing):
    """A connection whose readers bring nothing of the source at first."""

    until_s = 0.0

    async def reader(self, positions: Any) -> Any:
        """One that is slow."""
        return SlowReader(await self.real.reader(positions))


class SlowReader(Passing):
    """See Slow."""

    async def fetch(self, sources: Collection[Any], **given: Any) -> list[Batch]:
        """Nothing, for a while."""
        loop = asyncio.get_running_loop()
        if any(source.topic == SOURCE for source in sources) and loop.time() < Slow.until_s:
            await asyncio.sleep(Slow.until_s - loop.time())
        found: list[Batch] = await self.real.fetch(sources, **given)
        return found


@virtual
async def test_what_can_not_be_read_in_time_is_not_waited_for() -> None:
    """The start goes on with what it has seen."""
    engine = grown(totals())
    engine.cluster.wrap, Slow.until_s = Slow, asyncio.get_running_loop().time() + 2 * LOOK_S_MAX
    await engine.start()
    await engine.level()
    await engine.stop()
