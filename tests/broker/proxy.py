"""A proxy between a Kafka client and its broker that loses, holds or cuts single requests and replies, as told."""

import asyncio
import struct
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any

PRODUCE, END_TXN = 0, 26


class Fault(Enum):
    """What happens to the next request of a kind."""

    LOSE_REQUEST = auto()  # the connection breaks, the broker never sees the request
    LOSE_REPLY = auto()  # the broker carries it out, the connection breaks before the reply
    HOLD_REQUEST = auto()  # it waits in the network until ``release``, even if its sender has left


class Proxy:
    """Forwards ``port`` to ``target``; faults are set by the kind of request (its API key)."""

    def __init__(self, port: int, target: int) -> None:
        self._port, self._target = port, target
        self._faults: dict[int, Fault] = {}
        self._caught = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.silent = False

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def close(self) -> None:
        """Cut all connections and stop listening."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arm(self, kind: int, fault: Fault) -> None:
        """The next request of this kind meets the fault."""
        self._caught.clear()
        self._released.clear()
        self._faults[kind] = fault

    async def caught(self) -> None:
        """Wait until the fault has happened."""
        await self._caught.wait()

    def release(self) -> None:
        """Let the held request go on."""
        self._released.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._target)
        lost: set[int] = set()
        up = self._spawn(self._requests(reader, broker_writer, lost))
        down = self._spawn(self._replies(broker_reader, writer, lost))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            writer.close()
            await asyncio.wait([up])  # a held request reaches the broker although its sender has left
        finally:
            for task in (up, down):
                task.cancel()
            for one in (writer, broker_writer):
                one.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        while (frame := await _frame(reader)) is not None:
            kind, _version, number = struct.unpack_from(">hhi", frame, 4)
            fault = self._faults.pop(kind, None)
            if fault is Fault.LOSE_REQUEST:
                self._caught.set()
                return
            if fault is Fault.LOSE_REPLY:
                lost.add(number)
            if fault is Fault.HOLD_REQUEST:
                self._caught.set()
                await self._released.wait()
            if not self.silent:
                writer.write(frame)

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        while (frame := await _frame(reader)) is not None:
            (number,) = struct.unpack_from(">i", frame, 4)
            if number in lost:
                self._caught.set()
                return
            if not self.silent:
                writer.write(frame)


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """A request or reply with its size in front; None at the end."""
    try:
        size = await reader.readexactly(4)
        return size + await reader.readexactly(struct.unpack(">i", size)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
