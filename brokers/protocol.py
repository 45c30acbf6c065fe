"""What the runtime asks of a broker. Three adapters keep it; one conformance suite checks all three.

Left out on purpose: joining consumer groups (ranges belong to members by our own events), compression, partitioners
(the runtime names the partition of everything it sends).

Semantics that every adapter owes:

- A reader sees committed records only, in offset order, and never past an open transaction. Offsets have holes;
  ``position`` is the place to read next and passes holes, also at the end of a partition.
- ``producer`` fences: every older producer of the id gets ``ProducerFenced`` from then on, its open transaction
  is aborted, and its last decided one is visible to ``watermarks``-bounded reads before ``producer`` returns.
- ``transact`` makes all its records visible together or none.
- What is written outside of transactions goes through an ``Appender``, in order per partition. No appender waits for
  another one: each has a session of its own.
- A topic created with ``state.tables.TABLE_CONFIG`` is kept by key by a broker that can, and is a log like any other at
  one that can't: ``table`` tells which. What is kept by key can't be read by a reader.
- ``watermarks().high`` is the high watermark (not the last stable offset). Everything that was acknowledged before the
  call lies below it: a leader that was deposed and still answers is told from the true one.
- The offset of an own append is the surest end of a log: only its true leader can acknowledge the append, and all that
  was acknowledged before lies below it. ``append`` returns it. What decides who may commit, and from where,
  rests on these offsets alone.
- Every call is bounded in time by the adapter's own settings and raises ``BrokerTimeout`` when that runs out.
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
    """A record as read. Attribute names are those of the Kafka clients, so that theirs can be handed through."""

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
    """Records of one partition in offset order, and the reader's position behind them (which passes holes).

    May be empty of records: then only the position moved.
    """

    source: TopicPartition
    records: Sequence[ConsumerRecord]
    offset_next: int


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to be written. ``timestamp`` is in ms since the epoch; None lets the broker adapter stamp it.

    ``origin``: the value of its provenance header, which comes behind the ``given_headers``; empty: it has none.

    It is in no circle, so that the garbage collection need not look at it, nor at what is in it: there are many.
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
        """All of them, as they are written."""
        return (*self.given_headers, (HEADER, self.origin)) if self.origin else self.given_headers


class Replication(NamedTuple):
    """How many brokers keep each partition of a topic, at least, and how many brokers there are."""

    replicas: int
    brokers: int


class TopicDescription(NamedTuple):
    """A topic that exists. ``config`` holds at least cleanup.policy, retention.ms and max.message.bytes, as text.

    ``identity``: no other topic ever has it, the next one of the same name neither; "": the broker does not tell.
    ``replication``: None where there is none.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    identity: str = ""
    replication: Replication | None = None


class GroupOffsets(NamedTuple):
    """What a consumer group has committed. ``state``: what the broker calls its state; ``is_live``: it has members, or
    may have. ``offsets``: of each partition that was asked for and has one, the offset to be read next.
    """

    state: str
    is_live: bool
    offsets: Mapping[TopicPartition, int]


class TopicSpec(NamedTuple):
    """A topic to be created. ``replicas``: as many brokers keep each partition; None: the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replicas: int | None = None


class BrokerError(Exception):
    """The family of what an adapter raises. Nothing of a client library leaves an adapter."""


class AuthenticationRefused(BrokerError):
    """The cluster, or this client, refuses the other: a log-in or a certificate. Asking again would be refused again.

    The message names the address, what was refused and why, never a secret.
    """


class NotAuthorized(BrokerError):
    """ACLs do not allow something. Nothing was changed by what was asked; it works once the rights are there.

    ``rights``: what is missing, at least one; ``principal``: who lacks it, None where the client can't know.
    """

    def __init__(self, rights: Sequence[Right], principal: str | None) -> None:
        super().__init__(sentences(rights, principal))
        self.rights, self.principal = tuple(rights), principal


class BrokerTimeout(BrokerError):
    """No answer in time, or no connection. What was asked for may or may not have happened."""


class ProducerFenced(BrokerError):
    """A newer producer of the same transactional id exists."""


class ProducerForgotten(ProducerFenced):
    """The broker does not know the producer: it did nothing for ``transactional.id.expiration.ms``, or a newer one
    exists. Which of these, the broker does not say.
    """


class TransactionAborted(BrokerError):
    """The transaction was aborted for sure; sending the same again with a new producer may succeed."""


class TransactionThrottled(TransactionAborted):
    """The same, because the broker throttles and it would stay open for long: it is to be sent in parts."""


class TransactionRefused(BrokerError):
    """The transaction was aborted for sure because the broker refused ``culprits``; the same would be refused again.

    ``culprits`` are indexes into the records that were to be sent: at least one of them is refused for good, others may
    have been refused only because they were sent in the same batch. ``is_untimely``: for their times.
    """

    def __init__(self, message: str, culprits: Sequence[int], *, is_untimely: bool = False) -> None:
        super().__init__(message)
        self.culprits, self.is_untimely = tuple(culprits), is_untimely


class TransactionUnknown(BrokerError):
    """It is not known whether the transaction was committed. Make a new producer, then read the log to find out."""


class OffsetOutOfRange(BrokerError):
    """The offset to be read does not exist (any more)."""

    def __init__(self, source: TopicPartition, offset: int, watermarks: Watermarks) -> None:
        super().__init__(
            f"{source.topic}[{source.partition}] holds offsets {watermarks.start} to {watermarks.high}; "
            f"offset {offset} was asked for"
        )
        self.source, self.offset, self.watermarks = source, offset, watermarks


class UnknownTopic(BrokerError):
    """A topic or partition does not exist, or is another one than it was: deleted, and created anew under its name."""


class CorruptRecord(BrokerError):
    """A stored batch is damaged (checksum), uses a codec that is not installed, or is larger than can be fetched."""


class Reader(Protocol):
    """Reads committed records from the places it was given."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others. What was prefetched elsewhere is dropped."""

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next; passes holes once ``fetch`` has passed them."""

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """Batches of the named assigned partitions: what is there, else what comes within ``wait_ms``, else [].

        At most ``records_max`` records in all. Partitions not named keep what was prefetched for them. Raises
        OffsetOutOfRange, UnknownTopic, CorruptRecord, BrokerTimeout. ``[]`` does not say that there is no more: the
        broker may be silent for some time, or lead the partition no more.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time."""


class BrokerProducer(Protocol):
    """One transactional id's producer. After any error it is of no use any more: close it and make a new one."""

    async def transact(self, records: Sequence[Outgoing], *, in_parts: bool = False) -> Mapping[TopicPartition, int]:
        """Write all records in one transaction; one call at a time. ``in_parts``: they may as well be sent in parts, so
        TransactionThrottled is raised, too.

        Returns for each partition the offset behind the last record that it wrote there. A control record may follow,
        so a reader that has read the transaction stands there or farther on. A partition is left out where the adapter
        can't know. Raises ProducerFenced, TransactionAborted, TransactionRefused or TransactionUnknown. When cancelled,
        the outcome is unknown too.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time; never ends a transaction as committed."""


class Appender(Protocol):
    """Writes outside of transactions: to a partition one call after the other. It waits for no other appender."""

    async def append(self, records: Sequence[Outgoing]) -> Mapping[TopicPartition, int]:
        """Write all, in order per partition; returns when all are acknowledged.

        Calls for one partition wait for each other; those for others may go together. Returns for each partition the
        offset behind the last record. A partition is left out where the adapter can't know. Bounded in time, with the
        wait for the calls in front of it. After an error some may have been written, or may still be, behind what
        is appended later; the next call may succeed. Raises TransactionRefused for records that are refused for good,
        BrokerError. No culprit of a refusal was written; all in front of the culprits in their partition was, and
        nothing behind them.
        """

    async def close(self) -> None:
        """Let go of connections; bounded in time. Whoever is still at ``append`` gets a BrokerError."""


class Broker(Protocol):
    """A place with topics. Constructed without I/O; ``open`` connects."""

    is_alone: bool
    """Whether it is one process's alone, and proves, once it is open, that no other one uses it."""
    throttling: Throttling
    """How it throttles this process: quotas."""

    async def open(self) -> None:
        """Connect. Raises BrokerTimeout, or StoreError for a local folder that can't be used."""

    async def close(self) -> None:
        """Disconnect; bounded in time."""

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among these that exist."""

    async def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions those of the topics have that exist. It takes no right to see their settings."""

    async def lacking(self, rights: Sequence[Right]) -> Lacking:
        """Those of the rights that this client lacks, as far as the broker tells; one without ACLs refuses none."""

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; one that exists already is left as it is. Returns when they can be used."""

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks of partitions: see the semantics above. Raises UnknownTopic, and BrokerTimeout when too few of the
        brokers that keep a partition say who leads it.
        """

    async def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Of each partition the least offset whose record's timestamp is at or behind a time in ms; None: there is
        none. Raises UnknownTopic.
        """

    async def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """What a consumer group has committed of these partitions, read without joining it; no group of that name:
        nothing. What a transaction that is not decided yet would commit is waited for.
        """

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader, assigned to these places (which may be none)."""

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> BrokerProducer:
        """A new producer of the id, which fences all older ones (see the semantics above)."""

    def table(self, topic: str, partition: int) -> Table | None:
        """A partition of a topic that the broker itself keeps by key, as it is committed; None: the topic is a log.

        Plain calls from any thread. May raise UnknownTopic, and its methods StoreError.
        """

    def appender(self) -> Appender:
        """A new appender, made without I/O; it connects when it is first used. It ends when the broker is closed."""

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets."""
