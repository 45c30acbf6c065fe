"""What a process does with source topics that are new, have grown, or are others than they were."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from keylanes import App, SettingsError, SourceError, State
from keylanes.brokers.protocol import BrokerTimeout, Outgoing, TopicPartition, UnknownTopic, Watermarks
from keylanes.brokers.simulated.broker import Latency
from keylanes.keyrange.hashing import HASH_NAME
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated, ControlEvent
from keylanes.runtime.membership import errands

from ...stage.cluster import Cluster
from ...stage.engine import SOURCE, Engine, application, started
from ...stage.log_events import coordinator_elected, in_turn, partition_started
from ...stage.passing import Passing
from ...stage.virtual import virtual
from .group import passing_on, until

ADDED = TopicPartition(SOURCE, 1)


class Leaderless(Passing):
    """A connection that can't tell the watermarks of the added partition at first: one error after the other."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.errors = [BrokerTimeout("no leader yet"), UnknownTopic("no such partition yet")]

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """The watermarks, or the next error."""
        if ADDED in partitions and self.errors:
            raise self.errors.pop()
        found: dict[TopicPartition, Watermarks] = await self.real.watermarks(partitions)
        return found


class Late(Passing):
    """A connection that tells watermarks of the source when ``gate`` opens: as they were when it was asked."""

    asked, gate = asyncio.Event(), asyncio.Event()

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """The watermarks of that time."""
        found: dict[TopicPartition, Watermarks] = await self.real.watermarks(partitions)
        if any(partition.topic == SOURCE for partition in partitions):
            self.asked.set()
            await self.gate.wait()
        return found


def counting(*names: str) -> App:
    """Keeps stores of these names."""
    app = application(commit_interval_ms=200)
    if names == ("sums",):

        @app.handler(SOURCE, parallelising_factor=4)
        async def one(value: int, sums: State[int]) -> None: ...
    else:

        @app.handler(SOURCE, parallelising_factor=4)
        async def two(value: int, seen: State[int], sums: State[int]) -> None: ...

    return app


def stores_of(engine: Engine) -> dict[str, int]:
    """The numbers of the stores, as the process knows them."""
    return {store.name: store.store for store in engine.member.own_ledger.ledger.control.stores.values()}


# --- what is held -----------------------------------------------------------------------------------------------------


@virtual
async def test_work_goes_on_while_the_ends_of_sources_are_told() -> None:
    """An end that is told late lies below what was processed meanwhile: the topic was not truncated."""
    engine = Engine(passing_on())
    await engine.start()
    await engine.stop()
    engine.cluster.wrap, Late.gate, Late.asked = Late, asyncio.Event(), asyncio.Event()
    starting = asyncio.ensure_future(engine.start())
    await Late.asked.wait()
    engine.send(b"k", b"new")
    await until(lambda: engine.values() == {b"k": [b"new"]})
    Late.gate.set()
    await starting
    await engine.level()
    await engine.stop()


# --- partitions that are added ----------------------------------------------------------------------------------------


@virtual
async def test_added_partitions_without_a_leader_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow answer, or none yet about what was made just now, ends nothing: it is said, and looked at again."""
    monkeypatch.setattr(errands, "LOOK_AGAIN_MS", 100)
    engine = Engine(passing_on())
    engine.cluster.wrap = Leaderless
    await engine.start()
    engine.cluster.grow(SOURCE)
    engine.send(b"k", b"new", partition=1)
    await until(lambda: engine.values() == {b"k": [b"new"]})
    assert engine.connection.errors == []
    await engine.stop()
    assert caplog.text.count(f"new partitions of {SOURCE} can't be read yet: ") == 2
    assert "has 2 partitions now and had 1" in caplog.text


@virtual
async def test_a_partition_that_was_added_is_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers know how many partitions its topic has; those of the others know it, too."""
    monkeypatch.setattr(errands, "LOOK_AGAIN_MS", 100)
    cluster = Cluster(1, Latency())
    engine = Engine(passing_on(), cluster=cluster)
    member = await engine.start()
    with pytest.raises(ValueError, match="is no source partition of"):
        await member.work.requests.split(ADDED, WHOLE.size // 2)
    cluster.grow(SOURCE)
    await until(lambda: len(member.runs) == 2 and bool(member.runs[1].dispatch.workers))
    assert sum(worker.end - worker.first for worker in member.runs[1].dispatch.workers) == WHOLE.size
    await until(lambda: [run.dispatch.partitions for run in member.runs] == [2, 2])


# --- stores, which bind a topic to the partitions that it has --------------------------------------------------------


@virtual
async def test_stores_keep_their_numbers_from_start_to_start() -> None:
    """A further store gets the next number; one that is not asked for any more is still there when it comes back."""
    engine = Engine(counting("sums"))
    for names in (("sums",), ("seen", "sums"), ("sums",), ("seen", "sums")):
        await engine.start(counting(*names))
        await engine.stop()
    assert stores_of(engine) == {"sums": 0, "seen": 1}


@pytest.mark.parametrize("grows", ["while it is down", "while it works"])
@virtual
async def test_more_partitions_than_the_state_was_begun_with_are_refused(
    monkeypatch: pytest.MonkeyPatch, grows: str
) -> None:
    """SourceError, also at the next try; an application without a store reads the new partitions."""
    monkeypatch.setattr(errands, "LOOK_AGAIN_MS", 100)
    engine = await started(counting("sums"))
    if grows == "while it works":
        engine.cluster.grow_topic(SOURCE)
        await engine.fails(SourceError, "in has 2 partitions now and had 1: keys moved")
    else:
        await engine.stop()
        engine.cluster.grow_topic(SOURCE)
    for _ in range(2):
        with pytest.raises((SettingsError, SourceError), match=r"in has 2 partitions now|they must have as many"):
            await engine.start()
    await engine.start(passing_on())
    await until(lambda: len(engine.member.runs) == 2)


@virtual
async def test_state_may_begin_on_a_topic_that_has_grown() -> None:
    """While there was no store the number of partitions bound nothing."""
    engine = await started(passing_on())
    await engine.stop()
    engine.cluster.grow_topic(SOURCE)
    for _ in range(2):
        await engine.start(counting("sums"))
        await engine.stop()
    assert stores_of(engine) == {"sums": 0}


@virtual
async def test_a_start_that_ended_between_two_partitions_stands_in_nobodys_way() -> None:
    """Partitions half of which were started, and no store declared yet, are no growth."""
    engine = Engine(counting("sums"), partitions=2)
    for topic, partitions in (("app.control", 1), ("app.offsets", 2)):
        engine.cluster.create_topic(topic, partitions, {"retention.ms": "-1"})
    log: list[ControlEvent] = [
        AppCreated("app", HASH_NAME, 2),
        coordinator_elected(1, "P"),
        partition_started(1, SOURCE, 0, 0, "earliest", 2),
    ]
    engine.cluster.write([Outgoing("app.control", 0, None, encode(event)) for event in in_turn(log)], ())
    await engine.start()
    assert set(engine.member.own_ledger.ledger.control.started) == {(SOURCE, 0), (SOURCE, 1)}
    assert stores_of(engine) == {"sums": 0}


@virtual
async def test_logs_are_told_apart_by_their_birth() -> None:
    """The same from start to start; other logs of the same name have another one."""
    engine, other = Engine(passing_on()), Engine(passing_on(), name="other")
    born = set()
    for _ in range(2):
        born.add((await engine.start()).own_ledger.app_id)
        await engine.stop()
    assert len(born) == 1
    assert (await other.start()).own_ledger.app_id not in born
