"""Records that are sent outside of handlers: acknowledged, each by itself, and part of no transaction.

The records carry no provenance header: nobody takes them for outputs. Sending has a connection and an appender of its
own: a lost connection there disturbs nothing else.

Records go in batches. While a batch of a partition is under way, further calls for the partition wait in the order of
their arrival, and go together in the next batch. A batch with an unknown outcome fails its own calls; only then the
calls behind are sent.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..brokers.partitioner import Partitioner, check_partitioner
from ..brokers.protocol import (
    AuthenticationRefused,
    Broker,
    BrokerError,
    NotAuthorized,
    Outgoing,
    TopicDescription,
    TopicPartition,
    TransactionRefused,
)
from ..brokers.waiting import Patience, closed_within, fatal_of, within_limit
from ..errors import KeylanesError, OutputRefused, SendUnknown
from .engine.destinations import Destinations, describe_output, description_of
from .handlers.context import Output
from .handlers.handler import Handler, codec_of_topic
from .handlers.outputs import build_sent
from .logs.topics import reserved_topics
from .settings import Settings

IDLE_MS_MAX: Final = 300_000
"""A connection idle for this time is replaced: brokers, and proxies before them, drop idle connections silently."""

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 1_000_000

STRETCH_RECORDS: Final = 100
"""How many records are handed over, or encoded, before other tasks have their turn at the loop."""


class _Call:
    """A record that is to be sent, and the outcome. ``record``: the encoded record, once the call has room."""

    __slots__ = ("outcome", "output", "queue", "record", "size", "way")

    def __init__(self, way: "_Way", output: Output, queue: "_Queue") -> None:
        self.way = way
        self.output = output
        self.queue = queue
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.record: Outgoing | None = None
        self.size = 0

    def succeed(self) -> None:
        """Note that the record was written."""
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, error: Exception) -> None:
        """Note that the record was not written, or may not be written; the error says which."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # a caller cancelled at this moment never retrieves the error

    def leave(self) -> None:
        """Take the call out, because its caller waits no more: a record not yet under way is not sent."""
        self.outcome.cancel()
        if self in self.queue:
            del self.queue[self]
            self.way.take(-self.size)


_Queue = OrderedDict[_Call, None]
"""Calls in their order; a call may leave from any place."""


class Sending:
    """The sending of an application. ``make``: by its role an unopened broker, and whether to close the broker here."""

    def __init__(
        self,
        app: str,
        handlers: Mapping[str, Handler],
        settings: Settings,
        partitioners: Mapping[str, Partitioner],
        make: Callable[[str], tuple[Broker, bool]],
    ) -> None:
        self.app = app
        self.handlers = handlers
        self.settings = settings
        self.make = make
        self.placed = {topic: check_partitioner(partitioner, topic) for topic, partitioner in partitioners.items()}
        self.turns = count()
        self._ways: dict[asyncio.AbstractEventLoop, _Way] = {}

    async def send(self, output: Output) -> None:
        """Write a record. Raises OutputRefused, SendUnknown, and a FatalError without a broker."""
        call = self._way().enter(output)
        try:
            await call.outcome
        finally:
            call.leave()

    async def send_many(self, topic: str, records: Iterable[Output]) -> None:
        """Write records of a topic; returns when each record has its outcome. Raises the error of the first failed
        record, as ``send`` does; the other records are tried all the same.
        """
        calls = deque[_Call]()
        failure: BaseException | None = None
        last: BaseException | None = None
        try:
            try:
                for number, output in enumerate(_outputs(topic, records)):
                    calls.append(call := self._way().enter(output))
                    if number % STRETCH_RECORDS == STRETCH_RECORDS - 1:
                        await asyncio.sleep(0)
                        if call.record is None:  # the call has no room, nor have others
                            await asyncio.wait([call.outcome])
                        while calls and calls[0].outcome.done():
                            error = calls.popleft().outcome.exception()
                            failure = failure or error
            except Exception as error:  # noqa: BLE001  # the records in front of the wrong record are on their way
                last = error
            for call in calls:
                await asyncio.wait([call.outcome])
                failure = failure or call.outcome.exception()
        finally:
            for call in calls:
                call.leave()
        if failure := failure or last:
            raise failure

    async def close(self, limit_ms: int | None = None) -> None:
        """Let the calls under way on this loop end, then drop the connection, within ``limit_ms`` (None:
        ``close_timeout_ms``). Calls without an outcome by then fail.
        """
        way = self._ways.get(asyncio.get_running_loop())
        if way is not None:
            await way.close(self.settings.close_timeout_ms if limit_ms is None else limit_ms)

    @property
    def broker(self) -> Broker | None:
        """The broker in use on this loop, if any."""
        way = self._ways.get(asyncio.get_running_loop())
        return way.broker if way is not None and way.is_usable else None

    def _way(self) -> "_Way":
        loop = asyncio.get_running_loop()
        way = self._ways.get(loop)
        if way is None or not way.is_usable:
            for ended in [other for other in list(self._ways) if other.is_closed()]:
                del self._ways[ended]
            way = self._ways[loop] = _Way(self, way)
        return way


class _Way:
    """An application's connection on an event loop, and the calls over the connection. ``before``: the replaced
    connection. The new connection closes ``before`` first: thus calls keep their order.

    A call waits for the connection and for the description of its topic, then for room, then for its partition.
    """

    def __init__(self, sending: Sending, before: "_Way | None") -> None:
        self._sending = sending
        self._settings = sending.settings
        self._before = before
        self.broker, self._is_ours = sending.make("send")
        stateful = [topic for topic, handler in sending.handlers.items() if handler.stores]
        reserved = reserved_topics(sending.app, stateful)
        self._known = Destinations(self.broker, sending.settings, reserved, sending.placed)
        self._appender = self.broker.appender()
        self._loop = asyncio.get_running_loop()
        self._connection = self._connected()
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[str, _Queue] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._flows: dict[TopicPartition, _Queue] = {}
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._used_s = self._loop.time()
        self._is_over = self._is_closing = False
        self._ended = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        """Whether calls may enter: the connection has not failed, is not being closed, and was not idle for long."""
        is_idle = not self._tasks and self._loop.time() - self._used_s >= IDLE_MS_MAX / 1000
        return not (self._is_over or is_idle)

    # --- calls -------------------------------------------------------------------------------------------------------

    def enter(self, output: Output) -> _Call:
        """Add a call behind all other calls of its topic."""
        topic = str(output.topic)
        self._used_s = self._loop.time()
        queue = self._waiting.get(topic)
        call = _Call(self, output, OrderedDict() if queue is None else queue)
        call.queue[call] = None
        if queue is None:
            self._waiting[topic] = call.queue
            self._start(self._admit(topic, call.queue))
        return call

    async def _admit(self, topic: str, queue: _Queue) -> None:
        """Hand the calls of a topic on to their partitions, as room allows."""
        try:
            await self._opened()
            while queue:
                if topic not in self._known.known:
                    await self._learn(topic)
                await self._room.wait()
                self._build(topic, queue)
                await asyncio.sleep(0)  # other tasks have their turn
        except Exception as error:  # noqa: BLE001  # errors of a folder that can't be opened, too
            _fail(queue, error, None)
        del self._waiting[topic]

    def _build(self, topic: str, queue: _Queue) -> None:
        """Encode the next calls; each call joins the queue of its partition."""
        destination, codec = self._known.known.get(topic), codec_of_topic(topic, self._sending.handlers)
        for _ in range(min(len(queue), STRETCH_RECORDS)):
            if destination is None or not self._room.is_set():
                return
            call, _ = queue.popitem(last=False)
            try:
                call.record, call.size = build_sent(call.output, topic, codec, destination, next(self._sending.turns))
            except Exception as error:  # noqa: BLE001  # the caller hears of any mistake in the record
                call.fail(error)
            else:
                self.take(call.size)
                self._join(call, TopicPartition(topic, call.record.partition))

    def _join(self, call: _Call, place: TopicPartition) -> None:
        flow = self._flows.get(place)
        call.queue = OrderedDict() if flow is None else flow
        call.queue[call] = None
        if flow is None:
            self._flows[place] = call.queue
            self._start(self._run(place, call.queue))

    def take(self, size: int) -> None:
        """Add ``size`` bytes, or a negative number, to the bytes that wait for their answer."""
        self._bytes += size
        if self._bytes < self._settings.send_bytes_max:
            self._room.set()
        else:
            self._room.clear()

    # --- a partition -------------------------------------------------------------------------------------------------

    async def _run(self, place: TopicPartition, flow: _Queue) -> None:
        """Send the calls of a partition batch by batch until no call is left."""
        await asyncio.sleep(0)  # calls of this turn of the loop go together
        while flow:
            batch, size = list[_Call](), 0
            while flow and len(batch) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX:
                call, _ = flow.popitem(last=False)
                size += call.size
                if not call.outcome.done():  # else the call is about to leave
                    batch.append(call)
            try:
                await self._send(place, batch)
            finally:
                self.take(-size)
                self._used_s = self._loop.time()
        del self._flows[place]

    async def _send(self, place: TopicPartition, batch: Sequence[_Call]) -> None:
        """Send a batch; then each call of the batch has its outcome."""
        topic, records = place.topic, [call.record for call in batch if call.record is not None]
        try:
            await within_limit(self._appender.append(records), self._settings.call_limit_ms, f"sending to {topic}")
        except TransactionRefused as error:
            await self._isolate(place, batch, error)
        except (NotAuthorized, AuthenticationRefused) as error:
            _fail(batch, fatal_of(error), error)
        except (BrokerError, asyncio.CancelledError) as error:
            why = str(error) or "it was closed before the answer came"
            unknown = SendUnknown(
                f"whether the record for {topic!r} was written is not known: {why}. Look for it in the topic, or "
                "send it again if it may be there twice"
            )
            _fail(batch, unknown, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception as error:  # noqa: BLE001  # the callers also hear of a failed store of the embedded broker
            _fail(batch, error, None)
        else:
            for call in batch:
                call.succeed()

    async def _isolate(self, place: TopicPartition, batch: Sequence[_Call], error: TransactionRefused) -> None:
        """Send the calls of a refused batch apart, in their order: a few wrong records refuse the whole batch."""
        topic, first, end = place.topic, min(error.culprits), max(error.culprits) + 1
        for call in batch[:first]:
            call.succeed()
        refused, behind = batch[first:end], batch[end:]
        self._known.known.pop(topic, None)  # the name may belong to another topic now
        if len(refused) > 1:
            try:
                await self._learn(topic)
            except KeylanesError as gone:
                _fail(batch, gone, error)
                return
        if len(refused) == 1 or place.partition >= self._known.known[topic].partitions:
            _fail(refused, OutputRefused(f"{topic!r} refuses the record: {error}"), error)
            refused = ()
        middle = len(refused) // 2
        for part in (refused[:middle], refused[middle:], behind):
            if part:
                await self._send(place, part)

    # --- the connection ----------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _opened(self) -> None:
        """Connect, once for all topics."""
        if self._opening is None:
            self._opening = self._start(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        try:
            if self._before is not None:
                await self._before.close(self._settings.close_timeout_ms)
                self._before = None
            await anext(self._connection)
        except BaseException:
            self._is_over = True
            raise

    async def _connected(self) -> AsyncGenerator[None, None]:
        """Open the connection, and close it with this generator. A loop such as that of ``asyncio.run`` closes its
        generators at its end: nothing stays open behind a program that does not close the application.
        """
        try:
            await within_limit(self.broker.open(), self._settings.call_limit_ms, "connecting to send")
            yield
        except BrokerError as error:
            raise fatal_of(error) from error
        finally:
            closed = self.broker if self._is_ours else self._appender
            await closed_within(
                self._settings.close_timeout_ms, closed.close(), "closing what sends", excused=BrokerError
            )

    async def close(self, limit_ms: int) -> None:
        """Let the calls under way end, then drop the connection; a second call waits for the first one."""
        if self._is_closing:
            await self._ended.wait()
            return
        self._is_over = self._is_closing = True
        until_s = self._loop.time() + limit_ms / 1000
        try:
            while self._tasks and (left_s := until_s - self._loop.time()) > 0:
                await asyncio.wait(self._tasks, timeout=left_s)
        finally:
            try:
                await self._let_go(until_s)
            finally:
                self._ended.set()

    async def _let_go(self, until_s: float) -> None:
        for task in self._tasks:
            task.cancel()
        ending = asyncio.gather(*self._tasks, return_exceptions=True)
        await closed_within(self._left_ms(until_s), ending, "ending what is sent")
        unsent = KeylanesError("the record was not sent: the application was closed. Send it again where it is wanted")
        for queue in (*self._waiting.values(), *self._flows.values()):
            _fail(queue, unsent, None)
        await closed_within(self._left_ms(until_s), self._connection.aclose(), "closing what sends")

    def _left_ms(self, until_s: float) -> int:
        return max(0, int((until_s - self._loop.time()) * 1000))

    async def _learn(self, topic: str) -> None:
        known = self._known
        if topic in known.reserved:
            raise OutputRefused(f"topic {topic!r} is a log of this application: nothing is sent to it")
        patience = Patience(self._settings.broker_retry_ms, f"looking up {topic}")
        try:
            found = await description_of(lambda: _describe_topic(known.broker, topic), topic, patience)
        except BrokerError as error:
            raise fatal_of(error) from error
        if found is None:
            raise OutputRefused(
                f"topic {topic!r} does not exist, and nothing was sent. `keylanes topics MODULE:APP --partitions N "
                "--create` makes the topics of an application"
            )
        known.learn(found)


def _fail(calls: Iterable[_Call], error: Exception, cause: BaseException | None) -> None:
    error.__cause__ = error.__cause__ if cause is None else cause
    for call in calls:
        call.fail(error)


def _outputs(topic: str, records: Iterable[Output]) -> Iterator[Output]:
    for number, record in enumerate(records, 1):
        given: Any = record
        if not isinstance(given, Output):
            raise OutputRefused(
                f"send_many sends Records; seen {type(given).__name__} as record {number}: give Record(value, key=…)"
            )
        if given.topic not in (None, topic):
            raise OutputRefused(
                f"send_many to {topic!r}: record {number} names the topic {given.topic!r}: leave it out"
            )
        yield msgspec.structs.replace(given, topic=topic, key=None if given.key is UNSET else given.key)


async def _describe_topic(broker: Broker, topic: str) -> dict[str, TopicDescription]:
    """A broker's description of a topic. Raises AccessRefused at once: the caller can send again."""
    try:
        return await describe_output(broker, topic)
    except NotAuthorized as error:
        raise fatal_of(error) from error
