"""A process's side of the simulated cluster: the reactions of the adapter for Kafka in the same situations.

- Requests that may be carried out twice (all but records and the end of a transaction) are repeated until the time is
  over.
- A reader hears nothing while the cluster is silent, and raises when the silence lasts too long.
- ``brokers.delivery`` and ``brokers.producer`` write records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from ..deadline import Deadline
from ..delivery import SessionAppender, TopicNumbers
from ..patience import end_rest
from ..producer import TransactionalProducer
from ..protocol import (
    Batch,
    BrokerTimeout,
    GroupOffsets,
    OffsetOutOfRange,
    Reader,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    Watermarks,
)
from ..rights import Lacking, Right
from .cluster import Cluster
from .link import ConnectionSevered, KnownNodes, Link, unknown_topic
from .network import RETRY_MS, RequestKind
from .node import Fetched, ReachedLeaders
from .requests import Numbered, SimulatedRequests

LOOK_S: Final = 1.0
"""Seconds between a reader's looks for the leaders."""
PATIENCE_S_MIN: Final = 0.02  # of a fetch without a wait: the fetch ends on a silent cluster, too


WatermarksOf = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Watermarks]]]


class SimulatedConnection:
    """The way of one process to the cluster: a ``Broker``."""

    is_alone: bool = False

    def __init__(self, cluster: Cluster, client_name: str) -> None:
        self.client_name = client_name
        self._cluster = cluster
        self._nodes = KnownNodes()
        self.throttling = self._nodes.throttling
        self._link = Link(cluster, client_name, self._nodes)
        self._links: dict[Link, None] = {}  # of readers, producers and appenders made here
        self._limits = TopicNumbers(self._message_limits)

    def sever(self) -> None:
        """Kill the process: every call, running or to come, raises ConnectionSevered and has no further effect."""
        for link in (self._link, *self._links):
            link.sever()

    async def open(self) -> None:
        """Connect; raises BrokerTimeout."""
        self._link.closed = False
        await self._link.ask_again(RequestKind.METADATA, lambda: None, self._link.deadline("connecting"))

    async def close(self) -> None:
        """Disconnect, with readers, producers and appenders; a caller that still waits gets a BrokerError."""
        links, self._links = self._links, {}
        for link in (self._link, *links):
            link.close()

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among the given names that exist."""
        told = await self._link.topics(topics, self._link.deadline("describing topics"))
        return dict(told.topics)

    async def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """See the protocol."""
        return {name: topic.partitions for name, topic in (await self.describe(topics)).items()}

    async def missing_rights(self, rights: Sequence[Right]) -> Lacking:  # noqa: ARG002  # here everybody may do everything
        """No right is lacking."""
        return Lacking()

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; existing topics stay unchanged."""

        def create() -> None:
            for spec in specs:
                self._cluster.state.create(spec)

        await self._link.ask_again(RequestKind.CREATE, create, self._link.deadline("creating topics"))

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks from confirmed leaders; raises UnknownTopic, BrokerTimeout."""
        leading = ReachedLeaders(self._cluster, self.client_name)
        deadline = self._link.deadline("asking for watermarks")
        found = await self._link.ask_leaders(
            RequestKind.OFFSETS, lambda led: partial(leading.watermarks, led), partitions, deadline
        )
        return {source: found[source] for source in partitions}

    async def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See the protocol."""
        leading = ReachedLeaders(self._cluster, self.client_name)
        deadline = self._link.deadline("asking for offsets by time")
        return await self._link.ask_leaders(
            RequestKind.OFFSETS, lambda led: partial(leading.offsets_at, times, led), times, deadline
        )

    async def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """See the protocol."""
        step = partial(self._cluster.state.group_offsets, group, partitions)
        return await self._link.ask_again(
            RequestKind.OFFSETS, step, self._link.deadline("asking for a group's offsets")
        )

    def _new_link(self) -> Link:
        self._link.check()
        link = Link(self._cluster, self.client_name, self._nodes)
        self._links = {one: None for one in self._links if not one.closed}
        self._links[link] = None
        return link

    async def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader with a connection of its own."""
        link = self._new_link()
        await link.ask_again(RequestKind.METADATA, lambda: None, link.deadline("connecting a reader"))
        reader = SimulatedReader(link, self._cluster, self.watermarks)
        reader.assign(positions)
        return reader

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> TransactionalProducer[Numbered]:
        """A new producer, after all older producers are fenced and the last transaction is complete."""
        link = self._new_link()
        deadline = link.deadline(f"making a producer of {transactional_id!r}")
        try:
            initialised = await link.initialise(transactional_id, transaction_timeout_ms, deadline)
        except BaseException:
            link.close()
            raise
        requests = SimulatedRequests(link, self._limits, transactional_id, initialised)
        return TransactionalProducer(requests, transactional_id, transaction_timeout_ms)

    def table(self, topic: str, partition: int) -> None:
        """The cluster keeps logs only, as Kafka does."""

    def appender(self) -> SessionAppender[Numbered]:
        """A new appender; the session is an idempotent producer with a connection of its own."""
        return SessionAppender(self._append_requests, self._link.deadline)

    async def _append_requests(self, deadline: Deadline, _topics: Collection[str]) -> SimulatedRequests:
        link = self._new_link()
        try:
            producer = await link.ask_any(RequestKind.INIT, lambda node: node.cluster.new_producer, deadline)
        except BaseException:
            link.close()
            raise
        return SimulatedRequests(link, self._limits, producer, None)

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below the given offsets; raises UnknownTopic, OffsetOutOfRange."""
        leading = ReachedLeaders(self._cluster, self.client_name)
        deadline = self._link.deadline("trimming")
        await self._link.ask_leaders(RequestKind.TRIM, lambda led: partial(leading.trim, before, led), before, deadline)

    async def _message_limits(self, topics: Collection[str]) -> dict[str, int]:
        return {name: int(topic.config["max.message.bytes"]) for name, topic in (await self.describe(topics)).items()}


class SimulatedReader:
    """A ``Reader`` that keeps positions and asks the leaders for each fetch. ``watermarks``: from confirmed leaders."""

    def __init__(self, link: Link, cluster: Cluster, watermarks: WatermarksOf) -> None:
        self._link = link
        self._cluster = cluster
        self._watermarks = watermarks
        self._next_look_s = 0.0
        self._positions: dict[TopicPartition, int] = {}
        self._silent_since_s: float | None = None
        """When the leaders began to be silent; None: a leader answered last."""
        self._is_checked = True
        """Whether the partitions of the last ``assign`` were looked for."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these positions, and no others."""
        self._positions = dict(positions)
        self._is_checked = False

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next."""
        return self._positions[source]

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See the protocol."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        while True:
            if not self._is_checked:
                await self._apply_assignment()
                continue
            wanted = {source: self._positions[source] for source in sources if source in self._positions}
            news: asyncio.Future[None] = loop.create_future()  # done when there is something for this fetch
            try:
                answer = await self._ask(wanted, records_max, news, end - loop.time())
                # After an ``assign`` meanwhile, a batch of a partition that is no longer read is worthless.
                found = answer or []
                fresh = [batch for batch in found if self._positions.get(batch.source) == wanted[batch.source]]
                for batch in fresh:
                    self._positions[batch.source] = batch.offset_next
                wait = end - loop.time()
                if fresh or wait <= 0:
                    self._check_heard(fresh)
                    return fresh
                if answer is None:
                    await asyncio.sleep(min(wait, self._cluster.network.draw(RETRY_MS)))
                elif not answer:
                    await self._wait(news, wait)
            finally:
                self._cluster.forget(news)

    async def close(self) -> None:
        """Let go."""
        self._link.close()

    async def _apply_assignment(self) -> None:
        """Look whether the partitions exist; raises UnknownTopic."""
        positions = self._positions
        told = await self._link.topics([source.topic for source in positions], self._link.deadline("asking for topics"))
        if missing := told.missing_partitions(list(positions)):
            raise unknown_topic(missing[0])
        self._is_checked = positions is self._positions  # else assigned anew meanwhile: ``fetch`` comes back

    async def _ask(
        self, wanted: Mapping[TopicPartition, int], records_max: int, news: "asyncio.Future[None]", wait: float
    ) -> list[Batch] | None:
        """The answers of the leaders; None: no leader has answered."""
        now = asyncio.get_running_loop().time()
        try:
            found = await self._ask_leaders(wanted, records_max, news, wait)
        except ConnectionSevered:
            raise
        except BrokerTimeout:
            self._link.check()
            self._link.leaders.forget(wanted)
            self._silent_since_s = now if self._silent_since_s is None else self._silent_since_s
            return None
        except OffsetOutOfRange as error:
            marks = (await self._watermarks([error.source]))[error.source]
            if marks.start <= error.offset <= marks.high:  # in the leader's log: a deposed leader has less
                raise BrokerTimeout(f"a node that does not lead {error.source} answered") from error
            raise
        self._silent_since_s = None
        self._link.leaders.forget(found.strayed)
        return None if found.strayed and not found.batches else found.batches

    async def _ask_leaders(
        self, wanted: Mapping[TopicPartition, int], records_max: int, news: "asyncio.Future[None]", wait: float
    ) -> Fetched:
        """One fetch, behind a look for the leaders where a leader is unknown, or the last look was long ago."""
        link, now, deadline = self._link, asyncio.get_running_loop().time(), self._link.deadline("reading")
        patience_s = max(wait, PATIENCE_S_MIN)
        led = link.known_leaderships(wanted)
        if len(led) < len(wanted) or now >= self._next_look_s:
            names = tuple(dict.fromkeys(source.topic for source in wanted))
            link.learn(
                await link.ask_node(
                    RequestKind.METADATA,
                    link.any_node(),
                    lambda node: partial(node.metadata, names),
                    deadline,
                    patience_s=patience_s,
                )
            )
            self._next_look_s, led = now + LOOK_S, link.known_leaderships(wanted)
        leading = ReachedLeaders(self._cluster, link.client_name)
        step = partial(leading.read, wanted, led, records_max, news if wait > 0 else None)
        return await link.ask(RequestKind.FETCH, step, deadline, patience_s=patience_s)

    def _check_heard(self, found: Sequence[Batch]) -> None:
        limit_ms = self._cluster.network.latency.timeout_ms
        since, now = self._silent_since_s, asyncio.get_running_loop().time()
        if not found and since is not None and (now - since) * 1000 >= limit_ms:
            raise BrokerTimeout(f"{self._link.client_name}: no answer to reads for {limit_ms:.0f} ms")

    async def _wait(self, news: "asyncio.Future[None]", wait: float) -> None:
        timer = asyncio.get_running_loop().call_later(wait, end_rest, news)
        try:
            await self._link.wait(news)
        finally:
            timer.cancel()
