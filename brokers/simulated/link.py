"""A simulated process's connections: requests with deadlines, asked once or again."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..asking import Deadline
from ..protocol import BrokerError, BrokerTimeout
from .cluster import Cluster
from .network import Kind

T = TypeVar("T")


class ConnectionSevered(BrokerTimeout):
    """The process this connection belonged to is dead."""


class Link:
    """Connections of one part of a process, closed as a whole."""

    def __init__(self, cluster: Cluster, client_name: str) -> None:
        self.cluster, self.client_name = cluster, client_name
        self.severed = self.closed = False
        self._pending: dict[asyncio.Future[Any], None] = {}  # replies and news that somebody waits for

    def sever(self) -> None:
        """The process is dead."""
        self.severed = True
        self._end_all(ConnectionSevered(f"{self.client_name}: the process is dead"))

    def close(self) -> None:
        """Whoever still waits gets a BrokerTimeout."""
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
        """From now; without ``timeout_ms``, so long as a client waits for an answer."""
        network = self.cluster.network
        limit_ms = network.latency.timeout_ms if timeout_ms is None else timeout_ms
        return Deadline(limit_ms, f"{self.client_name}: {what}", network.pauses())

    async def wait(self, future: "asyncio.Future[T]") -> T:
        """Wait for what a dead process does not hear of any more."""
        self._pending[future] = None
        try:
            result = await future
        finally:
            self._pending.pop(future, None)
        self.check()
        return result

    async def ask(self, kind: Kind, step: Callable[[], T], deadline: Deadline, *, patience_s: float | None = None) -> T:
        """Have one step done in the cluster, once: what it returned or raised, or BrokerTimeout."""
        self.check()
        limit_s = min(deadline.left, self.cluster.network.latency.timeout_ms / 1000)
        reply: asyncio.Future[T] = self.cluster.network.send(self.client_name, kind, step, limit_s, patience_s)
        return await self.wait(reply)

    async def ask_again(self, kind: Kind, step: Callable[[], T], deadline: Deadline) -> T:
        """As ``ask``, again while no answer comes: for what may be carried out twice."""
        while True:
            try:
                return await self.ask(kind, step, deadline)
            except ConnectionSevered:
                raise
            except BrokerTimeout as error:
                self.check()
                await deadline.pause(error)

    async def initialise(self, transactional_id: str, timeout_ms: int, deadline: Deadline) -> int:
        """The new epoch, when the id's last transaction is complete."""
        while True:
            epoch = await self.ask_again(
                Kind.INIT, partial(self.cluster.initialise, transactional_id, timeout_ms), deadline
            )
            if epoch is not None:
                return epoch
            await deadline.pause("its last transaction is not complete")
