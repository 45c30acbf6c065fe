"""Two members that write to one changelog partition and one offset-log partition: what a start makes of their logs."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.errors import StateError
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event
from keylanes.state.changelog import beacon_key
from keylanes.state.restore import BEACON_NEAR

from ...stage.appending import append
from ...stage.virtual import virtual_in
from ...stage.writers import Carried, Group, Member, changed_by, halves, read_all
from ...tiers.marks import tier

pytestmark = tier("check")

NAME, SOURCE = "app", "source"


class Simulated:
    """A group on a simulated cluster, whose transactions are written step by step."""

    def __init__(self) -> None:
        self.cluster = SimulatedBroker(seed=1)
        names = itertools.count(1)
        self.group = Group(NAME, SOURCE, lambda: self.cluster.connect(f"member-{next(names)}"), self.read)
        self.changelog = TopicPartition(self.group.changelog, 0)

    async def read(self) -> list[Event]:
        """The committed offset log."""
        return [decode(record.value or b"") for record in self.cluster.committed_records(self.group.offsets)]

    def begin(self, member: Member) -> Callable[[Sequence[Outgoing]], None]:
        """A transaction of a member; what is called writes records of one partition in it."""
        state, name = self.cluster.state, f"member {member.incarnation}"
        epoch = state.initialise(name, 60_000)
        assert isinstance(epoch, int)

        def write(records: Sequence[Outgoing]) -> None:
            state.add_partitions(name, epoch, [TopicPartition(records[0].topic, 0)])
            state.produce(name, epoch, records, None, 0)

        return write

    async def end(self, member: Member) -> None:
        """It is committed, and marked everywhere."""
        state, name = self.cluster.state, f"member {member.incarnation}"
        transaction = state.end(name, state.ids[name].epoch, commit=True)
        assert transaction is not None
        for source in list(transaction.unmarked):
            state.mark(transaction, source)
        await self.group.committed(member)

    async def transact(self, *members: Member) -> list[Carried]:
        """Transactions one in the other: to the changelog in this order, to the offset log in the other one."""
        carried = [self.group.carry(member) for member in members]
        writes = [self.begin(member) for member in members]
        for write, (changelog, _) in zip(writes, carried, strict=True):
            write(changelog)
        for write, (_, offsets) in reversed(list(zip(writes, carried, strict=True))):
            write(offsets)
        for member in reversed(members):
            await self.end(member)
        return carried

    def truncate(self, incarnation: int) -> None:
        """Lose the last beacon of a writer, and what lies behind it."""
        rows = [
            row for row in self.cluster.committed_records(self.group.changelog) if row.key == beacon_key(incarnation)
        ]
        self.cluster.truncate(self.changelog, rows[-1].offset)


@contextlib.asynccontextmanager
async def world_of_two() -> AsyncIterator[Simulated]:
    """Its topics are there."""
    world = Simulated()
    await world.group.create()
    yield world
    await world.group.close()


simulated = virtual_in(world_of_two)


@simulated
async def test_transactions_one_in_the_other(world: Simulated) -> None:
    """A writes to the changelog, then B; B writes to the offset log, then A. Whoever starts next takes the changelog,
    has all that both wrote, and succeeds both with its first change: then its own beacon is the only one.
    """
    group = world.group
    lower, upper = [await group.join(half) for half in halves()]
    for _ in range(3):
        await world.transact(lower, upper)
    assert [changed_by(event)[0] for event in await world.read()] == [2, 1] * 3
    group.fence(lower, upper)
    third = await group.join(WHOLE)
    assert group.kept(third) == group.truth
    ((changelog, _),) = await world.transact(third)
    assert [(row.key, row.value) for row in changelog if row.key in (beacon_key(1), beacon_key(2))] == [
        (beacon_key(1), None),
        (beacon_key(2), None),
    ]
    assert changed_by((await world.read())[-1]) == (3, (1, 2))
    assert (await group.ledger()).partition((SOURCE, 0)).changed == {3: 1}
    ((changelog, _),) = await world.transact(third)
    assert not [row for row in changelog if row.value is None], "they are succeeded once"
    world.cluster.compact(world.changelog, keep_tombstones=False)
    group.fence(third)
    fourth = await group.join(WHOLE)
    assert group.kept(fourth) == group.truth


@pytest.mark.parametrize("loses", [1, 2])
@simulated
async def test_a_writer_without_its_last_change(world: Simulated, loses: int) -> None:
    """The changelog lost the last change of one of the two: it is refused, and the writer is named."""
    lower, upper = [await world.group.join(half) for half in halves()]
    await world.transact(lower, upper)
    await world.transact(*((upper, lower) if loses == 1 else (lower, upper)))
    world.truncate(loses)
    world.group.fence(lower, upper)
    words = f"up to transaction 1 of incarnation {loses}, and the offset log says that transaction 2"
    with pytest.raises(StateError, match=words):
        await world.group.join(WHOLE)


@simulated
async def test_start_beside_a_writer_that_goes_on(world: Simulated) -> None:
    """Who starts beside a living writer takes what that wrote since the logs were read, and succeeds it never; the
    fenced one it succeeds. A change that the living one lost is missed.
    """
    group = world.group
    lower, upper = [await group.join(half) for half in halves()]
    await world.transact(lower, upper)
    group.fence(lower)
    third = await group.join(halves()[0], reads=False)
    ledger = await group.ledger()
    await world.transact(upper)
    await group.take_up(third, WHOLE, ledger)
    assert group.kept(third) == group.truth
    await world.transact(third, upper)
    assert [changed_by(event) for event in (await world.read())[-2:]] == [(2, ()), (3, (1,))]
    world.truncate(2)
    with pytest.raises(StateError, match="up to transaction 2 of incarnation 2"):
        await group.join(halves()[0])


@simulated
async def test_succeeded_while_another_one_starts(world: Simulated) -> None:
    """A living writer succeeds a fenced one after a starting member has read the logs and before it reads the
    changelog, where the fenced one's beacon is deleted: nothing is wrong.
    """
    group = world.group
    lower, upper = [await group.join(half) for half in halves()]
    await world.transact(lower, upper)
    group.fence(lower)
    third = await group.join(halves()[0])
    fourth = await group.join(halves()[1], reads=False)
    ledger = await group.ledger()
    await world.transact(third)
    await group.take_up(fourth, WHOLE, ledger)
    assert group.kept(fourth) == group.truth


@simulated
async def test_range_that_arrives_beside_another_writer(world: Simulated) -> None:
    """Before a member works a range of another one, that one's changes must be in the changelog, as far as it knows of
    them; alone it does not look.
    """
    group = world.group
    lower, upper = [await group.join(half) for half in halves()]
    await world.transact(lower)
    await group.take_up(lower, halves()[1], await group.ledger())
    await world.transact(lower, upper)
    ledger = await group.ledger()
    await world.transact(upper)
    group.fence(upper)
    await group.take_up(lower, halves()[1], ledger)
    assert group.kept(lower) == group.truth
    ledger = await group.ledger()
    world.truncate(2)
    with pytest.raises(StateError, match="up to transaction 1 of incarnation 2"):
        await group.take_up(lower, halves()[1], ledger)


@simulated
async def test_aborted_succession_is_made_again(world: Simulated) -> None:
    """A first change that is not committed succeeds nobody: the next one does."""
    group = world.group
    first = await group.join(WHOLE)
    await world.transact(first)
    group.fence(first)
    second = await group.join(WHOLE)
    group.carry(second)
    ((changelog, _),) = await world.transact(second)
    assert [row.key for row in changelog if row.value is None] == [beacon_key(1)]
    assert changed_by((await world.read())[-1]) == (2, (1,))


@simulated
async def test_long_silent_writer_is_looked_for(world: Simulated) -> None:
    """The beacon of a writer that has been silent for long is found far from the end, and missed if it is not there."""
    group = world.group
    lower, upper = [await group.join(half) for half in halves()]
    await world.transact(lower, upper)
    first = [row.offset for row in world.cluster.committed_records(group.changelog) if row.key == beacon_key(1)]
    while world.cluster.stable(world.changelog) <= BEACON_NEAR:
        await world.transact(upper)
    group.fence(lower, upper)
    third = await group.join(WHOLE)
    assert group.kept(third) == group.truth
    world.cluster.make_hole(world.changelog, first)
    with pytest.raises(StateError, match="up to no transaction of incarnation 1"):
        await group.join(WHOLE)


def test_table_of_two_writers(tmp_path: Path) -> None:
    """The embedded broker keeps all beacons by key: a start takes them, and misses one that is gone."""

    async def story() -> None:
        broker = EmbeddedBroker(tmp_path)
        await broker.open()

        async def read() -> list[Event]:
            return [decode(row.value or b"") for row in await read_all(broker, f"{NAME}.offsets")]

        group = Group(NAME, SOURCE, lambda: EmbeddedBroker(tmp_path), read)
        await group.create()
        lower, upper = [await group.join(half) for half in halves()]
        for member in (lower, upper, lower):
            producer = await broker.producer(f"member {member.incarnation}", transaction_timeout_ms=10_000)
            changelog, offsets = group.carry(member)
            await producer.transact([*changelog, *offsets])
            await group.committed(member)
        group.fence(lower, upper)
        third = await group.join(WHOLE)
        assert group.kept(third) == group.truth
        _, (event,) = third.keeper.records([upper.sent[0]], 3, 1)
        assert event.succeeded == (1, 2)
        await append(broker, [Outgoing(group.changelog, 0, beacon_key(2), None)])
        with pytest.raises(StateError, match="up to no transaction of incarnation 2"):
            await group.join(WHOLE)
        await group.close()
        await broker.close()

    asyncio.run(story())
