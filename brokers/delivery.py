"""Records on the way to the log: cut into batches with sequence numbers, and sent until the broker takes each batch.

The decisions are made here, once for the adapters ``kafka`` and ``simulated``. An adapter sends the requests and names
the meaning of each answer (``Verdict``). Calls of ``SessionAppender``, and of a ``TransactionalProducer``
(producer.py), go through a ``Session``: the session cuts the records into batches, sends the batches and judges the
answers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from .batch_records import by_partition
from .deadline import Deadline
from .protocol import (
    BrokerError,
    BrokerTimeout,
    NotAuthorized,
    Outgoing,
    TopicPartition,
    TransactionRefused,
    TransactionThrottled,
)
from .throttling import Allowance

T = TypeVar("T")

BATCH_BYTES_MAX: Final = 1_000_000
REQUEST_BYTES_MAX: Final = 8_000_000
SEQUENCES: Final = 1 << 31
BATCH_SHARE: Final = 0.25
"""A batch may take this part of the bytes of a request, also where less of the request is left."""
REST_FACTOR: Final = 2
"""The rest of a transaction that meets a quota goes in one request, after the throttling, and is throttled in turn. So
the rest is bounded: this many times its bytes may gather by the quota. A larger rest is not sent: TransactionThrottled.
"""
LIMITS_SECONDS_MAX: Final = 60.0  # a known setting of a topic counts for so long


class Verdict(Enum):
    """The outcome of one request."""

    DONE = auto()
    NOT_SENT = auto()  # the request did not leave
    AGAIN = auto()  # not carried out; the same request may be carried out later
    DOUBTFUL = auto()  # may have been carried out; the same request may be taken later
    LOST = auto()  # no answer came: the request may have been carried out, or may still be
    FENCED = auto()  # the producer's epoch is over
    FORGOTTEN = auto()  # the producer is not known: the id has expired, or another producer has the id
    REFUSED = auto()  # refused for good, because of the content
    FAILED = auto()  # answered with any other error


SENT_AGAIN: Final = frozenset({Verdict.NOT_SENT, Verdict.AGAIN, Verdict.DOUBTFUL})
"""After these verdicts the same request is sent again, within the deadline."""


class AppendAnswer(NamedTuple):
    """A verdict with the broker's words and, for a batch, the offset behind the last record (below 0: not told).

    ``refusal``: the missing right, if any. ``is_untimely``: the broker refuses the times of records.
    """

    verdict: Verdict
    problem: str = ""
    end: int = -1
    refusal: NotAuthorized | None = None
    is_untimely: bool = False

    def refused_by(self, refusal: NotAuthorized) -> "AppendAnswer":
        """A copy of the answer, with the missing right."""
        return self._replace(refusal=refusal)

    def error(self, what: str) -> BrokerError:
        """The answer as an error: the missing right, or a message that begins with ``what``."""
        return self.refusal or BrokerError(f"{what}: {self.problem}")


class ProduceBatch(NamedTuple, Generic[T]):
    """A batch of one partition, ready to be sent: the number of records, the payload, the size in bytes. ``unpacked``:
    the size before compression, in bytes.
    """

    records: int
    payload: T
    size: int
    unpacked: int


class TopicNumbers:
    """A number in the settings of topics, as ``ask`` tells; asked for again from time to time."""

    def __init__(self, ask: Callable[[Collection[str]], Awaitable[Mapping[str, int]]]) -> None:
        self._ask = ask
        self._known: dict[str, tuple[int, float]] = {}

    async def of(self, topics: Collection[str]) -> dict[str, int]:
        """The number of each topic that exists."""
        now = asyncio.get_running_loop().time()
        stale = [name for name in topics if self._known.get(name, (0, 0.0))[1] <= now]
        if stale:
            for name, limit in (await self._ask(stale)).items():
                self._known[name] = (limit, now + LIMITS_SECONDS_MAX)
        return {name: self._known[name][0] for name in topics if name in self._known}

    def forget(self) -> None:
        """Forget all numbers: after a refused batch a known number may be old."""
        self._known.clear()


class BatchRequests(Protocol[T]):
    """The requests of one producer id at one epoch, over connections of the producer's own.

    A request is sent once, so an answer belongs to *this* request. A request that may be carried out twice is sent
    again within the deadline. After BrokerError nothing was sent. ``allowance``: for all writes of this process;
    ``produce`` counts the bytes sent.
    """

    @property
    def limits(self) -> TopicNumbers: ...

    @property
    def allowance(self) -> Allowance: ...

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """A deadline from now; without ``timeout_ms``, after as long as a client waits for an answer."""

    async def missing_partitions(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Sequence[TopicPartition]:
        """The partitions that do not exist. Afterwards the leaders of the other partitions are known."""

    def encode(
        self, records: Sequence[Outgoing], indexes: Sequence[int], first: int, sequence: int, limit: int
    ) -> ProduceBatch[T]:
        """Encode indexed records from ``first`` on, as many as fit into ``limit`` bytes, at least one."""

    async def produce(
        self, batches: Mapping[TopicPartition, ProduceBatch[T]], deadline: Deadline
    ) -> Mapping[TopicPartition, AppendAnswer]:
        """Send each batch to the leader of the partition."""

    async def close(self) -> None:
        """Let go of the connections; bounded in time."""


class RecordsRefused(Exception):
    """The broker refuses records (by index) for good."""

    def __init__(self, message: str, culprits: Iterable[int], *, is_untimely: bool) -> None:
        super().__init__(message)
        self.culprits = sorted(culprits)
        self.is_untimely = is_untimely

    def as_refusal(self) -> TransactionRefused:
        """The error for the sender of the records."""
        return TransactionRefused(str(self), self.culprits, is_untimely=self.is_untimely)


class FencedAnswer(Exception):
    """The broker says that the epoch of this producer is over."""


@dataclass
class _Queue(Generic[T]):
    """The records still to be sent to one partition: record indexes from ``next`` on.

    ``batch`` is under way, with the indexes of the batch's records in ``sent``. After some answers the same batch is
    sent again.
    """

    indexes: Sequence[int]
    next: int = 0
    batch: ProduceBatch[T] | None = None
    sent: Sequence[int] = ()


class Session(Generic[T]):
    """A producer at an epoch, with the next sequence number of each partition."""

    def __init__(self, requests: BatchRequests[T], *, in_transactions: bool) -> None:
        self.requests = requests
        self._in_transactions = in_transactions
        self.sequences: dict[TopicPartition, int] = {}

    async def plan(self, records: Sequence[Outgoing], deadline: Deadline) -> dict[TopicPartition, list[int]]:
        """Group record indexes by partition; raises RecordsRefused for partitions that do not exist."""
        groups = by_partition(records)
        missing = await self.requests.missing_partitions(groups, deadline)
        if missing:
            first = missing[0]
            raise self._refusal(
                f"topic {first.topic!r} has no partition {first.partition}",
                (index for partition in missing for index in groups[partition]),
            )
        return groups

    async def deliver(
        self,
        records: Sequence[Outgoing],
        groups: Mapping[TopicPartition, Sequence[int]],
        deadline: Deadline,
        *,
        in_parts: bool = False,
    ) -> dict[TopicPartition, int]:
        """Write all records; one batch of a partition is under way at a time. Raises RecordsRefused, FencedAnswer,
        BrokerError; with ``in_parts`` also TransactionThrottled.

        Returns by partition the offset behind the last record, as far as the broker says.
        """
        loop, allowance = asyncio.get_running_loop(), self.requests.allowance
        ends: dict[TopicPartition, int] = {}
        limits = await self.requests.limits.of({partition.topic for partition in groups})
        queues: dict[TopicPartition, _Queue[T]] = {partition: _Queue(indexes) for partition, indexes in groups.items()}
        rest = 0
        while queues:
            bytes_max = max(allowance.request_max(loop.time()), rest * REST_FACTOR)
            batches = await self._next_batches(records, queues, limits, bytes_max)
            answers = await self.requests.produce(batches, deadline)
            again = self._judge(answers, queues)
            for partition in batches:
                if partition in again:
                    continue
                # Batches of a partition are written in turn. A batch that had arrived before has no offset here.
                ends.pop(partition, None)
                if answers[partition].end >= 0:
                    ends[partition] = answers[partition].end
                queue = queues[partition]
                queue.batch = None
                if queue.next == len(queue.indexes):
                    del queues[partition]
            if in_parts and allowance.rate is not None:
                rest = self._checked_rest(records, queues.values())
            if again:
                await deadline.pause(next(iter(again.values())))
                await self.requests.missing_partitions(again, deadline)
        return ends

    async def _next_batches(
        self,
        records: Sequence[Outgoing],
        queues: Mapping[TopicPartition, _Queue[T]],
        limits: Mapping[str, int],
        bytes_max: int,
    ) -> dict[TopicPartition, ProduceBatch[T]]:
        """The batches for the next request: of each partition the batch to be sent again, or a new batch, until
        ``bytes_max`` before compression are reached. ``limits``: the most bytes of a batch by topic.
        """
        batches: dict[TopicPartition, ProduceBatch[T]] = {}
        size, room, least = 0, bytes_max, int(bytes_max * BATCH_SHARE)
        for partition, queue in queues.items():
            if queue.batch is None:
                limit = min(limits.get(partition.topic, BATCH_BYTES_MAX), max(room, least))
                self._encode(records, partition, queue, limit)
                await asyncio.sleep(0)  # a batch may take some ms to compress
            assert queue.batch is not None
            batches[partition] = queue.batch
            size += queue.batch.size
            room -= queue.batch.unpacked
            if size >= REQUEST_BYTES_MAX or room <= 0:
                break
        return batches

    def _checked_rest(self, records: Sequence[Outgoing], queues: Iterable[_Queue[T]]) -> int:
        """The bytes left to send; raises TransactionThrottled when these would keep the transaction open for long."""
        left = (records[index] for queue in queues for index in queue.indexes[queue.next :])
        rest = sum(len(record.key or b"") + len(record.value or b"") for record in left)
        if self.requests.allowance.is_too_much(rest * REST_FACTOR):
            raise TransactionThrottled(f"the broker throttles, and {rest} bytes are left to be sent")
        return rest

    def _encode(self, records: Sequence[Outgoing], partition: TopicPartition, queue: _Queue[T], limit: int) -> None:
        """Encode the next batch: as many records as fit."""
        sequence, first = self.sequences.get(partition, 0), queue.next
        batch = self.requests.encode(records, queue.indexes, first, sequence, min(limit, BATCH_BYTES_MAX))
        self.sequences[partition] = (sequence + batch.records) % SEQUENCES
        queue.next = first + batch.records
        queue.batch, queue.sent = batch, queue.indexes[first : queue.next]

    def _judge(
        self, answers: Mapping[TopicPartition, AppendAnswer], queues: Mapping[TopicPartition, _Queue[T]]
    ) -> dict[TopicPartition, str]:
        """The partitions with a batch to be sent again, and why; raises errors that end the delivery."""
        again: dict[TopicPartition, str] = {}
        refused: dict[TopicPartition, AppendAnswer] = {}
        for partition, answer in answers.items():
            verdict, problem = answer.verdict, answer.problem
            if verdict is Verdict.DONE:
                continue
            if verdict is Verdict.FENCED:
                raise FencedAnswer(problem)
            if verdict is Verdict.REFUSED:
                refused[partition] = answer
            # Without a transaction the sequence numbers make it safe to send a batch twice. Within one, a late copy
            # could outlive the transaction, so a lost answer ends it.
            elif verdict in SENT_AGAIN or (verdict is Verdict.LOST and not self._in_transactions):
                again[partition] = problem
            elif verdict is Verdict.LOST:
                raise BrokerTimeout(f"no answer to what was sent to {partition.topic}[{partition.partition}]")
            else:
                raise answer.error(f"{partition.topic}[{partition.partition}]")
        if refused:
            partition, first = next(iter(refused.items()))
            culprits = (index for place in refused for index in queues[place].sent)
            what = f"{partition.topic}[{partition.partition}] refuses a batch: {first.problem}"
            raise self._refusal(what, culprits, is_untimely=all(answer.is_untimely for answer in refused.values()))
        return again

    def _refusal(self, message: str, culprits: Iterable[int], *, is_untimely: bool = False) -> RecordsRefused:
        self.requests.limits.forget()
        return RecordsRefused(message, culprits, is_untimely=is_untimely)


class PartitionTurns:
    """The turns of writers to a partition: one writer at a time, the others in the order of the calls."""

    def __init__(self) -> None:
        self._locks: dict[TopicPartition, asyncio.Lock] = {}

    @asynccontextmanager
    async def at(self, partitions: Iterable[TopicPartition]) -> AsyncIterator[None]:
        """Wait for the turn at each of the partitions, and hold the turns until the end of the block."""
        async with AsyncExitStack() as turns:
            for partition in sorted(partitions):  # all in one order, so nobody waits in a circle
                await turns.enter_async_context(self._locks.setdefault(partition, asyncio.Lock()))
            yield


class SessionAppender(Generic[T]):
    """An ``Appender``. The calls share a session, made when there is none. A failed call ends the session for later
    calls; calls under way go on in the old session. ``connect``: opens requests for writing to topics.
    """

    def __init__(
        self,
        connect: Callable[[Deadline, Collection[str]], Awaitable[BatchRequests[T]]],
        deadline: Callable[[str], Deadline],
    ) -> None:
        self._connect = connect
        self._deadline = deadline
        self._turns = PartitionTurns()
        self._opening = asyncio.Lock()
        self._session: Session[T] | None = None
        self._calls: dict[Session[T], int] = {}
        """The number of calls under way in each open session."""
        self.closed = False

    async def append(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        """See the protocol."""
        if not records:
            return {}
        deadline = self._deadline("appending")
        async with self._turns.at(by_partition(records)):
            deadline.check("others were in front of it")
            session = await self._open_session(deadline, dict.fromkeys(record.topic for record in records))
            self._calls[session] += 1
            try:
                groups = await session.plan(records, deadline)
                return await session.deliver(records, groups, deadline)
            except BaseException as error:
                # The outcome of a batch is not known, so the sequence numbers can't go on from there.
                if self._session is session:
                    self._session = None
                if isinstance(error, RecordsRefused):
                    raise error.as_refusal() from error
                if isinstance(error, FencedAnswer):
                    raise BrokerError(f"an append was refused: {error}") from error
                raise
            finally:
                self._calls[session] -= 1
                await self._drop_unused()

    async def _open_session(self, deadline: Deadline, topics: Collection[str]) -> Session[T]:
        """The session of the calls; made when there is none."""
        async with self._opening:
            self._check()
            if self._session is None:
                session = Session(await self._connect(deadline, topics), in_transactions=False)
                self._session, self._calls[session] = session, 0
                if self.closed:  # meanwhile
                    await self.close()
                    self._check()
            return self._session

    def _check(self) -> None:
        if self.closed:
            raise BrokerError("the appender was closed")

    async def _drop_unused(self) -> None:
        """Close the sessions that have no calls and get none any more."""
        for session in [one for one, calls in self._calls.items() if not calls and one is not self._session]:
            del self._calls[session]
            await session.requests.close()

    async def close(self) -> None:
        """See the protocol."""
        self.closed, self._session = True, None
        await asyncio.gather(*(session.requests.close() for session in self._calls))
