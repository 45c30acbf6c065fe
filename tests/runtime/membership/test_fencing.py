"""FENCE and MARK on a simulated cluster."""

import asyncio

import pytest

from keylanes.brokers.protocol import BrokerError, BrokerTimeout, Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import Fault, Kind, SimulatedBroker
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.group.coordinator import ToFence
from keylanes.offsets.control import Member
from keylanes.runtime.logs.office import Identity
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.membership.fencing import fence
from keylanes.runtime.settings import Settings

from ...stage.fencing import fence as fence_id
from ...stage.log_events import member_joined

OFFSETS = TopicPartition("x.offsets", 0)
ID = "x.1.v"
MEMBER = Member(member_joined(1, 1, "v", ID))
TILE = Outgoing(*OFFSETS, None, b"tile")


class Place:
    """A member that has committed, and a coordinator that is about to fence it."""

    def __init__(self, seed: int = 0) -> None:
        self.cluster = SimulatedBroker(seed)
        self.cluster.create_topic("x.control", 1)
        self.cluster.create_topic(OFFSETS.topic, 1)
        broker, settings = self.cluster.connect("coordinator"), Settings()
        self.identity = Identity("x", "c", broker, LogReader("x", broker, settings, 1), settings)
        self.victim = self.cluster.connect("victim")


def test_all_that_a_member_has_committed_lies_below_its_mark() -> None:
    """And it commits no more; nothing of the mark is read."""

    async def story(seed: int) -> None:
        place = Place(seed)
        producer = await place.victim.producer(ID, transaction_timeout_ms=5_000)
        committing = asyncio.ensure_future(producer.transact([TILE]))
        await asyncio.sleep(seed / 1000)  # it is anywhere in its transaction
        marks = await fence(place.identity, ToFence(MEMBER, [0]))
        await asyncio.gather(committing, return_exceptions=True)
        tiles = [record.offset for record in place.cluster.committed(OFFSETS.topic)]
        assert len(tiles) <= 1
        assert all(offset < marks[0] for offset in tiles)
        with pytest.raises(BrokerError):
            await producer.transact([TILE])

    for seed in range(12):
        run_virtual(story(seed), seed=seed)


def test_a_member_that_owns_nothing_is_fenced_without_a_mark() -> None:
    """There is nothing to be read of it."""
    place = Place()
    assert run_virtual(fence(place.identity, ToFence(MEMBER, []))) == {}
    assert place.cluster.watermarks(OFFSETS).high == 0


def test_a_mark_that_is_refused_bounds_nothing() -> None:
    """The member makes a producer between FENCE and MARK, and commits: both are to be done again."""

    async def story() -> None:
        place = Place()
        place.cluster.network.arm(Kind.ADD_PARTITIONS, Fault.HOLD_REQUEST, client="coordinator")
        fencing = asyncio.ensure_future(fence(place.identity, ToFence(MEMBER, [0])))
        await place.cluster.network.caught()
        again = await place.victim.producer(ID, transaction_timeout_ms=5_000)
        await again.transact([TILE])
        place.cluster.network.release()
        with pytest.raises(BrokerTimeout, match="is to be fenced again"):
            await fencing
        assert (await fence(place.identity, ToFence(MEMBER, [0])))[0] > 1
        await fence_id(place.victim, ID)

    run_virtual(story())
