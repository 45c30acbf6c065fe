"""PURE. Who leads the partitions of a simulated cluster and coordinates its transactions, and what a node says that was
deposed.

A node that is cut off from the others is deposed. The others elect leaders and coordinators for all that it had, under
the next leader epoch. The node goes on answering whoever reaches it, as a broker does whose link to its peers is cut:
with its old metadata, its old ends, the records that it has, and what it knew of transactions. It acknowledges nothing.

One node is cut off at a time: the others are a quorum, and have all that was acknowledged.
"""

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ..leaders import Leadership
from ..protocol import BrokerError, ProducerFenced, TopicPartition, Watermarks
from .log import ClusterState, Concurrent, WrongTransactionState

TRANSACTION_PARTITIONS: Final = 50
"""Of ``__transaction_state``, as by default: an id is coordinated by who leads the one that its hash names."""


class NoAnswer(BrokerError):
    """The node says nothing: it can't do what it was asked for alone."""


class NotLeader(BrokerError):
    """The node does not lead the partition, or does not coordinate the id. Another one does."""


class OldEnds(NamedTuple):
    """Of a partition, as its leader knew them when it was deposed; ``stable``: where committed readers stop."""

    marks: Watermarks
    stable: int


class OldId(NamedTuple):
    """What a coordinator knew of a transactional id when it was deposed; ``state`` as Kafka names it."""

    state: str
    epoch: int
    partitions: frozenset[TopicPartition]


class Deposed(NamedTuple):
    """A node that is cut off from the others, and what it knew at that moment.

    ``leaderships``: of all partitions, as it goes on telling them; ``ends``: of those that it led; ``coordinated``: the
    partitions of ``__transaction_state`` that it led; ``ids``: the transactional ids in them.
    """

    node: int
    leaderships: Mapping[TopicPartition, Leadership[int]]
    ends: Mapping[TopicPartition, OldEnds]
    coordinated: frozenset[int]
    ids: Mapping[str, OldId]

    def add(self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """It says yes to what needs no append: these partitions were in the open transaction already. Raises
        ProducerFenced, Concurrent, NoAnswer.
        """
        known = self._current(transactional_id, epoch)
        if known.state != "Ongoing" or not known.partitions.issuperset(partitions):
            raise NoAnswer("a transaction can't be begun without an append")

    def end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """It says yes when the last transaction of the epoch was ended so. Raises ProducerFenced, Concurrent, NoAnswer,
        WrongTransactionState.
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
    """Of one cluster. ``salt``: text that decides who leads what in the beginning."""

    def __init__(self, state: ClusterState, count: int, salt: str) -> None:
        self.numbers = tuple(range(count))
        self.deposed: Deposed | None = None
        self._state, self._salt = state, salt
        self._leads: dict[tuple[str, int], tuple[int, int]] = {}
        """Node and leader epoch, by identity of the topic and partition: of another topic epochs begin again."""
        self._coordinates: dict[int, int] = {}
        """Nodes by partition of ``__transaction_state``."""

    # --- who leads and coordinates -----------------------------------------------------------------------------------

    def leadership(self, source: TopicPartition) -> Leadership[int]:
        """By the nodes that are not cut off; raises UnknownTopic."""
        self._state.log(source)
        identity = self._state.topics[source.topic].description.identity
        key = (identity, source.partition)
        if key not in self._leads:
            self._leads[key] = self._first(f"{source.topic}/{source.partition}"), 0
        return Leadership(*self._leads[key], self.numbers, identity)

    def coordinator(self, transactional_id: str) -> int:
        """By the nodes that are not cut off."""
        return self._coordinator_of(self._transaction_partition(transactional_id))

    def _coordinator_of(self, partition: int) -> int:
        return self._coordinates.setdefault(partition, self._first(f"__transaction_state/{partition}"))

    def _transaction_partition(self, transactional_id: str) -> int:
        return zlib.crc32(transactional_id.encode()) % TRANSACTION_PARTITIONS

    def _first(self, what: str) -> int:
        nodes = self._joined
        return nodes[zlib.crc32(f"{self._salt}/{what}".encode()) % len(nodes)]

    @property
    def _joined(self) -> Sequence[int]:
        return [node for node in self.numbers if not self.is_deposed(node)]

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(name, p) for name, topic in self._state.topics.items() for p in range(len(topic.logs))]

    # --- cutting off -------------------------------------------------------------------------------------------------

    def depose(self, node: int, choose: Callable[[Sequence[int]], int]) -> None:
        """Cut a node off from the others, which elect new leaders and coordinators for what it had."""
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
        self.deposed = Deposed(node, leaderships, {source: self._ends_of(source) for source in led}, coordinated, ids)
        for source in led:
            known = leaderships[source]
            self._leads[known.identity, source.partition] = choose(self._joined), known.epoch + 1
        self._coordinates.update((partition, choose(self._joined)) for partition in sorted(coordinated))

    def mend(self) -> None:
        """The node that was cut off is one of the others again, and knows what they know."""
        self.deposed = None

    def _ends_of(self, source: TopicPartition) -> OldEnds:
        return OldEnds(self._state.watermarks(source), self._state.log(source).stable)

    # --- what nodes say ----------------------------------------------------------------------------------------------

    def is_deposed(self, node: int) -> bool:
        """Whether it is the node that is cut off."""
        return self.deposed is not None and self.deposed.node == node

    def told_leadership(self, node: int, source: TopicPartition) -> Leadership[int] | None:
        """What a node's metadata say; None: it does not know the partition. Raises UnknownTopic."""
        if self.deposed is not None and self.deposed.node == node:
            return self.deposed.leaderships.get(source)
        return self.leadership(source)

    def told_coordinator(self, node: int, transactional_id: str) -> int:
        """Who coordinates an id, by what a node knows."""
        partition = self._transaction_partition(transactional_id)
        if self.deposed is not None and self.deposed.node == node and partition in self.deposed.coordinated:
            return node
        return self.coordinator(transactional_id)

    def old_ends(self, node: int, source: TopicPartition) -> OldEnds | None:
        """What a node says of the ends of a partition that it led when it was deposed; None: it leads the partition.
        Raises NotLeader, UnknownTopic.
        """
        if self.deposed is not None and self.deposed.node == node and source in self.deposed.ends:
            return self.deposed.ends[source]
        if self.leadership(source).leader != node or self.is_deposed(node):
            raise NotLeader(f"node {node} does not lead {source.topic}[{source.partition}]")
        return None

    def agrees(self, node: int, source: TopicPartition, asked: Leadership[int]) -> bool:
        """Whether a node that does not lead a partition knows the same leadership, and no newer one."""
        known = self.told_leadership(node, source)
        return known is not None and (known.leader, known.epoch) == (asked.leader, asked.epoch)
