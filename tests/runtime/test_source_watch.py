"""Partitions that are added to a source while it is read: looked at until they can be read, and shown when they are."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from keylanes import Context
from keylanes.brokers.protocol import BrokerError, BrokerTimeout, TopicPartition, UnknownTopic, Watermarks
from keylanes.brokers.simulated.broker import Latency
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime import source_watch

from ..stage.cluster import Cluster
from ..stage.engine import OUT, SOURCE, Engine, application

ADDED = TopicPartition(SOURCE, 1)


class Leaderless:
    """A connection that can't tell the watermarks of the added partition at first: one error after the other."""

    def __init__(self, broker: Any, errors: list[BrokerError]) -> None:
        self.broker, self.errors = broker, errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """The watermarks, or the next error."""
        if ADDED in partitions and self.errors:
            raise self.errors.pop()
        found: dict[TopicPartition, Watermarks] = await self.broker.watermarks(partitions)
        return found


class SlowToLead(Cluster):
    """A cluster on which the added partition has no leader at first."""

    def __init__(self, *errors: BrokerError) -> None:
        super().__init__(1, Latency())
        self.errors = list(errors)

    def connect(self, client_name: str) -> Any:
        return Leaderless(super().connect(client_name), self.errors)


async def reached(condition: Callable[[], bool]) -> None:
    """Wait for a condition, a minute at most."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)


def passing_on(cluster: Cluster) -> Engine:
    """One process that passes values on."""
    app = application(commit_interval_ms=200)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def copy(value: bytes, _: Context) -> bytes:
        return value

    return Engine(app, cluster=cluster)


def test_added_partitions_without_a_leader_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow answer, or none yet about what was made just now, ends nothing: it is said, and looked at again."""
    monkeypatch.setattr(source_watch, "SOURCES_CHECK_MS", 100)

    async def main() -> None:
        cluster = SlowToLead(BrokerTimeout("no leader yet"), UnknownTopic("no such partition yet"))
        engine = passing_on(cluster)
        await engine.start()
        cluster.grow(SOURCE)
        engine.send(b"k", b"new", partition=1)
        await reached(lambda: engine.values() == {b"k": [b"new"]})
        assert cluster.errors == []
        await engine.stop()

    run_virtual(main(), seed=1)
    assert caplog.text.count(f"new partitions of {SOURCE} can't be read yet: ") == 2
    assert caplog.text.count(f"{SOURCE} has 2 partitions now and had 1") == 1


def test_an_added_partition_is_shown_when_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its workers are committed it is no source partition yet; then it knows how many its topic has."""
    monkeypatch.setattr(source_watch, "SOURCES_CHECK_MS", 100)

    async def main() -> None:
        cluster = Cluster(1, Latency())
        engine = passing_on(cluster)
        member = await engine.start()
        cycle = member.work.cycle
        cluster.grow(SOURCE)
        await reached(lambda: bool(cycle.reshape.wishes.arriving))
        with pytest.raises(ValueError, match="is no source partition of"):
            await member.work.requests.grant(ADDED, WHOLE)
        await reached(lambda: len(member.runs) == 2)
        assert sum(worker.end - worker.first for worker in member.runs[1].dispatch.workers) == WHOLE.size
        assert member.runs[1].dispatch.partitions == 2
        await engine.stop()

    run_virtual(main(), seed=1)
