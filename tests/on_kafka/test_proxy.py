"""The proxy counts a fault when it has happened: nothing else says that a round of chaos had it."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from ..stage.proxy import ADD_PARTITIONS, END_TXN, Fault, Proxy

CONCURRENT_TRANSACTIONS = 51


class Broker:
    """Takes requests and answers AddPartitionsToTxn with ``code``, anything else with nothing but its number."""

    def __init__(self) -> None:
        self.code = 0
        self.requests: list[int] = []
        """Their kinds."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection, to its end."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                kind, _version, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.requests.append(kind)
                body = struct.pack(">iih1siih", 0, 1, 1, b"t", 1, 0, self.code) if kind == ADD_PARTITIONS else b""
                writer.write(struct.pack(">ii", 4 + len(body), number) + body)
        writer.close()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._number = reader, writer, 0

    def send(self, kind: int) -> None:
        """A request of the transactional id ``x``."""
        self._number += 1
        frame = struct.pack(">hhih1sh1s", kind, 0, self._number, 1, b"c", 1, b"x")
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    async def answer(self) -> None:
        """Wait for the next reply."""
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        await self._reader.readexactly(size)

    def close(self) -> None:
        """Leave."""
        self._writer.close()


@pytest.fixture
def broker() -> Broker:
    """What the proxy stands in front of."""
    return Broker()


@pytest.fixture
async def proxy(broker: Broker) -> AsyncIterator[Proxy]:
    """The proxy, on a free port."""
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    proxy = Proxy(0, server.sockets[0].getsockname()[1])
    await proxy.start()
    yield proxy
    await proxy.close()
    server.close()


async def connect(proxy: Proxy) -> Client:
    """A client of the proxy."""
    return Client(*await asyncio.open_connection("127.0.0.1", proxy.port))


async def held(proxy: Proxy) -> Client:
    """A commit that is held for the next transaction, and another client of the same id."""
    proxy.arm(END_TXN, Fault.HOLD_TO_NEXT)
    client = await connect(proxy)
    client.send(END_TXN)
    await proxy.caught()
    client.close()
    assert proxy.met[Fault.HOLD_TO_NEXT] == 0, "it has not arrived"
    return await connect(proxy)


async def test_a_commit_held_for_the_next_transaction(proxy: Proxy, broker: Broker) -> None:
    """It arrives, and is counted, when the next one has begun; a transaction that was refused has not."""
    client = await held(proxy)
    broker.code = CONCURRENT_TRANSACTIONS
    client.send(ADD_PARTITIONS)
    await client.answer()
    assert broker.requests == [ADD_PARTITIONS]
    broker.code = 0
    client.send(ADD_PARTITIONS)
    await client.answer()
    await proxy.answered()
    assert broker.requests == [ADD_PARTITIONS, ADD_PARTITIONS, END_TXN]
    assert proxy.met[Fault.HOLD_TO_NEXT] == 1
    client.close()


async def test_a_held_commit_that_is_only_let_go(proxy: Proxy, broker: Broker) -> None:
    """It arrives, although its sender has left, and is not counted: no transaction had begun."""
    client = await held(proxy)
    proxy.heal()
    await proxy.answered()
    assert broker.requests == [END_TXN]
    assert proxy.met[Fault.HOLD_TO_NEXT] == 0
    client.close()
