"""A simulated cluster that forgets nothing, and writers of its source topics."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from keylanes.brokers.protocol import Headers, Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import Faults, Latency, LogEntry, SimulatedBroker
from keylanes.brokers.simulated.log import ClusterState, Transaction
from keylanes.offsets.codec import decode
from keylanes.offsets.ledger import Ledger, evolve_all

WRITER_TIMEOUT_MS = 60_000


class Row(NamedTuple):
    """One committed record of a log, also when it was trimmed. ``transaction`` tells which records came together."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: int | None


class JudgedState(ClusterState):
    """Tells of every append outside a transaction and of every transaction that is decided to commit, at that moment.

    It keeps what is trimmed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trims = 0
        self.trimmed: dict[TopicPartition, list[LogEntry]] = {}

    on_append: Callable[[Sequence[Outgoing]], None] = staticmethod(lambda records: None)
    on_commit: Callable[[Transaction], None] = staticmethod(lambda transaction: None)
    on_fence: Callable[[str], None] = staticmethod(lambda transactional_id: None)
    """An id was initialised: whoever had it is fenced."""
    on_produce: Callable[[Sequence[Outgoing]], None] = staticmethod(lambda records: None)
    """A batch of one partition came into a transaction."""

    def initialise(self, transactional_id: str, timeout_ms: int) -> int | Transaction:
        found = super().initialise(transactional_id, timeout_ms)
        self.on_fence(transactional_id)
        return found

    def trim(self, before: Mapping[TopicPartition, int]) -> None:
        for source, offset in before.items():
            gone = list(self.log(source).entries)[: max(0, offset - self.watermarks(source).start)]
            self.trimmed.setdefault(source, []).extend(gone)
            self.trims += bool(gone)
        super().trim(before)

    def append(self, records: Sequence[Outgoing], producer: str | None, sequence: int, now_ms: int) -> int:
        end = super().append(records, producer, sequence, now_ms)
        if end >= 0:  # else it was written before
            self.on_append(records)
        return end

    def produce(
        self, transactional_id: str, epoch: int, records: Sequence[Outgoing], sequence: int | None, now_ms: int
    ) -> int:
        end = super().produce(transactional_id, epoch, records, sequence, now_ms)
        self.on_produce(records)
        return end

    def end(self, transactional_id: str, epoch: int, commit: bool) -> Transaction | None:
        transaction = super().end(transactional_id, epoch, commit)
        if transaction is not None and commit:
            self.on_commit(transaction)
        return transaction


class Cluster(SimulatedBroker):
    """A simulated broker that tells what happens, and whose trimmed and compacted records are still seen."""

    def __init__(self, seed: int, latency: Latency, *, auto_create: bool = False) -> None:
        super().__init__(seed, auto_create=auto_create, latency=latency, faults=Faults(), state=JudgedState())
        self._compacted: dict[tuple[TopicPartition, int], LogEntry] = {}

    state: JudgedState
    wrap: Callable[[Any], Any] = staticmethod(lambda connection: connection)
    """What is made of each connection."""

    def connect(self, client_name: str) -> Any:
        return self.wrap(super().connect(client_name))

    @property
    def trims(self) -> int:
        """How often something was trimmed."""
        return self.state.trims

    def compact(self, source: TopicPartition, *, keep_tombstones: bool = True, partly: bool = False) -> None:
        """As the broker does it."""
        earlier = self.all_entries(source)
        super().compact(source, keep_tombstones=keep_tombstones, partly=partly)
        for entry, now in zip(earlier, self.all_entries(source), strict=True):
            if entry.record is not None and now.record is None:
                self._compacted[source, entry.record.offset] = entry

    def places(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return [TopicPartition(topic, p) for p in range(self.topics()[topic].partitions)]

    def entries(self, source: TopicPartition) -> list[LogEntry]:
        """Every offset from 0 to the high watermark."""
        left = [*self.state.trimmed.get(source, ()), *self.all_entries(source)]
        return [
            self._compacted.get((source, offset), entry) if entry.record is None else entry
            for offset, entry in enumerate(left)
        ]

    def rows(self, source: TopicPartition) -> list[Row]:
        """The committed records of a partition from 0 on, in order."""
        return [
            Row(*entry.record, id(entry.transaction) if entry.transaction else None)
            for entry in self.entries(source)
            if entry.record is not None and (entry.transaction is None or entry.transaction.committed)
        ]

    def write(self, records: Sequence[Outgoing], holes: Sequence[int]) -> None:
        """Append at once, outside a transaction; those at ``holes`` are compacted away before anybody reads them."""
        for index, record in enumerate(records):
            source = TopicPartition(record.topic, record.partition)
            offset = self.watermarks(source).high
            self.cluster.append([record])
            if index in holes:
                self.make_hole(source, [offset])

    async def write_together(self, name: str, records: Sequence[Outgoing], *, commit: bool, rng: random.Random) -> None:
        """Append in a transaction of a writer of this name, with pauses; committed or aborted."""
        epoch = self.cluster.initialise(name, WRITER_TIMEOUT_MS)
        assert epoch is not None, "nobody had this name before"
        self.cluster.add_partitions(
            name, epoch, list(dict.fromkeys(TopicPartition(r.topic, r.partition) for r in records))
        )
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            (answer,) = self.cluster.produce(name, epoch, {place: ([record], None)}).values()
            assert isinstance(answer, int), answer
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.03)))
        self.cluster.end(name, epoch, commit)

    def hear(self, on_append: Callable[[Sequence[Outgoing]], None], on_commit: Callable[[Transaction], None]) -> None:
        """Have these called."""
        self.state.on_append, self.state.on_commit = on_append, on_commit

    def rows_of(self, transaction: Transaction) -> dict[TopicPartition, list[Row]]:
        """What a transaction has written whose markers are still to be written, by place, in order."""
        return {
            source: [
                Row(*entry.record, id(transaction))
                for entry in self.state.log(source).entries
                if entry.transaction is transaction and entry.record is not None
            ]
            for source in transaction.unmarked
        }

    def grow(self, topic: str) -> TopicPartition:
        """Add a partition to a topic."""
        return self.grow_topic(topic)

    def forget(self, source: TopicPartition, before: int) -> None:
        """Delete what lies below an offset, as retention does."""
        self.cluster.trim({source: before})

    def limit(self, topic: str, bytes_max: int | None) -> None:
        """Set what a topic takes; None: the default."""
        self.configure_topic(topic, {"max.message.bytes": str(1_048_588 if bytes_max is None else bytes_max)})


def fold_of(cluster: Cluster, app: str) -> Ledger:
    """The runtime's own fold of all that is committed now."""
    places = [*cluster.places(f"{app}.control"), *cluster.places(f"{app}.offsets")]
    return evolve_all(Ledger(), (decode(row.value or b"") for place in places for row in cluster.rows(place)))
