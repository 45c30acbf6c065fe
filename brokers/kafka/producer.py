"""Writing to Kafka: batches, the idempotent session, and transactions whose outcome is always known or named unknown.

How each step may end, and what is done then:

- AddPartitions, Produce: an error answer that may pass is asked again; a refusal for good names its batch's records;
  a lost answer ends the transaction. Whatever happens here, no commit was asked for: the transaction is aborted.
- EndTxn(commit) is sent once. No answer means that the outcome is unknown. It is not sent again on a new connection:
  a commit that is still under way could then end the *next* transaction of the same epoch.
- "Fenced" is also what Kafka says when a transaction ran into its time limit; the coordinator is asked which it was.

The producer is spent after any of these; the next one has a new epoch, which late requests of this one do not have.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ..filling import by_partition, fill
from ..protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    TransactionRefused,
    TransactionUnknown,
)
from .link import TRY_AGAIN, Code, Deadline, KafkaLink, NotSent, ReplyLost, describe_code
from .transactions import producer_was_replaced

BATCH_BYTES_MAX: Final = 1_000_000
REQUEST_BYTES_MAX: Final = 8_000_000
ABORT_MS_MAX: Final = 5_000
SEQUENCES: Final = 1 << 31
CODECS: Final[Mapping[str | None, int]] = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

LOST: Final = -1000  # in the place of an error code: no answer came
REFUSED: Final = frozenset(
    {
        Code.MESSAGE_TOO_LARGE,
        Code.INVALID_TOPIC,
        Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_TIMESTAMP,
        Code.UNSUPPORTED_FOR_FORMAT,
        Code.POLICY_VIOLATION,
        Code.UNSUPPORTED_COMPRESSION,
        Code.INVALID_RECORD,
    }
)
FENCED: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING})

Limits = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""The ``max.message.bytes`` of topics."""


class Refused(Exception):
    """The broker refuses records (by index) for good."""

    def __init__(self, message: str, culprits: Iterable[int]) -> None:
        super().__init__(message)
        self.culprits = sorted(culprits)


class FencedAnswer(Exception):
    """The broker says that this producer's epoch is over."""


class _Answer(NamedTuple):
    """What became of a batch: an error code, and the offset of its first record (below 0: the broker does not say)."""

    code: int
    offset: int = -1


@dataclass
class _Batch:
    """An encoded batch: the indexes of its records, and the buffer that is sent, again if need be."""

    indexes: Sequence[int]
    data: bytes


@dataclass
class _Queue:
    """What is still to be sent to one partition: record indexes from ``next`` on; ``batch`` is under way."""

    indexes: Sequence[int]
    next: int = 0
    batch: _Batch | None = None


@dataclass
class Session:
    """A producer id at an epoch: encodes records into batches with sequence numbers and delivers them in order."""

    link: KafkaLink
    limits: Limits
    codec: int
    producer_id: int
    epoch: int
    transactional_id: str | None = None
    _sequences: dict[TopicPartition, int] = field(default_factory=dict)

    async def plan(self, records: Sequence[Outgoing], deadline: Deadline) -> dict[TopicPartition, list[int]]:
        """Record indexes by partition; raises Refused for partitions that do not exist."""
        groups = by_partition(records)
        missing = await self.link.missing(groups, deadline)
        if missing:
            first = missing[0]
            raise Refused(
                f"topic {first.topic!r} has no partition {first.partition}",
                (index for partition in missing for index in groups[partition]),
            )
        return groups

    async def deliver(
        self, records: Sequence[Outgoing], groups: Mapping[TopicPartition, Sequence[int]], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Write all; one batch of a partition is under way at a time. Raises Refused, FencedAnswer, BrokerError.

        Returns by partition the offset behind the last record, as far as the broker says.
        """
        ends: dict[TopicPartition, int] = {}
        limits = await self.limits({partition.topic for partition in groups})
        queues = {partition: _Queue(indexes) for partition, indexes in groups.items()}
        while queues:
            sent, size = [], 0
            for partition, queue in queues.items():
                if queue.batch is None:
                    queue.batch = self._encode(records, partition, queue, limits.get(partition.topic, BATCH_BYTES_MAX))
                    await asyncio.sleep(0)  # a batch may take some ms to compress
                sent.append(partition)
                size += len(queue.batch.data)
                if size >= REQUEST_BYTES_MAX:
                    break
            answers = await self._produce({partition: queues[partition].batch for partition in sent}, deadline)
            again = self._judge({partition: answer.code for partition, answer in answers.items()}, queues)
            for partition in sent:
                queue = queues[partition]
                if partition in again:
                    continue
                assert queue.batch is not None
                # Batches of a partition are written in turn. A batch that had arrived before has no offset here.
                ends.pop(partition, None)
                if answers[partition].offset >= 0:
                    ends[partition] = answers[partition].offset + len(queue.batch.indexes)
                queue.batch = None
                if queue.next == len(queue.indexes):
                    del queues[partition]
            if again:
                self.link.forget_leaders(again)
                await deadline.pause(describe_code(next(iter(again.values()))))
                await self.link.missing(again, deadline)
        return ends

    def _encode(self, records: Sequence[Outgoing], partition: TopicPartition, queue: _Queue, limit: int) -> _Batch:
        """The next batch: as many records as fit, at least one."""
        sequence = self._sequences.get(partition, 0)
        builder = DefaultRecordBatchBuilder(
            2,
            self.codec,
            is_transactional=self.transactional_id is not None,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            batch_size=min(limit, BATCH_BYTES_MAX),
        )
        indexes, first = queue.indexes, queue.next
        count = fill(builder.append, records, indexes, first)
        self._sequences[partition] = (sequence + count) % SEQUENCES
        queue.next = first + count
        return _Batch(indexes[first : first + count], builder.build())

    async def _produce(
        self, batches: Mapping[TopicPartition, _Batch | None], deadline: Deadline
    ) -> dict[TopicPartition, _Answer]:
        """Send each batch to its leader; the answers."""
        by_node: dict[int, dict[TopicPartition, bytes]] = {}
        for partition, batch in batches.items():
            assert batch is not None
            leader = self.link.leader(partition)
            by_node.setdefault(-1 if leader is None else leader, {})[partition] = batch.data
        answers = await asyncio.gather(*(self._produce_at(node, part, deadline) for node, part in by_node.items()))
        return {partition: answer for part in answers for partition, answer in part.items()}

    async def _produce_at(
        self, node: int, batches: Mapping[TopicPartition, bytes], deadline: Deadline
    ) -> dict[TopicPartition, _Answer]:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for (topic, partition), data in batches.items():
            topics.setdefault(topic, []).append((partition, data))
        answers = dict.fromkeys(batches, _Answer(LOST))
        if node < 0:
            return dict.fromkeys(batches, _Answer(Code.LEADER_NOT_AVAILABLE))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            required_acks=-1,
            timeout=self.link.settings.request_timeout_ms,
            topics=list(topics.items()),
        )
        try:
            reply = await self.link.ask(node, request, deadline)
        except NotSent:
            return dict.fromkeys(batches, _Answer(Code.LEADER_NOT_AVAILABLE))
        except ReplyLost:
            return answers
        for topic, partitions in reply.topics:
            for partition, code, offset, *_ in partitions:
                answers[TopicPartition(topic, partition)] = _Answer(code, offset if code == Code.NONE else -1)
        return answers

    def _judge(
        self, codes: Mapping[TopicPartition, int], queues: Mapping[TopicPartition, _Queue]
    ) -> dict[TopicPartition, int]:
        """Which partitions' batches are to be sent again, with their codes; raises what ends the delivery."""
        again: dict[TopicPartition, int] = {}
        refused: dict[TopicPartition, int] = {}
        for partition, code in codes.items():
            if code in (Code.NONE, Code.DUPLICATE_SEQUENCE):
                continue
            if code in FENCED:
                raise FencedAnswer(describe_code(code))
            if code in REFUSED:
                refused[partition] = code
            # Without a transaction the sequence numbers make it safe to send a batch twice. Within one, a late copy
            # could outlive the transaction, so a lost answer ends it.
            elif code in TRY_AGAIN or (code == LOST and self.transactional_id is None):
                again[partition] = code
            elif code == LOST:
                raise BrokerTimeout(f"no answer to what was sent to {partition.topic}[{partition.partition}]")
            else:
                raise BrokerError(f"{partition.topic}[{partition.partition}]: {describe_code(code)}")
        if refused:
            partition, code = next(iter(refused.items()))
            culprits = [index for place in refused if (batch := queues[place].batch) for index in batch.indexes]
            raise Refused(f"{partition.topic}[{partition.partition}] refuses a batch: {describe_code(code)}", culprits)
        return again


class KafkaProducer:
    """One transactional id at one epoch. It has connections of its own, which ``close`` ends with all under way."""

    def __init__(
        self, session: Session, transactional_id: str, transaction_timeout_ms: int, refused: Callable[[], None]
    ) -> None:
        self._session = session
        self._link = session.link
        self._id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._refused = refused  # told when a batch was refused: what is known of the topics' limits may be old
        self._usable = True
        self.closed = False
        self._opened: float | None = None  # when the open transaction began, in the loop's time

    async def transact(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        """See the protocol."""
        if not self._usable:
            raise BrokerError("this producer is in use, was closed or has failed: make a new one")
        if not records:
            return {}
        self._usable = False
        started = asyncio.get_running_loop().time()
        deadline = self._link.deadline(f"the transaction of {self._id!r}", self._timeout_ms)
        self._opened = None
        try:
            groups = await self._session.plan(records, deadline)
            await self._add(groups, deadline)
            self._opened = started
            ends = await self._session.deliver(records, groups, deadline)
        except Refused as error:
            self._refused()
            await self._abort(error)
            raise TransactionRefused(str(error), error.culprits) from error
        except FencedAnswer as error:
            raise await self._fenced() from error
        except BrokerError as error:
            await self._abort(error)
            raise TransactionAborted(f"aborted, nothing of it is visible: {error}") from error
        await self._commit()
        self._usable = True
        return ends

    async def close(self) -> None:
        """Let go of the connections; a transaction that is open is aborted by its time limit or the next producer."""
        self._usable, self.closed = False, True
        await self._link.close()

    async def _add(self, groups: Collection[TopicPartition], deadline: Deadline) -> None:
        """AddPartitionsToTxn: begins the transaction at the coordinator."""
        topics: dict[str, list[int]] = {}
        for topic, partition in groups:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self._id,
            producer_id=self._session.producer_id,
            producer_epoch=self._session.epoch,
            topics=list(topics.items()),
        )
        while True:
            node = await self._link.coordinator(self._id, deadline)
            try:
                reply = await self._link.ask(node, request, deadline, coordination=True)
            except NotSent as error:
                self._link.forget_coordinator(self._id)
                await deadline.pause(error)
                continue
            codes = {code for _topic, partitions in reply.errors for _partition, code in partitions} - {Code.NONE}
            if not codes:
                return
            if codes & FENCED:
                raise FencedAnswer(describe_code(min(codes & FENCED)))
            if codes - TRY_AGAIN:
                raise BrokerError(f"partitions can't join the transaction: {describe_code(min(codes - TRY_AGAIN))}")
            if codes & {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE}:
                self._link.forget_coordinator(self._id)
            await deadline.pause(min(codes))

    def _end_request(self, commit: bool) -> Any:
        return EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._session.producer_id,
            producer_epoch=self._session.epoch,
            transaction_result=commit,
        )

    async def _commit(self) -> None:
        deadline = self._link.deadline(f"the commit of {self._id!r}")
        request = self._end_request(True)
        doubtful = False
        while True:
            try:
                node = await self._link.coordinator(self._id, deadline)
                reply = await self._link.ask(node, request, deadline, coordination=True)
            except NotSent as error:
                self._link.forget_coordinator(self._id)
                await self._pause_commit(deadline, error, doubtful)
                continue
            except ReplyLost as error:
                raise TransactionUnknown(f"no answer to the commit of {self._id!r}: {error}") from error
            except BrokerError as error:  # the coordinator was not found: nothing was sent
                raise self._not_sent(error, doubtful) from error
            code = reply.error_code
            if code == Code.NONE:
                return
            if code in FENCED and not doubtful:
                raise await self._fenced()
            if code not in TRY_AGAIN:
                raise TransactionUnknown(f"the commit of {self._id!r} was answered with {describe_code(code)}")
            # Not available: the coordinator may have written the decision and failed to confirm it.
            doubtful = doubtful or code in (Code.COORDINATOR_NOT_AVAILABLE, Code.REQUEST_TIMED_OUT)
            if code != Code.CONCURRENT_TRANSACTIONS:
                self._link.forget_coordinator(self._id)
            await self._pause_commit(deadline, code, doubtful)

    async def _pause_commit(self, deadline: Deadline, problem: object, doubtful: bool) -> None:
        try:
            await deadline.pause(problem)
        except BrokerTimeout as error:
            raise self._not_sent(error, doubtful) from error

    def _not_sent(self, error: BrokerError, doubtful: bool) -> BrokerError:
        if doubtful:
            return TransactionUnknown(f"the commit of {self._id!r} was not confirmed: {error}")
        return TransactionAborted(f"aborted, the commit could not be asked for: {error}")

    async def _abort(self, reason: Exception) -> None:
        """Ask once to abort, so that readers need not wait for the time limit; raises when the answer is "fenced".

        Nothing else depends on the answer: no commit was asked for, and the next producer aborts what is open.
        """
        deadline = self._link.deadline("an abort", min(ABORT_MS_MAX, self._link.settings.request_timeout_ms))
        code = int(Code.NONE)
        with contextlib.suppress(BrokerError):
            while True:
                node = await self._link.coordinator(self._id, deadline)
                reply = await self._link.ask(node, self._end_request(False), deadline, coordination=True)
                code = reply.error_code
                if code not in TRY_AGAIN:
                    break
                await deadline.pause(code)
        if code in FENCED:
            raise await self._fenced() from reason

    async def _fenced(self) -> BrokerError:
        """What "fenced" means: a newer producer, or a transaction that Kafka aborted because it took too long."""
        open_ms = 0.0 if self._opened is None else (asyncio.get_running_loop().time() - self._opened) * 1000
        # Kafka ends no transaction before its time limit, and ours is counted from before Kafka's began.
        if open_ms < self._timeout_ms or await self._replaced():
            return ProducerFenced(f"a newer producer of the transactional id {self._id!r} exists")
        return TransactionAborted(f"aborted by Kafka: it took longer than {self._timeout_ms} ms")

    async def _replaced(self) -> bool:
        session = self._session
        deadline = self._link.deadline("asking for the state of a transactional id")
        try:
            return await producer_was_replaced(self._link, self._id, session.producer_id, session.epoch, deadline)
        except BrokerError:
            return True  # not to know is no reason to fence whoever it may be
