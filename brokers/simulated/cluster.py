"""The effects of requests inside a simulated cluster, at the moment of carrying out: nothing here waits.

``SimulatedBroker`` is the cluster for a test; connections send requests here, through the network.
"""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ..protocol import (
    Batch,
    BrokerError,
    OffsetOutOfRange,
    Outgoing,
    ProducerFenced,
    ProducerForgotten,
    TopicPartition,
    TopicSpec,
)
from .log import (
    BatchRefused,
    ClusterState,
    Concurrent,
    CoordinatorUnavailable,
    OutOfOrder,
    SimulatedRecord,
    Transaction,
    WrongTransactionState,
)
from .network import EPOCH_MS, Network
from .nodes import Nodes, OldEnds


class Cluster:
    """The brokers: the knowledge (``state``), the network, the ``nodes`` with their leaderships, and the waiters for
    news.

    With ``auto_create`` a write to an unknown topic creates the topic with ``partitions_default``. Each partition has
    one of ``brokers`` as leader, and all brokers as replicas.
    """

    def __init__(
        self,
        rng: random.Random,
        network: Network,
        state: ClusterState,
        *,
        auto_create: bool,
        partitions_default: int,
        brokers: int,
    ) -> None:
        self.network = network
        self.state = state
        self._random = rng
        self._auto_create = auto_create
        self._partitions_default = partitions_default
        self.nodes = Nodes(state, brokers, str(rng.getrandbits(32)))
        self._producers = 0
        self._waiting: dict[asyncio.Future[None], frozenset[TopicPartition]] = {}

    def _now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def wake(self, source: TopicPartition) -> None:
        """Tell the waiters for news of a partition."""
        for news in [news for news, sources in self._waiting.items() if source in sources]:
            del self._waiting[news]
            if not news.done():
                news.set_result(None)

    def wake_all(self) -> None:
        """Tell all waiters for news."""
        waiting, self._waiting = self._waiting, {}
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def depose(self, node: int) -> None:
        """Cut a node off from the other nodes, which elect new leaders and coordinators in place of the node."""
        self.nodes.depose(node, self.network.choose)

    def mend(self) -> None:
        """Connect the node that was cut off to the others again."""
        self.nodes.mend()
        self.wake_all()

    def count(self, name: str, happens: bool = True) -> None:
        """Count something of note, if it happens."""
        if happens:
            self.network.met[name] += 1

    def forget(self, news: "asyncio.Future[None]") -> None:
        """Forget a future: nobody waits for the news any more."""
        self._waiting.pop(news, None)

    def new_producer(self) -> str:
        """An id for a client that writes outside transactions."""
        self._producers += 1
        return f"producer {self._producers}"

    def create_to_write(self, topics: Collection[str]) -> None:
        """Create unknown topics before a write, where the cluster does so."""
        for name in topics if self._auto_create else ():
            self.state.create(TopicSpec(name, self._partitions_default, {}))

    def append(self, records: Sequence[Outgoing]) -> None:
        """Write records of one partition, unchanged."""
        self.state.append(records, None, 0, self._now_ms())
        self.wake(_partition_of(records[0]))

    def read(
        self,
        positions: Mapping[TopicPartition, int],
        records_max: int,
        news: asyncio.Future[None] | None,
        old: Mapping[TopicPartition, OldEnds],
    ) -> list[Batch]:
        """The present records, in an order and amount by the seed. No records: ``news`` is told when some are there.
        ``old``: partitions with a question to a deposed leader.
        """
        self.network.faults.refuse("READ", (source.topic for source in positions))
        batches: list[Batch] = []
        room = records_max if self._random.random() < 0.5 else self._random.randint(1, records_max)
        sources = list(positions)
        self._random.shuffle(sources)
        for source in sources:
            position = positions[source]
            read = self.state.read(source, position, room)
            records, offset_next = read if source not in old else self._read_old(source, position, old[source], read)
            room -= len(records)
            if offset_next > position:
                batches.append(Batch(source, records, offset_next))
        if not batches and news is not None:
            self._waiting[news] = frozenset(positions)
        return batches

    def _read_old(
        self, source: TopicPartition, position: int, ends: OldEnds, read: tuple[list[SimulatedRecord], int]
    ) -> tuple[list[SimulatedRecord], int]:
        """The part of a read that a deposed leader has; raises OffsetOutOfRange behind the old end."""
        if position > ends.marks.high:
            raise OffsetOutOfRange(source, position, ends.marks)
        records, offset_next = read
        end = max(position, ends.stable)
        self.count("old records read", end < offset_next)
        return [record for record in records if record.offset < end], min(end, offset_next)

    def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete records below offsets; raises UnknownTopic, OffsetOutOfRange."""
        self.network.faults.refuse("DELETE", (source.topic for source in before))
        self.state.trim(before)
        for source in before:
            self.wake(source)

    def initialise(self, transactional_id: str, timeout_ms: int) -> int | None:
        """One try to make a producer: the epoch, or None while the last transaction is not complete."""
        found = self.state.initialise(transactional_id, timeout_ms)
        if isinstance(found, int):
            return found
        self.network.met["concurrent_transactions"] += 1
        if found.committed is None:
            self.network.met["open_transaction_fenced"] += 1
            found.committed = False
            self._write_markers(found)
        return None

    def add_partitions(self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """Begin a transaction, or widen an open transaction; raises ProducerFenced, Concurrent, UnknownTopic."""
        self.network.faults.refuse("WRITE", (partition.topic for partition in partitions))
        try:
            transaction, is_new = self.state.add_partitions(transactional_id, epoch, partitions)
        except BrokerError as error:
            self._count(error)
            raise
        if is_new:
            timeout_ms = self.state.ids[transactional_id].timeout_ms
            self.network.later(timeout_ms / 1000, self._expire, transaction)

    def produce(
        self,
        producer: str,
        epoch: int | None,
        batches: Mapping[TopicPartition, tuple[Sequence[Outgoing], int | None]],
    ) -> dict[TopicPartition, int | BrokerError]:
        """Write batches with their sequence numbers. Returns by partition the offset behind a batch, or the refusal."""
        answers: dict[TopicPartition, int | BrokerError] = {}
        for source, (records, sequence) in batches.items():
            try:
                self.network.faults.refuse("WRITE", [source.topic])
                if epoch is None:
                    answers[source] = self.state.append(records, producer, sequence or 0, self._now_ms())
                    self.wake(source)
                else:
                    answers[source] = self.state.produce(producer, epoch, records, sequence, self._now_ms())
            except BrokerError as error:
                self._count(error)
                answers[source] = error
        return answers

    def end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """End the open transaction; raises ProducerFenced, Concurrent, WrongTransactionState."""
        try:
            transaction = self.state.end(transactional_id, epoch, commit)
        except BrokerError as error:
            self._count(error)
            raise
        if transaction is not None:
            self._write_markers(transaction)

    def end_confirmed(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """As ``end``. The fault ``coordinator_away`` raises CoordinatorUnavailable: by chance in place of the end,
        or after the end.
        """
        is_away = self.network.happens(self.network.faults.coordinator_away, "coordinator_away")
        if not is_away or self._random.random() < 0.5:
            self.end(transactional_id, epoch, commit)
        if is_away:
            raise CoordinatorUnavailable(f"the coordinator of {transactional_id!r} is not available")

    def _count(self, error: BrokerError) -> None:
        name = _COUNTED.get(type(error))
        if name is not None:
            self.network.met[name] += 1

    def _expire(self, transaction: Transaction) -> None:
        if self.state.expire(transaction):
            self.network.met["transaction_timed_out"] += 1
            self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        faults = self.network.faults
        for source in transaction.unmarked:
            delay = self.network.draw(self.network.latency.marker_ms)
            if self.network.happens(faults.marker_late, "marker_late"):
                delay += self._random.random() * faults.marker_late_ms / 1000
            self.network.later(delay, self._mark, transaction, source)

    def _mark(self, transaction: Transaction, source: TopicPartition) -> None:
        self.state.mark(transaction, source)
        self.wake(source)


_COUNTED: Final[Mapping[type[BrokerError], str]] = {
    ProducerFenced: "fenced",
    ProducerForgotten: "forgotten",
    Concurrent: "concurrent_transactions",
    WrongTransactionState: "wrong_transaction_state",
    OutOfOrder: "out_of_order",
    BatchRefused: "batch_refused",
}


def _partition_of(record: Outgoing) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
