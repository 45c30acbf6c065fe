"""A proxy between a Kafka client and its broker that loses, cuts, delays or holds requests and replies.

It knows where a message begins and ends and which kind it is. Faults are told (``arm``), or come by themselves at a
rate (``Weather``); ``met`` counts what really happened, when it has: a request that was held for the next transaction
and came there only because all was let go is not counted.
"""

import asyncio
import contextlib
import errno
import random
import struct
from collections import Counter
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any

PRODUCE, FETCH, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 1, 22, 24, 26
TRANSACTIONAL = frozenset({PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN})
"""The kinds that a transaction consists of: where a fault matters most."""
PORT_S_MAX = 60.0
"""So long the test of another process may have the port."""


class Fault(Enum):
    """What happens to a request, or to the reply to it."""

    LOSE_REQUEST = auto()  # the connection breaks, the broker never sees the request
    LOSE_REPLY = auto()  # the broker carries it out, the connection breaks before the reply
    CUT_REQUEST = auto()  # half of it arrives, then the connection breaks
    CUT_REPLY = auto()  # half of the reply arrives, then the connection breaks
    DELAY_REQUEST = auto()  # it and all behind it wait in the network for a while
    DELAY_REPLY = auto()
    SILENCE = auto()  # from this request on nothing passes on this connection, which stays open
    HOLD_REQUEST = auto()  # it waits in the network until ``release``, even if its sender has left
    HOLD_TO_NEXT = auto()  # the same, until the next transaction of the same transactional id has begun


class Weather:
    """Faults by themselves: each request meets one with a chance of ``rate``, a tenth of that outside transactions."""

    USUAL = (
        Fault.LOSE_REQUEST,
        Fault.LOSE_REPLY,
        Fault.CUT_REQUEST,
        Fault.CUT_REPLY,
        Fault.DELAY_REQUEST,
        Fault.DELAY_REPLY,
    )

    def __init__(self, seed: object, rate: float, delay_s_max: float = 0.5) -> None:
        self._chance = random.Random(f"weather {seed}")
        self._rate, self._delay_s_max = rate, delay_s_max

    def draw(self, kind: int) -> Fault | None:
        """What the next request of this kind meets."""
        if self._chance.random() >= self._rate * (1 if kind in TRANSACTIONAL else 0.1):
            return None
        if kind == END_TXN and self._chance.random() < 0.3:
            return Fault.HOLD_TO_NEXT
        return Fault.SILENCE if self._chance.random() < 0.05 else self._chance.choice(self.USUAL)

    def delay_s(self) -> float:
        """How long something is late."""
        return self._chance.uniform(0, self._delay_s_max)


class Proxy:
    """Forwards ``port`` (0: any that is free) to ``target``, which may change. ``weather`` None: only what was armed
    happens.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self._armed: dict[int, Fault] = {}
        self._caught = asyncio.Event()
        self._released = asyncio.Event()
        self._begun: dict[str, list[asyncio.Future[bool]]] = {}
        """By transactional id: whom to tell when its next transaction has begun; False when all is let go before."""
        self._unanswered: set[asyncio.Future[None]] = set()
        """Of the requests that are or were held: each is done with the broker's reply, or when there can be none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.silent = False
        self.weather: Weather | None = None
        self.met: Counter[Fault] = Counter()
        self.seen: Counter[int] = Counter()
        """Requests by kind."""

    async def start(self) -> None:
        """Listen, as soon as no other process does: a broker names one port for its proxy."""
        async with asyncio.timeout(PORT_S_MAX):
            while self._server is None:
                try:
                    self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    await asyncio.sleep(0.05)
        self.port = self._server.sockets[0].getsockname()[1]

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
        self._armed[kind] = fault

    async def caught(self) -> None:
        """Wait until the fault has happened."""
        await self._caught.wait()

    def release(self) -> None:
        """Let the held requests go on."""
        self._released.set()
        for transactional_id in list(self._begun):
            self._let_go(transactional_id, has_begun=False)

    async def answered(self) -> None:
        """Wait until all that was held is let go, and the broker has carried it out, or can't any more."""
        if self._unanswered:
            await asyncio.wait(self._unanswered)

    def heal(self) -> None:
        """No faults from here on; what is held goes on."""
        self.weather = None
        self._armed.clear()
        self.release()

    def begun(self, transactional_id: str) -> None:
        """A transaction of this id has begun: what was held of the one before goes on."""
        self._let_go(transactional_id, has_begun=True)

    def _let_go(self, transactional_id: str, *, has_begun: bool) -> None:
        for held in self._begun.pop(transactional_id, ()):
            if not held.done():
                held.set_result(has_begun)

    async def hold(self, frame: bytes, fault: Fault) -> bool:
        """Keep a request back until it is released, or the next transaction of its sender has begun; whether it is what
        the fault says that ended the wait.
        """
        self._caught.set()
        if fault is Fault.HOLD_REQUEST:
            await self._released.wait()
            return True
        held: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._begun.setdefault(_transactional_id(frame), []).append(held)
        return await held

    def expect(self) -> asyncio.Future[None]:
        """A request is held: to be done with its reply."""
        answer = asyncio.get_running_loop().create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return answer

    def meet(self, kind: int) -> Fault | None:
        """The fault of the next request of a kind."""
        self.seen[kind] += 1
        fault = self._armed.pop(kind, None)
        if fault is None and self.weather is not None:
            fault = self.weather.draw(kind)
        return fault

    async def late(self, fault: Fault) -> None:
        """Something is late."""
        self.happened(fault)
        await asyncio.sleep(self.weather.delay_s() if self.weather is not None else 0.5)

    def happened(self, fault: Fault) -> None:
        """A fault has happened: counted, and told."""
        self.met[fault] += 1
        self._caught.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that ``close`` ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # the broker is not there: neither are we
            writer.close()
            return
        connection = _Connection(self)
        up = self.spawn(connection.requests(reader, broker_writer))
        down = self.spawn(connection.replies(broker_reader, writer))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            writer.close()
            await asyncio.wait([up])  # a held request reaches the broker although its sender has left
        finally:
            for task in (up, down):
                task.cancel()
            for one in (writer, broker_writer):
                one.close()


class _Connection:
    """One connection of a client: which of its replies meet a fault, and which end the wait of a held request."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._faults: dict[int, Fault] = {}
        self._begins: dict[int, str] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        """By number: the replies to requests that were held."""
        self._is_silent = False
        self._is_over = False
        """The broker has left."""

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the client to the broker, to the end or the first break."""
        proxy = self._proxy
        while (frame := await _frame(reader)) is not None:
            kind, _version, number = struct.unpack_from(">hhi", frame, 4)
            fault = proxy.meet(kind)
            if kind == ADD_PARTITIONS:
                self._begins[number] = _transactional_id(frame)
            if fault is Fault.LOSE_REQUEST:
                proxy.happened(fault)
                break
            if fault is Fault.CUT_REQUEST:
                await _write(writer, frame[: len(frame) // 2])
                proxy.happened(fault)
                break
            if fault is Fault.SILENCE:
                self._is_silent = True
                proxy.happened(fault)
            if fault in (Fault.HOLD_REQUEST, Fault.HOLD_TO_NEXT):
                await self._hold(number, frame, fault, writer)
                continue
            if fault is Fault.DELAY_REQUEST:
                await proxy.late(fault)
            elif fault in (Fault.LOSE_REPLY, Fault.CUT_REPLY, Fault.DELAY_REPLY):
                self._faults[number] = fault
            if not (proxy.silent or self._is_silent):
                await _write(writer, frame)
        if self._answers:  # the sender of what was held may have left, but the broker shall carry it out
            await asyncio.wait([*self._answers.values()])

    async def _hold(self, number: int, frame: bytes, fault: Fault, writer: asyncio.StreamWriter) -> None:
        """Pass a request on when it may go."""
        proxy, answer = self._proxy, self._proxy.expect()
        is_so = await proxy.hold(frame, fault)
        passes = not (proxy.silent or self._is_silent)
        if passes and not self._is_over:
            self._answers[number] = answer
        else:
            answer.set_result(None)
        if passes and await _write(writer, frame) and is_so:
            proxy.happened(fault)

    async def replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the broker to the client, to the end or the first break."""
        proxy = self._proxy
        while (frame := await _frame(reader)) is not None:
            (number,) = struct.unpack_from(">i", frame, 4)
            transactional_id = self._begins.pop(number, None)
            if transactional_id is not None and _code_of_added(frame) == 0:
                proxy.begun(transactional_id)
            if (answer := self._answers.pop(number, None)) is not None:
                answer.set_result(None)
            fault = self._faults.pop(number, None)
            if fault is Fault.LOSE_REPLY:
                proxy.happened(fault)
                break
            if fault is Fault.CUT_REPLY:
                await _write(writer, frame[: len(frame) // 2])
                proxy.happened(fault)
                break
            if fault is Fault.DELAY_REPLY:
                await proxy.late(fault)
            if not (proxy.silent or self._is_silent):
                await _write(writer, frame)
        self._is_over = True
        for answer in self._answers.values():
            answer.set_result(None)
        self._answers.clear()


def _transactional_id(frame: bytes) -> str:
    """That of an AddPartitionsToTxn or EndTxn request, version 0: the first field behind the client's name."""
    (client,) = struct.unpack_from(">h", frame, 12)
    at = 14 + max(client, 0)
    (size,) = struct.unpack_from(">h", frame, at)
    return frame[at + 2 : at + 2 + size].decode()


def _code_of_added(frame: bytes) -> int:
    """The first partition's error code in the reply to AddPartitionsToTxn, version 0: 0 when it is in a transaction."""
    (topic,) = struct.unpack_from(">h", frame, 16)
    (code,) = struct.unpack_from(">h", frame, 18 + topic + 8)
    return int(code)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> bool:
    """As far as the other side takes it: it may have left. Whether it has taken it."""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        return True
    return False


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """A request or reply with its size in front; None at the end."""
    try:
        size = await reader.readexactly(4)
        return size + await reader.readexactly(struct.unpack(">i", size)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
