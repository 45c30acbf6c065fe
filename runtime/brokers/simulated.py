"""A cluster in memory whose delays, orders and faults come from a seed; processes reach it through connections.

``SimulatedBroker`` is the cluster: it outlives crashes. ``connect`` gives a process its ``Broker``; ``sever`` is that
process's kill -9: what it had sent may or may not arrive, by the seed, and nothing it does afterwards has an effect.

All waiting goes through the running loop, so that it runs in virtual time on a ``VirtualLoop`` and in real time
elsewhere. A request is delivered after one delay and takes effect there in one step, whether or not its sender still
waits; the reply comes after another. What a cluster knows, and how transactions work, is in ``simulated_log``.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from .protocol import (
    Batch,
    BrokerError,
    BrokerTimeout,
    Outgoing,
    Reader,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    TransactionAborted,
    TransactionRefused,
    TransactionUnknown,
    Watermarks,
)
from .refusal import describe_refusals, refusals
from .simulated_log import ClusterState, Entry, SimulatedRecord, Transaction

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000  # what a record is stamped with is this plus the loop's time


class ConnectionSevered(BrokerTimeout):
    """The process this connection belonged to is dead."""


@dataclass
class Faults:
    """Probabilities of one call, and switches; may be changed while the cluster runs."""

    transact_aborted: float = 0.0  # aborted before it is decided
    transact_unknown: float = 0.0  # the request to commit, or the reply to it, is lost
    offsets_unknown: float = 0.0  # the offsets of a partition that a transaction wrote are not told
    reply_slow: float = 0.0  # a reply takes reply_slow_ms longer
    reply_slow_ms: float = 500.0
    away: bool = False  # nothing is answered; every call ends with BrokerTimeout


@dataclass(frozen=True)
class Latency:
    """Ranges in ms from which delays are drawn evenly."""

    request_ms: tuple[float, float] = (0.1, 2.0)  # each way
    marker_ms: tuple[float, float] = (0.1, 20.0)  # from a transaction's decision to each of its markers
    retry_ms: tuple[float, float] = (1.0, 20.0)  # a producer that finds its last transaction not complete
    timeout_ms: float = 10_000.0  # when the cluster is away


class CommittedRecord(NamedTuple):
    """A record of ``SimulatedBroker.committed``; ``timestamp`` in ms."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class SimulatedBroker:
    """The cluster. With ``auto_create`` a write to an unknown topic creates it with ``partitions_default``."""

    def __init__(
        self,
        seed: int = 0,
        *,
        auto_create: bool = False,
        partitions_default: int = 4,
        latency: Latency = Latency(),
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults if faults is not None else Faults()
        self.latency = latency
        self._random = random.Random(seed)
        self._auto_create = auto_create
        self._partitions_default = partitions_default
        self._state = ClusterState()
        self._waiting: dict[asyncio.Future[None], frozenset[TopicPartition]] = {}

    # What a test asks, without a connection.

    def connect(self, client_name: str) -> "SimulatedConnection":
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
        """Forget records below ``before``, as retention would."""
        self._state.trim({source: before})
        self._wake(source)

    # What happens inside the cluster.

    def _draw(self, bounds_ms: tuple[float, float]) -> float:
        return self._random.uniform(*bounds_ms) / 1000

    def _reply_delay(self) -> float:
        delay = self._draw(self.latency.request_ms)
        if self.faults.reply_slow and self._random.random() < self.faults.reply_slow:
            delay += self.faults.reply_slow_ms / 1000
        return delay

    def _now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def _wake(self, source: TopicPartition) -> None:
        for news in [news for news, sources in self._waiting.items() if source in sources]:
            del self._waiting[news]
            if not news.done():
                news.set_result(None)

    def _prepare_topics(self, records: Sequence[Outgoing]) -> dict[int, str]:
        names = dict.fromkeys(record.topic for record in records)
        if self._auto_create:
            for name in names:
                self._state.create(TopicSpec(name, self._partitions_default, {}))
        return refusals(records, self._state.descriptions(names))

    def _append(self, records: Sequence[Outgoing]) -> None:
        self._state.log(_partition_of(records[0])).append(records, self._now_ms(), None)
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

    def _initialise(self, transactional_id: str) -> int | None:
        found = self._state.initialise(transactional_id)
        if isinstance(found, int):
            return found
        if found.committed is None:
            found.committed = False
            self._write_markers(found)
        return None

    def _begin(
        self, transactional_id: str, epoch: int, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> Transaction | None:
        transaction = self._state.begin(transactional_id, epoch, partitions)
        if transaction is not None:
            asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire, transaction)
        return transaction

    def _produce(self, transaction: Transaction, records: Sequence[Outgoing]) -> int:
        return self._state.produce(transaction, records, self._now_ms())

    def _end(self, transaction: Transaction, commit: bool) -> None:
        self._state.end(transaction, commit)
        self._write_markers(transaction)

    def _expire(self, transaction: Transaction) -> None:
        if self._state.expire(transaction):
            self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        loop = asyncio.get_running_loop()
        for source in transaction.unmarked:
            loop.call_later(self._draw(self.latency.marker_ms), self._mark, transaction, source)

    def _mark(self, transaction: Transaction, source: TopicPartition) -> None:
        self._state.mark(transaction, source)
        self._wake(source)


class SimulatedConnection:
    """One process's way to the cluster: a ``Broker``."""

    def __init__(self, cluster: SimulatedBroker, client_name: str) -> None:
        self.client_name = client_name
        self._cluster = cluster
        self._pending: dict[asyncio.Future[None], None] = {}  # replies and news that somebody waits for
        self._severed = False
        self._closed = False

    def sever(self) -> None:
        """Kill the process: every call, running or to come, raises ConnectionSevered and has no further effect."""
        self._severed = True
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(ConnectionSevered(f"{self.client_name}: the process is dead"))
                future.exception()  # looked at: the task that waits may never run again

    async def open(self) -> None:
        """Connect; raises BrokerTimeout."""
        self._closed = False
        await self._call(lambda: None)

    async def close(self) -> None:
        """Disconnect; whoever still waits gets a BrokerError."""
        self._closed = True
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(BrokerError(f"{self.client_name}: the connection was closed"))
                future.exception()

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among these that exist."""
        return await self._call(partial(self._cluster._state.descriptions, topics))

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; existing ones stay as they are."""

        def create() -> None:
            for spec in specs:
                self._cluster._state.create(spec)

        await self._call(create)

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks; raises UnknownTopic."""
        return await self._call(lambda: {source: self._cluster._state.watermarks(source) for source in partitions})

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader."""
        self._check()
        reader = SimulatedReader(self, self._cluster)
        reader.assign(positions)
        return reader

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> "SimulatedProducer":
        """A new producer, after all older ones are fenced and their last transaction is complete."""
        epoch = await self._initialise(transactional_id)
        return SimulatedProducer(self, self._cluster, transactional_id, epoch, transaction_timeout_ms)

    async def fence(self, transactional_id: str) -> None:
        """Fence all producers of an id and wait for its last transaction's markers."""
        await self._initialise(transactional_id)

    def table(self, topic: str, partition: int) -> None:
        """The cluster keeps logs only, as Kafka does."""

    async def append(self, records: Sequence[Outgoing]) -> None:
        """Write outside a transaction; raises TransactionRefused, with nothing written, for impossible records."""
        if not records:
            self._check()
            return
        refused = await self._call(partial(self._cluster._prepare_topics, records))
        if refused:
            raise TransactionRefused(describe_refusals(refused), tuple(refused))
        groups = _by_partition(records)
        await self._call_all([partial(self._cluster._append, [records[i] for i in group]) for group in groups.values()])

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets; raises UnknownTopic, OffsetOutOfRange."""
        await self._call(partial(self._cluster._trim, before))

    async def _initialise(self, transactional_id: str) -> int:
        while True:
            epoch = await self._call(partial(self._cluster._initialise, transactional_id))
            if epoch is not None:
                return epoch
            await asyncio.sleep(self._cluster._draw(self._cluster.latency.retry_ms))

    def _check(self) -> None:
        if self._severed:
            raise ConnectionSevered(f"{self.client_name}: the process is dead")
        if self._closed:
            raise BrokerError(f"{self.client_name}: the connection was closed")

    async def _call(self, step: Callable[[], T]) -> T:
        """Have one step done in the cluster; the result is what the step returned or raised."""
        results = await self._call_all([step])
        return results[0]

    async def _call_all(self, steps: Sequence[Callable[[], T]]) -> list[T]:
        """Have steps done side by side; returns, or raises the first error, when all replies are there."""
        self._check()
        outcomes: list[tuple[T | None, BaseException | None]] = [(None, None)] * len(steps)
        replies = [self._send(step, outcomes, index) for index, step in enumerate(steps)]
        for lost in await asyncio.gather(*replies, return_exceptions=True):
            if lost is not None:
                raise lost
        self._check()
        for _, error in outcomes:
            if error is not None:
                raise error
        return [result for result, _ in outcomes]  # type: ignore[misc]  # None only if the step returned None

    def _send(
        self, step: Callable[[], T], outcomes: list[tuple[T | None, BaseException | None]], index: int
    ) -> "asyncio.Future[None]":
        cluster = self._cluster
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[None] = loop.create_future()
        self._pending[reply] = None

        def deliver() -> None:
            if cluster.faults.away:
                loop.call_later(cluster.latency.timeout_ms / 1000, give_up)
                return
            # Its sender was killed or cancelled before it was sure to be on its way: it may be lost.
            if reply.done():
                self._pending.pop(reply, None)
                if cluster._random.random() < 0.5:
                    return
            try:
                outcomes[index] = (step(), None)
            except BrokerError as error:
                outcomes[index] = (None, error)
            loop.call_later(cluster._reply_delay(), answer)

        def answer() -> None:
            self._pending.pop(reply, None)
            if not reply.done():
                reply.set_result(None)

        def give_up() -> None:
            outcomes[index] = (None, BrokerTimeout(f"{self.client_name}: the cluster did not answer in time"))
            answer()

        loop.call_later(cluster._draw(cluster.latency.request_ms), deliver)
        return reply


class SimulatedReader:
    """A ``Reader``: keeps positions; asks the cluster for each fetch."""

    def __init__(self, connection: SimulatedConnection, cluster: SimulatedBroker) -> None:
        self._connection = connection
        self._cluster = cluster
        self._positions: dict[TopicPartition, int] = {}
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these places, and no others."""
        self._positions = dict(positions)

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next."""
        return self._positions[source]

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See the protocol."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        asked = {source: self._positions[source] for source in sources}
        while True:
            if self._closed:
                raise BrokerError("the reader was closed")
            wait = deadline - loop.time()
            news: asyncio.Future[None] = loop.create_future()  # done when there is something for this fetch
            try:
                found = await self._connection._call(
                    partial(self._cluster._read, asked, records_max, news if wait > 0 else None)
                )
                # An ``assign`` meanwhile makes a batch of a place that is not read any more worthless.
                fresh = [batch for batch in found if self._positions.get(batch.source) == asked[batch.source]]
                for batch in fresh:
                    self._positions[batch.source] = batch.offset_next
                wait = deadline - loop.time()
                if fresh or wait <= 0:
                    return fresh
                if not found:
                    await self._wait(news, wait)
                asked = {source: self._positions[source] for source in sources if source in self._positions}
            finally:
                self._cluster._waiting.pop(news, None)
                self._connection._pending.pop(news, None)

    async def close(self) -> None:
        """Let go."""
        self._closed = True

    async def _wait(self, news: "asyncio.Future[None]", wait: float) -> None:
        self._connection._pending[news] = None
        timer = asyncio.get_running_loop().call_later(wait, _finish_nowait, news)
        try:
            await news
        finally:
            timer.cancel()


class SimulatedProducer:
    """A ``Producer`` at one epoch of its transactional id."""

    def __init__(
        self,
        connection: SimulatedConnection,
        cluster: SimulatedBroker,
        transactional_id: str,
        epoch: int,
        transaction_timeout_ms: int,
    ) -> None:
        self._connection = connection
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._epoch = epoch
        self._timeout_ms = transaction_timeout_ms
        self._usable = True

    async def transact(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        """See the protocol."""
        if not self._usable:
            raise BrokerError("this producer is in use, was closed or has failed: make a new one")
        if not records:
            return {}
        self._usable = False
        refused = await self._prepare(records)
        if refused:
            await self._refuse(records, refused)
        transaction = await self._begin(records)
        ends = await self._produce(transaction, records)
        await self._commit(transaction)
        self._usable = True
        unknown = self._cluster.faults.offsets_unknown
        return {source: end for source, end in ends.items() if not unknown or self._cluster._random.random() >= unknown}

    async def close(self) -> None:
        """Let go; an open transaction is left to be fenced or to time out."""
        self._usable = False

    async def _prepare(self, records: Sequence[Outgoing]) -> dict[int, str]:
        try:
            return await self._connection._call(partial(self._cluster._prepare_topics, records))
        except BrokerTimeout as error:
            raise TransactionAborted(f"the transaction could not begin: {error}") from error

    async def _refuse(self, records: Sequence[Outgoing], refused: Mapping[int, str]) -> NoReturn:
        """Partitions with a refused record take none; the others' records are written, then aborted."""
        groups = _by_partition(records)
        bad = {_partition_of(records[index]) for index in refused}
        landed = [records[index] for source, group in groups.items() if source not in bad for index in group]
        if landed:
            transaction = await self._begin(landed)
            await self._produce(transaction, landed)
            await self._abort(transaction)
        batched = [index for source in bad for index in groups[source]]  # each partition sends one batch
        culprits = self._cluster._random.choice([list(refused), batched])
        raise TransactionRefused(describe_refusals(refused), sorted(culprits))

    async def _begin(self, records: Sequence[Outgoing]) -> Transaction:
        cluster, call = self._cluster, self._connection._call
        partitions = list(_by_partition(records))
        try:
            while True:
                transaction = await call(
                    partial(cluster._begin, self._transactional_id, self._epoch, partitions, self._timeout_ms)
                )
                if transaction is not None:
                    return transaction
                await asyncio.sleep(cluster._draw(cluster.latency.retry_ms))
        except BrokerTimeout as error:
            raise TransactionAborted(f"the transaction could not begin: {error}") from error

    async def _produce(self, transaction: Transaction, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        groups = _by_partition(records)
        steps = [partial(self._cluster._produce, transaction, [records[i] for i in group]) for group in groups.values()]
        try:
            ends = await self._connection._call_all(steps)
            if self._cluster._random.random() < self._cluster.faults.transact_aborted:
                await self._abort(transaction)
                raise TransactionAborted("aborted on demand")
        except BrokerTimeout as error:
            raise TransactionAborted(f"not all records could be sent, and no commit was asked for: {error}") from error
        return dict(zip(groups, ends, strict=True))

    async def _abort(self, transaction: Transaction) -> None:
        try:
            await self._connection._call(partial(self._cluster._end, transaction, False))
        except BrokerTimeout as error:
            raise TransactionAborted(f"no commit was asked for: {error}") from error

    async def _commit(self, transaction: Transaction) -> None:
        cluster, call = self._cluster, self._connection._call
        commit = partial(cluster._end, transaction, True)
        try:
            if cluster._random.random() < cluster.faults.transact_unknown:
                lost_is_the_request = cluster._random.random() < 0.5
                await call((lambda: None) if lost_is_the_request else commit)
                raise TransactionUnknown("the answer to the commit was lost on demand")
            await call(commit)
        except BrokerTimeout as error:
            raise TransactionUnknown(f"no answer to the commit: {error}") from error


def _partition_of(record: Outgoing) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _by_partition(records: Sequence[Outgoing]) -> dict[TopicPartition, list[int]]:
    """Indexes of the records by partition, partitions in the order of their first record."""
    groups: dict[TopicPartition, list[int]] = {}
    for index, record in enumerate(records):
        groups.setdefault(_partition_of(record), []).append(index)
    return groups


def _finish_nowait(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


__all__ = [
    "CommittedRecord",
    "ConnectionSevered",
    "Entry",
    "Faults",
    "Latency",
    "SimulatedBroker",
    "SimulatedConnection",
    "SimulatedRecord",
]
