"""A producer's requests to Kafka, each sent once, and the meaning of Kafka's answers."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ..batch_records import fill
from ..deadline import Deadline, NotSent, ReplyLost
from ..delivery import AppendAnswer, ProduceBatch, TopicNumbers, Verdict
from ..producer import IdState
from ..protocol import NotAuthorized, Outgoing, TopicPartition
from ..rights import Right
from .link import TRY_AGAIN, Code, KafkaLink, ProducerIdentity, describe_code
from .produce_queue import ProduceQueue
from .topics import Node
from .transactions import DescribeTransactionsRequest

CODECS: Final[Mapping[str | None, int]] = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

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
NO_NODE: Final = -1
FENCED: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
# A coordinator also gives one of the last two codes for a decision already written, when the node has lost the
# coordination by then (TransactionStateManager.appendTransactionToLog).
DOUBTFUL: Final = frozenset(
    {
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_LOADING,
    }
)
WORST_FIRST: Final = (
    Verdict.FENCED,
    Verdict.FORGOTTEN,
    Verdict.REFUSED,
    Verdict.FAILED,
    Verdict.DOUBTFUL,
    Verdict.AGAIN,
    Verdict.DONE,
)


def verdict_of(code: int) -> Verdict:
    """The meaning of an error code for the request."""
    if code in (Code.NONE, Code.DUPLICATE_SEQUENCE):  # the batch had arrived before
        return Verdict.DONE
    if code in FENCED:
        return Verdict.FENCED
    if code == Code.INVALID_PRODUCER_ID_MAPPING:
        return Verdict.FORGOTTEN
    if code in REFUSED:
        return Verdict.REFUSED
    if code in DOUBTFUL:
        return Verdict.DOUBTFUL
    return Verdict.AGAIN if code in TRY_AGAIN else Verdict.FAILED


class KafkaRequests:
    """A producer id at an epoch, under a transactional id or under none: ``TransactionRequests``, ``BatchRequests``."""

    def __init__(
        self,
        link: KafkaLink,
        limits: TopicNumbers,
        codec: int,
        initialised: ProducerIdentity,
        transactional_id: str | None,
    ) -> None:
        self.link = link
        self.limits = limits
        self.codec = codec
        self.producer_id, self.epoch, self.coordinator = initialised
        self.transactional_id = transactional_id
        self.allowance = link.settings.throttling.writing
        self._queues: dict[Node, ProduceQueue] = {}

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """See ``BatchRequests``."""
        return self.link.deadline(what, timeout_ms)

    async def missing_partitions(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> list[TopicPartition]:
        """See ``BatchRequests``."""
        return await self.link.missing_partitions(partitions, deadline, "WRITE")

    async def close(self) -> None:
        """Close all connections; bounded in time."""
        await self.link.close()

    # --- to the leaders of partitions --------------------------------------------------------------------------------

    def encode(
        self, records: Sequence[Outgoing], indexes: Sequence[int], first: int, sequence: int, limit: int
    ) -> ProduceBatch[bytes]:
        """See ``BatchRequests``."""
        builder = DefaultRecordBatchBuilder(
            2,
            self.codec,
            is_transactional=self.transactional_id is not None,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            batch_size=limit,
        )
        count = fill(builder.append, records, indexes, first)
        unpacked = builder.size()
        data = builder.build()
        return ProduceBatch(count, data, len(data), unpacked)

    async def produce(
        self, batches: Mapping[TopicPartition, ProduceBatch[bytes]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        """See ``BatchRequests``. Leaders that did not take their batches are forgotten."""
        by_node: dict[Node, dict[TopicPartition, ProduceBatch[bytes]]] = {}
        for partition, batch in batches.items():
            leader = self.link.leaders.leader(partition)
            by_node.setdefault(NO_NODE if leader is None else leader, {})[partition] = batch
        parts = await asyncio.gather(*(self._queue(node).answers(part, deadline) for node, part in by_node.items()))
        answers = {partition: answer for part in parts for partition, answer in part.items()}
        self.link.leaders.forget(place for place, answer in answers.items() if answer.verdict is not Verdict.DONE)
        return answers

    def _queue(self, node: Node) -> ProduceQueue:
        if node not in self._queues:
            self._queues[node] = ProduceQueue(partial(self._produce_at, node), self.allowance)
        return self._queues[node]

    async def _produce_at(
        self, node: Node, batches: Mapping[TopicPartition, ProduceBatch[bytes]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        if node == NO_NODE:
            return dict.fromkeys(batches, AppendAnswer(Verdict.NOT_SENT, describe_code(Code.LEADER_NOT_AVAILABLE)))
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append((partition, batch.payload))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            required_acks=-1,
            timeout=self.link.settings.broker_wait_ms,
            topics=list(topics.items()),
        )
        try:
            reply = await self.link.ask(node, request, deadline)
        except NotSent as error:
            return dict.fromkeys(batches, AppendAnswer(Verdict.NOT_SENT, str(error)))
        except ReplyLost as error:
            return dict.fromkeys(batches, AppendAnswer(Verdict.LOST, str(error)))
        sent, throttled_s = sum(batch.unpacked for batch in batches.values()), reply.throttle_time_ms / 1000
        self.allowance.note_bytes(sent, throttled_s, asyncio.get_running_loop().time())
        answers = dict.fromkeys(batches, AppendAnswer(Verdict.LOST, f"broker {node} did not answer for it"))
        for topic, partitions in reply.topics:
            for partition, code, offset, *_ in partitions:
                place = TopicPartition(topic, partition)
                end = offset + batches[place].records if code == Code.NONE and offset >= 0 else -1
                refusal = self._refusal([topic]) if code == Code.TOPIC_NOT_AUTHORIZED else None
                is_untimely = code == Code.INVALID_TIMESTAMP
                answers[place] = AppendAnswer(
                    verdict=verdict_of(code),
                    problem=describe_code(code),
                    end=end,
                    refusal=refusal,
                    is_untimely=is_untimely,
                )
        return answers

    # --- to the coordinator of the transactional id ------------------------------------------------------------------

    async def add(self, partitions: Collection[TopicPartition], deadline: Deadline) -> AppendAnswer:
        """See ``TransactionRequests``. Waits while a leader throttles: the open transaction would wait."""
        leaders = {self.link.leaders.leader(partition) for partition in partitions}
        await self.link.wait_until_unmuted([node for node in leaders if node is not None], deadline)
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=list(topics.items()),
        )
        answer, reply = await self._ask_coordinator(
            request, lambda reply: [code for _topic, rows in reply.errors for _partition, code in rows], deadline
        )
        errors = () if reply is None else reply.errors
        refused = [topic for topic, rows in errors if any(code == Code.TOPIC_NOT_AUTHORIZED for _, code in rows)]
        return answer.refused_by(self._refusal(refused)) if refused else answer

    async def commit(self, deadline: Deadline) -> AppendAnswer:
        """See ``TransactionRequests``."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transaction_result=True,
        )
        answer, _reply = await self._ask_coordinator(request, lambda reply: [reply.error_code], deadline)
        return answer

    async def describe(self, deadline: Deadline) -> tuple[AppendAnswer, IdState | None]:
        """See ``TransactionRequests``."""
        request = DescribeTransactionsRequest([self._id])
        answer, reply = await self._ask_coordinator(
            request, lambda reply: [code for code, *_ in reply.states if code != Code.ID_NOT_FOUND], deadline
        )
        if answer.verdict is not Verdict.DONE:
            return answer, None
        code, _id, state, _timeout, _start, producer_id, epoch, *_ = reply.states[0]
        if code == Code.ID_NOT_FOUND:
            return answer, None
        return answer, IdState(producer_id == self.producer_id, epoch - self.epoch, state)

    @property
    def _id(self) -> str:
        assert self.transactional_id is not None, "only transactions have a coordinator"
        return self.transactional_id

    async def _ask_coordinator(
        self, request: Any, codes_of: Callable[[Any], Collection[int]], deadline: Deadline
    ) -> tuple[AppendAnswer, Any]:
        """The worst answer, and the reply (None: there was none).

        Only the node that gave the epoch is asked: nothing proves the coordination of another node that claims it. A
        deposed coordinator answers from old knowledge, and appends nothing.
        """
        try:
            reply = await self.link.ask(self.coordinator, request, deadline, coordination=True)
        except NotSent as error:
            return AppendAnswer(Verdict.NOT_SENT, str(error)), None
        except ReplyLost as error:
            return AppendAnswer(Verdict.LOST, str(error)), None
        codes = sorted(codes_of(reply), key=lambda code: WORST_FIRST.index(verdict_of(code)))
        worst = codes[0] if codes else Code.NONE
        refusal = None
        if worst == Code.TRANSACTIONAL_ID_NOT_AUTHORIZED:
            refusal = self.link.settings.rights_error(Right("transactional-id", self._id, "WRITE"))
        return AppendAnswer(verdict_of(worst), describe_code(worst), refusal=refusal), reply

    def _refusal(self, topics: Collection[str]) -> NotAuthorized:
        return self.link.settings.rights_error(*(Right("topic", topic, "WRITE") for topic in topics))
