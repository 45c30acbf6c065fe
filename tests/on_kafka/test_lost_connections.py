"""Connections that were reset a moment ago, of which aiokafka has not heard yet; and those that nobody waits for."""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.kafka.client import is_lost
from keylanes.brokers.kafka.link import KafkaLink, LinkSettings
from keylanes.brokers.protocol import BrokerTimeout
from keylanes.brokers.security import Security

from ..tiers.brokers import SharedKafka

UvLoop: Any = pytest.importorskip("uvloop").Loop


class Loop(UvLoop):  # type: ignore[misc]  # importorskip gives Any
    """Resets its connections when it is told to, and tells before anybody else hears of it."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Any] = []
        self.reset: asyncio.Future[None] | None = None

    async def create_connection(self, factory: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        """As uvloop does; one that is aborted is lost as one that the other side resets."""
        transport, protocol = await super().create_connection(factory, *arguments, **named)
        lose = protocol.connection_lost

        def connection_lost(_: Exception | None) -> None:
            if self.reset is not None and not self.reset.done():
                self.reset.set_result(None)
            lose(ConnectionResetError(errno.ECONNRESET, "reset by peer"))

        protocol.connection_lost = connection_lost
        self.connections.append(transport)
        return transport, protocol

    async def reset_all(self) -> None:
        """Back when the first is reset."""
        self.reset = self.create_future()
        for connection in self.connections:
            connection.abort()
        self.connections.clear()
        await self.reset


def link_to(address: str) -> KafkaLink:
    """Connections that are not open yet."""
    return KafkaLink(LinkSettings(address, "test", Security(), 2_000, 2_000, 1_000))


@pytest.mark.broker
def test_a_reset_connection_is_not_written_to(kafka_server: SharedKafka) -> None:
    """Another one is made for the request, without a try that fails; and so again and again."""

    async def ask_after_resets() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        link = link_to(kafka_server.bootstrap)
        await link.open()
        try:
            for _ in range(20):
                await link.ask(link.any_node(), MetadataRequest([]), link.deadline("a test"))
                *_, last = loop.connections
                await loop.reset_all()
                with pytest.raises(RuntimeError, match="closed"):  # else this shows nothing
                    last.write(b"x")
            answer = await link.ask(link.any_node(), MetadataRequest([]), link.deadline("a test"))
            return len(answer.brokers)
        finally:
            await link.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(ask_after_resets()) == 1


def test_a_port_that_resets_is_a_broker_that_is_away() -> None:
    """A load balancer with nobody behind it takes the connection and resets it: that is waited for, and then said."""

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async def open_link() -> None:
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            link = link_to(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(BrokerTimeout, match="connecting to Kafka"):
                await link.open()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(open_link())


class Silent:
    """Answers what a client asks first, which versions are spoken, and nothing else. ``asked``: it was asked more."""

    def __init__(self) -> None:
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        answer = request[4:8] + ApiVersionResponse_v0(error_code=0, api_versions=[(3, 0, 7), (18, 0, 0)]).encode()
        writer.write(len(answer).to_bytes(4, "big") + answer)
        await reader.readexactly(4)
        self.asked.set()
        await reader.read()
        self.left.set()
        writer.close()


async def open_link(address: str) -> None:
    """Connections for requests."""
    await link_to(address).open()


async def open_reader(address: str) -> None:
    """Connections of a consumer."""
    await KafkaBroker(address).reader({})


@pytest.mark.parametrize("connect", [open_link, open_reader])
async def test_a_start_that_is_given_up_leaves_no_connection(
    connect: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    """Cancelled while it waits for the answer to its first question."""
    silent = Silent()
    async with await asyncio.start_server(silent.serve, "127.0.0.1", 0) as server:
        opening = asyncio.ensure_future(connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        await asyncio.wait_for(silent.asked.wait(), 10)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(silent.left.wait(), 10)


@pytest.mark.parametrize(
    ("error", "is_worth_a_retry"),
    [
        (RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"), True),
        (ConnectionResetError(104, "reset"), True),
        (TimeoutError(), True),
        (NotImplementedError("Support for Fetch v99 has not yet been added"), False),
        (ValueError("a defect"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_what_is_lost(error: BaseException, is_worth_a_retry: bool) -> None:
    """What comes of the network is; what will be the same the next time is not."""
    assert is_lost(error) == is_worth_a_retry
