"""aiokafka's client of connections, mended where brokers are silent, or connections are reset or given up.

- A broker may accept connections and say nothing: suspended, or behind a network that drops packets. aiokafka makes one
  connection at a time and gives each server the whole time, so a silent broker holds up all others. Here each node's
  connection is made by a task of its own, servers are tried side by side, and nodes that were silent lately
  (``SilentNodes``) are asked last, for metadata too.
- A connection that was reset counts as lost at once. uvloop closes the transport when the reset is read; aiokafka hears
  of the reset some turns of the loop later. A write in between raises a RuntimeError, which aiokafka does not expect
  (aio-libs/aiokafka issue 1038): the error ends the task that keeps up the metadata, and the fetcher. A look before
  each use leaves no gap, for nothing waits between the look and the write.
- ``close`` closes all connections, also of a cancelled ``bootstrap`` and also connections still being made. A cancelled
  ``close`` does the same.
"""

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Any, Final, NamedTuple

import aiokafka.errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import CloseReason
from aiokafka.protocol.fetch import FetchRequest

from ..deadline import first_of
from ..leaders import Leaders
from ..protocol import AuthenticationRefused, TopicPartition
from ..silence import SilentNodes
from ..throttling import Allowance, Throttling
from . import inside
from .connect_errors import in_words, log_in_of, refusal_of
from .connection import KafkaConnection, extend
from .log_ins import LogIns
from .tokens import NoToken
from .topics import Node, TopicsRequest, answered_topics

STAGGER_S: Final = 0.25
"""The next server waits so long for the server before, when a client learns the brokers (RFC 8305)."""

DOUBTFUL_S: Final = 1.0
"""A caller waits so long for a connection to a silent node. The making of the connection goes on beside the callers."""

IDLE_MS_MAX: Final = 540_000
"""A connection is closed when no request came for so long: Kafka's connections.max.idle.ms."""

NOT_FOR_CONNECTIONS: Final = frozenset({"bootstrap_servers", "retry_backoff_ms"})

logger = logging.getLogger("keylanes")


class _NewestLeaders(ClusterMetadata):  # type: ignore[misc]  # aiokafka has no types
    """A client's knowledge of a cluster. All clients of the process share the knowledge of partition leaders."""

    def __init__(self, leaders: Leaders[Node], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._leaders = leaders

    def leader_for_partition(self, partition: TopicPartition) -> Node | None:
        """The node to read a partition from; -1: no leader now; None: the partition is not known."""
        if super().leader_for_partition(partition) is None:
            return None
        leader = self._leaders.leader(partition)
        return -1 if leader is None else leader


class _TopicRow(NamedTuple):
    code: int
    name: str
    is_internal: bool
    partitions: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]]
    """For each partition: error, number, leader, replicas, and replicas in sync."""


class _BrokersAnswer(NamedTuple):
    """An answer to a ``TopicsRequest`` in aiokafka's form, without leaders: ``Leaders`` knows the leaders."""

    brokers: list[tuple[int, str, int, str | None]]
    controller_id: int
    topics: list[_TopicRow]
    API_VERSION: int = 5


class _NodeAnswer(NamedTuple):
    """The answer of a server to the question for the brokers, and the connection that it came on."""

    node: str
    connection: Any
    metadata: Any


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """A client, see the module. ``silent``, ``leaders``, ``log_ins``, ``throttling``: shared by the clients of a
    cluster. ``attempt_ms``: the limit for making a connection, and for the silence of a broker.
    """

    def __init__(
        self,
        silent: SilentNodes[Node],
        leaders: Leaders[Node],
        log_ins: LogIns,
        throttling: Throttling,
        attempt_ms: int,
        *,
        allow_plaintext: bool,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.silent = silent
        self.leaders = leaders
        self.cluster = _NewestLeaders(leaders, bootstrap_servers=arguments["bootstrap_servers"])
        self._log_ins = log_ins
        self._throttling = throttling
        self._attempt_s = attempt_ms / 1000
        self._protocol = arguments.get("security_protocol", "PLAINTEXT")
        self._log_in = log_in_of(arguments)
        self._for_connections = {name: arguments[name] for name in arguments if name not in NOT_FOR_CONNECTIONS}
        self._for_connections |= {"max_idle_ms": IDLE_MS_MAX, "on_close": self._on_close}
        self._for_connections |= {"log_ins": log_ins, "allow_plaintext": allow_plaintext}
        self._servers: dict[Node, tuple[str, int]] = {}
        """The servers at which a client begins, under names that no broker has."""
        self._attempts: dict[tuple[Node, ConnectionGroup], asyncio.Task[Any]] = {}
        """The tasks that make connections."""
        self._replaced: set[KafkaConnection] = set()
        """Connections with a successor that still wait for their last answers."""
        self._answered_s: dict[tuple[Node, ConnectionGroup], float] = {}
        """When each node answered last, by connection."""
        self._problems: dict[Node, str] = {}
        """Why the last attempt to connect to a node failed."""
        self.fetching = Allowance(throttling.limit_ms)
        """How much may be read at once."""
        self._is_closed = False
        self._is_lost = False
        """No broker has told the brokers of the cluster, and the log says so."""

    @property
    def refusal(self) -> AuthenticationRefused | None:
        """Set when a broker refused a client's log-in, or showed an untrusted certificate; for all clients."""
        return self._log_ins.refusal

    # --- learning the brokers ----------------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """Learn the brokers from the first server that answers; raises KafkaConnectionError, AuthenticationRefused.

        The connection is the client's own from the beginning, so ``close`` finds the connection after any end of this
        call.
        """
        answered = await self._first_server()
        self.cluster.update_metadata(_for_aiokafka(answered.metadata))
        inside.connections(self).pop((answered.node, ConnectionGroup.DEFAULT), None)
        if self.cluster.brokers():
            inside.abort(answered.connection)
        else:  # a cluster that has just begun
            inside.connections(self)[inside.BOOTSTRAP] = answered.connection
        inside.keep_metadata(self)

    async def _first_server(self) -> _NodeAnswer:
        """Try the servers side by side. Only the connection to the first server that answers stays open."""
        self._servers = {f"{host}:{port}": (host, port) for host, port, _ in self.hosts}
        others = set(self._servers)
        attempts = [partial(self._learn, str(node)) for node in self.silent.sort_nodes([*self._servers], self._now_s())]
        try:
            first = await first_of(attempts, STAGGER_S, is_lost, lambda answered: inside.abort(answered.connection))
            others.discard(first.node)
            return first
        finally:
            for node in others:
                self._let_go_of(node)

    async def _learn(self, node: str) -> _NodeAnswer:
        """Learn the brokers from one server. The connection is closed unless the server answers."""
        connection = await self._get_conn(node)
        if connection is None:
            if self.refusal is not None:
                raise self.refusal
            raise aiokafka.errors.KafkaConnectionError(self.problem(node))
        try:
            async with asyncio.timeout(self._attempt_s):
                metadata = await connection.send(TopicsRequest(()))
        except BaseException as error:
            inside.abort(connection)
            if isinstance(error, Exception):
                if isinstance(error, TimeoutError):
                    self._note_silence(node, f"{node} accepts connections, and does not answer")
                if (refusal := refusal_of(error, node, self._log_in)) is not None:
                    self._log_ins.refuse(refusal)
                    raise refusal from error
                raise aiokafka.errors.KafkaConnectionError(in_words(error, node, self._protocol)) from error
            raise
        self._note_answer(node, ConnectionGroup.DEFAULT)
        return _NodeAnswer(node, connection, metadata)

    async def _metadata_update(self, cluster_metadata: Any, topics: Collection[str] | None) -> bool:
        """Ask the brokers one by one, silent brokers last. When no broker answers, ask the servers of the beginning:
        all known brokers may be gone. Creates no topic. Without topics the request asks for the brokers alone.
        """
        request = TopicsRequest(topics or ())
        known = self.nodes()
        if inside.BOOTSTRAP in inside.connections(self):
            known.append(inside.BOOTSTRAP[0])
        for node in self.silent.sort_nodes(known, self._now_s()):
            try:
                metadata = await self.send(node, request)
            except (aiokafka.errors.KafkaError, OSError, RuntimeError) as error:
                if not is_lost(error):
                    raise
                continue
            if not metadata.brokers:
                return False
            self._is_lost = False
            self._take_metadata(cluster_metadata, metadata)
            return True
        try:
            answered = await self._first_server()
        except (aiokafka.errors.KafkaError, OSError, AuthenticationRefused) as error:
            # Each of the clients asks again soon. A refusal ends the process, with the words of the refusal.
            if not (self._is_lost or isinstance(error, AuthenticationRefused)):
                logger.warning("no broker tells which brokers there are, until one does: %s", error)
            self._is_lost = True
            cluster_metadata.failed_update(None)
            return False
        self._is_lost = False
        inside.abort(answered.connection)
        if answered.metadata.brokers and not topics:
            self._take_metadata(cluster_metadata, answered.metadata)
            return True
        if answered.metadata.brokers:  # the next look asks these brokers for the topics
            self._take_metadata(self.cluster, answered.metadata)
        return False

    def _take_metadata(self, cluster_metadata: Any, metadata: Any) -> None:
        """Take the leaders and the brokers from an answer."""
        for topic in answered_topics(metadata):
            for partition, leadership in topic.leaderships():
                self.leaders.advance(partition, leadership)
        cluster_metadata.update_metadata(_for_aiokafka(metadata))
        # The connection of the beginning is only kept until the brokers are known.
        if inside.BOOTSTRAP in inside.connections(self) and self.cluster.brokers():
            inside.abort(inside.connections(self).pop(inside.BOOTSTRAP))

    # --- asking ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        node_id: Node,
        request: Any,
        *,
        group: ConnectionGroup = ConnectionGroup.DEFAULT,
        is_handed_on: bool = False,
        limit: asyncio.Timeout | None = None,
    ) -> Any:
        """A broker's answer; raises aiokafka's errors. A broker that says nothing for an attempt's time is lost; a
        broker that has begun to answer is not: a large answer may take longer. While a broker throttles, nothing is
        sent, and the time of ``limit`` and of the attempt stands still.
        """
        connection = await self._reading_connection(node_id, group, limit)
        answer: asyncio.Future[Any] = asyncio.ensure_future(connection.send(request))
        limits = set() if limit is None else {limit}
        connection.limits |= limits
        received, until_s = 0, self._now_s() + self._attempt_s
        try:
            while not answer.done():
                until_s = max(until_s, connection.muted_until_s + self._attempt_s)
                if (left_s := until_s - self._now_s()) > 0:
                    await asyncio.wait([answer], timeout=left_s)
                elif received == (now := inside.bytes_received(connection)):
                    self.give_up_node(node_id, is_handed_on=is_handed_on)
                    raise aiokafka.errors.RequestTimedOutError
                else:
                    received, until_s = now, self._now_s() + self._attempt_s
        finally:
            connection.limits -= limits
            answer.cancel()  # not done: the caller was cancelled, or has waited long enough
            if connection in self._replaced:
                self._close_replaced(connection)
        try:
            reply = answer.result()
        except TimeoutError:
            self.give_up_node(node_id, is_handed_on=is_handed_on)
            raise aiokafka.errors.RequestTimedOutError from None
        self._note_answer(node_id, group)
        self._note_throttling(node_id, connection, request, reply)
        return reply

    async def _reading_connection(
        self, node: Node, group: ConnectionGroup, limit: asyncio.Timeout | None
    ) -> KafkaConnection:
        """A connection on which the broker reads now; raises NodeNotReadyError."""
        while True:
            connection: KafkaConnection | None = await self._get_conn(node, group=group)
            if connection is None:
                raise aiokafka.errors.NodeNotReadyError(self.problem(node))
            if (muted_s := connection.muted_until_s - self._now_s()) <= 0:
                return connection
            if limit is not None:
                extend(limit, muted_s)
            await asyncio.sleep(muted_s)

    def muted_s(self, node: Node) -> float:
        """The seconds for which a node still throttles requests to the leader of partitions."""
        connection = inside.connections(self).get((node, ConnectionGroup.DEFAULT))
        return 0.0 if connection is None else max(0.0, connection.muted_until_s - self._now_s())

    def _note_throttling(self, node: Node, connection: KafkaConnection, request: Any, reply: Any) -> None:
        throttle_ms = getattr(reply, "throttle_time_ms", 0)
        if throttle_ms > 0:
            connection.mute(throttle_ms / 1000)
        if isinstance(request, FetchRequest):
            self.fetching.note_bytes(_fetched_bytes(reply), throttle_ms / 1000, self._now_s())
        match self._throttling.note_answer(throttle_ms, self._now_s()):
            case True:
                logger.info("broker %s throttles this process, now for %d ms: a quota is used up", node, throttle_ms)
            case False:
                logger.info("no broker throttles any more; all in all it was %d ms", self._throttling.total_ms)

    def give_up_node(self, node: Node, *, is_handed_on: bool) -> None:
        """Note that a node let an attempt pass without an answer: close all connections to the node, and ask for the
        brokers anew.

        ``is_handed_on``: the node hands the request on to the controller, so the silent node may be the controller.
        """
        if not is_handed_on:
            self._note_silence(node, f"broker {node} does not answer")
        for key, connection in list(inside.connections(self).items()):
            if key[0] == node:
                inside.abort(connection, CloseReason.CONNECTION_TIMEOUT)
        self.force_metadata_update()

    def nodes(self) -> list[Node]:
        """The brokers that are known now."""
        return [broker.nodeId for broker in self.cluster.brokers()]

    def problem(self, node: Node) -> str:
        """The reason for the lack of a connection to a node."""
        return self._problems.get(node, f"no connection to broker {node}")

    def _note_silence(self, node: Node, what: str) -> None:
        if self.silent.note_silence(node, self._now_s()):
            logger.warning("%s", what)

    def _note_answer(self, node: Node, group: ConnectionGroup) -> None:
        self._answered_s[node, group] = self._now_s()
        if self.silent.note_answer(node):
            logger.info("broker %s answers again", node)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # --- connections -------------------------------------------------------------------------------------------------

    async def _get_conn(
        self,
        node: Node,
        *,
        group: ConnectionGroup = ConnectionGroup.DEFAULT,
        no_hint: bool = False,  # noqa: ARG002  # aiokafka's own signature
    ) -> Any:
        """A connection for writing; None when there is none, or none yet. In the last part of a session the old
        connection serves until its successor is there.
        """
        key, connections = (node, group), inside.connections(self)
        connection = connections.get(key)
        # After other connections found a node silent, an open connection to the node counts as silent, too.
        if connection is not None and self.silent.lost_since(node, self._answered_s.get(key, 0.0)):
            inside.abort(connection, CloseReason.CONNECTION_TIMEOUT)
        if connection is None or close_if_reset(connection) or not connection.connected():
            connection = None
        elif self._now_s() < connection.renewed_s:
            return connection
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = asyncio.ensure_future(self._connect(node, group))
            attempt.add_done_callback(partial(self._end_attempt, key))
        if connection is not None and self._now_s() < connection.unused_s:
            return connection
        # The attempt is not cancelled with a caller: other callers may wait, too.
        await asyncio.wait([attempt], timeout=DOUBTFUL_S if self.silent.is_doubtful(node) else None)
        if not attempt.done() or attempt.cancelled():
            return None
        connection = attempt.result()
        return None if connection is None or close_if_reset(connection) else connection

    def _end_attempt(self, key: tuple[Node, ConnectionGroup], attempt: asyncio.Task[Any]) -> None:
        self._attempts.pop(key, None)
        if not attempt.cancelled():
            attempt.exception()  # read, also when nobody waits any more

    async def _connect(self, node: Node, group: ConnectionGroup) -> Any:
        """A new connection; None when none can be made now, and ``problem`` tells why."""
        broker = self.cluster.broker_metadata(node)
        address = self._servers.get(node) or (broker and (broker.host, broker.port))
        if self._is_closed or self.refusal is not None:  # another try might lock the account
            return None
        if not address:
            self._problems[node] = f"no connection to broker {node}: the cluster does not know it"
            self.force_metadata_update()
            return None
        server = ":".join(map(str, address))
        limit = asyncio.timeout(self._attempt_s)
        connection = KafkaConnection(*address, attempt=limit, attempt_s=self._attempt_s, **self._for_connections)
        try:
            async with limit:
                await connection.connect()
        except BaseException as error:
            inside.abort(connection)
            if not isinstance(error, Exception):
                raise
            if (refusal := refusal_of(error, server, self._log_in)) is not None:
                self._log_ins.refuse(refusal)
                return None
            if not (is_lost(error) or isinstance(error, EOFError | ValueError)):
                raise
            self._problems[node] = in_words(error, server, self._protocol)
            if not isinstance(error, NoToken):
                self._note_silence(node, self._problems[node])
            self.force_metadata_update()
            return None
        if self._is_closed:
            inside.abort(connection)
            return None
        replaced = inside.connections(self).get((node, group))
        inside.connections(self)[node, group] = connection
        if replaced is not None:
            self._replaced.add(replaced)
            self._close_replaced(replaced)
        self._problems.pop(node, None)
        self._note_answer(node, group)
        return connection

    def _close_replaced(self, connection: KafkaConnection) -> None:
        """Close a connection with a successor, unless somebody still waits for an answer."""
        if not inside.is_waited_for(connection):
            self._replaced.discard(connection)
            inside.abort(connection)

    def _on_close(self, _connection: Any, reason: CloseReason | None) -> None:
        if reason in (CloseReason.CONNECTION_BROKEN, CloseReason.CONNECTION_TIMEOUT) and not self._is_closed:
            self.force_metadata_update()

    def _let_go_of(self, node: Node) -> None:
        key = node, ConnectionGroup.DEFAULT
        if (attempt := self._attempts.get(key)) is not None:
            attempt.cancel()
        if (connection := inside.connections(self).pop(key, None)) is not None:
            inside.abort(connection)

    async def close(self) -> None:
        """Close the connections, also the connections that come too late."""
        self.let_go()
        if self._attempts:
            await asyncio.wait(list(self._attempts.values()))
        await super().close()

    def let_go(self) -> None:
        """Close the connections without waiting for the end."""
        self._is_closed = True
        for attempt in list(self._attempts.values()):
            attempt.cancel()
        for connection in (*inside.connections(self).values(), *self._replaced):
            connection.close(reason=CloseReason.SHUTDOWN)


def _for_aiokafka(metadata: Any) -> _BrokersAnswer:
    """An answer to a ``TopicsRequest`` for aiokafka."""
    topics = [
        _TopicRow(topic.code, topic.name, False, [(0, n, -1, (), ()) for n in topic.partitions])
        for topic in answered_topics(metadata)
    ]
    brokers = [(node, host, port, rack) for node, host, port, rack, *_ in metadata.brokers]
    return _BrokersAnswer(brokers, metadata.controller_id, topics)


def _fetched_bytes(reply: Any) -> int:
    """How many bytes of records an answer to a fetch brought."""
    return sum(len(partition[-1] or b"") for _topic, partitions in reply.topics for partition in partitions)


def close_if_reset(connection: Any) -> bool:
    """Whether a connection was reset. A reset connection is closed, and open requests fail."""
    if connection is None or not inside.is_reset(connection):
        return False
    connection.close(reason=CloseReason.CONNECTION_BROKEN)
    return True


def is_lost(error: BaseException) -> bool:
    """Whether an error means that a broker could not be reached or heard: only these errors are worth another try.

    aiokafka's own errors are RuntimeErrors. uvloop raises a RuntimeError for a write to a reset connection.
    NotImplementedError is a RuntimeError, too: aiokafka raises NotImplementedError when client and broker share no
    version of a request, and no further try mends that.
    """
    return isinstance(error, (RuntimeError, OSError)) and not isinstance(error, NotImplementedError)
