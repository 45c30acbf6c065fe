"""A simulated process's connections: requests with deadlines, sent once or again, and the nodes to ask."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ..deadline import Deadline
from ..leaders import Leaders
from ..protocol import BrokerError, BrokerTimeout, TopicPartition, UnknownTopic
from ..silence import SilentNodes
from ..throttling import Throttling
from .cluster import Cluster
from .network import RequestKind, Unanswered
from .node import Led, Metadata, Node
from .nodes import NotLeader
from .quota import Quota

T = TypeVar("T")

WENT_BACK: Final = "went back to an older leader epoch"
"""Counted, and never right: a client keeps to the newest leader epoch."""


class ConnectionSevered(BrokerTimeout):
    """The process of this connection is dead."""


class KnownNodes:
    """Leaders, silent nodes, and throttling, in the common knowledge of all connections of one process."""

    def __init__(self) -> None:
        self.leaders = Leaders[int]()
        self.silent = SilentNodes[int]()
        self.throttling = Throttling()
        self._muted_until_s = 0.0

    def wrote(self, size: int, quota: Quota | None) -> None:
        """Note that ``size`` bytes were written: the answer says for how long these are throttled."""
        now_s = asyncio.get_running_loop().time()
        throttled_s = 0.0 if quota is None else quota.throttled_s(size, now_s)
        self._muted_until_s = max(self._muted_until_s, now_s + throttled_s)
        self.throttling.note_answer(int(throttled_s * 1000), now_s)
        self.throttling.writing.note_bytes(size, throttled_s, now_s)

    async def wait_until_unmuted(self, deadline: Deadline) -> None:
        """Wait until nothing throttles."""
        if (muted_s := self._muted_until_s - asyncio.get_running_loop().time()) > 0:
            deadline.extend(muted_s)
            await asyncio.sleep(muted_s)


class ProducerEpoch(NamedTuple):
    """An epoch of a transactional id, and the node that gave the epoch."""

    epoch: int
    node: int


class Link:
    """Connections of one part of a process, closed together."""

    def __init__(self, cluster: Cluster, client_name: str, known: KnownNodes) -> None:
        self.cluster = cluster
        self.client_name = client_name
        self.known = known
        self.leaders = known.leaders
        self.severed = self.closed = False
        self._pending: dict[asyncio.Future[Any], None] = {}  # replies and news that somebody waits for

    def sever(self) -> None:
        """Kill the process: each caller that waits gets ConnectionSevered."""
        self.severed = True
        self._end_all(ConnectionSevered(f"{self.client_name}: the process is dead"))

    def close(self) -> None:
        """Close the connections. A caller that still waits gets a BrokerTimeout."""
        self.closed = True
        self._end_all(BrokerTimeout(f"{self.client_name}: the connection was closed"))

    def _end_all(self, error: BrokerError) -> None:
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()

    def check(self) -> None:
        """Raises ConnectionSevered, and BrokerError after ``close``."""
        if self.severed:
            raise ConnectionSevered(f"{self.client_name}: the process is dead")
        if self.closed:
            raise BrokerError(f"{self.client_name}: the connection was closed")

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """A deadline from now; without ``timeout_ms``, after as long as a client waits for an answer."""
        network = self.cluster.network
        limit_ms = network.latency.timeout_ms if timeout_ms is None else timeout_ms
        return Deadline(limit_ms, f"{self.client_name}: {what}", network.pauses(), self._attempt_ms)

    @property
    def _attempt_ms(self) -> float:
        return min(self.cluster.network.latency.timeout_ms, self.cluster.network.latency.attempt_ms)

    async def wait(self, future: "asyncio.Future[T]") -> T:
        """Wait for a future. A dead process hears nothing of the future any more."""
        self._pending[future] = None
        try:
            result = await future
        finally:
            self._pending.pop(future, None)
        self.check()
        return result

    async def ask(
        self,
        kind: RequestKind,
        step: Callable[[], T],
        deadline: Deadline,
        *,
        patience_s: float | None = None,
        node: int | None = None,
    ) -> T:
        """Have a step done in the cluster, once. Returns or raises as the step does, or raises BrokerTimeout. The
        leaderships of a node without an answer are forgotten.
        """
        self.check()
        reply: asyncio.Future[T] = self.cluster.network.send(
            self.client_name, kind, step, deadline.attempt, patience_s, node
        )
        if node is None:
            return await self.wait(reply)
        try:
            answer = await self.wait(reply)
        except BrokerTimeout as error:
            self.leaders.forget_node(node)
            if isinstance(error, Unanswered):
                self.known.silent.note_silence(node, self._now_s())
            raise
        except BrokerError:
            self.known.silent.note_answer(node)
            raise
        self.known.silent.note_answer(node)
        return answer

    async def ask_again(self, kind: RequestKind, step: Callable[[], T], deadline: Deadline) -> T:
        """As ``ask``, again while no answer comes: for requests that may be carried out twice."""
        return await self._again(lambda: self.ask(kind, step, deadline), deadline)

    async def ask_any(self, kind: RequestKind, step_of: Callable[[Node], Callable[[], T]], deadline: Deadline) -> T:
        """As ``ask_again``, of any node that answers."""
        return await self._again(lambda: self.ask_node(kind, self.any_node(), step_of, deadline), deadline)

    async def ask_node(
        self,
        kind: RequestKind,
        number: int,
        step_of: Callable[[Node], Callable[[], T]],
        deadline: Deadline,
        *,
        patience_s: float | None = None,
    ) -> T:
        """As ``ask``, of a node."""
        step = step_of(Node(self.cluster, number))
        return await self.ask(kind, step, deadline, patience_s=patience_s, node=number)

    async def _again(self, attempt: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        while True:
            try:
                return await attempt()
            except ConnectionSevered:
                raise
            except BrokerTimeout as error:
                self.check()
                await deadline.pause(error)

    # --- who leads ---------------------------------------------------------------------------------------------------

    def any_node(self, but: Collection[int] = ()) -> int:
        """A random node that was not silent lately."""
        nodes = [node for node in self.cluster.nodes.numbers if node not in but]
        return self.known.silent.draw(nodes, self._now_s(), self.cluster.network.choose)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def learn(self, told: Metadata) -> None:
        """Take the leaderships in the answer of a node; each counts by its leader epoch."""
        for source, leadership in told.leaderships.items():
            before = self.leaders.of(source)
            self.leaders.advance(source, leadership)
            if before is not None and before.identity == leadership.identity:
                self.cluster.count(WENT_BACK, self.leaders.epoch(source) < before.epoch)

    def known_leaderships(self, sources: Collection[TopicPartition]) -> Led:
        """The leaderships of these partitions, as far as their leaders are known."""
        known = {source: self.leaders.of(source) for source in sources}
        return {source: one for source, one in known.items() if one is not None and one.leader is not None}

    async def topics(self, names: Collection[str], deadline: Deadline, *, to_write: bool = False) -> Metadata:
        """The topics among the given names that exist, by any node."""
        topics = tuple(dict.fromkeys(names))
        told = await self.ask_any(
            RequestKind.METADATA, lambda node: partial(node.metadata, topics, to_write=to_write), deadline
        )
        self.learn(told)
        return told

    async def missing_partitions(
        self, sources: Collection[TopicPartition], deadline: Deadline, *, to_write: bool = False
    ) -> list[TopicPartition]:
        """Learn the unknown leaders of partitions. Returns the partitions that do not exist."""
        silent = self.known.silent
        if silent.has_any:  # each time ask whether a silent leader still leads
            known = [(source, self.leaders.leader(source)) for source in sources]
            self.leaders.forget([source for source, node in known if node is not None and silent.is_doubtful(node)])
        while wanted := [source for source in sources if self.leaders.leader(source) is None]:
            told = await self.topics([source.topic for source in wanted], deadline, to_write=to_write)
            if absent := told.missing_partitions(wanted):
                return absent
            if any(self.leaders.leader(source) is None for source in wanted):
                await deadline.pause("partitions without a leader")
        return []

    async def ask_leaders(
        self,
        kind: RequestKind,
        step_of: Callable[[Led], Callable[[], Mapping[TopicPartition, T]]],
        sources: Collection[TopicPartition],
        deadline: Deadline,
    ) -> dict[TopicPartition, T]:
        """Ask the leaders of partitions until each has an answer; raises UnknownTopic, BrokerTimeout."""
        found: dict[TopicPartition, T] = {}
        while open_ := [source for source in sources if source not in found]:
            if missing := await self.missing_partitions(open_, deadline):
                raise unknown_topic(missing[0])
            problem: object = "their leaders are not confirmed"
            try:
                found.update(await self.ask(kind, step_of(self.known_leaderships(open_)), deadline))
            except ConnectionSevered:
                raise
            except (BrokerTimeout, NotLeader) as error:
                self.check()
                problem = error
            if unanswered := [source for source in open_ if source not in found]:
                self.leaders.forget(unanswered)
                await deadline.pause(problem)
        return found

    # --- who coordinates ---------------------------------------------------------------------------------------------

    async def coordinator(self, transactional_id: str, deadline: Deadline) -> int:
        """The coordinator of an id. A node that names itself is believed when another node names the same node, or when
        no other node answers.
        """
        named_itself: set[int] = set()
        while True:
            others = [node for node in self.cluster.nodes.numbers if node not in named_itself]
            if named_itself and all(self.known.silent.is_doubtful(node) for node in others):
                return self.cluster.network.choose(sorted(named_itself))
            number = self.any_node(named_itself)
            try:
                named = await self.ask_node(
                    RequestKind.COORDINATOR, number, lambda node: partial(node.coordinator, transactional_id), deadline
                )
            except ConnectionSevered:
                raise
            except BrokerTimeout as error:
                self.check()
                await deadline.pause(error)
                continue
            if named != number:
                return named
            named_itself.add(named)

    async def initialise(self, transactional_id: str, timeout_ms: int, deadline: Deadline) -> ProducerEpoch:
        """The new epoch of an id, after the last transaction is complete, and the coordinator that gave the epoch."""
        coordinator: int | None = None
        while True:
            try:
                if coordinator is None:
                    coordinator = await self.coordinator(transactional_id, deadline)
                epoch = await self.ask_node(
                    RequestKind.INIT,
                    coordinator,
                    lambda node: partial(node.initialise, transactional_id, timeout_ms),
                    deadline,
                )
            except ConnectionSevered:
                raise
            except (BrokerTimeout, NotLeader) as error:
                self.check()
                coordinator = None
                await deadline.pause(error)
                continue
            if epoch is not None:
                return ProducerEpoch(epoch, coordinator)
            await deadline.pause("its last transaction is not complete")


def unknown_topic(source: TopicPartition) -> UnknownTopic:
    """The error for a partition that does not exist."""
    return UnknownTopic(f"topic {source.topic!r} has no partition {source.partition}")
