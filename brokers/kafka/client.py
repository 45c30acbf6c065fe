"""aiokafka's client of connections, mended where brokers are silent, or connections are reset or given up.

- A broker may accept connections and say nothing: suspended, or behind a network that drops packets. aiokafka makes one
  connection at a time and gives each server all the time there is, so one such broker holds up all others. Here each
  node's connection is made by a task of its own, servers are tried side by side, and nodes that were silent lately
  (``SilentNodes``) are asked last, for metadata too.
- A connection that was reset is a lost one at once. uvloop closes the transport when the reset is read; aiokafka hears
  of it some turns of the loop later. What is written in between raises a RuntimeError there, which aiokafka does not
  expect (aio-libs/aiokafka issue 1038): it ends the task that keeps up the metadata, and the fetcher. A look before
  each use leaves no such moment, for nothing waits between the look and the write.
- ``close`` closes all: also the connection of a ``bootstrap`` that was cancelled, and one that was being made; and also
  when it is cancelled itself.
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

from ..asking import first_of
from ..leaders import Leaders
from ..protocol import AuthenticationRefused, TopicPartition
from ..silence import SilentNodes
from ..throttling import Allowance, Throttling
from . import inside
from .connecting import in_words, log_in_of, refusal_of
from .connection import KafkaConnection, extend
from .log_ins import LogIns
from .tokens import NoToken
from .topics import Node, TopicsRequest, answered_topics

STAGGER_S: Final = 0.25
"""So long the next server waits for the one before it, when a client learns the brokers (RFC 8305)."""

DOUBTFUL_S: Final = 1.0
"""So long a connection to a node that was silent is waited for. It goes on being made, and is there when it is done."""

IDLE_MS_MAX: Final = 540_000
"""A connection that nothing was asked on for so long is closed: Kafka's connections.max.idle.ms."""

NOT_FOR_CONNECTIONS: Final = frozenset({"bootstrap_servers", "retry_backoff_ms"})

logger = logging.getLogger("keylanes")


class _NewestLeaders(ClusterMetadata):  # type: ignore[misc]  # aiokafka has no types
    """What a client knows of a cluster; who leads a partition is what all clients of the process have heard of it."""

    def __init__(self, leaders: Leaders[Node], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._leaders = leaders

    def leader_for_partition(self, partition: TopicPartition) -> Node | None:
        """The node to read a partition from; -1: it has no leader now; None: the partition is not known."""
        if super().leader_for_partition(partition) is None:
            return None
        leader = self._leaders.leader(partition)
        return -1 if leader is None else leader


class _ToldTopic(NamedTuple):
    code: int
    name: str
    is_internal: bool
    partitions: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]]
    """Each with its error, number, leader, replicas, and those in sync."""


class _Told(NamedTuple):
    """An answer to a ``TopicsRequest`` as aiokafka wants it, without leaders: they stand in ``Leaders``."""

    brokers: list[tuple[int, str, int, str | None]]
    controller_id: int
    topics: list[_ToldTopic]
    API_VERSION: int = 5


class _NodeAnswer(NamedTuple):
    node: str
    connection: Any
    metadata: Any


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """See the module. ``silent``, ``leaders``, ``log_ins``, ``throttling``: shared by the clients of a cluster. A
    connection may take ``attempt_ms`` to be made, and a broker may say nothing for so long.
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
        self.silent, self.leaders = silent, leaders
        self.cluster = _NewestLeaders(leaders, bootstrap_servers=arguments["bootstrap_servers"])
        self._log_ins, self._throttling = log_ins, throttling
        self._attempt_s = attempt_ms / 1000
        self._protocol = arguments.get("security_protocol", "PLAINTEXT")
        self._log_in = log_in_of(arguments)
        self._for_connections = {name: arguments[name] for name in arguments if name not in NOT_FOR_CONNECTIONS}
        self._for_connections |= {"max_idle_ms": IDLE_MS_MAX, "on_close": self._on_close}
        self._for_connections |= {"log_ins": log_ins, "allow_plaintext": allow_plaintext}
        self._servers: dict[Node, tuple[str, int]] = {}
        """Where a client begins, by a name that no broker has."""
        self._making: dict[tuple[Node, ConnectionGroup], asyncio.Task[Any]] = {}
        self._renewed: set[KafkaConnection] = set()
        """There is another one in place of each; the last answers are waited for."""
        self._heard_s: dict[tuple[Node, ConnectionGroup], float] = {}
        self._problems: dict[Node, str] = {}
        self.fetching = Allowance(throttling.limit_ms)
        """How much may be read at once."""
        self._is_closed = False
        self._is_lost = False
        """No broker has told which there are, which was said."""

    @property
    def refusal(self) -> AuthenticationRefused | None:
        """Set when a broker refused the log-in, or showed a certificate that is not trusted, to any of the clients."""
        return self._log_ins.refusal

    # --- learning the brokers ----------------------------------------------------------------------------------------

    async def bootstrap(self) -> None:
        """Learn the brokers from the server that answers first; raises KafkaConnectionError, AuthenticationRefused.

        Its connection is one of the client's own, so ``close`` finds it whatever becomes of this call.
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
        """The servers are tried side by side; of all but the first that answers the connections are closed."""
        self._servers = {f"{host}:{port}": (host, port) for host, port, _ in self.hosts}
        others = set(self._servers)
        attempts = [partial(self._learn, str(node)) for node in self.silent.ordered([*self._servers], self._now_s())]
        try:
            first = await first_of(attempts, STAGGER_S, is_lost, lambda answered: inside.abort(answered.connection))
            others.discard(first.node)
            return first
        finally:
            for node in others:
                self._let_go_of(node)

    async def _learn(self, node: str) -> _NodeAnswer:
        """The brokers by one server. Its connection is closed unless it answers."""
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
        """Ask the brokers one by one, silent ones last; when none of them answers, the servers of the beginning: the
        brokers that were known may all be gone. Creates no topic. Without topics it asks for the brokers alone.
        """
        request = TopicsRequest(topics or ())
        known = self.nodes()
        if inside.BOOTSTRAP in inside.connections(self):
            known.append(inside.BOOTSTRAP[0])
        for node in self.silent.ordered(known, self._now_s()):
            try:
                metadata = await self.send(node, request)
            except (aiokafka.errors.KafkaError, OSError, RuntimeError) as error:
                if not is_lost(error):
                    raise
                continue
            if not metadata.brokers:
                return False
            self._is_lost = False
            self._take(cluster_metadata, metadata)
            return True
        try:
            answered = await self._first_server()
        except (aiokafka.errors.KafkaError, OSError, AuthenticationRefused) as error:
            # It is asked for again soon, by each of the clients. A refusal ends the process, with its own words.
            if not (self._is_lost or isinstance(error, AuthenticationRefused)):
                logger.warning("no broker tells which brokers there are, until one does: %s", error)
            self._is_lost = True
            cluster_metadata.failed_update(None)
            return False
        self._is_lost = False
        inside.abort(answered.connection)
        if answered.metadata.brokers and not topics:
            self._take(cluster_metadata, answered.metadata)
            return True
        if answered.metadata.brokers:  # the topics are asked for with the next look, at these
            self._take(self.cluster, answered.metadata)
        return False

    def _take(self, cluster_metadata: Any, metadata: Any) -> None:
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
        """A broker's answer; raises aiokafka's errors. A broker that says nothing for an attempt's time is lost; one
        that has begun to answer is not: a large answer may take longer. While a broker throttles, nothing is sent, and
        ``limit`` and the attempt do not go on.
        """
        connection = await self._unmuted(node_id, group, limit)
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
                    self.lost(node_id, is_handed_on=is_handed_on)
                    raise aiokafka.errors.RequestTimedOutError
                else:
                    received, until_s = now, self._now_s() + self._attempt_s
        finally:
            connection.limits -= limits
            answer.cancel()  # when it is not done: whoever asked was cancelled, or has waited long enough
            if connection in self._renewed:
                self._close_renewed(connection)
        try:
            reply = answer.result()
        except TimeoutError:
            self.lost(node_id, is_handed_on=is_handed_on)
            raise aiokafka.errors.RequestTimedOutError from None
        self._note_answer(node_id, group)
        self._note_throttling(node_id, connection, request, reply)
        return reply

    async def _unmuted(self, node: Node, group: ConnectionGroup, limit: asyncio.Timeout | None) -> KafkaConnection:
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
        """For how long a node throttles requests to it as a leader."""
        connection = inside.connections(self).get((node, ConnectionGroup.DEFAULT))
        return 0.0 if connection is None else max(0.0, connection.muted_until_s - self._now_s())

    def _note_throttling(self, node: Node, connection: KafkaConnection, request: Any, reply: Any) -> None:
        throttle_ms = getattr(reply, "throttle_time_ms", 0)
        if throttle_ms > 0:
            connection.mute(throttle_ms / 1000)
        if isinstance(request, FetchRequest):
            self.fetching.moved(_fetched_bytes(reply), throttle_ms / 1000, self._now_s())
        match self._throttling.heard(throttle_ms, self._now_s()):
            case True:
                logger.info("broker %s throttles this process, now for %d ms: a quota is used up", node, throttle_ms)
            case False:
                logger.info("no broker throttles any more; all in all it was %d ms", self._throttling.total_ms)

    def lost(self, node: Node, *, is_handed_on: bool = False) -> None:
        """It let an attempt pass without an answer: what is open to it is closed, the brokers are asked for anew.

        ``is_handed_on``: what it was asked for it hands on to the controller, so it may be that one that is silent.
        """
        if not is_handed_on:
            self._note_silence(node, f"broker {node} does not answer")
        for key, connection in list(inside.connections(self).items()):
            if key[0] == node:
                inside.abort(connection, CloseReason.CONNECTION_TIMEOUT)
        self.force_metadata_update()

    def nodes(self) -> list[Node]:
        """The brokers, as far as they are known now."""
        return [broker.nodeId for broker in self.cluster.brokers()]

    def problem(self, node: Node) -> str:
        """Why there is no connection to a node."""
        return self._problems.get(node, f"no connection to broker {node}")

    def _note_silence(self, node: Node, what: str) -> None:
        if self.silent.lost(node, self._now_s()):
            logger.warning("%s", what)

    def _note_answer(self, node: Node, group: ConnectionGroup) -> None:
        self._heard_s[node, group] = self._now_s()
        if self.silent.heard(node):
            logger.info("broker %s answers again", node)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # --- connections -------------------------------------------------------------------------------------------------

    async def _get_conn(
        self,
        node: Node,
        *,
        group: ConnectionGroup = ConnectionGroup.DEFAULT,
        no_hint: bool = False,  # noqa: ARG002  # aiokafka's own has it
    ) -> Any:
        """A connection that can be written to; None when there is none, or none yet."""
        key, connections = (node, group), inside.connections(self)
        connection = connections.get(key)
        # What is open to a node that others have found silent since is as silent.
        if connection is not None and self.silent.lost_since(node, self._heard_s.get(key, 0.0)):
            inside.abort(connection, CloseReason.CONNECTION_TIMEOUT)
        if connection is None or close_if_reset(connection) or not connection.connected():
            connection = None
        elif self._now_s() < connection.renewed_s:
            return connection
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(node, group))
            making.add_done_callback(partial(self._made, key))
        if connection is not None and self._now_s() < connection.unused_s:
            return connection
        # Not cancelled with whoever waits for it: others may, too.
        await asyncio.wait([making], timeout=DOUBTFUL_S if self.silent.is_doubtful(node) else None)
        if not making.done() or making.cancelled():
            return None
        connection = making.result()
        return None if connection is None or close_if_reset(connection) else connection

    def _made(self, key: tuple[Node, ConnectionGroup], making: asyncio.Task[Any]) -> None:
        self._making.pop(key, None)
        if not making.cancelled():
            making.exception()  # looked at, also when nobody waits for it any more

    async def _make(self, node: Node, group: ConnectionGroup) -> Any:
        """A new connection; None when it can't be made now, which ``problem`` tells."""
        broker = self.cluster.broker_metadata(node)
        address = self._servers.get(node) or (broker and (broker.host, broker.port))
        if self._is_closed or self.refusal is not None:  # one try more might lock the account
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
        renewed = inside.connections(self).get((node, group))
        inside.connections(self)[node, group] = connection
        if renewed is not None:
            self._renewed.add(renewed)
            self._close_renewed(renewed)
        self._problems.pop(node, None)
        self._note_answer(node, group)
        return connection

    def _close_renewed(self, connection: KafkaConnection) -> None:
        """Unless somebody still waits for an answer."""
        if not inside.is_waited_for(connection):
            self._renewed.discard(connection)
            inside.abort(connection)

    def _on_close(self, _connection: Any, reason: CloseReason | None) -> None:
        if reason in (CloseReason.CONNECTION_BROKEN, CloseReason.CONNECTION_TIMEOUT) and not self._is_closed:
            self.force_metadata_update()

    def _let_go_of(self, node: Node) -> None:
        key = node, ConnectionGroup.DEFAULT
        if (making := self._making.get(key)) is not None:
            making.cancel()
        if (connection := inside.connections(self).pop(key, None)) is not None:
            inside.abort(connection)

    async def close(self) -> None:
        """Close the connections, those that come too late as well."""
        self.let_go()
        if self._making:
            await asyncio.wait(list(self._making.values()))
        await super().close()

    def let_go(self) -> None:
        """The same without waiting until they are closed."""
        self._is_closed = True
        for making in list(self._making.values()):
            making.cancel()
        for connection in (*inside.connections(self).values(), *self._renewed):
            connection.close(reason=CloseReason.SHUTDOWN)


def _for_aiokafka(metadata: Any) -> _Told:
    """An answer to a ``TopicsRequest`` for aiokafka."""
    topics = [
        _ToldTopic(topic.code, topic.name, False, [(0, n, -1, (), ()) for n in topic.partitions])
        for topic in answered_topics(metadata)
    ]
    brokers = [(node, host, port, rack) for node, host, port, rack, *_ in metadata.brokers]
    return _Told(brokers, metadata.controller_id, topics)


def _fetched_bytes(reply: Any) -> int:
    """How many bytes of records an answer to a fetch brought."""
    return sum(len(partition[-1] or b"") for _topic, partitions in reply.topics for partition in partitions)


def close_if_reset(connection: Any) -> bool:
    """Whether the connection was reset, after which it is closed; what it had asked fails."""
    if connection is None or not inside.is_reset(connection):
        return False
    connection.close(reason=CloseReason.CONNECTION_BROKEN)
    return True


def is_lost(error: BaseException) -> bool:
    """Whether a broker could not be reached, or not be heard: what the client's errors mean that are worth a retry.

    aiokafka's own errors are RuntimeErrors, as is what uvloop says of a write to a connection that was reset; what it
    says when it and the broker share no version of a request is a NotImplementedError, which is one, too.
    """
    return isinstance(error, (RuntimeError, OSError)) and not isinstance(error, NotImplementedError)
