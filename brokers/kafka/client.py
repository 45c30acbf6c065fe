"""aiokafka's client of connections, mended where connections are reset, or given up while they are made."""

from typing import Any

import aiokafka.errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.protocol.metadata import MetadataRequest

from . import inside


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's, with two things mended.

    - A connection that was reset is a lost one at once. uvloop closes the transport when the reset is read; aiokafka
      hears of it some turns of the loop later. What is written in between raises a RuntimeError there, which aiokafka
      does not expect (aio-libs/aiokafka issue 1038): it ends the task that keeps up the metadata, and the fetcher. A
      look before each use leaves no such moment, for nothing waits between the look and the write.
    - ``close`` closes all: also the connection of a ``bootstrap`` that was cancelled, and one that was being made; and
      also when it is cancelled itself.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._is_closed = False

    async def bootstrap(self) -> None:
        """Learn the brokers from the first server that answers; raises KafkaConnectionError.

        Its connection is one of the client's own, so ``close`` finds it whatever becomes of this call.
        """
        problems = []
        for host, port, _ in self.hosts:
            node = f"{host}:{port}"
            inside.add_server(self, node, host, port)
            connection = await self._get_conn(node)
            if connection is None:
                problems.append(f"no connection to {node}")
                continue
            try:
                self.cluster.update_metadata(await connection.send(MetadataRequest([], False)))
            except (aiokafka.errors.KafkaError, TimeoutError) as error:
                problems.append(f"{node} does not answer: {error!r}")
                connection.close()
                continue
            break
        else:
            raise aiokafka.errors.KafkaConnectionError("; ".join(problems))
        del inside.connections(self)[node, ConnectionGroup.DEFAULT]
        if self.cluster.brokers():
            connection.close()
        else:  # a cluster that has just begun
            inside.connections(self)[inside.BOOTSTRAP] = connection
        inside.keep_metadata(self)

    async def close(self) -> None:
        """Close the connections, those that come too late as well."""
        self.let_go()
        await super().close()

    def let_go(self) -> None:
        """The same without waiting until they are closed."""
        self._is_closed = True
        for connection in list(inside.connections(self).values()):
            connection.close(reason=CloseReason.SHUTDOWN)

    async def _get_conn(
        self, node: int | str, *, group: ConnectionGroup = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Any:
        """A connection that can be written to; None when there is none."""
        close_if_reset(inside.connections(self).get((node, group)))
        try:
            connection = await super()._get_conn(node, group=group, no_hint=no_hint)
        except RuntimeError as error:
            if not is_lost(error):
                raise
            self.force_metadata_update()  # as after any other connection that could not be made
            return None
        if connection is not None and self._is_closed:
            connection.close(reason=CloseReason.SHUTDOWN)
            return None
        return None if close_if_reset(connection) else connection


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
