"""What a member knows of the logs while others write and trim them."""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from keylanes.brokers.protocol import Batch, BrokerProducer, BrokerTimeout, Outgoing, Reader, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
)
from keylanes.offsets.decide import CommitKey, Turn, WorkerAdvance, decide_commits, decide_grant, decide_opening
from keylanes.offsets.events import Committed
from keylanes.offsets.ledger import Ledger
from keylanes.offsets.snapshots import take_snapshot
from keylanes.runtime.logs.own_ledger import Expelled, Identity, OwnLedger
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.settings import Settings

from ...stage.appending import append
from ...stage.fencing import fence
from ...stage.passing import Passing
from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

PLACE = ("src", 0)
LOG = TopicPartition("x.offsets", 0)
HALF = SPACE_END // 2


class Breaking(Passing):
    """A connection whose readers get no answer once: to the fetch after ``left`` more; 0: to all of them they do."""

    left = 0

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Any:
        """One that may break."""
        return BreakingReader(self, await self.real.reader(positions))


class BreakingReader(Passing):
    """A reader of such a connection."""

    def __init__(self, connection: Breaking, reader: Reader) -> None:
        super().__init__(reader)
        self.connection = connection

    async def fetch(self, *of: Any, **limits: Any) -> list[Batch]:
        """See the protocol."""
        self.connection.left -= 1
        if self.connection.left == 0:
            raise BrokerTimeout("no answer on demand")
        batches: list[Batch] = await self.real.fetch(*of, **limits)
        return batches


class Group:
    """A cluster, the control log of an application as its coordinators write it, members, and who takes snapshots."""

    def __init__(self) -> None:
        self.cluster = SimulatedBroker(1)
        for topic in ("src", "x.control", "x.offsets"):
            self.cluster.create_topic(topic, 1)
        self.turn = Turn(0)
        self.producers: dict[int, BrokerProducer] = {}

    def identity(self, name: str) -> Identity:
        """A process of the application."""
        broker: Any = Breaking(self.cluster.connect(name))
        return Identity("x", name, broker, LogReader("x", broker, Settings(), 1), Settings())

    async def decide(self, *events: ControlEvent) -> None:
        """Whoever coordinates writes this."""
        records = [Outgoing("x.control", 0, None, encode(event)) for event in events]
        await append(self.cluster.connect("coordinator"), records)

    async def begin(self, name: str = "P") -> OwnLedger:
        """A process is elected, expels all others, joins and is granted everything."""
        own_ledger = OwnLedger(self.identity(name))
        control = (await own_ledger.logs.read_control(own_ledger.ledger)).control
        if control.created is None:
            await append(self.cluster.connect(name), [Outgoing(*PLACE, None, b"") for _ in range(10)])
            await self.decide(AppCreated("x", HASH_NAME, 1))
        self.turn = Turn(control.term + 1)
        await self.decide(CoordinatorElected(self.turn.term, name, name, control.app_birth or "P"))
        for incarnation in [member.incarnation for member in control.unfenced_members()]:
            await self.decide(MemberExpelled(*self.turn.next(), incarnation, "silent", 0))
            await fence(self.cluster.connect(name), control.members[incarnation].transactional_ids[0])
            await self.decide(MemberFenced(*self.turn.next(), incarnation))
        if PLACE not in control.started:
            await self.decide(PartitionStarted(*self.turn.next(), *PLACE, 0, "earliest", 1))
        return await self.admit(own_ledger, name, WHOLE)

    async def join(self, member: OwnLedger, within: KeyRange) -> int:
        """Another member joins and is granted points of the first one, which did nothing there; its incarnation."""
        other = await self.admit(OwnLedger(self.identity("Q")), "Q", within)
        await member.read()
        return other.incarnation

    async def admit(
        self, own_ledger: OwnLedger, name: str, within: KeyRange, bounds: tuple[int, ...] = ()
    ) -> OwnLedger:
        """A process joins, makes its producer, and is granted this, with bounds of hot ranges."""
        incarnation = (await own_ledger.logs.read_control(own_ledger.ledger)).control.incarnation_next
        ids, turn = (f"x.{name}",), self.turn.next()
        await self.decide(MemberJoined(*turn, incarnation, name, name, ids, "", "", 1.0, 1, (), (), until_level=False))
        await own_ledger.read_control()
        own_ledger.identity.note_join(own_ledger.ledger.control.members[incarnation])
        producer = self.producers[incarnation] = await own_ledger.identity.make_producer()
        await own_ledger.read()
        if not own_ledger.ledger.opened:
            opening = decide_opening("x", 1, 0, incarnation, 0)
            await producer.transact([Outgoing(LOG.topic, 0, None, encode(opening))])
            await own_ledger.read()
        grants = decide_grant(own_ledger.ledger, self.turn, PLACE, incarnation, within)
        await self.decide(*(msgspec.structs.replace(grant, bounds=bounds) for grant in grants))
        await own_ledger.read()
        return own_ledger

    async def transact(self, key: CommitKey, move: WorkerAdvance) -> list[Committed]:
        """A transaction of a member."""
        events = decide_commits([(key, [move])])
        await self.producers[key.incarnation].transact(
            [Outgoing(LOG.topic, 0, None, encode(event)) for event in events]
        )
        return events

    async def commit(
        self, member: OwnLedger, offset_from: int, to: int, *, end: int = SPACE_END, is_known: bool = True
    ) -> int:
        """A transaction of the first member, of which it hears unless the answer is lost; its number."""
        transaction = member.next_transaction()
        key = CommitKey(member.incarnation, transaction, 1, *PLACE)
        events = await self.transact(key, WorkerAdvance(0, 0, end, offset_from, to))
        if is_known:
            member.fold(transaction, events)
        else:
            member.fold_unknown()
        return transaction

    async def snapshot(self) -> None:
        """Another process reads all, and writes a snapshot of it, below which it trims."""
        logs = self.identity("C").logs
        ledger = await logs.begin_offsets(await logs.read_control(Ledger()))
        position = logs.positions[LOG]
        parts = take_snapshot(ledger, "x", 0, [PLACE], position, 99, 1)
        broker = self.cluster.connect("C")
        await append(broker, [Outgoing(LOG.topic, 0, None, encode(part)) for part in parts])
        await broker.trim({LOG: position})


@virtual
async def test_what_others_committed_beside_a_member_is_known_to_it() -> None:
    """Two members in one partition of the log. What the other one committed in front of the own commit counts, too."""
    group = Group()
    member = await group.begin()
    other = await group.join(member, KeyRange(HALF, SPACE_END))
    await group.transact(CommitKey(other, 1, 2, *PLACE), WorkerAdvance(0, HALF, SPACE_END, 0, 3))
    await group.commit(member, 0, 4, end=HALF)
    await group.transact(CommitKey(other, 2, 2, *PLACE), WorkerAdvance(0, HALF, SPACE_END, 3, 5))
    await member.read()
    edges = member.ledger.partition(PLACE).edges(0)
    assert (edges.at(0), edges.at(HALF)) == (4, 5)


@virtual
async def test_the_bounds_of_a_grant_outlive_a_trim() -> None:
    """They stand in no snapshot. Who was granted them, and takes them up when others were granted something since, cuts
    there all the same.
    """
    group, bounds = Group(), (HALF + 5, HALF + 6)
    await group.begin()
    member = await group.admit(OwnLedger(group.identity("Q")), "Q", KeyRange(HALF, SPACE_END), bounds)
    other = await group.admit(OwnLedger(group.identity("R")), "R", KeyRange(0, HALF))
    await group.transact(CommitKey(other.incarnation, 1, 3, *PLACE), WorkerAdvance(0, 0, HALF, 0, 4))
    await group.snapshot()
    await member.read()
    assert member.ledger.frontier(PLACE) == 0
    assert member.ledger.partition(PLACE).edges(0).at(0) == 4
    assert member.ledger.partition(PLACE).parts[2].granted_bounds == bounds


@virtual
async def test_an_unknown_transaction_behind_the_own_last_commit_is_found() -> None:
    """The answer to it was lost."""
    group = Group()
    member = await group.begin()
    await group.commit(member, 0, 3)
    unknown = await group.commit(member, 3, 5, is_known=False)
    await member.read()
    assert member.has_committed(unknown)
    assert not member.has_committed(unknown + 1)
    assert member.ledger.frontier(PLACE) == 5


@virtual
async def test_an_unknown_transaction_that_others_trimmed_is_found_in_their_snapshot() -> None:
    """It is as if the member had read it, and goes on from there."""
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


@pytest.mark.parametrize("fetch", range(1, 9))
@virtual
async def test_a_search_that_was_cut_short_leaves_nothing_behind(fetch: int) -> None:
    """A fetch of the search for the snapshot has no answer: the next one begins anew, and all is as without it."""
    group = Group()
    member = await group.begin()
    await group.commit(member, 0, 3)
    unknown = await group.commit(member, 3, 5, is_known=False)
    await group.snapshot()
    broker: Any = member.identity.broker
    broker.left = fetch
    for _ in range(2):
        with contextlib.suppress(BrokerTimeout):
            await member.read()
    broker.left = 0
    assert member.has_committed(unknown)
    assert member.ledger.frontier(PLACE) == 5
    await group.commit(member, 5, 6)
    assert member.ledger.violations() == []
    await member.read()
    assert member.ledger.frontier(PLACE) == 6


@virtual
async def test_what_nothing_became_of_is_not_found_in_a_snapshot() -> None:
    """The member's transaction was lost before others trimmed the log."""
    group = Group()
    member = await group.begin()
    first = await group.commit(member, 0, 3, is_known=False)
    lost = member.next_transaction()
    member.fold_unknown()
    await group.snapshot()
    await member.read()
    assert member.has_committed(first)
    assert not member.has_committed(lost)
    assert member.ledger.frontier(PLACE) == 3


@virtual
async def test_an_expelled_member_whose_log_was_trimmed_is_told_so() -> None:
    """It is no damage of the log."""
    group = Group()
    member = await group.begin()
    await group.commit(member, 0, 3, is_known=False)
    await group.begin("Q")
    await group.snapshot()
    await member.read()
    with pytest.raises(Expelled, match=r"incarnation 1\) was expelled: others have its ranges"):
        member.check()
