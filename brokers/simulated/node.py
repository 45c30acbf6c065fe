"""The answers of nodes of a simulated cluster, at the moment when a request is carried out: nothing here waits.

A true leader or coordinator answers for the cluster. A deposed node answers from old knowledge: see ``nodes``. A
question to the leaders of several partitions is one request here, for speed: the client names the leader of each
partition, and a leader answers when the client reaches its node.
"""

from asyncio import Future
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..leaders import Leadership
from ..protocol import Batch, BrokerError, Outgoing, TopicDescription, TopicPartition, UnknownTopic, Watermarks
from .cluster import Cluster
from .log import CoordinatorUnavailable
from .nodes import NoAnswer, NotLeader, OldEnds

Led = Mapping[TopicPartition, Leadership[int]]
"""Leaderships by partition, as a client knows them."""


class Metadata(NamedTuple):
    """Topics in the answer of a node."""

    topics: Mapping[str, TopicDescription]
    leaderships: Led

    def missing_partitions(self, sources: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions among these that do not exist."""
        numbers = {name: topic.partitions for name, topic in self.topics.items()}
        return [source for source in sources if not 0 <= source.partition < numbers.get(source.topic, 0)]


class Fetched(NamedTuple):
    """Batches of leaders; ``strayed``: partitions without an answer of a leader."""

    batches: list[Batch]
    strayed: list[TopicPartition]


class Node:
    """One node of a cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.nodes = cluster.nodes
        self.number = number

    @property
    def is_deposed(self) -> bool:
        """Whether the node is cut off from the other nodes."""
        return self.nodes.is_deposed(self.number)

    def metadata(self, names: Collection[str], *, to_write: bool = False) -> Metadata:
        """The topics among these that exist. ``to_write``: missing topics are created where the cluster does so."""
        if to_write:
            self.cluster.create_to_write(names)
        topics = self.cluster.state.descriptions(names)
        told: dict[TopicPartition, Leadership[int]] = {}
        for name, topic in topics.items():
            for source in (TopicPartition(name, partition) for partition in range(topic.partitions)):
                if (leadership := self.nodes.told_leadership(self.number, source)) is not None:
                    told[source] = leadership
                    self.cluster.count("old leader told", leadership != self.nodes.leadership(source))
        return Metadata(topics, told)

    def produce(
        self,
        producer: str,
        epoch: int | None,
        batches: Mapping[TopicPartition, tuple[Sequence[Outgoing], int | None]],
    ) -> dict[TopicPartition, int | BrokerError]:
        """As ``Cluster.produce``. Raises NoAnswer: a deposed node acknowledges nothing, and its records are lost."""
        if self.is_deposed:
            raise NoAnswer("too few replicas are in sync")
        strayed = {source: NotLeader("not the leader") for source in batches if not self._leads(source)}
        led = {source: batch for source, batch in batches.items() if source not in strayed}
        return {**strayed, **self.cluster.produce(producer, epoch, led)}

    def _leads(self, source: TopicPartition) -> bool:
        """Whether the node leads a partition; True also where no such partition exists: the cluster says so."""
        try:
            return self.nodes.leadership(source).leader == self.number
        except UnknownTopic:
            return True

    # --- coordinating transactions -----------------------------------------------------------------------------------

    def coordinator(self, transactional_id: str) -> int:
        """The coordinator of an id in the answer of the node."""
        told = self.nodes.told_coordinator(self.number, transactional_id)
        self.cluster.count("old coordinator told", told != self.nodes.coordinator(transactional_id))
        return told

    def initialise(self, transactional_id: str, timeout_ms: int) -> int | None:
        """As ``Cluster.initialise``. Raises NotLeader; NoAnswer: a deposed node can't append the epoch."""
        if self.is_deposed:
            raise NoAnswer("an epoch can't be given without an append")
        if self.nodes.coordinator(transactional_id) != self.number:
            raise NotLeader(f"node {self.number} does not coordinate {transactional_id!r}")
        return self.cluster.initialise(transactional_id, timeout_ms)

    def add_partitions(self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """As ``Cluster.add_partitions``. Raises CoordinatorUnavailable."""
        if (deposed := self.nodes.deposed) is not None and deposed.node == self.number:
            deposed.add(transactional_id, epoch, partitions)
            self.cluster.count("added by a deposed coordinator")
            return
        self._check_coordinates(transactional_id)
        self.cluster.add_partitions(transactional_id, epoch, partitions)

    def end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """As ``Cluster.end_confirmed``."""
        if (deposed := self.nodes.deposed) is not None and deposed.node == self.number:
            deposed.end(transactional_id, epoch, commit)
            self.cluster.count("ended by a deposed coordinator")
            return
        self._check_coordinates(transactional_id)
        self.cluster.end_confirmed(transactional_id, epoch, commit)

    def state_of(self, transactional_id: str) -> tuple[str, int]:
        """As ``ClusterState.state_of``. Raises CoordinatorUnavailable."""
        if (deposed := self.nodes.deposed) is not None and deposed.node == self.number:
            if (known := deposed.ids.get(transactional_id)) is None:
                raise NoAnswer(f"nothing was known of {transactional_id!r}")
            return known.state, known.epoch
        self._check_coordinates(transactional_id)
        return self.cluster.state.state_of(transactional_id)

    def _check_coordinates(self, transactional_id: str) -> None:
        if self.nodes.coordinator(transactional_id) != self.number:
            raise CoordinatorUnavailable(f"node {self.number} does not coordinate {transactional_id!r}")


class ReachedLeaders:
    """The leaders of several partitions, asked by one client in one request. Only leaders on nodes that the client
    reaches answer.
    """

    def __init__(self, cluster: Cluster, client_name: str) -> None:
        self.cluster = cluster
        self.nodes = cluster.nodes
        self.client_name = client_name

    def _answers(self, led: Led) -> dict[TopicPartition, OldEnds | None]:
        """The partitions with an answer of a leader: the old ends of a deposed leader; None: the true leader answers.
        Raises NoAnswer when the client reaches no leader.
        """
        found: dict[TopicPartition, OldEnds | None] = {}
        is_heard = not led
        for source, known in led.items():
            if known.leader is None or not self._reaches(known.leader):
                continue
            is_heard = True
            try:
                found[source] = self.nodes.old_ends(known.leader, source)
            except UnknownTopic:
                found[source] = None  # the cluster says so
            except NotLeader:
                continue
        if not is_heard:
            raise NoAnswer("no leader is reached")
        return found

    def _reaches(self, node: int) -> bool:
        return self.cluster.network.reaches_node(self.client_name, node)

    def read(
        self, positions: Mapping[TopicPartition, int], led: Led, records_max: int, news: Future[None] | None
    ) -> Fetched:
        """As ``Cluster.read``; a deposed leader has no records behind its old end."""
        answers = self._answers(led)
        wanted = {source: position for source, position in positions.items() if source in answers}
        old = {source: ends for source, ends in answers.items() if ends is not None}
        batches = self.cluster.read(wanted, records_max, news, old)
        return Fetched(batches, [source for source in positions if source not in answers])

    def watermarks(self, led: Led) -> dict[TopicPartition, Watermarks]:
        """Watermarks of partitions with a confirmed leader. Raises UnknownTopic, NoAnswer."""
        found: dict[TopicPartition, Watermarks] = {}
        for source, old in self._answers(led).items():
            marks = self.cluster.state.watermarks(source) if old is None else old.marks
            if self.is_confirmed(source, led[source]):
                found[source] = marks
            else:
                self.cluster.count("leader not confirmed")
        return found

    def is_confirmed(self, source: TopicPartition, known: Leadership[int]) -> bool:
        """Whether enough replicas know no newer leadership: every majority has one of these or the leader."""
        others = [node for node in self.nodes.numbers if node != known.leader]
        agreeing = sum(self._reaches(node) and self.nodes.agrees(node, source, known) for node in others)
        return agreeing >= len(others) // 2

    def offsets_at(self, times: Mapping[TopicPartition, int], led: Led) -> dict[TopicPartition, int | None]:
        """As ``ClusterState.offset_at``, of the partitions with an answer."""
        found: dict[TopicPartition, int | None] = {}
        for source, old in self._answers(led).items():
            offset = self.cluster.state.offset_at(source, times[source])
            found[source] = None if old is not None and offset is not None and offset >= old.marks.high else offset
        return found

    def trim(self, before: Mapping[TopicPartition, int], led: Led) -> dict[TopicPartition, None]:
        """As ``Cluster.trim``; the trimmed partitions. Raises NotLeader, NoAnswer: a deposed leader can't have its
        followers trim.
        """
        answers = self._answers(led)
        if any(answers.get(source) is not None for source in before):
            raise NoAnswer("the followers don't answer")
        if missing := [source for source in before if source not in answers]:
            raise NotLeader(f"{missing[0].topic}[{missing[0].partition}] is led by another node")
        self.cluster.trim(before)
        return dict.fromkeys(before)
