"""The broker as the runtime sees it. Three adapters implement the protocol; one conformance suite checks all three.

Left out on purpose: joining consumer groups (our own events give ranges to members), compression, partitioners (the
runtime names the partition of every record).

Every adapter owes the same semantics:

- A reader sees committed records only, in offset order, and never past an open transaction. Offsets have holes;
  ``position`` is the place to read next and passes holes, also at the end of a partition.
- ``producer`` fences: every older producer of the id gets ``ProducerFenced`` from then on, and an open transaction of
  the id is aborted. Before ``producer`` returns, the last decided transaction is visible to a read up to
  ``watermarks``.
- ``transact`` makes all records visible together, or none.
- Writes outside of transactions go through an ``Appender``, in order per partition. Each appender has a session of its
  own, so no appender waits for another.
- A topic created with ``state.tables.TABLE_CONFIG`` is kept by key by some brokers, and is a log like any other for the
  other brokers: ``table`` tells the two apart. A reader can't read a topic that is kept by key.
- ``watermarks().high`` is the high watermark (not the last stable offset). Every record acknowledged before the call
  lies below: the adapter tells a deposed leader that still answers from the true leader.
- The offset of an own append is the surest end of a log, and ``append`` returns the offset. Only the true leader can
  acknowledge an append, and every record acknowledged before lies below. The decision who may commit, and from where,
  rests on these offsets alone.
- The adapter's own settings bound every call in time. A call raises ``BrokerTimeout`` when the time is over.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ..offsets.provenance import HEADER
from ..state.tables import Table
from .rights import Lacking, Right, sentences
from .throttling import Throttling

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Watermarks(NamedTuple):
    """``start``: the first offset that still exists; ``high``: the offset of the next record to be written."""

    start: int
    high: int


class ConsumerRecord(Protocol):
    """A record as read. Attributes have the names of the Kafka clients, so the clients' records fit."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Batch(NamedTuple):
    """Records of one partition in offset order, and the reader's position behind the records and any holes.

    ``records`` may be empty: then only the position moved.
    """

    source: TopicPartition
    records: Sequence[ConsumerRecord]
    offset_next: int


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to be written. ``timestamp`` is in ms since the epoch; None lets the broker adapter stamp the record.

    ``origin``: the value of the provenance header, which comes behind the ``given_headers``; empty: no header.

    A record is in no reference cycle: the garbage collection may skip the many records and their parts.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    given_headers: Headers = ()
    timestamp: int | None = None
    origin: bytes = b""

    @property
    def headers(self) -> Headers:
        """All headers, as written."""
        return (*self.given_headers, (HEADER, self.origin)) if self.origin else self.given_headers


class Replication(NamedTuple):
    """The least number of brokers that keep a partition of a topic, and the number of brokers."""

    replicas: int
    brokers: int


class TopicDescription(NamedTuple):
    """A topic that exists. ``config`` holds at least cleanup.policy, retention.ms and max.message.bytes, as text.

    ``identity``: no other topic ever has the same, not even the next topic of the name; "": the broker does not tell.
    ``replication``: None where a broker does not replicate.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    identity: str = ""
    replication: Replication | None = None


class GroupOffsets(NamedTuple):
    """The committed offsets of a consumer group. ``state``: in the broker's words; ``is_live``: the group has members,
    or may have. ``offsets``: the next offset to read of each wanted partition that has a commit.
    """

    state: str
    is_live: bool
    offsets: Mapping[TopicPartition, int]


class TopicSpec(NamedTuple):
    """A topic to be created. ``replicas``: the number of brokers that keep a partition; None: the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replicas: int | None = None


class BrokerError(Exception):
    """The family of errors that an adapter raises. No error of a client library leaves an adapter."""


class AuthenticationRefused(BrokerError):
    """The cluster or the client refuses the other: a log-in or a certificate. Another try would be refused again.

    The message names the address, the refused thing and the reason, never a secret.
    """


class NotAuthorized(BrokerError):
    """ACLs do not allow a request. The request changed nothing; the same request succeeds once the rights are there.

    ``rights``: the missing rights, at least one; ``principal``: the client without them; None: not known.
    """

    def __init__(self, rights: Sequence[Right], principal: str | None) -> None:
        super().__init__(sentences(rights, principal))
        self.rights = tuple(rights)
        self.principal = principal


class BrokerTimeout(BrokerError):
    """No answer in time, or no connection. The request may have been carried out or not."""


class ProducerFenced(BrokerError):
    """A newer producer of the same transactional id exists."""


class ProducerForgotten(ProducerFenced):
    """The broker does not know the producer: the producer did nothing for ``transactional.id.expiration.ms``, or a
    newer producer exists. The broker does not tell the two cases apart.
    """


class TransactionAborted(BrokerError):
    """The transaction was aborted for sure; sending the same again with a new producer may succeed."""


class TransactionThrottled(TransactionAborted):
    """The transaction was aborted for sure: the broker throttles and would keep the transaction open for long. Send the
    records in parts.
    """


class TransactionRefused(BrokerError):
    """The transaction was aborted for sure because the broker refused ``culprits``; the same would be refused again.

    ``culprits`` are indexes into the given records. At least one culprit is refused for good; others may have been
    refused only because of the same batch. ``is_untimely``: refused for the times of the records.
    """

    def __init__(self, message: str, culprits: Sequence[int], *, is_untimely: bool = False) -> None:
        super().__init__(message)
        self.culprits = tuple(culprits)
        self.is_untimely = is_untimely


class TransactionUnknown(BrokerError):
    """The outcome of the transaction is not known. Make a new producer, then read the log to find out."""


class OffsetOutOfRange(BrokerError):
    """The offset to be read does not exist, or no longer exists."""

    def __init__(self, source: TopicPartition, offset: int, watermarks: Watermarks) -> None:
        super().__init__(
            f"{source.topic}[{source.partition}] holds offsets {watermarks.start} to {watermarks.high}; "
            f"offset {offset} was asked for"
        )
        self.source = source
        self.offset = offset
        self.watermarks = watermarks


class UnknownTopic(BrokerError):
    """A topic or partition does not exist, or was deleted and created anew under the same name."""


class CorruptRecord(BrokerError):
    """A stored batch is damaged (checksum), uses a codec that is not installed, or is too large to be fetched."""


class Reader(Protocol):
    """Reads committed records from given positions."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others. Records prefetched elsewhere are dropped."""

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next; passes holes once ``fetch`` has passed the holes."""

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """Batches of the named assigned partitions: records that are there, else records that come within ``wait_ms``,
        else [].

        At most ``records_max`` records in all. Partitions not named keep their prefetched records. Raises
        OffsetOutOfRange, UnknownTopic, CorruptRecord, BrokerTimeout. ``[]`` does not prove the end of a partition: the
        broker may be silent for some time, or lead the partition no more.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time."""


class BrokerProducer(Protocol):
    """The producer of one transactional id. After any error, close the producer and make a new one."""

    async def transact(self, records: Sequence[Outgoing], *, in_parts: bool = False) -> Mapping[TopicPartition, int]:
        """Write all records in one transaction; one call at a time. ``in_parts``: the caller can send the records in
        parts, so TransactionThrottled is raised, too.

        Returns for each partition the offset behind the last written record. A control record may follow, so a reader
        that has read the transaction stands there or farther on. A partition is left out where the adapter can't know.
        Raises ProducerFenced, TransactionAborted, TransactionRefused or TransactionUnknown. After a cancellation the
        outcome is unknown, too.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time; never ends a transaction as committed."""


class Appender(Protocol):
    """Writes outside of transactions: to a partition one call after the other. No appender waits for another."""

    async def append(self, records: Sequence[Outgoing]) -> Mapping[TopicPartition, int]:
        """Write all records, in order per partition; returns when all are acknowledged.

        Calls for one partition wait for each other; calls for different partitions may go together. Returns for each
        partition the offset behind the last record. A partition is left out where the adapter can't know. Bounded in
        time, with the wait for the calls in front. After an error some records may have been written, or may still be
        written, behind later appends; the next call may succeed. Raises TransactionRefused for records refused for
        good, and BrokerError. No culprit of a refusal was written. Of a culprit's partition, all records in front of
        the culprits were written, and no record behind them.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time. A caller that is still at ``append`` gets a BrokerError."""


class Broker(Protocol):
    """A place with topics. Constructed without I/O; ``open`` connects."""

    is_alone: bool
    """Whether one process has the broker alone. An open broker proves that no other process uses the same data."""
    throttling: Throttling
    """The quotas of the broker for this process."""

    async def open(self) -> None:
        """Connect. Raises BrokerTimeout, or StoreError for an unusable local folder."""

    async def close(self) -> None:
        """Disconnect; bounded in time."""

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among the given names that exist."""

    async def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """The number of partitions of each topic that exists. No right to see the topics' settings is needed."""

    async def missing_rights(self, rights: Sequence[Right]) -> Lacking:
        """The given rights that this client lacks, as far as the broker tells. A broker without ACLs refuses none."""

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; an existing topic is left unchanged. Returns when all topics can be used."""

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks of partitions: see the semantics above. Raises UnknownTopic; raises BrokerTimeout when too few of
        the brokers that keep a partition confirm the leader.
        """

    async def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """For each partition the least offset with a record timestamp at or behind a time in ms; None: no record.
        Raises UnknownTopic.
        """

    async def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """The offsets of these partitions that a consumer group has committed, read without joining the group. An
        unknown group has none. The call waits for the end of a transaction that would commit offsets of the group.
        """

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader, assigned to these positions; no positions are fine, too."""

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> BrokerProducer:
        """A new producer of the id. The call fences all older producers (see the semantics above)."""

    def table(self, topic: str, partition: int) -> Table | None:
        """A partition that the broker itself keeps by key, in the committed state; None: the topic is a log.

        Plain calls from any thread. May raise UnknownTopic; the table's methods may raise StoreError.
        """

    def appender(self) -> Appender:
        """A new appender, made without I/O. The appender connects at the first use, and ends with the broker."""

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below the given offsets."""
