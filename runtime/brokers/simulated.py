"""A cluster in memory whose delays, orders and faults come from a seed; processes reach it through connections.

``SimulatedBroker`` is the cluster: it outlives crashes. ``connect`` gives a process its ``Broker``; ``sever`` is that
process's kill -9: what it had sent may or may not arrive, by the seed, and nothing it does afterwards has an effect.

All waiting goes through the running loop, so that it runs in virtual time on a ``VirtualLoop`` and in real time
elsewhere. The parts: what a cluster knows, and how transactions work, is in ``simulated_log``; delays and faults are
in ``simulated_network``; what a client does about them is in ``simulated_client``.
"""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from .protocol import (
    Batch,
    BrokerError,
    Headers,
    Outgoing,
    ProducerFenced,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    Watermarks,
)
from .simulated_client import SimulatedConnection, SimulatedReader
from .simulated_link import ConnectionSevered
from .simulated_log import (
    BatchRefused,
    ClusterState,
    Concurrent,
    Entry,
    OutOfOrder,
    SimulatedRecord,
    Transaction,
    WrongTransactionState,
)
from .simulated_network import EPOCH_MS, Fault, Faults, Kind, Latency, Network
from .simulated_producer import SimulatedProducer

_LATENCY: Final = Latency()


class CommittedRecord(NamedTuple):
    """A record of ``SimulatedBroker.committed``; ``timestamp`` in ms."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class SimulatedBroker:
    """The cluster. With ``auto_create`` a write to an unknown topic creates it with ``partitions_default``.

    Each partition has one of ``brokers`` as its leader; records for one leader travel in one request.
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
    ) -> None:
        self._random = random.Random(seed)
        self.network = Network(self._random, latency, faults if faults is not None else Faults())
        self._auto_create = auto_create
        self._partitions_default = partitions_default
        self._brokers = brokers
        self._producers = 0
        self._state = ClusterState()
        self._waiting: dict[asyncio.Future[None], frozenset[TopicPartition]] = {}

    @property
    def faults(self) -> Faults:
        """What goes wrong, and how often."""
        return self.network.faults

    @property
    def met(self) -> Counter[str]:
        """How often each kind of fault has really happened, by its name; other events of note too."""
        return self.network.met

    @property
    def latency(self) -> Latency:
        """How long things take."""
        return self.network.latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self.network.latency = latency

    # What a test asks, without a connection.

    def connect(self, client_name: str) -> SimulatedConnection:
        """A ``Broker`` for one process."""
        return SimulatedConnection(self, client_name)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, unless it exists."""
        self._state.create(TopicSpec(name, partitions, config or {}))

    def topics(self) -> dict[str, TopicDescription]:
        """All topics by name."""
        return {name: topic.description for name, topic in self._state.topics.items()}

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and high watermark; raises UnknownTopic."""
        return self._state.watermarks(source)

    def committed(self, topic: str) -> list[CommittedRecord]:
        """All records of a topic that are decided as committed, also where the marker is still to be written."""
        partitions = len(self._state.topics[topic].logs) if topic in self._state.topics else 0
        return [
            CommittedRecord(partition, *entry.record)
            for partition in range(partitions)
            for entry in self.everything(TopicPartition(topic, partition))
            if entry.record is not None and (entry.transaction is None or entry.transaction.committed)
        ]

    def everything(self, source: TopicPartition) -> list[Entry]:
        """Every offset from start to high: open and aborted records, markers and holes too."""
        return list(self._state.log(source).entries)

    def make_hole(self, source: TopicPartition, offsets: Collection[int]) -> None:
        """Take records away as compaction would; their offsets stay."""
        log = self._state.log(source)
        for offset in offsets:
            if log.start <= offset < log.high:
                log.make_hole(offset)
        self._wake(source)

    def compact(self, source: TopicPartition, *, keep_tombstones: bool = True, partly: bool = False) -> None:
        """Keep of each key the newest committed record below the last stable offset; raises BrokerError.

        Without ``keep_tombstones`` a newest record without a value goes too, as after ``delete.retention.ms``.
        ``partly``: up to an offset that the seed draws, and of what could go about half stays.
        """
        log = self._state.compactable(source)
        before = self._random.randint(log.start, log.stable) if partly else log.stable
        log.compact(before, keep_tombstones=keep_tombstones, spared=lambda: partly and self._random.random() < 0.5)
        self._wake(source)

    def truncate(self, source: TopicPartition, high: int) -> None:
        """Lose all from ``high`` on, as an unclean change of leaders may; raises UnknownTopic, OffsetOutOfRange."""
        self._state.truncate(source, high)
        self._wake(source)

    def recreate_topic(self, name: str) -> None:
        """Delete a topic and create it as it was, empty."""
        self._state.recreate(name)
        for partition in range(self._state.topics[name].description.partitions):
            self._wake(TopicPartition(name, partition))

    def trim(self, source: TopicPartition, before: int) -> None:
        """Forget records below ``before``, as retention would, or a cleanup.policy that was another one for a while."""
        self._state.log(source).trim(before)
        self._wake(source)

    @property
    def is_settled(self) -> bool:
        """No transaction is decided whose markers are still to be written."""
        newest = [known.transaction for known in self._state.ids.values() if known.transaction is not None]
        return all(transaction.committed is None or transaction.complete for transaction in newest)

    def stable(self, source: TopicPartition) -> int:
        """The last stable offset: committed readers stop there."""
        return self._state.log(source).stable

    def transactional_state(self, transactional_id: str) -> tuple[str, int]:
        """The state of an id as Kafka names it, and its epoch as Kafka counts it; ``("None", -1)``: never used."""
        return self._state.state_of(transactional_id)

    def break_connections(self) -> None:
        """Start the brokers anew: what is under way ends with BrokerTimeout, carried out or not; nothing is lost."""
        self.network.break_connections()
        self._wake_all()

    # What happens inside the cluster.

    def _now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def _wake(self, source: TopicPartition) -> None:
        for news in [news for news, sources in self._waiting.items() if source in sources]:
            del self._waiting[news]
            if not news.done():
                news.set_result(None)

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def _leader(self, source: TopicPartition) -> int:
        return zlib.crc32(f"{source.topic}/{source.partition}".encode()) % self._brokers

    def _new_producer(self) -> str:
        """An id for a client that writes outside transactions."""
        self._producers += 1
        return f"producer {self._producers}"

    def _missing_to_write(self, sources: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that do not exist, after what writing to them creates."""
        if self._auto_create:
            for name in dict.fromkeys(source.topic for source in sources):
                self._state.create(TopicSpec(name, self._partitions_default, {}))
        return self._missing(sources)

    def _missing(self, sources: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that do not exist."""
        found = self._state.descriptions(dict.fromkeys(source.topic for source in sources))
        return [
            source
            for source in sources
            if source.topic not in found or not 0 <= source.partition < found[source.topic].partitions
        ]

    def _append(self, records: Sequence[Outgoing]) -> None:
        """Write records of one partition as they are."""
        self._state.append(records, None, 0, self._now_ms())
        self._wake(_partition_of(records[0]))

    def _read(
        self, positions: Mapping[TopicPartition, int], records_max: int, news: asyncio.Future[None] | None
    ) -> list[Batch]:
        """What there is, in an order and amount by the seed; nothing: ``news`` is told when there is something."""
        batches: list[Batch] = []
        room = records_max if self._random.random() < 0.5 else self._random.randint(1, records_max)
        sources = list(positions)
        self._random.shuffle(sources)
        for source in sources:
            records, offset_next = self._state.read(source, positions[source], room)
            room -= len(records)
            if offset_next > positions[source]:
                batches.append(Batch(source, records, offset_next))
        if not batches and news is not None:
            self._waiting[news] = frozenset(positions)
        return batches

    def _trim(self, before: Mapping[TopicPartition, int]) -> None:
        self._state.trim(before)
        for source in before:
            self._wake(source)

    def _initialise(self, transactional_id: str, timeout_ms: int) -> int | None:
        """One try to make a producer: its epoch, or None while its last transaction is not complete."""
        found = self._state.initialise(transactional_id, timeout_ms)
        if isinstance(found, int):
            return found
        self.network.met["concurrent_transactions"] += 1
        if found.committed is None:
            self.network.met["open_transaction_fenced"] += 1
            found.committed = False
            self._write_markers(found)
        return None

    def _add_partitions(self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """Begin a transaction, or widen the open one; raises ProducerFenced, Concurrent, UnknownTopic."""
        try:
            transaction, is_new = self._state.add_partitions(transactional_id, epoch, partitions)
        except BrokerError as error:
            self._count(error)
            raise
        if is_new:
            timeout_ms = self._state.ids[transactional_id].timeout_ms
            self.network.later(timeout_ms / 1000, self._expire, transaction)

    def _produce(
        self,
        producer: str,
        epoch: int | None,
        batches: Mapping[TopicPartition, tuple[Sequence[Outgoing], int | None]],
    ) -> dict[TopicPartition, int | BrokerError]:
        """Write batches with their sequence numbers: by partition the offset behind it, or why it was not taken."""
        answers: dict[TopicPartition, int | BrokerError] = {}
        for source, (records, sequence) in batches.items():
            try:
                if epoch is None:
                    answers[source] = self._state.append(records, producer, sequence or 0, self._now_ms())
                    self._wake(source)
                else:
                    answers[source] = self._state.produce(producer, epoch, records, sequence, self._now_ms())
            except BrokerError as error:
                self._count(error)
                answers[source] = error
        return answers

    def _end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """End what is open; raises ProducerFenced, Concurrent, WrongTransactionState."""
        try:
            transaction = self._state.end(transactional_id, epoch, commit)
        except BrokerError as error:
            self._count(error)
            raise
        if transaction is not None:
            self._write_markers(transaction)

    def _count(self, error: BrokerError) -> None:
        name = _COUNTED.get(type(error))
        if name is not None:
            self.network.met[name] += 1

    def _expire(self, transaction: Transaction) -> None:
        if self._state.expire(transaction):
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
        self._state.mark(transaction, source)
        self._wake(source)


_COUNTED: Final[Mapping[type[BrokerError], str]] = {
    ProducerFenced: "fenced",
    Concurrent: "concurrent_transactions",
    WrongTransactionState: "wrong_transaction_state",
    OutOfOrder: "out_of_order",
    BatchRefused: "batch_refused",
}


def _partition_of(record: Outgoing) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


__all__ = [
    "EPOCH_MS",
    "CommittedRecord",
    "ConnectionSevered",
    "Entry",
    "Fault",
    "Faults",
    "Kind",
    "Latency",
    "SimulatedBroker",
    "SimulatedConnection",
    "SimulatedProducer",
    "SimulatedReader",
    "SimulatedRecord",
]
