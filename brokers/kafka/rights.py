"""Which of the rights that an application needs this client lacks, as far as Kafka tells.

Kafka tells a client what it may do with a topic that exists and that it may see (KIP-430). Of others it is asked what
they refuse: their settings, and a creation that is only tried. The decision is ``lacking``; who asks is below it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from ..asking import Deadline, NotSent, ReplyLost
from ..rights import Lacking, Operation, Right
from .link import DEFAULT_REPLICATION, TOPIC_RESOURCE, TRANSACTION_COORDINATOR, Code, KafkaLink
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
"""The codes of Kafka's AclOperation, which are the bits of what it tells."""

SHOWING: Final = frozenset({"READ", "WRITE", "DELETE", "DESCRIBE"})
"""Each of these shows a topic: who does not see it has none of them."""


@dataclass(frozen=True)
class Answers:
    """What Kafka said. ``allowed``: of topics that exist and are seen, a bit field, or NOT_TOLD; ``absent``: topics
    that do not exist; ``unseen``: those that it does not speak of. ``no_settings``, ``no_creation``, ``no_id``: of
    which the settings, the creation and the transactional id are refused.
    """

    allowed: Mapping[str, int]
    absent: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()
    no_settings: frozenset[str] = frozenset()
    no_creation: frozenset[str] = frozenset()
    no_id: frozenset[str] = frozenset()


def lacking(rights: Iterable[Right], answers: Answers, principal: str | None) -> Lacking:
    """What of these is missing, and what can't be told as long as a topic does not exist."""
    missing: list[Right] = []
    unknown: list[Right] = []
    for right in rights:
        has = _has(right, answers)
        if has is None:
            unknown.append(right)
        elif not has:
            missing.append(right)
    return Lacking(tuple(missing), tuple(unknown), principal)


def _has(right: Right, answers: Answers) -> bool | None:
    """None: it is not known."""
    name, operation = right.name, right.operation
    if right.resource == "transactional-id":
        return name not in answers.no_id
    if right.resource != "topic":
        return True
    if name in answers.allowed:
        bits = answers.allowed[name]
        return operation == "CREATE" or bits == NOT_TOLD or bool(bits >> BITS[operation] & 1)
    if operation == "CREATE":
        return name not in answers.no_creation
    if operation == "DESCRIBE_CONFIGS":
        return name not in answers.no_settings
    if name in answers.unseen:
        return operation not in SHOWING
    return None if name in answers.absent else True


async def ask_lacking(link: KafkaLink, rights: Sequence[Right], deadline: Deadline) -> Lacking:
    """Ask Kafka. One request as long as all topics exist, one more for a transactional id, two more for other topics.

    Raises BrokerTimeout.
    """
    topics = {right.name for right in rights if right.resource == "topic"}
    allowed: dict[str, int] = {}
    codes: dict[str, int] = {}
    reply = await link.ask_any(TopicsRequest(topics, with_operations=True), deadline)
    for topic in answered_topics(reply):
        codes[topic.name] = topic.code
        if topic.code in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
            allowed[topic.name] = topic.operations
    ids = [right.name for right in rights if right.resource == "transactional-id"]
    others = topics - allowed.keys()
    created = {right.name for right in rights if right.operation == "CREATE"} & others
    answers = Answers(
        allowed,
        absent=frozenset(name for name in others if codes.get(name) == Code.UNKNOWN_TOPIC_OR_PARTITION),
        unseen=frozenset(name for name in others if codes.get(name) == Code.TOPIC_NOT_AUTHORIZED),
        no_settings=await _without_settings(link, others, deadline),
        no_creation=await _without_creation(link, created, deadline),
        no_id=frozenset([name for name in ids if await _is_refused(link, name, deadline)]),
    )
    return lacking(rights, answers, link.settings.security.principal)


async def _without_settings(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> frozenset[str]:
    if not topics:
        return frozenset()
    request = DescribeConfigsRequest([(TOPIC_RESOURCE, name, None) for name in sorted(topics)])
    reply = await link.ask_any(request, deadline)
    return frozenset(name for code, _said, _kind, name, _ in reply.resources if code == Code.TOPIC_NOT_AUTHORIZED)


async def _without_creation(link: KafkaLink, topics: Collection[str], deadline: Deadline) -> frozenset[str]:
    if not topics:
        return frozenset()
    request = CreateTopicsRequest(
        create_topic_requests=[(name, 1, DEFAULT_REPLICATION, [], []) for name in sorted(topics)],
        timeout=link.settings.answered_within_ms,
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
            return frozenset(name for name, code in codes.items() if code == Code.TOPIC_NOT_AUTHORIZED)
        await deadline.pause("the controller is not ready")


async def _is_refused(link: KafkaLink, transactional_id: str, deadline: Deadline) -> bool:
    reply = await link.ask_any(FindCoordinatorRequest(transactional_id, TRANSACTION_COORDINATOR), deadline)
    return bool(reply.error_code == Code.TRANSACTIONAL_ID_NOT_AUTHORIZED)
