"""The ends of the logs by own appends, on a simulated cluster."""

import asyncio

import pytest

from keylanes.brokers.protocol import BrokerError, Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.logs.true_ends import TrueEnds
from keylanes.runtime.settings import Settings

from ...stage.fencing import fence
from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

OFFSETS = TopicPartition("x.offsets", 0)
TILE = Outgoing(*OFFSETS, None, b"tile")


@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_all_that_a_fenced_member_has_committed_lies_below(seed: int) -> None:
    """The member is anywhere in its transaction when it is fenced, and commits no more."""
    cluster = SimulatedBroker(seed)
    cluster.create_topic("x.control", 1)
    cluster.create_topic(OFFSETS.topic, 1)
    broker, settings = cluster.connect("coordinator"), Settings()
    ends = TrueEnds(broker, LogReader("x", broker, settings, 1), settings)
    producer = await cluster.connect("member").producer("x.1.v", transaction_timeout_ms=5_000)
    committing = asyncio.ensure_future(producer.transact([TILE]))
    await asyncio.sleep(seed / 1000)
    await fence(broker, "x.1.v")
    end = (await ends.offsets([0], 1))[OFFSETS]
    await asyncio.gather(committing, return_exceptions=True)
    tiles = [record.offset for record in cluster.committed_records(OFFSETS.topic) if record.value == TILE.value]
    assert len(tiles) <= 1
    assert all(offset < end for offset in tiles)
    with pytest.raises(BrokerError):
        await producer.transact([TILE])
