"""Records that are sent outside of handlers: acknowledged, each by itself, and part of no transaction.

They say nothing of where they came from, so nobody takes them for outputs. The connection and its appender are their
own, so that what is lost there disturbs nobody else; while the application runs on the loop of whoever sends they are
kept, else they are opened for each record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count

from ..brokers.partitioner import Partitioner, checked
from ..brokers.protocol import Broker, BrokerError, NotAuthorized, TopicDescription, TransactionRefused
from ..brokers.waiting import Patience, bounded, closed_within, fatal_of, until_answered
from ..errors import OutputRefused, SendUnknown
from .engine.destinations import Destinations, describe_output
from .handlers.context import Output
from .handlers.handler import Handler, codec_of_topic
from .handlers.outputs import build_sent
from .logs.topics import reserved_topics
from .settings import Settings


class _Way:
    """To a broker: what is known of its topics, nothing at first, and what writes to them.

    ``is_ours``: the broker is closed with it.
    """

    def __init__(self, known: Destinations, *, is_ours: bool) -> None:
        self.known, self.is_ours = known, is_ours
        self.broker, self.appender = known.broker, known.broker.appender()

    async def close(self, limit_ms: int | None = None) -> None:
        """Let go of it; bounded in time, by ``close_timeout_ms`` unless it is said."""
        limit_ms = self.known.settings.close_timeout_ms if limit_ms is None else limit_ms
        closed = self.broker if self.is_ours else self.appender
        await closed_within(limit_ms, closed.close(), "closing what sends", excused=BrokerError)


class Sending:
    """Of one application. ``make``: by its role a broker that is not open, and whether it is to be closed."""

    def __init__(
        self,
        app: str,
        handlers: Mapping[str, Handler],
        settings: Settings,
        partitioners: Mapping[str, Partitioner],
        make: Callable[[str], tuple[Broker, bool]],
    ) -> None:
        self.app, self.handlers, self.settings, self.make = app, handlers, settings, make
        self._placed = {topic: checked(partitioner, topic) for topic, partitioner in partitioners.items()}
        self._turns = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: _Way | None = None
        self._opening = asyncio.Lock()

    async def send(self, output: Output) -> None:
        """Write one record. Raises OutputRefused, SendUnknown, and a FatalError when there is no broker."""
        async with self._connected() as way:
            await self._send_on(way, output)

    async def send_over(self, broker: Broker, output: Output) -> None:
        """The same on a broker that is open, and stays so."""
        way = self._way(broker, is_ours=False)
        try:
            await self._send_on(way, output)
        finally:
            await way.close()

    async def _send_on(self, way: _Way, output: Output) -> None:
        topic, known = str(output.topic), way.known
        if topic not in known.known:
            await self._learn(known, topic)
        record = build_sent(output, topic, codec_of_topic(topic, self.handlers), known.known[topic], next(self._turns))
        try:
            await bounded(way.appender.append([record]), self.settings.call_limit_ms, f"sending to {topic}")
        except TransactionRefused as error:
            known.known.pop(topic, None)  # it may be another topic now
            raise OutputRefused(f"{topic!r} refuses the record: {error}") from error
        except NotAuthorized as error:
            raise fatal_of(error) from error
        except BrokerError as error:
            raise SendUnknown(
                f"whether the record for {topic!r} was written is not known: {error}. Look for it in the topic, or "
                "send it again if it may be there twice"
            ) from error

    def _way(self, broker: Broker, *, is_ours: bool) -> _Way:
        stateful = [topic for topic, handler in self.handlers.items() if handler.stores]
        reserved = reserved_topics(self.app, stateful)
        return _Way(Destinations(broker, self.settings, reserved, self._placed), is_ours=is_ours)

    def keep(self) -> None:
        """The application runs on this loop: keep the connection until ``close``."""
        self._loop, self._opening = asyncio.get_running_loop(), asyncio.Lock()

    async def close(self, limit_ms: int | None = None) -> None:
        """Let go of the connection; bounded in time, as ``_Way.close`` is."""
        kept, self._kept, self._loop = self._kept, None, None
        self._opening = asyncio.Lock()  # who stands at the old one, or opens, finds another one here
        if kept is not None:
            await kept.close(limit_ms)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Way]:
        way, is_kept = await self._opened()
        try:
            yield way
        finally:
            if not is_kept:
                await way.close()

    async def _opened(self) -> tuple[_Way, bool]:
        """A connection, and whether ``close`` will end it: not where the run ended while it was being opened."""
        if self._loop is not asyncio.get_running_loop():
            return await self._open(), False
        opening = self._opening
        async with opening:
            if self._kept is not None and self._opening is opening:
                return self._kept, True
            way = await self._open()
            if self._opening is not opening:
                return way, False
            self._kept = way
            return way, True

    async def _open(self) -> _Way:
        broker, is_ours = self.make("send")
        way = self._way(broker, is_ours=is_ours)
        try:
            await bounded(broker.open(), self.settings.call_limit_ms, "connecting to send")
        except BrokerError as error:
            await way.close()
            raise fatal_of(error) from error
        return way

    async def _learn(self, known: Destinations, topic: str) -> None:
        if topic in known.reserved:
            raise OutputRefused(f"topic {topic!r} is a log of this application: nothing is sent to it")
        patience = Patience(self.settings.broker_retry_ms, f"looking up {topic}")
        try:
            found = await until_answered(lambda: _described(known.broker, topic), patience)
        except BrokerError as error:
            raise fatal_of(error) from error
        if topic not in found:
            raise OutputRefused(
                f"topic {topic!r} does not exist, and nothing was sent. `keylanes topics MODULE:APP --partitions N "
                "--create` makes the topics of an application"
            )
        known.learn(found[topic])


async def _described(broker: Broker, topic: str) -> dict[str, TopicDescription]:
    """What a broker says of a topic; raises AccessRefused at once: whoever sends hears of it, and can send again."""
    try:
        return await describe_output(broker, topic)
    except NotAuthorized as error:
        raise fatal_of(error) from error
