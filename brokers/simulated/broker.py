"""A cluster in memory with delays, orders and faults from a seed; processes reach the cluster through connections.

``SimulatedBroker`` is the cluster for a test, and outlives crashes. ``connect`` gives a process a ``Broker``; ``sever``
is the kill -9 of the process: requests under way may or may not arrive, by the seed, and later calls have no effect.

All waiting goes through the running loop: in virtual time on a ``VirtualLoop``, and in real time elsewhere. The parts:
``log`` has the knowledge of a cluster and the rules of transactions, ``cluster`` the effects of requests, ``network``
delays and faults, and ``connection`` the reaction of clients.
"""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ..protocol import GroupOffsets, Headers, TopicDescription, TopicPartition, TopicSpec, Watermarks
from .cluster import Cluster
from .connection import SimulatedConnection, SimulatedReader
from .link import ConnectionSevered
from .log import ClusterState, LogEntry, SimulatedRecord
from .network import EPOCH_MS, Fault, Faults, Latency, Network, RequestKind

_LATENCY: Final = Latency()


class CommittedRecord(NamedTuple):
    """A record of ``SimulatedBroker.committed_records``; ``timestamp`` in ms."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class SimulatedBroker:
    """The cluster for a test; a test's own questions take no time. ``auto_create``, ``partitions_default`` and
    ``brokers``: see ``Cluster``. ``state``: the knowledge of the cluster; a test may give a state that reports events.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        auto_create: bool = False,
        partitions_default: int = 4,
        brokers: int = 3,
        latency: Latency = _LATENCY,
        faults: Faults | None = None,
        state: ClusterState | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self.network = Network(self._random, latency, faults if faults is not None else Faults())
        self.state = ClusterState() if state is None else state
        self.cluster = Cluster(
            self._random,
            self.network,
            self.state,
            auto_create=auto_create,
            partitions_default=partitions_default,
            brokers=brokers,
        )

    @property
    def faults(self) -> Faults:
        """The faults, and how often each happens."""
        return self.network.faults

    @property
    def met(self) -> Counter[str]:
        """How often each kind of fault has really happened, by name; other events of note too."""
        return self.network.met

    @property
    def latency(self) -> Latency:
        """How long things take."""
        return self.network.latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self.network.latency = latency

    def connect(self, client_name: str) -> SimulatedConnection:
        """A ``Broker`` for one process."""
        return SimulatedConnection(self.cluster, client_name)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, unless it exists."""
        self.state.create(TopicSpec(name, partitions, config or {}))

    def grow_topic(self, name: str) -> TopicPartition:
        """Add a partition to a topic."""
        return self.state.grow(name)

    def configure_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Change some of a topic's configuration."""
        self.state.configure(name, config)

    def topics(self) -> dict[str, TopicDescription]:
        """All topics by name."""
        return {name: topic.description for name, topic in self.state.topics.items()}

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and high watermark; raises UnknownTopic."""
        return self.state.watermarks(source)

    def committed_records(self, topic: str) -> list[CommittedRecord]:
        """All records of a topic that are decided as committed, also while a marker is still to be written."""
        partitions = len(self.state.topics[topic].logs) if topic in self.state.topics else 0
        return [
            CommittedRecord(partition, *entry.record)
            for partition in range(partitions)
            for entry in self.all_entries(TopicPartition(topic, partition))
            if entry.record is not None and (entry.transaction is None or entry.transaction.committed)
        ]

    def all_entries(self, source: TopicPartition) -> list[LogEntry]:
        """Every offset from start to high: open and aborted records, markers and holes too."""
        return list(self.state.log(source).entries)

    def set_group(self, name: str, offsets: Mapping[TopicPartition, int], *, members: bool = False) -> None:
        """Set a consumer group: the committed offsets, and whether the group has members."""
        self.state.groups[name] = GroupOffsets("Stable" if members else "Empty", members, dict(offsets))

    def make_hole(self, source: TopicPartition, offsets: Collection[int]) -> None:
        """Take records away as compaction would; their offsets stay."""
        log = self.state.log(source)
        for offset in offsets:
            if log.start <= offset < log.high:
                log.make_hole(offset)
        self.cluster.wake(source)

    def compact(self, source: TopicPartition, *, keep_tombstones: bool = True, partly: bool = False) -> None:
        """Keep the newest committed record of each key below the last stable offset; raises BrokerError.

        Without ``keep_tombstones`` a newest record without a value goes too, as after ``delete.retention.ms``.
        ``partly``: only up to an offset from the seed, and about half of the records that could go stay.
        """
        log = self.state.compactable(source)
        before = self._random.randint(log.start, log.stable) if partly else log.stable
        log.compact(before, keep_tombstones=keep_tombstones, spared=lambda: partly and self._random.random() < 0.5)
        self.cluster.wake(source)

    def truncate(self, source: TopicPartition, high: int) -> None:
        """Lose all from ``high`` on, as an unclean change of leaders may; raises UnknownTopic, OffsetOutOfRange."""
        self.state.truncate(source, high)
        self.cluster.wake(source)

    def recreate_topic(self, name: str) -> None:
        """Delete a topic and create the topic again, empty, with the same settings."""
        self.state.recreate(name)
        for partition in range(self.state.topics[name].description.partitions):
            self.cluster.wake(TopicPartition(name, partition))

    def trim(self, source: TopicPartition, before: int) -> None:
        """Forget records below ``before``, as retention would, or another cleanup.policy for a while."""
        self.state.log(source).trim(before)
        self.cluster.wake(source)

    @property
    def is_settled(self) -> bool:
        """Whether all markers of decided transactions are written."""
        newest = [known.transaction for known in self.state.ids.values() if known.transaction is not None]
        return all(transaction.committed is None or transaction.complete for transaction in newest)

    def stable(self, source: TopicPartition) -> int:
        """The last stable offset: committed readers stop there."""
        return self.state.log(source).stable

    def transactional_state(self, transactional_id: str) -> tuple[str, int]:
        """The state and the epoch of an id in Kafka's terms; ``("None", -1)``: never used."""
        return self.state.state_of(transactional_id)

    def break_connections(self) -> None:
        """Start the brokers anew: requests under way end with BrokerTimeout, carried out or not; nothing is lost."""
        self.network.break_connections()
        self.cluster.wake_all()


__all__ = [
    "EPOCH_MS",
    "CommittedRecord",
    "ConnectionSevered",
    "Fault",
    "Faults",
    "Latency",
    "LogEntry",
    "RequestKind",
    "SimulatedBroker",
    "SimulatedConnection",
    "SimulatedReader",
    "SimulatedRecord",
]
