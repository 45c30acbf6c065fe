"""One client's connections to a Kafka cluster: requests with deadlines, leaders, coordinators, the meaning of answers.

aiokafka gives the connections, the authentication and the encoding of requests. aiokafka's producer is not used: every
request of a transaction is sent from here once, so an answer is known to belong to *this* request. aiokafka's metadata
requests are not used either, since these create missing topics on brokers that allow so.
"""

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import aiokafka.errors
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from ..deadline import Deadline, NotSent, ReplyLost
from ..leaders import Leaders
from ..protocol import BrokerError, BrokerTimeout, NotAuthorized, TopicPartition
from ..rights import Operation, Right, as_granted
from ..security import Secret, Security
from ..silence import SilentNodes
from ..throttling import Throttling
from .client import KafkaClient, is_lost
from .log_ins import LogIns
from .tokens import Tokens
from .topics import AnsweredTopic, Node, TopicsRequest, answered_topics

T = TypeVar("T")

PAUSE_MS_FIRST: Final = 2
PAUSE_MS_MAX: Final = 200
UNKNOWN_TOPIC_TRIES: Final = 8  # within 250 ms: news of a topic reaches all brokers a little later than its creator
TRANSACTION_COORDINATOR: Final = 1
TOPIC_RESOURCE: Final = 2
DEFAULT_REPLICATION: Final = -1


class Code(IntEnum):
    """The error codes of Kafka that are told apart (https://kafka.apache.org/protocol#protocol_error_codes)."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_LOADING = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_NOT_AUTHORIZED = 29
    GROUP_NOT_AUTHORIZED = 30
    CLUSTER_NOT_AUTHORIZED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_EXISTS = 36
    NOT_CONTROLLER = 41
    UNSUPPORTED_FOR_FORMAT = 43
    POLICY_VIOLATION = 44
    DUPLICATE_SEQUENCE = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_NOT_AUTHORIZED = 53
    OPERATION_NOT_ATTEMPTED = 55
    STORAGE_ERROR = 56
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION = 76
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    ID_NOT_FOUND = 105


TRY_AGAIN: Final = frozenset(
    {
        Code.CORRUPT_MESSAGE,  # the request was damaged on the way
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # the topic is known to exist: metadata are on the way
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOADING,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.OPERATION_NOT_ATTEMPTED,
        Code.STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
    }
)
"""Answers after which the same request may succeed."""


@dataclass(frozen=True)
class LinkSettings:
    """The way to the cluster. ``bootstrap`` is ``host:port[,host:port…]``; times are in ms. ``app``: the application
    that owns the topics in use, "" where not known.

    ``request_timeout_ms`` bounds one attempt, ``default_api_timeout_ms`` a call with all attempts. ``silent``,
    ``leaders``, ``throttling``: the common knowledge of all connections of a process about silent brokers, leaders, and
    quotas.
    """

    bootstrap: str
    client_id: str
    security: Security
    request_timeout_ms: int
    default_api_timeout_ms: int
    close_timeout_ms: int
    app: str = ""
    silent: SilentNodes[Node] = field(default_factory=SilentNodes)
    leaders: Leaders[Node] = field(default_factory=Leaders)
    throttling: Throttling = field(default_factory=Throttling)
    log_ins_beside: LogIns | None = None
    """The order of other clients of the same user on the same loop: all clients log in by one order."""

    @functools.cached_property
    def log_ins(self) -> LogIns:
        """The order of the log-ins of all clients with these settings, and of the clients beside."""
        if self.log_ins_beside is not None:
            return self.log_ins_beside
        provider = self.security.sasl_oauth_token_provider
        return LogIns(None if provider is None else Tokens(provider, time.time))

    def rights_error(self, *rights: Right) -> NotAuthorized:
        """The error for an answer about missing rights."""
        return NotAuthorized(as_granted(rights, self.app), self.security.principal)

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """A deadline from now: ``timeout_ms``, else ``default_api_timeout_ms``."""
        limit_ms = self.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return Deadline(limit_ms, what, growing_pauses(), self.request_timeout_ms)

    @property
    def broker_wait_ms(self) -> int:
        """How long a broker may wait for other brokers: the broker answers before a silence counts as a loss."""
        return max(1, self.request_timeout_ms * 3 // 4)

    def client(self) -> KafkaClient:
        """A new client without connections. Raises SettingsError."""
        return KafkaClient(
            silent=self.silent,
            leaders=self.leaders,
            log_ins=self.log_ins,
            throttling=self.throttling,
            attempt_ms=self.request_timeout_ms,
            allow_plaintext=self.security.allow_plaintext,
            **self.client_arguments(),
        )

    def client_arguments(self) -> dict[str, Any]:
        """Arguments for aiokafka's clients. Reads the files in the security settings; raises SettingsError."""
        security = self.security
        context = security.tls_context() if security.is_encrypted else None
        return {
            "bootstrap_servers": [server.strip() for server in self.bootstrap.split(",")],
            "client_id": self.client_id,
            "request_timeout_ms": self.default_api_timeout_ms,  # an attempt is bounded by KafkaClient
            "retry_backoff_ms": 20,
            "security_protocol": security.security_protocol,
            "ssl_context": context,
            "sasl_mechanism": security.sasl_mechanism,
            "sasl_plain_username": security.sasl_plain_username,
            "sasl_plain_password": _reveal_secret(security.sasl_plain_password),
            "sasl_oauth_token_provider": self.log_ins.tokens,
        }


def _reveal_secret(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def growing_pauses() -> Iterator[float]:
    """Seconds before each next try: short pauses first."""
    pause_ms = PAUSE_MS_FIRST
    while True:
        yield pause_ms / 1000
        pause_ms = min(pause_ms * 2, PAUSE_MS_MAX)


async def start_within(
    make: Callable[[], T],
    start: Callable[[T], Awaitable[object]],
    drop: Callable[[T], Awaitable[None]],
    deadline: Deadline,
) -> T:
    """Make something that reaches the cluster: after a failed start the thing is dropped, and another is made. Raises
    BrokerTimeout with the last problem; an error that no further try mends is raised at once.
    """
    problem: BaseException | str = "no answer"
    while True:
        made = make()
        try:
            async with asyncio.timeout(deadline.remaining_s):
                await start(made)
        except BaseException as error:
            await drop(made)
            if not is_lost(error):
                raise
            problem = problem if isinstance(error, TimeoutError) else error  # no time was left for another try
            await deadline.pause(problem)
        else:
            return made


def describe_code(code: int) -> str:
    """An error code in words."""
    try:
        return f"Kafka error {code} {Code(code).name}"
    except ValueError:
        return f"Kafka error {code}"


class ProducerIdentity(NamedTuple):
    """A producer id at an epoch, and the node that gave the epoch."""

    producer_id: int
    epoch: int
    node: Node


class KafkaLink:
    """Connections of one client. All are closed and abandoned together, so nothing of the client can arrive late."""

    def __init__(self, settings: LinkSettings) -> None:
        self.settings = settings
        self.leaders = settings.leaders
        self._client: Any = None

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """A deadline from now: ``timeout_ms``, else the settings' ``default_api_timeout_ms``."""
        return self.settings.deadline(what, timeout_ms)

    async def open(self, deadline: Deadline | None = None) -> None:
        """Connect to the first bootstrap server that answers; raises BrokerTimeout, AuthenticationRefused."""
        deadline = deadline or self.deadline(f"connecting to Kafka at {self.settings.bootstrap}")
        if self._client is None:
            self._client = await start_within(self.settings.client, KafkaClient.bootstrap, self._drop, deadline)

    async def close(self) -> None:
        """Close all connections; bounded in time."""
        client, self._client = self._client, None
        if client is not None:
            await self._drop(client)

    def check(self) -> None:
        """Raises BrokerError after ``close``."""
        if self._client is None:
            raise BrokerError("the connection was closed")

    async def _drop(self, client: Any) -> None:
        with contextlib.suppress(aiokafka.errors.KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(self.settings.close_timeout_ms / 1000):
                await client.close()

    async def ask(
        self,
        node: Node,
        request: Any,
        deadline: Deadline,
        *,
        coordination: bool = False,
        is_handed_on: bool = False,
    ) -> Any:
        """Send a request to a broker and wait for the answer, once, for as long as an attempt may take.

        Raises NotSent, ReplyLost or BrokerError. After a loss, the partitions that the broker led need a new leader.
        ``is_handed_on``: the broker hands the request on to the controller, and is not to blame when the controller is
        silent.
        """
        self.check()
        client, limit_s = self._client, deadline.attempt
        group = ConnectionGroup.COORDINATION if coordination else ConnectionGroup.DEFAULT
        limit, until_s = asyncio.timeout(limit_s), asyncio.get_running_loop().time() + limit_s
        try:
            async with limit:
                return await client.send(node, request, group=group, is_handed_on=is_handed_on, limit=limit)
        except aiokafka.errors.NodeNotReadyError as error:
            self._forget(node)
            if client.refusal is not None:
                raise client.refusal from error
            raise NotSent(client.problem(node)) from error
        # aiokafka raises the second when client and broker share no version of a request.
        except (aiokafka.errors.IncompatibleBrokerVersion, NotImplementedError) as error:
            raise BrokerError(f"this broker's version of the protocol is not supported: {error}") from error
        except (RuntimeError, OSError) as error:
            self._forget(node)
            if isinstance(error, TimeoutError) and limit_s * 1000 >= self.settings.request_timeout_ms:
                client.give_up_node(node, is_handed_on=is_handed_on)
            raise ReplyLost(f"broker {node} did not answer: {error!r}") from error
        finally:
            deadline.extend((limit.when() or until_s) - until_s)

    async def wait_until_unmuted(self, nodes: Collection[Node], deadline: Deadline) -> None:
        """Wait until none of the nodes throttles writes to partitions that the node leads."""
        self.check()
        client = self._client
        while (muted_s := max((client.muted_s(node) for node in nodes), default=0.0)) > 0:
            deadline.extend(muted_s)
            await asyncio.sleep(muted_s)

    def _forget(self, node: Node) -> None:
        """Forget the leaderships of a node: by now other nodes may lead instead."""
        self.leaders.forget_node(node)

    async def ask_any(self, request: Any, deadline: Deadline) -> Any:
        """Ask any broker that answers; raises BrokerTimeout. For requests that may be carried out twice."""
        while True:
            try:
                return await self.ask(self.any_node(), request, deadline)
            except (NotSent, ReplyLost) as error:
                await deadline.pause(error)

    async def reach_all(self, deadline: Deadline) -> None:
        """Ask each broker, once, a question that any client may ask."""
        for node in self._client.nodes():
            with contextlib.suppress(NotSent, ReplyLost):
                await self.ask(node, MetadataRequest([], False), deadline)

    def any_node(self) -> Node:
        """A random broker that was not silent lately."""
        self.check()
        nodes: list[Node] = self._client.nodes()
        now_s = asyncio.get_running_loop().time()
        return self.settings.silent.draw(nodes, now_s, random.choice) if nodes else -1

    async def controller(self, deadline: Deadline) -> int:
        """The node to send topic creations to."""
        reply = await self.ask_any(MetadataRequest([], False), deadline)
        controller: int = reply.controller_id
        return controller

    async def topics(
        self, names: Collection[str], deadline: Deadline, purpose: Operation = "DESCRIBE"
    ) -> dict[str, AnsweredTopic]:
        """The topics among the given names that exist. Creates none. A client that does not see a topic lacks the right
        of the purpose.

        News of leaders counts by the leader epochs: see ``leaders``.
        """
        reply = await self.ask_any(TopicsRequest(names), deadline)
        found: dict[str, AnsweredTopic] = {}
        unseen: list[Right] = []
        for topic in answered_topics(reply):
            if topic.code in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                found[topic.name] = topic
                for partition, leadership in topic.leaderships():
                    self.leaders.advance(partition, leadership)
            elif topic.code == Code.TOPIC_NOT_AUTHORIZED:
                unseen.append(Right("topic", topic.name, purpose))
            elif topic.code not in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC):
                raise BrokerTimeout(f"topic {topic.name!r}: {describe_code(topic.code)}")
        if unseen:
            raise self.settings.rights_error(*unseen)
        return found

    async def missing_partitions(
        self, partitions: Collection[TopicPartition], deadline: Deadline, purpose: Operation = "DESCRIBE"
    ) -> list[TopicPartition]:
        """Learn the unknown leaders of partitions. Returns the missing partitions, after repeated questions."""
        leaders, silent = self.leaders, self.settings.silent
        if silent.has_any:  # each time ask whether a silent leader still leads
            known = [(partition, leaders.leader(partition)) for partition in partitions]
            leaders.forget([place for place, node in known if node is not None and silent.is_doubtful(node)])
        tries = 0
        while wanted := [partition for partition in partitions if leaders.leader(partition) is None]:
            found = await self.topics({partition.topic for partition in wanted}, deadline, purpose)
            absent = [p for p in wanted if p.topic not in found or p.partition not in found[p.topic].partitions]
            tries += bool(absent)
            if tries >= UNKNOWN_TOPIC_TRIES:
                return absent
            if any(leaders.leader(partition) is None for partition in wanted):
                await deadline.pause("unknown topics" if absent else "partitions without a leader")
        return []

    async def coordinator(self, transactional_id: str, deadline: Deadline) -> int:
        """The node that keeps an id's transactions; raises BrokerTimeout, NotAuthorized.

        No epoch tells an old answer from a new answer. So a node that names itself is believed when another node names
        the same node, or when no other node answers: a deposed node without a link to the others names itself until the
        link is back.
        """
        request = FindCoordinatorRequest(transactional_id, TRANSACTION_COORDINATOR)
        named_itself, silent = list[int](), set[Node]()
        while True:
            node = self._node_but({*named_itself, *silent}) if named_itself else self.any_node()
            if node is None:  # all nodes that answer name themselves
                return random.choice(named_itself)
            try:
                reply = await self.ask(node, request, deadline)
            except (NotSent, ReplyLost) as error:
                silent.add(node)
                await deadline.pause(error)
                continue
            if reply.error_code == Code.NONE:
                named: int = reply.coordinator_id
                if named != node:
                    return named
                named_itself.append(named)
            elif reply.error_code in TRY_AGAIN:
                await deadline.pause(describe_code(reply.error_code))
            elif reply.error_code == Code.TRANSACTIONAL_ID_NOT_AUTHORIZED:
                raise self.settings.rights_error(Right("transactional-id", transactional_id, "WRITE"))
            else:
                raise BrokerError(
                    f"no coordinator for the transactional id {transactional_id!r}: {describe_code(reply.error_code)}"
                )

    def _node_but(self, excluded: Collection[Node]) -> Node | None:
        """A node that is not among these and not doubtful; None: no node is left."""
        silent = self.settings.silent
        others = [node for node in self._client.nodes() if node not in excluded and not silent.is_doubtful(node)]
        return random.choice(others) if others else None

    async def initialise(
        self, transactional_id: str | None, transaction_timeout_ms: int, deadline: Deadline, topics: Collection[str]
    ) -> ProducerIdentity:
        """InitProducerId: producer id and epoch. With a transactional id the call fences all older producers of the id;
        without an id the producer is for writing to ``topics``.

        Kafka answers only after the id's last transaction is decided and the markers are written. Asking twice is
        harmless: the second answer has the next epoch. An answer proves that the node is the coordinator: the node
        appends the epoch to ``__transaction_state`` before answering.
        """
        request = InitProducerIdRequest(transactional_id, transaction_timeout_ms)
        coordinator: Node | None = None
        while True:
            try:
                if transactional_id is None:
                    node = self.any_node()
                    reply = await self.ask(node, request, deadline)
                else:
                    if coordinator is None:
                        coordinator = await self.coordinator(transactional_id, deadline)
                    node = coordinator
                    reply = await self.ask(node, request, deadline, coordination=True)
            except (NotSent, ReplyLost) as error:
                coordinator = None
                await deadline.pause(error)
                continue
            if reply.error_code == Code.NONE:
                return ProducerIdentity(reply.producer_id, reply.producer_epoch, node)
            if reply.error_code == Code.TRANSACTIONAL_ID_NOT_AUTHORIZED:
                raise self.settings.rights_error(Right("transactional-id", transactional_id or "", "WRITE"))
            if reply.error_code == Code.CLUSTER_NOT_AUTHORIZED:  # a client that may write anywhere is let in
                raise self.settings.rights_error(*(Right("topic", topic, "WRITE") for topic in topics))
            if reply.error_code not in TRY_AGAIN:
                raise BrokerError(f"no producer for {transactional_id!r}: {describe_code(reply.error_code)}")
            if reply.error_code != Code.CONCURRENT_TRANSACTIONS:
                coordinator = None
            await deadline.pause(describe_code(reply.error_code))
