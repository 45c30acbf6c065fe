"""The knowledge of a simulated cluster: topics, partition logs, transactional ids. Pure: no time, randomness or
waiting.

As in Kafka:

- A transaction's records take offsets at their arrival. The first record holds the partition's *last stable offset*
  until the transaction's marker is written; committed readers don't pass the last stable offset.
- A transaction is decided first; a marker is written to each partition later and takes one offset there. Until the last
  marker is written the transaction is not complete: the id can't begin another and can't be initialised.
- Aborted records, markers, compacted records are holes to a reader.
- An initialisation raises the id's epoch, fences all producers of older epochs, and aborts an open transaction.
- A producer's request names the id and the epoch, not a transaction: a late end ends any transaction of the epoch that
  is open *then* (KAFKA-17754), and late records join the transaction. Only a new epoch keeps late requests out.
- A partition knows the next sequence number of each producer: a batch is written once, and in turn.
- A batch is taken as a whole or refused as a whole.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...state.tables import TABLE_CONFIG
from ..protocol import (
    BrokerError,
    GroupOffsets,
    Headers,
    OffsetOutOfRange,
    Outgoing,
    ProducerFenced,
    ProducerForgotten,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    UnknownTopic,
    Watermarks,
)
from ..refusal import complete_spec
from .batches import batch_bytes


class Concurrent(BrokerError):
    """The id's last transaction is decided, and markers are still being written; ask again."""


class CoordinatorUnavailable(BrokerError):
    """The coordinator can't serve now; the request may have been carried out all the same. Ask again."""


class WrongTransactionState(BrokerError):
    """The producer has no transaction that could take the request."""


class OutOfOrder(BrokerError):
    """The sequence number of a batch is not the next number."""


class BatchRefused(BrokerError):
    """A batch is refused for good."""


class SimulatedRecord(NamedTuple):
    """A record as read; ``timestamp`` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(eq=False)
class Transaction:
    """A transaction; ``committed`` is None while open. ``unmarked``: the partitions with a marker still to be written.

    ``epoch_after``: the epoch that a marker tells the partition: the epoch of the transaction, or the next epoch after
    an end by a fence or the time limit.
    """

    transactional_id: str
    epoch: int
    unmarked: dict[TopicPartition, None]
    committed: bool | None = None
    epoch_after: int = field(init=False)

    def __post_init__(self) -> None:
        self.epoch_after = self.epoch

    @property
    def complete(self) -> bool:
        """Whether the transaction is decided, and every marker is written."""
        return self.committed is not None and not self.unmarked


class LogEntry(NamedTuple):
    """One offset of a log. ``record`` is None in markers and holes; ``transaction`` is None outside of transactions."""

    record: SimulatedRecord | None
    transaction: Transaction | None


HOLE = LogEntry(None, None)


class PartitionLog:
    """One partition, with an entry for every offset from ``start`` to ``high``."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[LogEntry] = []
        self._open: dict[Transaction, int] = {}  # with the offset of the first record
        self._producers: dict[str, tuple[int, int]] = {}  # epoch and next sequence number by producer
        self._begun: dict[str, tuple[int, int]] = {}  # epoch and lowest sequence number by producer: see ``begin``

    @property
    def high(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.entries)

    @property
    def stable(self) -> int:
        """The last stable offset: committed readers stop here."""
        return min(self._open.values(), default=self.high)

    def append(self, records: Iterable[Outgoing], now_ms: int, transaction: Transaction | None) -> None:
        """Write records; records of a transaction stay hidden until the marker is written."""
        if transaction is not None:
            self._open.setdefault(transaction, self.high)
        for record in records:
            timestamp = now_ms if record.timestamp is None else record.timestamp
            headers = tuple((name, value) for name, value in record.headers)
            stored = SimulatedRecord(
                offset=self.high, timestamp=timestamp, key=record.key, value=record.value, headers=headers
            )
            self.entries.append(LogEntry(stored, transaction))

    def mark(self, transaction: Transaction) -> None:
        """Write the marker of a decided transaction."""
        self._open.pop(transaction, None)
        self.entries.append(LogEntry(None, transaction))
        epoch, _ = self._producers.get(transaction.transactional_id, (-1, 0))
        if epoch < transaction.epoch_after:
            self._producers[transaction.transactional_id] = (transaction.epoch_after, 0)

    def open_transaction(self, producer: str, epoch: int) -> Transaction | None:
        """The transaction of a producer with records here and no marker yet."""
        for transaction in self._open:
            if (transaction.transactional_id, transaction.epoch) == (producer, epoch):
                return transaction
        return None

    def begin(self, producer: str, epoch: int, sequence: int) -> None:
        """Note the sequence number of a transaction's first batch here. If the batch is refused, its number stays the
        next one: a later batch is out of order.
        """
        known_epoch, lowest = self._begun.get(producer, (epoch, sequence))
        self._begun[producer] = (epoch, min(lowest, sequence) if known_epoch == epoch else sequence)

    def admit(self, producer: str, epoch: int, sequence: int, records: int) -> bool:
        """Whether a batch is new here; False: the batch is here already. Raises ProducerFenced, OutOfOrder."""
        known_epoch, expected = self._producers.get(producer, (epoch, sequence))
        if epoch < known_epoch:
            raise ProducerFenced(f"producer {producer!r} has written here at epoch {known_epoch}, which is not {epoch}")
        if epoch > known_epoch:
            expected = 0
        if producer in self._begun:
            expected = min(expected, self._begun[producer][1])
        if sequence > expected:
            raise OutOfOrder(f"producer {producer!r} is expected to go on at {expected}, not at {sequence}")
        if sequence == expected:
            self._producers[producer] = (epoch, expected + records)
            self._begun.pop(producer, None)
        return sequence == expected

    def read(self, position: int, records_max: int) -> tuple[list[SimulatedRecord], int]:
        """Committed records from ``position`` on, and the position behind the records and any holes."""
        records: list[SimulatedRecord] = []
        stable = self.stable
        while position < stable and len(records) < records_max:
            record = self._committed_record(position)
            if record is not None:
                records.append(record)
            position += 1
        return records, position

    def trim(self, before: int) -> None:
        """Forget all entries below ``before``."""
        if before > self.start:
            del self.entries[: before - self.start]
            self.start = before

    def compact(self, before: int, *, keep_tombstones: bool, spared: Callable[[], bool]) -> None:
        """Below ``before`` make holes of aborted records, and of each record of a key but the newest committed record.

        ``spared`` decides about each older record: a spared record stays. A newest record without a value goes too,
        unless tombstones are kept or an older record of the key has stayed, which would count again.
        """
        newest: dict[bytes, int] = {}
        stays: set[bytes] = set()
        below = range(self.start, min(before, self.stable))
        for offset in below:
            record = self._committed_record(offset)
            if record is not None and record.key is not None:
                newest[record.key] = offset
        for offset in below:
            record = self._committed_record(offset)
            if record is None:
                self.make_hole(offset)
            elif record.key is not None and offset < newest[record.key]:
                if spared():
                    stays.add(record.key)
                else:
                    self.make_hole(offset)
            elif record.key is not None and record.value is None and not keep_tombstones and record.key not in stays:
                self.make_hole(offset)

    def make_hole(self, offset: int) -> None:
        """Make a hole in place of a record; the offset stays."""
        entry = self.entries[offset - self.start]
        if entry.record is not None:
            self.entries[offset - self.start] = HOLE._replace(transaction=entry.transaction)

    def truncate(self, high: int) -> None:
        """Lose the entries from ``high`` on, as under a new leader that had not all of them."""
        del self.entries[high - self.start :]
        self._open = {transaction: first for transaction, first in self._open.items() if first < high}

    def _committed_record(self, offset: int) -> SimulatedRecord | None:
        record, transaction = self.entries[offset - self.start]
        return record if transaction is None or transaction.committed else None


class SimulatedTopic(NamedTuple):
    """The description of a topic, and the logs by partition number."""

    description: TopicDescription
    logs: list[PartitionLog]


@dataclass
class TransactionalId:
    """The epoch of an id, and the newest transaction. ``forgotten``: the cluster forgot producers up to this epoch."""

    epoch: int = -1
    forgotten: int = -1
    transaction: Transaction | None = None
    timeout_ms: int = 60_000


@dataclass
class ClusterState:
    """The whole memory of a cluster. Every method is a single step without any wait."""

    topics: dict[str, SimulatedTopic] = field(default_factory=dict)
    ids: dict[str, TransactionalId] = field(default_factory=dict)
    created: int = 0
    groups: dict[str, GroupOffsets] = field(default_factory=dict)

    def create(self, spec: TopicSpec) -> None:
        """Create a topic, unless the topic exists; raises BrokerError for an impossible name or number."""
        if spec.name not in self.topics:
            known = {name: value for name, value in spec.config.items() if name not in TABLE_CONFIG}
            self.created += 1
            made = complete_spec(spec._replace(config=known))
            description = TopicDescription(made.name, made.partitions, made.config, str(self.created))
            self.topics[spec.name] = SimulatedTopic(description, [PartitionLog() for _ in range(spec.partitions)])

    def grow(self, name: str) -> TopicPartition:
        """Add a partition to a topic."""
        known = self.topics[name]
        number = len(known.logs)
        description = known.description._replace(partitions=number + 1)
        self.topics[name] = known._replace(description=description, logs=[*known.logs, PartitionLog()])
        return TopicPartition(name, number)

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Change some of a topic's configuration."""
        known = self.topics[name]
        description = known.description._replace(config={**known.description.config, **config})
        self.topics[name] = known._replace(description=description)

    def recreate(self, name: str) -> None:
        """Delete a topic and create the topic again, empty, with the same settings."""
        old = self.topics.pop(name).description
        self.create(TopicSpec(old.name, old.partitions, old.config))

    def truncate(self, source: TopicPartition, high: int) -> None:
        """Cut a partition's log; raises UnknownTopic, OffsetOutOfRange."""
        log = self.log(source)
        if not log.start <= high <= log.high:
            raise OffsetOutOfRange(source, high, Watermarks(log.start, log.high))
        log.truncate(high)

    def compactable(self, source: TopicPartition) -> PartitionLog:
        """A partition's log to compact; raises UnknownTopic, and BrokerError where cleanup.policy does not allow so."""
        log = self.log(source)
        if "compact" not in self.topics[source.topic].description.config["cleanup.policy"]:
            raise BrokerError(f"topic {source.topic!r} is not compacted: see its cleanup.policy")
        return log

    def log(self, source: TopicPartition) -> PartitionLog:
        """A partition's log; raises UnknownTopic."""
        topic = self.topics.get(source.topic)
        if topic is None:
            raise UnknownTopic(f"topic {source.topic!r} does not exist")
        if not 0 <= source.partition < len(topic.logs):
            raise UnknownTopic(f"{source.topic!r} has {len(topic.logs)} partitions, not a partition {source.partition}")
        return topic.logs[source.partition]

    def descriptions(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """The descriptions of the given topics that exist, in the given order."""
        return {name: self.topics[name].description for name in names if name in self.topics}

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and high watermark; raises UnknownTopic."""
        log = self.log(source)
        return Watermarks(log.start, log.high)

    def offset_at(self, source: TopicPartition, timestamp: int) -> int | None:
        """The first offset with a record of this time or later; None: no record. Raises UnknownTopic."""
        for entry in self.log(source).entries:
            if entry.record is not None and entry.record.timestamp >= timestamp:
                return entry.record.offset
        return None

    def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """The offsets of these partitions that a group has committed; none for an unknown group."""
        known = self.groups.get(group, GroupOffsets("Dead", False, {}))
        return known._replace(offsets={at: known.offsets[at] for at in partitions if at in known.offsets})

    def read(self, source: TopicPartition, position: int, records_max: int) -> tuple[list[SimulatedRecord], int]:
        """As ``PartitionLog.read``; raises OffsetOutOfRange and UnknownTopic."""
        log = self.log(source)
        if not log.start <= position <= log.high:
            raise OffsetOutOfRange(source, position, Watermarks(log.start, log.high))
        return log.read(position, records_max)

    def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Forget records. Raises OffsetOutOfRange for an offset beyond the high watermark, before anything is
        forgotten.

        As in Kafka a topic that is only compacted is not trimmed: BrokerError.
        """
        for source, offset in before.items():
            log = self.log(source)
            if "delete" not in self.topics[source.topic].description.config["cleanup.policy"]:
                raise BrokerError(f"topic {source.topic!r} is compacted and never trimmed: see its cleanup.policy")
            if not 0 <= offset <= log.high:
                raise OffsetOutOfRange(source, offset, Watermarks(log.start, log.high))
        for source, offset in before.items():
            self.log(source).trim(offset)

    def initialise(self, transactional_id: str, timeout_ms: int) -> int | Transaction:
        """One try: the new epoch, or the transaction in the way.

        An open transaction in the way has just been fenced: the caller aborts the transaction, and tries again when the
        markers are written.
        """
        known = self.ids.setdefault(transactional_id, TransactionalId())
        transaction = known.transaction
        if transaction is not None and not transaction.complete:
            if transaction.committed is None:
                known.epoch += 1
                transaction.epoch_after = known.epoch
            return transaction
        known.epoch += 1
        known.transaction, known.timeout_ms = None, timeout_ms
        return known.epoch

    def forget(self, transactional_id: str) -> None:
        """Forget all producers of an id, as after ``transactional.id.expiration.ms`` without a transaction."""
        known = self.ids[transactional_id]
        known.forgotten = known.epoch

    def add_partitions(
        self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]
    ) -> tuple[Transaction, bool]:
        """Begin a transaction with these partitions, or add them to the open transaction. True: the transaction is new.

        Raises ProducerFenced, UnknownTopic, and Concurrent while the last transaction's markers are being written.
        """
        known = self._current(transactional_id, epoch)
        for source in partitions:
            self.log(source)
        transaction = known.transaction
        if transaction is not None and transaction.committed is None:
            transaction.unmarked.update(dict.fromkeys(partitions))
            return transaction, False
        if transaction is not None and not transaction.complete:
            raise Concurrent(f"the last transaction of {transactional_id!r} is not complete")
        known.transaction = Transaction(transactional_id, epoch, dict.fromkeys(partitions))
        return known.transaction, True

    def produce(
        self, transactional_id: str, epoch: int, records: Sequence[Outgoing], sequence: int | None, now_ms: int
    ) -> int:
        """Write a batch of one partition. Returns the offset behind the batch, or -1 for a batch written before.

        Raises ProducerFenced, WrongTransactionState, OutOfOrder, BatchRefused.
        """
        source = TopicPartition(records[0].topic, records[0].partition)
        log = self.log(source)
        # As in Kafka the coordinator is asked about the first batch only; the log takes more batches until the marker
        # comes.
        transaction = log.open_transaction(transactional_id, epoch)
        if transaction is None:
            transaction = self._current(transactional_id, epoch).transaction
            if transaction is None or transaction.committed is not None or source not in transaction.unmarked:
                raise WrongTransactionState(f"{source.topic}[{source.partition}] is in no open transaction")
            if sequence is not None:
                log.begin(transactional_id, epoch, sequence)
        self.check(records)
        if sequence is not None and not log.admit(transactional_id, epoch, sequence, len(records)):
            return -1
        log.append(records, now_ms, transaction)
        return log.high

    def append(self, records: Sequence[Outgoing], producer: str | None, sequence: int, now_ms: int) -> int:
        """Write a batch of one partition outside a transaction, as ``produce``; without a producer nothing is checked.

        Raises OutOfOrder, BatchRefused.
        """
        log = self.log(TopicPartition(records[0].topic, records[0].partition))
        if producer is not None:
            self.check(records)
            if not log.admit(producer, 0, sequence, len(records)):
                return -1
        log.append(records, now_ms, None)
        return log.high

    def check(self, records: Sequence[Outgoing]) -> None:
        """Raises BatchRefused for a batch of one partition that the topic does not take."""
        config = self.topics[records[0].topic].description.config
        size, limit = batch_bytes(records), int(config["max.message.bytes"])
        if size > limit:
            raise BatchRefused(f"a batch of {size} bytes; {records[0].topic!r} takes {limit} (max.message.bytes)")
        if "compact" in config["cleanup.policy"] and any(record.key is None for record in records):
            raise BatchRefused(f"{records[0].topic!r} is compacted and a record has no key")

    def end(self, transactional_id: str, epoch: int, commit: bool) -> Transaction | None:
        """End the open transaction by the producer's decision. Returns the transaction; None: already decided so.

        Raises ProducerFenced, Concurrent, WrongTransactionState.
        """
        transaction = self._current(transactional_id, epoch).transaction
        if transaction is None or transaction.committed is (not commit):
            raise WrongTransactionState(f"{transactional_id!r} has no transaction that could be ended so")
        if transaction.committed is commit:
            if not transaction.complete:
                raise Concurrent(f"the markers of {transactional_id!r} are being written")
            return None
        transaction.committed = commit
        return transaction

    def state_of(self, transactional_id: str) -> tuple[str, int]:
        """The state of an id in Kafka's words, and the epoch; ``("None", -1)`` for an unused id."""
        known = self.ids.get(transactional_id, TransactionalId())
        transaction = known.transaction
        if transaction is None:
            return "None" if known.epoch < 0 else "Empty", known.epoch
        if transaction.committed is None:
            return "Ongoing", known.epoch
        step = "Complete" if transaction.complete else "Prepare"
        return f"{step}{'Commit' if transaction.committed else 'Abort'}", known.epoch

    def expire(self, transaction: Transaction) -> bool:
        """Abort and fence a transaction at the time limit. Returns whether the transaction was open."""
        if transaction.committed is not None:
            return False
        known = self.ids[transaction.transactional_id]
        known.epoch += 1
        transaction.epoch_after = known.epoch
        transaction.committed = False
        return True

    def mark(self, transaction: Transaction, source: TopicPartition) -> None:
        """Write a marker of a decided transaction."""
        del transaction.unmarked[source]
        self.log(source).mark(transaction)

    def _current(self, transactional_id: str, epoch: int) -> TransactionalId:
        known = self.ids.get(transactional_id, TransactionalId())
        if epoch <= known.forgotten:
            raise ProducerForgotten(f"no producer of {transactional_id!r} at epoch {epoch} is known")
        if known.epoch != epoch:
            raise ProducerFenced(
                f"transactional id {transactional_id!r} is at epoch {known.epoch}; this producer holds epoch {epoch}"
            )
        return known
