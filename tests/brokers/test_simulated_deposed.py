"""The simulated cluster with a node that is cut off from the others and still answers: what it tells is old, and who
can reach the others is not deceived.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    TransactionUnknown,
    Watermarks,
)
from keylanes.brokers.simulated.broker import Latency, SimulatedBroker, SimulatedConnection
from keylanes.brokers.simulated.log import Concurrent, WrongTransactionState
from keylanes.brokers.simulated.nodes import Deposed, NoAnswer, OldId
from keylanes.brokers.simulated.requests import Numbered, SimulatedRequests
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..tiers.marks import tier

pytestmark = tier("check")

SOURCE = TopicPartition("a", 0)
SEEDS = range(3)
LIMIT_MS = 2_000.0


def of(*values: int) -> list[Outgoing]:
    """Records with these values."""
    return [Outgoing("a", 0, b"k", b"%d" % value) for value in values]


class Stage:
    """A cluster with a topic of one partition, and what its leader, when it is cut off, and its clients know."""

    def __init__(self, seed: int) -> None:
        self.cluster = SimulatedBroker(seed, latency=Latency(timeout_ms=LIMIT_MS, attempt_ms=LIMIT_MS / 8))
        self.cluster.create_topic("a", 1)
        self.nodes = self.cluster.cluster.nodes

    @property
    def leader(self) -> int:
        """Of the partition, as the others know."""
        leader = self.nodes.leadership(SOURCE).leader
        assert leader is not None
        return leader

    def depose(self, node: int) -> int:
        """Cut a node off from the others; the same."""
        self.cluster.cluster.depose(node)
        return node

    def leave_alone(self, client_name: str, node: int) -> None:
        """The client reaches this node and no other one."""
        others = {one for one in self.nodes.numbers if one != node}
        self.cluster.faults.cut_from_node |= {(client_name, one) for one in others}

    async def knowing(self, client_name: str) -> SimulatedConnection:
        """A client that has heard who leads."""
        connection = self.cluster.connect(client_name)
        await connection.watermarks([SOURCE])
        return connection

    async def producer(self, connection: SimulatedConnection) -> TransactionalProducer[Numbered]:
        """A new one of the only id."""
        return await connection.producer("id", transaction_timeout_ms=int(LIMIT_MS))


def staged(case: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs a case on stages of several seeds."""

    def run() -> None:
        for seed in SEEDS:
            run_virtual(case(Stage(seed)), seed=seed)

    run.__doc__ = case.__doc__
    return run


@staged
async def test_watermarks_are_true_where_enough_nodes_are_reached(stage: Stage) -> None:
    """A client that knows the old leader, and is answered by it, asks until another node confirms who leads."""
    one, other = await stage.knowing("one"), stage.cluster.connect("other")
    stage.depose(stage.leader)
    await other.appender().append(of(1, 2, 3))
    assert (await one.watermarks([SOURCE]))[SOURCE] == Watermarks(0, 3)


@staged
async def test_who_reaches_the_old_leader_alone_learns_no_watermarks(stage: Stage) -> None:
    """Its end may be an old one; the question ends with a time-out, and is answered when the others are reached."""
    one = await stage.knowing("one")
    stage.leave_alone("one", stage.depose(stage.leader))
    with pytest.raises(BrokerTimeout):
        await one.watermarks([SOURCE])
    stage.cluster.faults.cut_from_node.clear()
    assert (await one.watermarks([SOURCE]))[SOURCE] == Watermarks(0, 0)


@staged
async def test_a_deposed_leader_acknowledges_nothing_and_keeps_nothing(stage: Stage) -> None:
    """What is sent there ends with a time-out; it is not in the log, also when the node is mended."""
    one = await stage.knowing("one")
    stage.leave_alone("one", stage.depose(stage.leader))
    with pytest.raises(BrokerTimeout):
        await one.appender().append(of(1))
    stage.cluster.faults.cut_from_node.clear()
    stage.cluster.cluster.mend()
    assert await one.appender().append(of(2)) == {SOURCE: 1}
    assert [record.value for record in stage.cluster.committed_records("a")] == [b"2"]


@staged
async def test_an_append_finds_the_new_leader(stage: Stage) -> None:
    """A node that does not acknowledge is not the only one: within the time of one call another one is asked."""
    one = await stage.knowing("one")
    stage.depose(stage.leader)
    assert await one.appender().append(of(1)) == {SOURCE: 1}


@staged
async def test_a_reader_of_a_deposed_leader_gets_what_was_there_before(stage: Stage) -> None:
    """Nothing behind the old end is told there; a reader that reaches the others gets the rest."""
    one, other = stage.cluster.connect("one"), stage.cluster.connect("other")
    await other.appender().append(of(1))
    reader = await one.reader({SOURCE: 0})
    first = await reader.fetch([SOURCE], records_max=10, wait_ms=100)
    stage.leave_alone("one", stage.depose(stage.leader))
    await other.appender().append(of(2))
    assert [batch.offset_next for batch in first] == [1]
    assert await reader.fetch([SOURCE], records_max=10, wait_ms=1_500) == []
    stage.cluster.faults.cut_from_node.clear()
    while not (batches := await reader.fetch([SOURCE], records_max=10, wait_ms=1_500)):
        pass
    assert [record.value for record in batches[0].records] == [b"2"]


@staged
async def test_a_position_behind_the_old_end_is_no_lost_record(stage: Stage) -> None:
    """A deposed leader says that the offset does not exist; the true one is asked before that is believed."""
    other = stage.cluster.connect("other")
    old = stage.depose(stage.leader)
    await other.appender().append(of(1, 2))
    one = stage.cluster.connect("one")
    reader = await one.reader({SOURCE: 1})
    stage.leave_alone("one", old)
    with pytest.raises(BrokerTimeout):
        await reader.fetch([SOURCE], records_max=10, wait_ms=10_000)
    stage.cluster.faults.cut_from_node.clear()
    await one.watermarks([SOURCE])
    while not (batches := await reader.fetch([SOURCE], records_max=10, wait_ms=1_500)):
        pass
    assert [record.value for record in batches[0].records] == [b"2"]


@staged
async def test_no_client_goes_back_to_an_older_leader_epoch(stage: Stage) -> None:
    """Whoever has heard of the new leader asks it, whatever the old one tells afterwards."""
    one = await stage.knowing("one")
    old = stage.depose(stage.leader)
    await one.appender().append(of(1))
    stage.leave_alone("one", old)
    await one.describe(["a"])
    assert one._nodes.leaders.epoch(SOURCE) == stage.nodes.leadership(SOURCE).epoch == 1
    assert one._nodes.leaders.leader(SOURCE) != old


@staged
async def test_an_epoch_is_given_by_the_new_coordinator_only(stage: Stage) -> None:
    """A coordinator that was deposed names itself, and never answers INIT."""
    one = stage.cluster.connect("one")
    old = stage.depose(stage.nodes.coordinator("id"))
    producer = await stage.producer(one)
    assert isinstance(producer.requests, SimulatedRequests)
    assert producer.requests.coordinator == stage.nodes.coordinator("id") != old
    stage.leave_alone("one", old)
    with pytest.raises(BrokerTimeout):
        await stage.producer(one)


@staged
async def test_a_producer_asks_the_node_that_gave_its_epoch(stage: Stage) -> None:
    """When that one is deposed nothing is committed through it, and the next producer is another node's."""
    one = await stage.knowing("one")
    producer = await stage.producer(one)
    await producer.transact(of(1))
    stage.depose(stage.nodes.coordinator("id"))
    with pytest.raises((TransactionAborted, TransactionUnknown)):
        await producer.transact(of(2))
    await (await stage.producer(one)).transact(of(3))
    assert [record.value for record in stage.cluster.committed_records("a")] == [b"1", b"3"]


@pytest.mark.parametrize(
    ("state", "agreed", "refused"),
    [
        ("CompleteCommit", {"commit"}, {"abort": WrongTransactionState, "add": NoAnswer}),
        ("Ongoing", {"add"}, {"commit": NoAnswer, "abort": NoAnswer, "widen": NoAnswer}),
        ("PrepareCommit", set(), {"commit": Concurrent, "abort": Concurrent, "add": Concurrent}),
        ("Empty", set(), {"commit": WrongTransactionState, "add": NoAnswer}),
    ],
)
def test_a_deposed_coordinator_answers_what_needs_no_append(
    state: str, agreed: set[str], refused: dict[str, type[BrokerError]]
) -> None:
    """The end of a transaction that was complete when it was deposed is confirmed once more, though another one of the
    same epoch may be open by now; so is a partition that was added before. Nothing else is.
    """
    old, other = OldId(state, 0, frozenset({SOURCE})), TopicPartition("a", 1)
    deposed = Deposed(0, {}, {}, frozenset({1}), {"id": old})
    asked: dict[str, Callable[[], None]] = {
        "add": lambda: deposed.add("id", 0, [SOURCE]),
        "widen": lambda: deposed.add("id", 0, [SOURCE, other]),
        "commit": lambda: deposed.end("id", 0, True),
        "abort": lambda: deposed.end("id", 0, False),
    }
    for what in agreed:
        asked[what]()
    for what, error in refused.items():
        with pytest.raises(error):
            asked[what]()
    with pytest.raises(ProducerFenced):
        deposed.end("id", 1, True)
    with pytest.raises(NoAnswer):
        deposed.end("another id", 0, True)
