"""The rights that an application needs and this client lacks, as far as Kafka tells.

Kafka tells a client the allowed operations on a topic that exists and is seen (KIP-430). Each other right is tried by a
request that changes nothing: a request for a missing topic, or for a partition that no topic has; a creation for trial
only; the end of a transaction that was never begun. Kafka looks at rights first, so the answer tells.
``rights_lacking`` decides; the functions below ask.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ..deadline import Deadline, NotSent, ReplyLost
from ..rights import Lacking, Operation, Right
from .groups import GROUP_COORDINATOR
from .link import DEFAULT_REPLICATION, TOPIC_RESOURCE, Code, KafkaLink
from .topics import NOT_TOLD, TopicsRequest, answered_topics

BITS: Final[Mapping[Operation, int]] = {
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "DESCRIBE": 8,
    "DESCRIBE_CONFIGS": 10,
    "IDEMPOTENT_WRITE": 12,
}
"""The codes of Kafka's AclOperation: the numbers of the bits in Kafka's answer."""

SHOWING: Final = frozenset({"READ", "WRITE", "DELETE", "DESCRIBE"})
"""Each of these operations shows a topic: a client that does not see a topic has none of the rights."""


NO_PARTITION: Final = (1 << 31) - 1
"""No topic has so many partitions."""
NO_PRODUCER: Final = -1


@dataclass(frozen=True)
class Answers:
    """The answers of Kafka. ``allowed``: for topics that exist and are seen, a bit field, or NOT_TOLD; ``unseen``:
    topics on which Kafka is silent; ``refused``: rights that were refused to a request of their own.
    """

    allowed: Mapping[str, int]
    unseen: frozenset[str] = frozenset()
    refused: frozenset[Right] = frozenset()


def rights_lacking(rights: Iterable[Right], answers: Answers, principal: str | None) -> Lacking:
    """The missing rights, by the answers of Kafka."""
    return Lacking(tuple(right for right in rights if not _has(right, answers)), principal)


def _has(right: Right, answers: Answers) -> bool:
    name, operation = right.name, right.operation
    if right.resource == "topic" and name in answers.allowed:
        bits = answers.allowed[name]
        return operation == "CREATE" or bits == NOT_TOLD or bool(bits >> BITS[operation] & 1)
    if right.resource == "topic" and name in answers.unseen and operation in SHOWING:
        return False
    return right not in answers.refused


async def ask_lacking(link: KafkaLink, rights: Sequence[Right], deadline: Deadline) -> Lacking:
    """Ask Kafka for the missing rights. One request as long as all topics exist, one more for each transactional id and
    group, and for each operation on other topics. Raises BrokerTimeout.
    """
    topics = {right.name for right in rights if right.resource == "topic"}
    allowed: dict[str, int] = {}
    unseen: set[str] = set()
    if topics:
        for topic in answered_topics(await link.ask_any(TopicsRequest(topics, with_operations=True), deadline)):
            if topic.code in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                allowed[topic.name] = topic.operations
            elif topic.code == Code.TOPIC_NOT_AUTHORIZED:
                unseen.add(topic.name)
    refused = [right for right in rights if right.resource != "topic" and await _is_refused(link, right, deadline)]
    for operation, ask in QUESTIONS.items():
        by_topic = {right.name: right for right in rights if (right.resource, right.operation) == ("topic", operation)}
        untold = by_topic.keys() - allowed.keys() - (unseen if operation in SHOWING else set())
        if untold:
            refused += [by_topic[name] for name in await ask(link, sorted(untold), deadline)]
    answers = Answers(allowed, frozenset(unseen), frozenset(refused))
    return rights_lacking(rights, answers, link.settings.security.principal)


async def _is_refused(link: KafkaLink, right: Right, deadline: Deadline) -> bool:
    if right.resource == "transactional-id":
        reply = await link.ask_any(EndTxnRequest(right.name, NO_PRODUCER, 0, False), deadline)
        return bool(reply.error_code == Code.TRANSACTIONAL_ID_NOT_AUTHORIZED)
    if right.resource == "group":
        reply = await link.ask_any(FindCoordinatorRequest(right.name, GROUP_COORDINATOR), deadline)
        return bool(reply.error_code == Code.GROUP_NOT_AUTHORIZED)
    return False


# --- questions: the topics where an operation is refused, of topics that do not exist or are not seen ----------------


async def _refused_reads(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> list[str]:
    rows = [(name, [(NO_PARTITION, 0, 1)]) for name in topics]
    return _refused_topics(await link.ask_any(FetchRequest(0, 0, 1, 0, rows), deadline), 1)


async def _refused_writes(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> list[str]:
    batch = DefaultRecordBatchBuilder(2, 0, False, NO_PRODUCER, -1, -1, 1)
    batch.append(0, 0, None, None, [])
    rows = [(name, [(NO_PARTITION, bytes(batch.build()))]) for name in topics]
    request = ProduceRequest(None, -1, link.settings.broker_wait_ms, rows)
    return _refused_topics(await link.ask_any(request, deadline), 1)


async def _refused_deletions(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> list[str]:
    rows = [(name, [(NO_PARTITION, 0)]) for name in topics]
    return _refused_topics(await link.ask_any(DeleteRecordsRequest(rows, link.settings.broker_wait_ms), deadline), 2)


def _refused_topics(reply: Any, code_at: int) -> list[str]:
    """The refused topics in an answer about partitions."""
    return [topic for topic, (row,), *_tags in reply.topics if row[code_at] == Code.TOPIC_NOT_AUTHORIZED]


async def _refused_settings(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> list[str]:
    request = DescribeConfigsRequest([(TOPIC_RESOURCE, name, None) for name in topics])
    reply = await link.ask_any(request, deadline)
    return [name for code, _said, _kind, name, _ in reply.resources if code == Code.TOPIC_NOT_AUTHORIZED]


async def _refused_creations(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> list[str]:
    request = CreateTopicsRequest(
        create_topic_requests=[(name, 1, DEFAULT_REPLICATION, [], []) for name in topics],
        timeout=link.settings.broker_wait_ms,
        validate_only=True,
    )
    while True:
        try:
            reply = await link.ask(await link.controller(deadline), request, deadline, is_handed_on=True)
        except (NotSent, ReplyLost) as error:
            await deadline.pause(error)
            continue
        codes = {name: code for name, code, _message in reply.topic_errors}
        if Code.NOT_CONTROLLER not in codes.values():
            return [name for name, code in codes.items() if code == Code.TOPIC_NOT_AUTHORIZED]
        await deadline.pause("the controller is not ready")


QUESTIONS: Final[Mapping[Operation, Callable[[KafkaLink, Collection[str], Deadline], Awaitable[list[str]]]]] = {
    "READ": _refused_reads,
    "WRITE": _refused_writes,
    "DELETE": _refused_deletions,
    "DESCRIBE_CONFIGS": _refused_settings,
    "CREATE": _refused_creations,
}
"""For each operation: the question that tells the topics where the operation is refused."""
