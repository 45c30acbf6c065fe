"""Who leads what in a cluster, and how it is moved: by requests of our own, since no client of ours has them."""

import struct
import time
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import KafkaNode
from keylanes.devkafka.wire import NO_TAGS, array, ask, text

_ELECT, _REASSIGN, _LIST_TRANSACTIONS = 43, 45, 66
_PREFERRED = 0
_NOT_NEEDED = 84
LIMIT_S = 60.0
LOOK_S = 0.05


class Leaders:
    """The leaders of a cluster, asked anew each time."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def of(self, topic: str, partition: int) -> KafkaNode:
        """The node that leads a partition; waits for one."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = self._admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions.get(partition)
            number = 0 if found is None else int(found.leader)
            if number > 0:
                return self._cluster.nodes[number - 1]
            time.sleep(LOOK_S)
        raise AssertionError(f"{topic}[{partition}] has no leader")

    def coordinator(self, prefix: str) -> KafkaNode:
        """The node that coordinates the youngest transactional id that begins so; waits for one."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = [(producer, node) for node in self._running() for producer in _transactions(node, prefix)]
            if found:
                return max(found, key=lambda one: one[0])[1]
            time.sleep(LOOK_S)
        raise AssertionError(f"no transaction of {prefix}…")

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """The nodes that hold each partition of a topic, the preferred leader first."""
        partitions = self._admin.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions
        return {number: list(one.replicas) for number, one in sorted(partitions.items())}

    def move(self, topics: Sequence[str]) -> int:
        """Another node leads each partition: the order of replicas is turned, then the preferred one is elected. How
        many were moved.
        """
        turned = {
            topic: {number: [*held[1:], held[0]] for number, held in self.replicas(topic).items()} for topic in topics
        }
        arrange(self._running()[0].port, turned)
        return sum(map(len, turned.values()))

    def _running(self) -> list[KafkaNode]:
        return [node for node in self._cluster.nodes if node.is_running()]


def arrange(port: int, wanted: Mapping[str, Mapping[int, Sequence[int]]]) -> None:
    """Let these nodes hold each partition of each topic, and the first one lead. ``port``: of a node that serves."""
    answer = ask(port, _REASSIGN, 0, struct.pack(">i", 30_000) + array(map(_reassigned, wanted.items())) + NO_TAGS)
    answer.int32()
    code = answer.int16()
    assert code == 0, f"reassignment was refused: Kafka error {code} {answer.text()}"
    chosen = array(
        text(topic) + array(struct.pack(">i", number) for number in held) + NO_TAGS for topic, held in wanted.items()
    )
    answer = ask(port, _ELECT, 2, struct.pack(">b", _PREFERRED) + chosen + struct.pack(">i", 30_000) + NO_TAGS)
    answer.int32()
    code = answer.int16()
    assert code in (0, _NOT_NEEDED), f"election was refused: Kafka error {code}"


def _reassigned(topic_and_held: tuple[str, Mapping[int, Sequence[int]]]) -> bytes:
    topic, held = topic_and_held
    partitions = (
        struct.pack(">i", number) + array(struct.pack(">i", node) for node in nodes) + NO_TAGS
        for number, nodes in held.items()
    )
    return text(topic) + array(partitions) + NO_TAGS


def _transactions(node: KafkaNode, prefix: str) -> list[int]:
    """The producer ids of the transactional ids that a node coordinates."""
    answer = ask(node.port, _LIST_TRANSACTIONS, 0, array([]) + array([]) + NO_TAGS)
    answer.int32()
    if answer.int16():  # its coordinator is still loading
        return []
    for _ in range(answer.count()):
        answer.text()
    found = []
    for _ in range(answer.count()):
        transactional_id, producer = answer.text(), answer.int32() << 32 | answer.int32()
        answer.text()  # the state
        answer.tags()
        if transactional_id.startswith(prefix):
            found.append(producer)
    return found
