"""Taking office while another process does the same: whoever was overtaken writes nothing that counts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keylanes.offsets.codec import encode
from keylanes.offsets.decide import CommitKey, Move, decide_commits
from keylanes.runtime.brokers.protocol import Outgoing, Watermarks
from keylanes.runtime.brokers.simulated import SimulatedBroker
from keylanes.runtime.coordinator import Coordinator, Office
from keylanes.runtime.errors import FencedError
from keylanes.runtime.logs import LogReader
from keylanes.runtime.settings import Settings
from keylanes.runtime.virtual_loop import run_virtual

SOURCES = {("src", 0): Watermarks(0, 10)}
APPENDS = 6
"""One more than a first start appends to the control log: created, elected, joined, started, granted."""


class Pausing:
    """A connection whose n-th append, before it is sent, lets something else happen first."""

    def __init__(self, broker: Any, pause_at: int) -> None:
        self.broker, self.pause_at = broker, pause_at
        self.appends = 0
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    async def append(self, records: Sequence[Outgoing]) -> None:
        """Append, or wait first when it is the one."""
        self.appends += 1
        if self.appends == self.pause_at:
            self.arrived.set()
            await self.go_on.wait()
        await self.broker.append(records)


async def coordinator(broker: Any, name: str) -> Coordinator:
    """A process on its way to office."""
    logs = LogReader("x", broker, Settings())
    await logs.open(1)
    return Coordinator("x", name, broker, logs, Settings())


async def work(office: Office) -> None:
    """Commit offsets 0 to 5 of the whole space."""
    epoch = max(office.ledger.partition(("src", 0)).parts)
    key = CommitKey(office.incarnation, office.transaction + 1, epoch, "src", 0)
    events = decide_commits([(key, [Move(0, 0, 1 << 32, 0, 5)])])
    await office.producer.transact([Outgoing("x.offsets", 0, None, encode(event)) for event in events])


@pytest.mark.parametrize("pause_at", range(1, APPENDS))
def test_a_process_that_was_overtaken_writes_nothing_that_counts(pause_at: int) -> None:
    """P pauses before an append, Q takes office and commits, P wakes and stops; the next start finds a clean ledger."""

    async def story() -> None:
        cluster = SimulatedBroker(pause_at)
        for topic in ("src", "x.control", "x.offsets"):
            cluster.create_topic(topic, 1)
        await cluster.connect("source").append([Outgoing("src", 0, None, b"") for _ in range(10)])
        slow = Pausing(cluster.connect("P"), pause_at)
        first = asyncio.get_running_loop().create_task((await coordinator(slow, "P")).take_office(SOURCES))
        await slow.arrived.wait()
        second = await (await coordinator(cluster.connect("Q"), "Q")).take_office(SOURCES)
        await work(second)
        slow.go_on.set()
        with pytest.raises(FencedError):
            await first
        third = await (await coordinator(cluster.connect("R"), "R")).take_office(SOURCES)
        assert third.ledger.violations() == []
        assert third.ledger.frontier(("src", 0)) == 5

    run_virtual(story(), seed=pause_at)
