"""Three nodes of a real Kafka, of which node 1 lives in a namespace: its peers can lose it while clients reach it.

Each node has four listeners:

    CLIENTS      for the application, the loader and the judge
    PEERS        for the other brokers
    CONTROLLER   for the quorum, over the same link as PEERS
    HERE         on the loopback: what nodes 2 and 3 answer there is never the word of node 1
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes.devkafka.admin import cluster_at
from keylanes.devkafka.folder import hold_lock, make_private
from keylanes.devkafka.jars import KafkaServerError, class_path
from keylanes.devkafka.java import java_home
from keylanes.devkafka.node import START_SECONDS, STOP_SECONDS, KafkaNode, KafkaProgram, new_cluster_id
from keylanes.devkafka.properties import cluster_settings, node_settings
from keylanes.devkafka.wire import Answer, ask

from ..stage.leaders import arrange
from .deposed_cases import Version
from .deposed_network import BROKER, CLIENTS, PEERS

NODES: Final = (1, 2, 3)
SESSION_MS: Final = 6_000
TRANSACTIONS: Final = "__transaction_state"
TRANSACTION_PARTITIONS: Final = 4
METADATA: Final = 3
FORMAT: Final = "kafka.tools.StorageTool"
LOOK_S: Final = 0.1
LIMIT_S: Final = 90.0
ATTEMPT_S: Final = 5.0
TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC = KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.UNKNOWN_TOPIC_OR_PART
CLIENT_SETTINGS: Final[dict[str, Any]] = {
    "log_level": 0,
    "socket.timeout.ms": 3_000,
    "socket.connection.setup.timeout.ms": 1_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
}
"""Of clients that have to hear of new leaders soon."""


class NodeKafka(KafkaProgram):
    """Apache Kafka for one node: its commands run in the node's namespace, and format with the wanted features."""

    before: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def command(self, options: Sequence[str], *arguments: str) -> list[str]:
        """Run a class of Kafka."""
        more = self.features if arguments[0] == FORMAT else ()
        return [*self.before, *super().command(options, *arguments, *more)]


class DeposedCluster:
    """The nodes, in a folder of their own. The network is there already. ``start`` blocks, as does ``stop``."""

    def __init__(self, folder: Path, version: Version) -> None:
        self._folder, self._version = folder, version
        self._nodes = {number: KafkaNode(number, folder / f"node-{number}", _never, port=_here(number), alone="kill")
                       for number in NODES}  # fmt: skip

    @property
    def bootstrap(self) -> str:
        """The addresses of nodes 2 and 3 for clients."""
        return ",".join(_clients(number) for number in NODES[1:])

    @property
    def bootstrap_of_members(self) -> str:
        """The addresses of all nodes for clients."""
        return ",".join(_clients(number) for number in NODES)

    def start(self) -> None:
        """Format and start all nodes; return when each serves and ``__transaction_state`` has its leaders.

        Raises KafkaServerError with the ends of the logs.
        """
        java = java_home()
        classes, cluster, deadline = class_path(java), new_cluster_id(), time.monotonic() + START_SECONDS
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(NODES)) as side_by_side:
            made = []
            for number, node in self._nodes.items():
                make_private(node.folder)
                lock = stack.enter_context(hold_lock(node.folder, deadline))
                kafka, settings = self._kafka(number, java, classes), _settings(number)
                made.append((node, kafka, settings, lock))
            done = [side_by_side.submit(node.format, kafka, cluster, settings, lock, deadline)
                    for node, kafka, settings, lock in made]  # fmt: skip
            for one in done:
                one.result()
            for node, kafka, settings, lock in made:
                node.launch(kafka, settings, lock, cluster)
        self._wait_ready(cluster, deadline)
        settings = {"cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "2"}
        self.create({TRANSACTIONS: (TRANSACTION_PARTITIONS, False, settings)})

    def stop(self) -> None:
        """Kill all nodes."""
        for node in self._nodes.values():
            node.order("kill")
        for node in self._nodes.values():
            node.wait_for_end(STOP_SECONDS)

    def log_tail(self) -> str:
        """The last lines of what each node said."""
        return "\n".join(f"--- node {number}\n{node.log_tail()}" for number, node in self._nodes.items())

    def create(self, topics: Mapping[str, tuple[int, bool, Mapping[str, str]]]) -> None:
        """Make topics: by name the number of partitions, whether node 1 leads, and settings. Returns when all nodes
        have their copies and the leaders are as wanted.
        """
        new = [NewTopic(name, count, replica_assignment=list(_orders(count, by_first)), config=dict(settings))
               for name, (count, by_first, settings) in topics.items()]  # fmt: skip
        self._ask("created", lambda admin: admin.create_topics(new, request_timeout=ATTEMPT_S), TOPIC_ALREADY_EXISTS)
        for name, (_, by_first, _) in topics.items():
            self.wait_for_leaders(name, by_first=by_first)

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics."""
        names = list(topics)
        self._ask("deleted", lambda admin: admin.delete_topics(names, request_timeout=ATTEMPT_S), UNKNOWN_TOPIC)

    def lead_transactions(self, *, by_first: bool) -> None:
        """Let node 1 lead all of ``__transaction_state``, or none of it."""
        orders = dict(enumerate(_orders(TRANSACTION_PARTITIONS, by_first)))
        arrange(_here(2), {TRANSACTIONS: orders})
        self.wait_for_leaders(TRANSACTIONS, by_first=by_first)

    def is_deposed(self, topics: Sequence[str]) -> bool:
        """Whether nodes 2 and 3 say that node 1 leads nothing of these topics."""
        return all(leader in NODES[1:] for leader, _ in self._leaders(topics))

    def wait_for_leaders(self, topic: str, *, by_first: bool) -> None:
        """Wait until each partition has all copies in sync, and node 1 leads all or none of them."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = self._leaders([topic])
            if found and all((leader == 1) is by_first and leader > 0 and copies == 3 for leader, copies in found):
                return
            time.sleep(LOOK_S)
        raise KafkaServerError(f"{topic}: (leader, copies in sync) are {found}\n{self.log_tail()}")

    def _ask(self, what: str, request: Callable[[AdminClient], Mapping[str, Any]], done_before: int) -> None:
        """Ask until all is done. Soon after a cut a node may hand a request on over a connection that is dead."""
        until = time.monotonic() + LIMIT_S
        while True:
            # Any node may be named as the one to ask, so the client has to reach all.
            admin = AdminClient({"bootstrap.servers": self.bootstrap_of_members, **CLIENT_SETTINGS})
            errors = [one.exception() for one in request(admin).values()]
            codes = [error.args[0].code() if isinstance(error, KafkaException) else error for error in errors]
            if all(code is None or code == done_before for code in codes):
                return
            if time.monotonic() > until:
                raise KafkaServerError(f"topics can't be {what}: {errors}\n{self.log_tail()}")
            time.sleep(LOOK_S)

    def _leaders(self, topics: Sequence[str]) -> list[tuple[int, int]]:
        """Of each partition the leader and how many copies are in sync, as node 2 says and as node 3 says."""
        return [one for number in NODES[1:] for one in partitions_of(_here(number), topics)]

    def _kafka(self, number: int, java: Any, classes: str) -> NodeKafka:
        kafka = NodeKafka(java, classes)
        kafka.before = ("ip", "netns", "exec", BROKER) if number == 1 else ()
        kafka.features = ("--feature", f"transaction.version={self._version}")
        return kafka

    def _wait_ready(self, cluster: str, deadline: float) -> None:
        """Wait until nodes 2 and 3 list all nodes, and node 1 can be reached."""
        ports = [_here(number) for number in NODES]
        while any(cluster_at(port, ports) != cluster for port in ports[1:]) or not _listens(CLIENTS[1], 9192):
            if ended := [number for number, node in self._nodes.items() if not node.is_running()]:
                raise KafkaServerError(f"nodes {ended} ended while they started\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaServerError(f"the cluster was not ready in time\n{self.log_tail()}")
            time.sleep(LOOK_S)


def partitions_of(port: int, topics: Sequence[str]) -> list[tuple[int, int]]:
    """Of each partition of topics the leader (-1: none) and how many copies are in sync, by a node on the loopback.

    [(-1, 0)] when there is no answer or no topic.
    """
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    try:
        answer = ask(port, METADATA, 4, struct.pack(">i", len(topics)) + names + b"\0", is_flexible=False)
    except (OSError, ValueError):
        return [(-1, 0)]
    answer.int32()  # for how long the client is throttled
    for _ in range(answer.int32()):
        answer.int32(), answer.plain_text(), answer.int32(), answer.plain_text()  # a broker
    answer.plain_text(), answer.int32()  # the cluster and its controller
    found = []
    for _ in range(answer.int32()):
        answer.int16(), answer.plain_text(), answer.int8()  # a topic
        count = answer.int32()
        found += [_partition(answer) for _ in range(count)] or [(-1, 0)]
    return found


def _partition(answer: Answer) -> tuple[int, int]:
    """The leader, and how many copies are in sync."""
    answer.int16(), answer.int32()  # its error and number
    leader = answer.int32()
    _, in_sync = [[answer.int32() for _ in range(answer.int32())] for _ in range(2)]
    return leader, len(in_sync)


def _orders(count: int, by_first: bool) -> Iterator[list[int]]:
    """The nodes that hold each partition, the preferred leader first: node 1, or nodes 2 and 3 in turn."""
    for number in range(count):
        yield [1, 2, 3] if by_first else [2, 3, 1] if number % 2 == 0 else [3, 2, 1]


def _settings(number: int) -> dict[str, str]:
    """The properties of a node."""
    listeners = {
        "CLIENTS": _clients(number),
        "PEERS": f"{_address(PEERS, number)}:{9_093 + 100 * number}",
        "HERE": f"127.0.0.1:{_here(number)}",
    }
    voters = {one: f"{_address(PEERS, one)}:{9_094 + 100 * one}" for one in NODES}
    both = {**listeners, "CONTROLLER": voters[number]}
    common = node_settings(number, dict.fromkeys(NODES, 0), [], "PLAINTEXT") | cluster_settings(len(NODES), SESSION_MS)
    return common | {
        "listeners": ",".join(f"{name}://{address}" for name, address in both.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in both),
        "inter.broker.listener.name": "PEERS",
        "controller.quorum.voters": ",".join(f"{one}@{address}" for one, address in voters.items()),
        "auto.leader.rebalance.enable": "false",
    }


def _address(addresses: tuple[str, str], number: int) -> str:
    return addresses[1] if number == 1 else addresses[0]


def _clients(number: int) -> str:
    return f"{_address(CLIENTS, number)}:{9_092 + 100 * number}"


def _here(number: int) -> int:
    """A node's port on the loopback."""
    return 21_400 + number


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _never(node: KafkaNode, seconds: float) -> None:
    raise AssertionError(f"node {node.number} is started with its cluster")
