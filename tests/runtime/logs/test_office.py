"""A member reads the offset log on from its own last commit, however the log was trimmed meanwhile."""

import pytest

from keylanes.brokers.protocol import Outgoing, TopicPartition, Watermarks
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.errors import FencedError
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.codec import encode
from keylanes.offsets.decide import CommitKey, Move, decide_commits
from keylanes.offsets.events import Committed
from keylanes.offsets.ledger import Ledger
from keylanes.offsets.snapshots import take_snapshot
from keylanes.runtime.logs.office import Identity, Standing
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.membership.coordinator import Coordinator
from keylanes.runtime.settings import Settings

from ...stage.appending import append

PLACE = ("src", 0)
LOG = TopicPartition("x.offsets", 0)


class Group:
    """A cluster, a member at work on it, and others who take snapshots and trim."""

    def __init__(self) -> None:
        self.cluster = SimulatedBroker(1)
        for topic in ("src", "x.control", "x.offsets"):
            self.cluster.create_topic(topic, 1)

    def identity(self, name: str) -> Identity:
        """A process of the application."""
        broker = self.cluster.connect(name)
        return Identity("x", name, broker, LogReader("x", broker, Settings(), 1), Settings())

    async def begin(self, name: str = "P") -> Standing:
        """A process takes office."""
        await append(self.cluster.connect(name), [Outgoing(*PLACE, None, b"") for _ in range(10)])
        identity = self.identity(name)
        self.office = await Coordinator(identity).take_office({TopicPartition(*PLACE): Watermarks(0, 10)})
        return Standing(self.office, identity)

    async def commit(self, member: Standing, offset_from: int, to: int, *, is_known: bool = True) -> int:
        """A transaction of the member, of which it hears unless the answer is lost; its number."""
        transaction, epoch = member.next_transaction(), max(member.ledger.partition(PLACE).parts)
        key = CommitKey(member.incarnation, transaction, epoch, *PLACE)
        events: list[Committed] = decide_commits([(key, [Move(0, 0, SPACE_END, offset_from, to)])])
        records = [Outgoing(LOG.topic, 0, None, encode(event)) for event in events]
        ends = await self.office.producer.transact(records)
        if is_known:
            member.fold(transaction, events, ends)
        return transaction

    async def snapshot(self, *, trims: bool = True) -> int:
        """Another process reads all, and writes a snapshot of it, below which it trims; the position."""
        logs = self.identity("C").logs
        ledger = await logs.begin_offsets(await logs.read_control(Ledger()))
        position = logs.positions[LOG]
        parts = take_snapshot(ledger, "x", 0, [PLACE], position, 99, 1)
        broker = self.cluster.connect("C")
        await append(broker, [Outgoing(LOG.topic, 0, None, encode(part)) for part in parts])
        if trims:
            await broker.trim({LOG: position})
        return position


def test_a_log_trimmed_up_to_the_own_last_commit_is_read_on() -> None:
    """What stands in front of it is not asked for again: nothing of this member is there."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        await group.commit(member, 0, 3)
        await member.identity.broker.trim({LOG: group.cluster.watermarks(LOG).high})
        await member.read()
        assert member.ledger.frontier(PLACE) == 3

    run_virtual(story(), seed=1)


def test_an_unknown_transaction_behind_the_own_last_commit_is_found() -> None:
    """The answer to it was lost."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        await group.commit(member, 0, 3)
        unknown = await group.commit(member, 3, 5, is_known=False)
        await member.read()
        assert member.has_committed(unknown)
        assert not member.has_committed(unknown + 1)
        assert member.ledger.frontier(PLACE) == 5

    run_virtual(story(), seed=1)


def test_an_unknown_transaction_that_others_trimmed_is_found_in_their_snapshot() -> None:
    """It is as if the member had read it, and goes on from there."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        await group.commit(member, 0, 3)
        unknown = await group.commit(member, 3, 5, is_known=False)
        await group.snapshot()
        await group.commit(member, 5, 6, is_known=False)
        await member.read()
        assert member.has_committed(unknown + 1)
        assert not member.has_committed(unknown + 2)
        assert member.ledger.frontier(PLACE) == 6
        await group.commit(member, 6, 9)
        await member.read()
        assert member.ledger.frontier(PLACE) == 9

    run_virtual(story(), seed=1)


def test_what_nothing_became_of_is_not_found_in_a_snapshot() -> None:
    """The member's transaction was lost before others trimmed the log."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        first = await group.commit(member, 0, 3, is_known=False)
        lost = member.next_transaction()
        await group.snapshot()
        await member.read()
        assert member.has_committed(first)
        assert not member.has_committed(lost)
        assert member.ledger.frontier(PLACE) == 3

    run_virtual(story(), seed=1)


def test_an_expelled_member_whose_log_was_trimmed_is_told_so() -> None:
    """It is no damage of the log."""

    async def story() -> None:
        group = Group()
        member = await group.begin()
        await group.commit(member, 0, 3, is_known=False)
        await group.begin("Q")
        await group.snapshot()
        with pytest.raises(FencedError):
            await member.read()

    run_virtual(story(), seed=1)
