"""A real Apache Kafka cluster for development and tests: KRaft, loopback only, in a folder of your choice.

Every node is broker and controller. All start side by side; the cluster is ready when each node serves and lists all.
The data stay in the folder; the next start goes on with these data, on the same ports when the ports are free. A
cluster of one node has its data in the folder itself, a larger cluster has a folder ``node-<number>`` for each node.

**Starting and stopping a whole cluster.** While a partition has no leader, Kafka 4.3 takes the partition for deleted
and drops the markers of transactions that are being committed (KAFKA-20734). Committed readers then wait there for
ever, or the next abort takes the records along. Two times without leaders have to be kept out:

- A controlled shutdown of a cluster's last node: the node still completes commits after the controller has taken its
  leadership away. Hence a single node stops without a controlled shutdown, and several nodes are killed together.
- A restart: the broker first believes its old metadata and leads by them. It begins to write markers to itself before
  its listener is open. Then its old session ends and the leaders go. Hence the controllers run alone first and forget
  the brokers: no partition has a leader when the brokers come.

A single node of several is stopped and started as anywhere else.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import StoreError
from .admin import cluster_at, unregister_broker
from .folder import POLL_SECONDS, hold_lock, make_private, tail
from .jars import KafkaServerError, Progress, class_path
from .java import JavaHome, java_home
from .node import SMALL, START_SECONDS, STOP_SECONDS, KafkaNode, KafkaProgram, new_cluster_id
from .ports import HOST, free_port
from .properties import CLIENTS, PROXIED, SESSION_MS_ALONE, cluster_settings, controller_settings, node_settings
from .security import INTERNAL, ClusterSecurity, ClusterUsers
from .wire import Login

NODES_MAX = 9
SESSION_MS = 6_000
"""The silence after which a node of several counts as dead, and another node leads. Kafka's default is 9,000."""


class KafkaCluster:
    """Nodes in one folder. The constructor does nothing; ``start`` and ``stop`` block (use a thread in asyncio).

    ``properties`` are added to the brokers' own settings. ``session_ms``: KafkaProgram's ``broker.session.timeout.ms``.
    ``security``: the nodes' demands on clients; ``access`` then has users, passwords and rights.
    ``proxied_ports``: by number of a node, the port of a proxy in front of the node. Then every node has a second
    listener, at its ``proxied_listener_port``. This listener tells clients to come back to the proxies of the nodes.
    ``java_options``: options for each node's Java, by default as small as a test needs.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        nodes: int = 3,
        *,
        port: int = 0,
        session_ms: int | None = None,
        properties: Mapping[str, str] | None = None,
        security: ClusterSecurity | None = None,
        proxied_ports: Mapping[int, int] | None = None,
        progress: Progress | None = None,
        java: JavaHome | None = None,
        java_options: Sequence[str] = SMALL,
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"nodes: seen {nodes}; allowed are 1 to {NODES_MAX}")
        self.folder = Path(folder).absolute()
        self._progress = progress
        self._java = java
        session_ms = session_ms or (SESSION_MS if nodes > 1 else SESSION_MS_ALONE)
        self._settings = {**cluster_settings(nodes, session_ms), **(properties or {})}
        proxied = dict(proxied_ports or {})
        self._has_proxies = any(proxied.values())
        self._security = security
        self._access = ClusterUsers(self.folder / "security", security, self._admin_ports) if security else None
        self._how_to_end = "stop" if nodes == 1 else "kill"
        self._controllers: dict[int, int] = {}
        self.nodes = [
            KafkaNode(
                number,
                self.folder if nodes == 1 else self.folder / f"node-{number}",
                self._start_node,
                port=port + number - 1 if port else 0,
                proxied_port=proxied.get(number, 0),
                java_options=java_options,
                alone=self._how_to_end,
            )
            for number in range(1, nodes + 1)
        ]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes for clients, ``host:port,host:port``."""
        return ",".join(node.address for node in self.nodes)

    def bootstrap_at(self, listener: str) -> str:
        """The addresses of all nodes at another listener: ``PROXIED``, or one of ``security.BAD``."""
        return ",".join(f"{HOST}:{node.ports[listener]}" for node in self.nodes)

    @property
    def access(self) -> ClusterUsers:
        """Users, passwords, certificates and access lists of a cluster with ``security``."""
        if self._access is None:
            raise ValueError("this cluster has no users: give it security=ClusterSecurity(…)")
        return self._access

    def is_running(self) -> bool:
        """Whether the process of every node lives."""
        return all(node.is_running() for node in self.nodes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, seconds_max: float = START_SECONDS) -> None:
        """Fetch, format and start the missing parts; return when every node serves clients.

        The time limit begins after the fetch. Raises ``KafkaServerError`` (with the end of the broker's log) and
        ``StoreError`` when the folder is in use or can't be used.
        """
        self._start([node for node in self.nodes if not node.is_running()], seconds_max)

    def stop(self, seconds_max: float = STOP_SECONDS) -> None:
        """End all nodes together by SIGKILL; a single node gets SIGTERM first. See above for the reason."""
        self._end(self._how_to_end, seconds_max + 5)

    def kill(self) -> None:
        """End all nodes at once, as a power cut would."""
        self._end("kill", STOP_SECONDS)

    def _end(self, order: str, seconds_max: float) -> None:
        for node in self.nodes:
            node.order(order)
        for node in self.nodes:
            node.wait_for_end(seconds_max)

    def log_tail(self) -> str:
        """The last lines of each node's output."""
        if len(self.nodes) == 1:
            return self.nodes[0].log_tail()
        return "\n".join(f"--- node {node.number}\n{node.log_tail()}" for node in self.nodes)

    # --- how it starts -----------------------------------------------------------------------------------------------

    def _start_node(self, node: KafkaNode, seconds_max: float) -> None:
        self._start([] if node.is_running() else [node], seconds_max)

    def _start(self, nodes: list[KafkaNode], seconds_max: float) -> None:
        """Start these nodes beside the running nodes."""
        if not nodes:
            return
        java = self._java or java_home()
        kafka = KafkaProgram(java, class_path(java, self._progress))
        deadline = time.monotonic() + seconds_max
        make_private(self.folder)
        self._refuse_other_size()
        try:
            with contextlib.ExitStack() as stack:
                locks: dict[KafkaNode, int] = {}
                for node in nodes:
                    make_private(node.folder)
                    patience = min(deadline, time.monotonic() + STOP_SECONDS + 5)
                    locks[node] = stack.enter_context(hold_lock(node.folder, patience))
                cluster = self._launch(kafka, nodes, locks, deadline)
            self._wait_ready(nodes, cluster, deadline)
            if self._access is not None and len(nodes) == len(self.nodes):
                self._access.set_up()
        except BaseException:
            for node in nodes:
                node.kill()
            raise

    def _launch(
        self, kafka: KafkaProgram, nodes: list[KafkaNode], locks: Mapping[KafkaNode, int], deadline: float
    ) -> str:
        """Format new nodes and run all of these nodes; returns the cluster's id."""
        cluster = next((found for node in self.nodes if (found := node.cluster())), "") or new_cluster_id()
        is_whole, taken = len(nodes) == len(self.nodes), self._ports()
        if is_whole and self._access is not None:
            self._access.prepare()
        for node in nodes:
            node.choose_ports([name for name in self._protocols() if name != CLIENTS], taken)
        if is_whole or not self._controllers:  # a running controller keeps its port
            self._controllers = self._free_controllers()
        with ThreadPoolExecutor(len(nodes)) as side_by_side:
            formats = [
                side_by_side.submit(node.format, kafka, cluster, self._settings_of(node), locks[node], deadline)
                for node in nodes
            ]
        for done in formats:
            done.result()
        if is_whole and all(node.was_started() for node in nodes):
            self._forget_brokers(kafka, locks, deadline)
        for node in nodes:
            node.launch(kafka, self._settings_of(node), locks[node], cluster)
        return cluster

    def _free_controllers(self) -> dict[int, int]:
        """Free ports for the controllers, apart from the brokers' ports."""
        taken, found = self._ports(), dict[int, int]()
        for node in self.nodes:
            found[node.number] = free_port(taken)
            taken.add(found[node.number])
        return found

    def _ports(self) -> set[int]:
        """The ports where nodes listen, or will listen."""
        brokers = {port for node in self.nodes for port in (node.port, *node.ports.values())}
        return brokers | set(self._controllers.values())

    def _protocols(self) -> dict[str, str]:
        """The protocol of every listener by name, without the controllers' listener."""
        protocol = self._security.protocol if self._security else "PLAINTEXT"
        names = (CLIENTS, PROXIED) if self._has_proxies else (CLIENTS,)
        return dict.fromkeys(names, protocol) | (self._access.listeners() if self._access else {})

    def _settings_of(self, node: KafkaNode) -> dict[str, str]:
        """All settings of a node. The cluster's own settings override the others."""
        protocols = self._protocols()
        controllers_protocol = protocols.get(INTERNAL, "PLAINTEXT")
        found = node_settings(node.number, self._controllers, node.listeners(protocols), controllers_protocol)
        if self._access is not None:
            found |= self._access.settings([name for name in protocols if name != INTERNAL])
        return found | self._settings

    def _admin_ports(self) -> list[int]:
        """The ports of running nodes for requests of this program."""
        return [node.ports.get(INTERNAL, node.port) for node in self.nodes if node.is_running()]

    def _login(self) -> Login | None:
        return self._access.admin if self._access else None

    def _forget_brokers(self, kafka: KafkaProgram, locks: Mapping[KafkaNode, int], deadline: float) -> None:
        """Make the controllers forget the brokers before the brokers start again (see above)."""
        ports, login = self._free_controllers(), self._login()
        try:
            for node in self.nodes:
                settings = controller_settings(self._settings_of(node), node.number, ports)
                node.launch_controller(kafka, settings, locks[node])
            for node in self.nodes:
                while not any(unregister_broker(port, node.number, login) for port in ports.values()):
                    ended = next((one for one in self.nodes if not one.is_running()), None)
                    if ended is not None or time.monotonic() > deadline:
                        said = tail((ended or node).folder / "controller.out")
                        raise KafkaServerError(f"no controller came to office:\n{said}")
                    time.sleep(POLL_SECONDS)
        finally:
            self._end("stop", STOP_SECONDS + 5)

    def _refuse_other_size(self) -> None:
        """Raise StoreError for a folder with the data of another number of nodes."""
        alone = [1] if (self.folder / "data").exists() else []
        several = [number for number in range(1, NODES_MAX + 1) if (self.folder / f"node-{number}" / "data").exists()]
        wrong = several if len(self.nodes) == 1 else alone or [one for one in several if one > len(self.nodes)]
        if wrong:
            size = len(alone) or max(several)
            raise StoreError(
                f"{self.folder} holds a cluster of {size} node{'s' * (size > 1)}, asked for were {len(self.nodes)}: "
                "choose another folder"
            )

    def _wait_ready(self, nodes: list[KafkaNode], cluster: str, deadline: float) -> None:
        """Wait until each of these nodes serves and knows all of these nodes."""
        ports = {node: node.ports.get(INTERNAL, node.port) for node in nodes}
        for node in nodes:
            while (answer := cluster_at(ports[node], ports.values(), self._login())) != cluster:
                if answer:
                    raise KafkaServerError(f"port {node.port} belongs to another Kafka (cluster {answer})")
                ended = next((one for one in nodes if not one.is_running()), None)
                if ended is not None:
                    raise KafkaServerError(f"Apache Kafka ended while it started:\n{ended.log_tail()}")
                if time.monotonic() > deadline:
                    raise KafkaServerError(f"Apache Kafka was not ready in time:\n{node.log_tail()}")
                time.sleep(POLL_SECONDS)
