"""Whose word about the end of a partition is taken: against a fake of the answers of three nodes."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import aiokafka.errors
import pytest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from keylanes.brokers.delivery import TopicNumbers
from keylanes.brokers.kafka.link import Code, KafkaLink, LinkSettings
from keylanes.brokers.kafka.offsets import EARLIEST, LATEST, ConfirmedWatermarks, ListOffsetsRequest
from keylanes.brokers.kafka.topics import TopicsRequest
from keylanes.brokers.protocol import BrokerTimeout, TopicPartition, Watermarks
from keylanes.brokers.security import Security
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = TopicPartition("src", 0)


class Node:
    """A broker as it sees the cluster. ``leader``, ``epoch``: who leads the partition, as far as it knows."""

    def __init__(self, leader: int, epoch: int, end: int = 0, *, is_there: bool = True, coordinator: int = 0) -> None:
        self.leader, self.epoch, self.end, self.is_there, self.coordinator = leader, epoch, end, is_there, coordinator

    def offset(self, own: int, epoch: int, which: int) -> tuple[int, int]:
        """A code and an offset: as Kafka checks the leader epoch of whoever asks."""
        if epoch != self.epoch:
            return (Code.FENCED_LEADER_EPOCH if epoch < self.epoch else Code.UNKNOWN_LEADER_EPOCH), -1
        if own != self.leader:
            return Code.NOT_LEADER, -1
        return Code.NONE, {EARLIEST: 0, LATEST: self.end}[which]


class Client:
    """As aiokafka's. Metadata is told by the nodes in ``asked_first``, one after the other, then by any."""

    def __init__(self, nodes: Mapping[int, Node], replicas: list[int]) -> None:
        self._nodes, self._replicas = nodes, replicas
        self.refusal = None
        self.asked: list[tuple[int, str]] = []

    def nodes(self) -> list[int]:
        """All of them."""
        return [*self._nodes]

    def problem(self, node: int) -> str:
        """Why there is no connection."""
        return f"no connection to broker {node}"

    async def send(self, node: int, request: Any, *, group: Any, is_handed_on: bool, limit: Any) -> Any:
        """What the node answers."""
        self.asked.append((node, type(request).__name__))
        known = self._nodes[node]
        if not known.is_there:
            raise aiokafka.errors.NodeNotReadyError
        match request:
            case TopicsRequest():
                row: tuple[Any, ...] = (0, 0, known.leader, known.epoch, self._replicas, self._replicas, [], {})
                return SimpleNamespace(API_VERSION=12, brokers=[], topics=[(0, "src", bytes(16), False, [row], 0, {})])
            case ListOffsetsRequest():
                ((topic, rows),) = request._rows
                told = [(p, *known.offset(node, epoch, which)) for p, epoch, which in rows]
                return SimpleNamespace(topics=[(topic, [(p, code, -1, offset, -1) for p, code, offset in told])])
            case FindCoordinatorRequest():
                return SimpleNamespace(error_code=0, coordinator_id=known.coordinator)
        raise AssertionError(request)


def link_to(nodes: Mapping[int, Node], replicas: list[int]) -> tuple[KafkaLink, Client]:
    """A link to these."""
    link = KafkaLink(LinkSettings("127.0.0.1:1", "test", Security(), 100, 10_000, 10_000))
    link._client = client = Client(nodes, replicas)
    return link, client


def watermarks(nodes: Mapping[int, Node], in_sync_min: int | None, *, heard: int | None = None) -> tuple[int, Client]:
    """The end that is told at last. ``heard``: whose view of the cluster was heard first."""
    link, client = link_to(nodes, sorted(nodes))

    async def told(topics: Any) -> dict[str, int]:
        return {} if in_sync_min is None else dict.fromkeys(topics, in_sync_min)

    async def main() -> Mapping[TopicPartition, Watermarks]:
        if heard is not None:
            others = {node: known.is_there for node, known in nodes.items() if node != heard}
            for node in others:
                nodes[node].is_there = False
            await link.missing_partitions([PLACE], link.deadline("hearing"))
            for node, was_there in others.items():
                nodes[node].is_there = was_there
            client.asked.clear()
        return await ConfirmedWatermarks(link, TopicNumbers(told)).of([PLACE], link.deadline("asking"))

    return run_virtual(main())[PLACE].high, client


def test_a_leader_is_confirmed_by_a_follower_of_its_epoch() -> None:
    """One of the two others is enough with min.insync.replicas 2; one that is away is no matter."""
    nodes = {1: Node(1, 3, 667), 2: Node(1, 3), 3: Node(1, 3, is_there=False)}
    assert watermarks(nodes, 2)[0] == 667


def test_a_leader_that_was_deposed_and_still_answers_is_not_believed() -> None:
    """It was heard first, and tells its old end; a replica knows a newer epoch, and who leads by it is asked."""
    nodes = {1: Node(1, 3, 237), 2: Node(2, 4, 667), 3: Node(2, 4)}
    for _ in range(10):
        assert watermarks(nodes, 2, heard=1)[0] == 667


def test_a_leader_that_nobody_else_confirms_is_waited_for() -> None:
    """A process that is cut off together with it gets no end, rather than an old one."""
    nodes = {1: Node(1, 3, 237), 2: Node(2, 4, 667, is_there=False), 3: Node(2, 4, is_there=False)}
    with pytest.raises(BrokerTimeout):
        watermarks(nodes, 2)


def test_a_replica_that_lags_behind_does_not_confirm() -> None:
    """It knows neither that epoch nor what came since: begin again."""
    nodes = {1: Node(1, 3, 237), 2: Node(1, 2), 3: Node(1, 2)}
    with pytest.raises(BrokerTimeout):
        watermarks(nodes, 2, heard=1)


@pytest.mark.parametrize("in_sync_min", [1, None], ids=["min.insync.replicas 1", "hidden"])
def test_where_all_replicas_would_have_to_answer_one_that_is_away_is_a_warning(
    in_sync_min: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Or nothing could be read while a broker is down. What a replica says against it counts."""
    nodes = {1: Node(1, 3, 667), 2: Node(1, 3), 3: Node(1, 3, is_there=False)}
    assert watermarks(nodes, in_sync_min)[0] == 667
    assert "src: min.insync.replicas is 1, or is not told" in caplog.text
    nodes = {1: Node(1, 3, 237), 2: Node(2, 4, 667), 3: Node(1, 3, is_there=False)}
    assert watermarks(nodes, in_sync_min, heard=1)[0] == 667


def test_the_only_replica_is_asked_alone() -> None:
    """Nobody else could have been elected."""
    end, client = watermarks({1: Node(1, 0, 5)}, None, heard=1)
    assert (end, client.asked) == (5, [(1, "ListOffsetsRequest")] * 2)


@virtual
async def test_a_node_that_names_itself_as_coordinator_is_believed_when_another_one_does() -> None:
    """One that was deposed names itself for as long as it is cut off, and no epoch tells it."""
    nodes = {1: Node(1, 0, coordinator=1), 2: Node(1, 0, coordinator=2), 3: Node(1, 0, coordinator=2)}

    async def found() -> int:
        link, _ = link_to(nodes, [1, 2, 3])
        return await link.coordinator("id", link.deadline("looking for a coordinator"))

    assert {await found() for _ in range(50)} == {2}
    nodes[2].is_there = nodes[3].is_there = False
    assert await found() == 1, "nobody else answers"
