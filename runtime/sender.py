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
from ..brokers.patience import Patience, close_within, fatal_of, within_limit
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

TURN_RECORDS: Final = 100
"""How many records are handed over, or encoded, in one turn of the loop."""


class _Call:
    """A record that is to be sent, and the outcome. ``record``: the encoded record, once the call has room."""

    __slots__ = ("channel", "outcome", "output", "queue", "record", "size")

    def __init__(self, channel: "_Channel", output: Output, queue: "_Queue") -> None:
        self.channel = channel
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
        """Take the call out of its queue, because its caller waits no more: a record not yet under way is not sent."""
        self.outcome.cancel()
        if self in self.queue:
            del self.queue[self]
            self.channel.add_bytes(-self.size)


_Queue = OrderedDict[_Call, None]
"""Calls in their order; a call may leave from any place."""


class Sender:
    """The sending of an application. ``make``: called with the role of the connection; returns an unopened broker, and
    whether to close the broker here.
    """

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
        """Counts the records. By the count, records without a key take turns among the partitions."""
        self._channels: dict[asyncio.AbstractEventLoop, _Channel] = {}

    async def send(self, output: Output) -> None:
        """Write a record. Raises OutputRefused, SendUnknown, and a FatalError without a broker."""
        call = self._channel().enter(output)
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
        mistake: BaseException | None = None
        try:
            try:
                for number, output in enumerate(_outputs(topic, records)):
                    calls.append(call := self._channel().enter(output))
                    if number % TURN_RECORDS == TURN_RECORDS - 1:
                        await asyncio.sleep(0)
                        if call.record is None:  # no room: read no further record before this one has its outcome
                            await asyncio.wait([call.outcome])
                        while calls and calls[0].outcome.done():
                            error = calls.popleft().outcome.exception()
                            failure = failure or error
            except Exception as error:  # noqa: BLE001  # the records in front of the wrong record are on their way
                mistake = error
            for call in calls:
                await asyncio.wait([call.outcome])
                failure = failure or call.outcome.exception()
        finally:
            for call in calls:
                call.leave()
        if first_error := failure or mistake:
            raise first_error

    async def close(self, limit_ms: int | None = None) -> None:
        """Let the calls under way on this loop end, then drop the connection, within ``limit_ms`` (None:
        ``close_timeout_ms``). Calls without an outcome by then fail.
        """
        channel = self._channels.get(asyncio.get_running_loop())
        if channel is not None:
            await channel.close(self.settings.close_timeout_ms if limit_ms is None else limit_ms)

    @property
    def broker(self) -> Broker | None:
        """The broker in use on this loop, if any."""
        channel = self._channels.get(asyncio.get_running_loop())
        return channel.broker if channel is not None and channel.is_usable else None

    def _channel(self) -> "_Channel":
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None or not channel.is_usable:
            for ended in [other for other in list(self._channels) if other.is_closed()]:
                del self._channels[ended]
            channel = self._channels[loop] = _Channel(self, channel)
        return channel


class _Channel:
    """The connection of an application on an event loop, and the calls over the connection. ``before``: the replaced
    channel. The new channel closes ``before`` first: thus calls keep their order.

    A call waits for the connection and for the description of its topic, then for room, then for its partition.
    """

    def __init__(self, sender: Sender, before: "_Channel | None") -> None:
        self._sender = sender
        self._settings = sender.settings
        self._before = before
        self.broker, self._is_ours = sender.make("send")
        stateful = [topic for topic, handler in sender.handlers.items() if handler.stores]
        reserved = reserved_topics(sender.app, stateful)
        self._destinations = Destinations(self.broker, sender.settings, reserved, sender.placed)
        self._appender = self.broker.appender()
        self._loop = asyncio.get_running_loop()
        self._connection = self._hold_open()
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[str, _Queue] = {}
        """By topic, the calls that are not encoded yet."""
        self._room = asyncio.Event()
        """Set while fewer than ``send_bytes_max`` bytes wait for their answer."""
        self._room.set()
        self._flows: dict[TopicPartition, _Queue] = {}
        """By partition, the encoded calls that are not under way yet."""
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._used_s = self._loop.time()
        self._is_over = self._is_closing = False
        """Whether further calls need a new channel; whether ``close`` was called."""
        self._ended = asyncio.Event()
        """Set at the end of ``close``."""

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
            await self._wait_until_open()
            while queue:
                if topic not in self._destinations.known:
                    await self._learn(topic)
                await self._room.wait()
                self._build(topic, queue)
                await asyncio.sleep(0)  # other tasks have their turn
        except Exception as error:  # noqa: BLE001  # errors of a folder that can't be opened, too
            _fail(queue, error, None)
        del self._waiting[topic]

    def _build(self, topic: str, queue: _Queue) -> None:
        """Encode the next calls; each call joins the queue of its partition."""
        destination, codec = self._destinations.known.get(topic), codec_of_topic(topic, self._sender.handlers)
        for _ in range(min(len(queue), TURN_RECORDS)):
            if destination is None or not self._room.is_set():
                return
            call, _ = queue.popitem(last=False)
            try:
                call.record, call.size = build_sent(call.output, topic, codec, destination, next(self._sender.turns))
            except Exception as error:  # noqa: BLE001  # the caller hears of any mistake in the record
                call.fail(error)
            else:
                self.add_bytes(call.size)
                self._join(call, TopicPartition(topic, call.record.partition))

    def _join(self, call: _Call, place: TopicPartition) -> None:
        """Add an encoded call behind all other calls of its partition."""
        flow = self._flows.get(place)
        call.queue = OrderedDict() if flow is None else flow
        call.queue[call] = None
        if flow is None:
            self._flows[place] = call.queue
            self._start(self._send_batches(place, call.queue))

    def add_bytes(self, size: int) -> None:
        """Add ``size`` bytes to the bytes that wait for their answer; a negative ``size`` takes bytes away."""
        self._bytes += size
        if self._bytes < self._settings.send_bytes_max:
            self._room.set()
        else:
            self._room.clear()

    # --- a partition -------------------------------------------------------------------------------------------------

    async def _send_batches(self, place: TopicPartition, flow: _Queue) -> None:
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
                self.add_bytes(-size)
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
        """Send the calls of a refused batch apart, in their order: a few wrong records refuse the whole batch. The
        calls from the first culprit to the last culprit are halved until each wrong record is alone.
        """
        topic, first, end = place.topic, min(error.culprits), max(error.culprits) + 1
        for call in batch[:first]:  # the broker has written all records in front of the first culprit
            call.succeed()
        refused, behind = batch[first:end], batch[end:]
        self._destinations.known.pop(topic, None)  # the name may belong to another topic now
        if len(refused) > 1:
            try:
                await self._learn(topic)
            except KeylanesError as lookup_error:
                _fail(batch, lookup_error, error)
                return
        if len(refused) == 1 or place.partition >= self._destinations.known[topic].partitions:
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

    async def _wait_until_open(self) -> None:
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

    async def _hold_open(self) -> AsyncGenerator[None, None]:
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
            await close_within(
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
        """Fail the calls without an outcome, and drop the connection."""
        for task in self._tasks:
            task.cancel()
        ending = asyncio.gather(*self._tasks, return_exceptions=True)
        await close_within(self._left_ms(until_s), ending, "ending what is sent")
        unsent = KeylanesError("the record was not sent: the application was closed. Send it again where it is wanted")
        for queue in (*self._waiting.values(), *self._flows.values()):
            _fail(queue, unsent, None)
        await close_within(self._left_ms(until_s), self._connection.aclose(), "closing what sends")

    def _left_ms(self, until_s: float) -> int:
        return max(0, int((until_s - self._loop.time()) * 1000))

    async def _learn(self, topic: str) -> None:
        """Look a topic up for the calls. Raises OutputRefused for a missing topic, and for a log of ours."""
        destinations = self._destinations
        if topic in destinations.reserved:
            raise OutputRefused(f"topic {topic!r} is a log of this application: nothing is sent to it")
        patience = Patience(self._settings.broker_retry_ms, f"looking up {topic}")
        try:
            found = await description_of(lambda: _describe_topic(destinations.broker, topic), topic, patience)
        except BrokerError as error:
            raise fatal_of(error) from error
        if found is None:
            raise OutputRefused(
                f"topic {topic!r} does not exist, and nothing was sent. `keylanes topics MODULE:APP --partitions N "
                "--create` makes the topics of an application"
            )
        destinations.learn(found)


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
