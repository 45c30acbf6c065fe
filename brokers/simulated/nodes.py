"""PURE. Leaders and coordinators in a simulated cluster, and the answers of a deposed node.

A node is deposed when it is cut off from the other nodes. The other nodes elect leaders and coordinators in place of
the deposed node, under the next leader epoch. The deposed node goes on answering clients, as a broker does without a
link to other brokers: with old metadata, old ends, old records, and old states of transactions. The deposed node
acknowledges nothing.

One node is deposed at a time: of three nodes the other two are a quorum, and have every acknowledged record.
"""

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ..leaders import Leadership
from ..protocol import BrokerError, ProducerFenced, TopicPartition, Watermarks
from .log import ClusterState, Concurrent, WrongTransactionState

TRANSACTION_PARTITIONS: Final = 50
"""Of ``__transaction_state``, Kafka's default. The hash of an id names its partition, whose leader coordinates."""


class NoAnswer(BrokerError):
    """The node says nothing: the request needs other nodes."""


class NotLeader(BrokerError):
    """Another node leads the partition, or coordinates the id."""


class OldEnds(NamedTuple):
    """Ends of a partition when the leader was deposed; ``stable``: committed readers stop there."""

    marks: Watermarks
    stable: int


class OldId(NamedTuple):
    """A transactional id when the coordinator was deposed; ``state`` has Kafka's names."""

    state: str
    epoch: int
    partitions: frozenset[TopicPartition]


class Deposed(NamedTuple):
    """The knowledge of a node at the moment when it was deposed.

    ``leaderships``: of all partitions; ``ends``: of the partitions that the node led; ``coordinated``: the partitions
    of ``__transaction_state`` that the node led; ``ids``: the transactional ids in these.
    """

    node: int
    leaderships: Mapping[TopicPartition, Leadership[int]]
    ends: Mapping[TopicPartition, OldEnds]
    coordinated: frozenset[int]
    ids: Mapping[str, OldId]

    def add(self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """Agree when these partitions were in the open transaction already: no append is needed. Raises ProducerFenced,
        Concurrent, NoAnswer.
        """
        known = self._current(transactional_id, epoch)
        if known.state != "Ongoing" or not known.partitions.issuperset(partitions):
            raise NoAnswer("a transaction can't be begun without an append")

    def end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """Agree when the last transaction of the epoch was complete with the same outcome: no append is needed. Raises
        ProducerFenced, Concurrent, NoAnswer, WrongTransactionState.
        """
        known = self._current(transactional_id, epoch)
        if known.state == "Ongoing":
            raise NoAnswer("a transaction can't be ended without an append")
        if known.state != ("CompleteCommit" if commit else "CompleteAbort"):
            raise WrongTransactionState(f"{transactional_id!r} has no transaction that could be ended so")

    def _current(self, transactional_id: str, epoch: int) -> OldId:
        known = self.ids.get(transactional_id)
        if known is None:
            raise NoAnswer(f"nothing was known of {transactional_id!r}")
        if known.epoch != epoch:
            raise ProducerFenced(f"transactional id {transactional_id!r} was at epoch {known.epoch}, not {epoch}")
        if known.state.startswith("Prepare"):
            raise Concurrent(f"the markers of {transactional_id!r} are being written")
        return known


class Nodes:
    """The nodes of one cluster: their leaderships, and the deposed node. ``salt``: text that decides the first leaders
    and coordinators.
    """

    def __init__(self, state: ClusterState, count: int, salt: str) -> None:
        self.numbers = tuple(range(count))
        self.deposed: Deposed | None = None
        self._state = state
        self._salt = salt
        self._leads: dict[tuple[str, int], tuple[int, int]] = {}
        """Leader and leader epoch by identity of the topic and partition: epochs of a new topic begin again."""
        self._coordinates: dict[int, int] = {}
        """Nodes by partition of ``__transaction_state``."""

    # --- leaders and coordinators -----------------------------------------------------------------------------------

    def leadership(self, source: TopicPartition) -> Leadership[int]:
        """The true leadership of a partition; raises UnknownTopic."""
        self._state.log(source)
        identity = self._state.topics[source.topic].description.identity
        key = (identity, source.partition)
        if key not in self._leads:
            self._leads[key] = self._first(f"{source.topic}/{source.partition}"), 0
        return Leadership(*self._leads[key], self.numbers, identity)

    def coordinator(self, transactional_id: str) -> int:
        """The true coordinator of an id."""
        return self._coordinator_of(self._transaction_partition(transactional_id))

    def _coordinator_of(self, partition: int) -> int:
        return self._coordinates.setdefault(partition, self._first(f"__transaction_state/{partition}"))

    def _transaction_partition(self, transactional_id: str) -> int:
        return zlib.crc32(transactional_id.encode()) % TRANSACTION_PARTITIONS

    def _first(self, what: str) -> int:
        nodes = self._members
        return nodes[zlib.crc32(f"{self._salt}/{what}".encode()) % len(nodes)]

    @property
    def _members(self) -> Sequence[int]:
        return [node for node in self.numbers if not self.is_deposed(node)]

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, p) for name, topic in self._state.topics.items() for p in range(len(topic.logs))]

    # --- deposing -------------------------------------------------------------------------------------------------

    def depose(self, node: int, choose: Callable[[Sequence[int]], int]) -> None:
        """Depose a node; ``choose`` elects each leader and each coordinator from the other nodes."""
        assert self.deposed is None, "one at a time: two of three have all that was acknowledged"
        assert len(self.numbers) > 2, "the others are a quorum"
        leaderships = {source: self.leadership(source) for source in self._partitions()}
        led = [source for source, known in leaderships.items() if known.leader == node]
        coordinated = frozenset(p for p in range(TRANSACTION_PARTITIONS) if self._coordinator_of(p) == node)
        ids = {
            name: OldId(*self._state.state_of(name), frozenset(known.transaction.unmarked if known.transaction else ()))
            for name, known in self._state.ids.items()
            if self._transaction_partition(name) in coordinated
        }
        self.deposed = Deposed(
            node=node,
            leaderships=leaderships,
            ends={source: self._ends_of(source) for source in led},
            coordinated=coordinated,
            ids=ids,
        )
        for source in led:
            known = leaderships[source]
            self._leads[known.identity, source.partition] = choose(self._members), known.epoch + 1
        self._coordinates.update((partition, choose(self._members)) for partition in sorted(coordinated))

    def mend(self) -> None:
        """Connect the deposed node to the other nodes again: it learns everything at once, and leads nothing."""
        self.deposed = None

    def _ends_of(self, source: TopicPartition) -> OldEnds:
        return OldEnds(self._state.watermarks(source), self._state.log(source).stable)

    # --- answers of nodes --------------------------------------------------------------------------------------------

    def is_deposed(self, node: int) -> bool:
        """Whether the node is cut off from the other nodes."""
        return self.deposed is not None and self.deposed.node == node

    def told_leadership(self, node: int, source: TopicPartition) -> Leadership[int] | None:
        """A leadership in the metadata of a node; None: the partition is unknown there. Raises UnknownTopic."""
        if self.deposed is not None and self.deposed.node == node:
            return self.deposed.leaderships.get(source)
        return self.leadership(source)

    def told_coordinator(self, node: int, transactional_id: str) -> int:
        """The coordinator of an id in the answer of a node."""
        partition = self._transaction_partition(transactional_id)
        if self.deposed is not None and self.deposed.node == node and partition in self.deposed.coordinated:
            return node
        return self.coordinator(transactional_id)

    def old_ends(self, node: int, source: TopicPartition) -> OldEnds | None:
        """The ends of a partition in the answer of its deposed leader; None: the node is the true leader. Raises
        NotLeader, UnknownTopic.
        """
        if self.deposed is not None and self.deposed.node == node and source in self.deposed.ends:
            return self.deposed.ends[source]
        if self.leadership(source).leader != node or self.is_deposed(node):
            raise NotLeader(f"node {node} does not lead {source.topic}[{source.partition}]")
        return None

    def agrees(self, node: int, source: TopicPartition, told: Leadership[int]) -> bool:
        """Whether a replica knows this leadership and no newer one."""
        known = self.told_leadership(node, source)
        return known is not None and (known.leader, known.epoch) == (told.leader, told.epoch)
