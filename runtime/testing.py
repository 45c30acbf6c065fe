"""An application on a simulated broker in virtual time: the real engine, no Kafka, no Java, no waiting.

The engine runs on a seeded loop and a thread of its own, only while a call of the test is awaited: a test may use any
loop, and the same seed gives the same run.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar, overload

from ..brokers.options import near
from ..brokers.partitioner import Partitioner
from ..brokers.protocol import Headers, TopicPartition
from ..brokers.simulated.broker import EPOCH_MS, CommittedRecord, SimulatedBroker, SimulatedConnection
from ..brokers.simulated.virtual_loop import VirtualLoop
from ..errors import KeylanesError, SettingsError
from ..state.memory import MemoryCopies
from .handler_watch import HandlerWatch
from .handlers.context import Output
from .handlers.handler import Handler, check_topic_name, codec_of_topic
from .handlers.values import value_decoder
from .logs.reader import signals_topic
from .logs.topics import destinations_of, reserved_topics
from .member import AppRun
from .sender import Sender
from .settings import Settings
from .watch.steps import ignore_step

logger = logging.getLogger("keylanes")

T = TypeVar("T")

Call: TypeAlias = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
"""Carries out a request to a run on the loop of the run."""

PARTITIONS = 2
PARTITIONS_MAX = 1_000
UNDECODED: Final = object()
SETTLE_LIMIT_S = 3_600.0
SETTLE_STEP_S = 0.05
REST_S: Final = 10.0
"""An application is at rest when its logs have not grown for this time. Skipped rounds begin again this time before the
next timer of another kind.
"""
REST_LOOK_S: Final = 0.37
"""The time between two looks for rest: no multiple of a round's time, or each look would meet the rounds at work."""


class SimulatedApp:
    """A test's means to drive its application: ``async with app.test(seed=…) as broker``.

    The topics are the topics that handlers declare, and the topics in ``partitions`` of ``app.test``; ``send``,
    ``read``, ``records`` and ``visible`` raise KeylanesError for any other topic. ``read``, or the end of the block,
    raises the error that stopped the application; a use of something real (NotSimulated) is raised also when a handler
    has caught the error. The test logs an async handler that blocks the event loop, and a value of a store that is
    changed in place and not put (docs/mistakes.md).
    """

    # ``handlers``: by topic. ``adopt`` is called with the run that answers for the application (None: no run), and with
    # the function that carries a request to the run's loop. ``partitions``: of each topic, or by topic; a topic without
    # a number has two.
    def __init__(
        self,
        name: str,
        handlers: Mapping[str, Handler],
        settings: Settings,
        adopt: Callable[[AppRun | None, Call | None], None],
        watch: HandlerWatch,
        seed: int,
        partitioners: Mapping[str, Partitioner],
        partitions: int | Mapping[str, int] = PARTITIONS,
    ) -> None:
        self.name = name
        self.handlers = handlers
        self.settings = settings
        self.adopt = adopt
        self.seed = seed
        self.watch = watch
        self.partitioners = partitioners
        self._partitions, self._partitions_else = _check_partitions(partitions)
        self._sending = Sender(
            app=name,
            handlers=handlers,
            settings=settings,
            partitioners=partitioners,
            make=lambda name: (self._cluster.connect(name), True),
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keylanes-simulation")
        self._crashes = 0
        self._ends: dict[TopicPartition, int] = {}
        self._next_look_s = self._still_since_s = 0.0
        """When to look next, and since when the logs have had their present ends."""
        self._raised: BaseException | None = None
        """The error that a call of the test has raised: the end of the block does not raise the error again."""

    # --- the calls of a test ---------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Write a record, as a producer of the source would; ``value`` None is a tombstone.

        The record is encoded, finds its partition, and raises errors as by ``App.send``.
        """
        output = Output(
            value=value, topic=topic, key=key, partition=partition, headers=tuple(headers), timestamp=timestamp
        )
        await self._call(self._send(topic, output))

    @overload
    async def read(self, topic: str) -> list[bytes]: ...
    @overload
    async def read(self, topic: str, kind: type[T]) -> list[T]: ...
    @overload
    async def read(self, topic: str, kind: Any) -> list[Any]: ...
    async def read(self, topic: str, kind: Any = UNDECODED) -> list[Any]:
        """The values of a topic, once all sent records are processed; in order per partition.

        The codec of the topic's reading handler decodes the values to ``kind``, else the codec of a handler that writes
        results or dead letters to the topic, else JSON; without ``kind`` the values are undecoded bytes. A tombstone is
        None. Raises the error that stopped the application, if any.
        """
        if kind is UNDECODED:
            return [record.value for record in await self.records(topic)]
        wanted = kind | None if isinstance(kind, type) else kind
        decode = value_decoder(wanted, codec_of_topic(topic, self.handlers), f"read({topic!r})")
        return [decode(record.value) for record in await self.records(topic)]

    async def records(self, topic: str) -> list[CommittedRecord]:
        """The records of a topic, once all sent records are processed."""
        await self._call(self._settle())
        return await self._call(self._committed_records(topic))

    async def visible(self, topic: str) -> list[CommittedRecord]:
        """The records of a topic that a committed reader sees now, without waiting for anything."""
        return await self._call(self._committed_records(topic))

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass: a day of an idle application takes a second or two.

        While no record waits, runs or is to be tried again, and nothing is moved, copied, restored or paused, the test
        leaves out the rounds of the application (beats, polls, looks), and the clocks go on to the next timer of any
        other kind.
        """
        await self._call(self._advance(seconds))

    async def crash(self) -> None:
        """Kill the application's process (-9): nothing that the process does from here on has an effect."""
        await self._call(self._crash())

    async def restart(self) -> None:
        """Start the application again; returns when the application works."""
        await self._call(self._start())

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._make)
        try:
            await self._call(self._start())
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            ended_by = await self._call(self._stop())
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._loop.close)
            self._thread.shutdown()
            self.adopt(None, None)
        if ended_by is not None and error is None:
            raise ended_by

    # --- on the virtual loop ---------------------------------------------------------------------------------------

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work on the virtual loop, in the thread of the simulation."""
        loop = asyncio.get_running_loop()
        run = copy_context().run  # handlers see the variables of the test
        return await loop.run_in_executor(self._thread, run, self._loop.run_until_complete, work)

    async def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work on the virtual loop. The caller is on a test's loop, or in a handler on the virtual loop."""
        if asyncio.get_running_loop() is self._loop:
            await work
        else:
            await self._call(work)

    def _make(self) -> None:
        self._loop = VirtualLoop(self.seed)
        self._copies = MemoryCopies()
        self._cluster = SimulatedBroker(self.seed, auto_create=True, partitions_default=self._partitions_else)
        handlers = list(self.handlers.values())
        for topic in dict.fromkeys([*(h.topic for h in handlers), *destinations_of(handlers), *self._partitions]):
            self._create(topic)
        for handler in handlers:  # the group of start="group:…" is committed at offset 0, in front of all sent records
            if handler.start.group is not None:
                known = self._cluster.state.groups.get(handler.start.group)
                own = {TopicPartition(handler.topic, partition): 0 for partition in self._create(handler.topic)}
                self._cluster.set_group(handler.start.group, {**(known.offsets if known else {}), **own})
        self._member: AppRun | None = None

    async def _start(self) -> None:
        if self._member is not None:
            raise KeylanesError("the application runs already: crash() it first")
        self._connection: SimulatedConnection = self._cluster.connect(f"{self.name}-{self._crashes}")
        loop = asyncio.get_running_loop()
        self._member = AppRun(
            self.name,
            [self.watch.watched_handler(handler) for handler in self.handlers.values()],
            self._connection,
            self.settings,
            birth=f"seed{self.seed}-{self._crashes}",
            wall_ms=lambda: EPOCH_MS + int(loop.time() * 1000),
            cpu_s=lambda: 0.0,
            now_s=loop.time,
            on_step=ignore_step,
            open_copies=lambda _: self._copies,
            partitioners=self.partitioners,
        )
        self.adopt(self._member, self._on_loop)
        self._run = loop.create_task(self._member.run())
        try:
            await self._member.wait_until_started(self._run)
        except BaseException:
            self._forget_member()
            raise

    async def _stop(self) -> BaseException | None:
        """Stop in order; returns the error that had stopped the application, unless a call has raised the error."""
        error: BaseException | None = None
        await self._sending.close()
        if self._member is not None:
            self._member.stop()
            self._forget_member()
            await asyncio.wait([self._run])
            error = None if self._run.cancelled() else self._run.exception()
        error = self._loop.refused or error
        return None if error is self._raised else error

    async def _crash(self) -> None:
        if self._member is None:
            raise KeylanesError("the application does not run: restart() it first")
        with _silent():
            self._connection.sever()
            self._run.cancel()
            await asyncio.wait([self._run])
        if not self._run.cancelled():
            self._run.exception()
        self._forget_member()
        self._crashes += 1

    def _forget_member(self) -> None:
        self._member = None
        self.adopt(None, self._on_loop)

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in range(self._cluster.topics()[topic].partitions)]

    def _create(self, topic: str) -> range:
        """Make a topic unless the topic exists; returns its partitions."""
        self._cluster.create_topic(topic, self._partitions.get(topic, self._partitions_else))
        return range(self._cluster.topics()[topic].partitions)

    async def _send(self, topic: str, output: Output) -> None:
        self._check_known(topic)
        await self._sending.send(output)

    async def _committed_records(self, topic: str) -> list[CommittedRecord]:
        self._check_known(topic)
        return self._cluster.committed_records(topic)

    def _check_known(self, topic: str) -> None:
        """Raises KeylanesError for an unknown topic: a test with a wrong name would find nothing, and pass."""
        made = self._cluster.topics()
        if topic in made:
            return
        logs = reserved_topics(self.name, [name for name, handler in self.handlers.items() if handler.stores])
        known = sorted(made.keys() - logs)
        meant = near(topic, known)
        raise KeylanesError(
            "app.test(): the topics of a test are those that handlers declare, "
            f"{', '.join(known)}; seen {topic!r}{f' (did you mean {meant}?)' if meant else ''}: correct the name, or "
            f'name the topic in app.test(partitions={{"{topic}": {PARTITIONS}}})'
        )

    async def _advance(self, seconds: float) -> None:
        self._loop.before_waiting = self._skip_rounds
        try:
            await asyncio.sleep(seconds)
        finally:
            self._loop.before_waiting = None

    def _skip_rounds(self) -> None:
        """Leave out rounds once only signals were written for ``REST_S``, and the application has nothing to do."""
        now_s = self._loop.time()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + REST_LOOK_S
        signals = signals_topic(self.name)
        places = [place for topic in self._cluster.topics() if topic != signals for place in self._places(topic)]
        ends = {place: self._cluster.watermarks(place).high for place in places}
        if ends != self._ends:
            self._ends, self._still_since_s = ends, now_s
        if now_s - self._still_since_s < REST_S:
            return
        member = self._member
        is_at_rest = member is None or (self._is_processed(member) and member.is_at_rest())
        if is_at_rest and self._loop.skip_rests(REST_S) and member is not None:
            # The reads of the control log were left out, too. The log has not grown: the view is as new as the clock.
            member.group.control_tail.has_read(member.group.control_tail.moment())

    def _is_processed(self, member: AppRun) -> bool:
        """Whether everything in the sources is committed."""
        sources = [place for topic in self.handlers for place in self._places(topic)]
        ends = {source: self._cluster.watermarks(source).high for source in sources}
        edges, frontier = member.work.holding.edges(), member.own_ledger.ledger.frontier
        return all(min(edges.get(source, end), frontier(source)) >= end for source, end in ends.items())

    async def _settle(self) -> None:
        """Wait until everything in the sources is committed; raises the error that stopped the application."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_LIMIT_S
        while loop.time() < until:
            if self._member is None:
                raise KeylanesError("the application does not run: restart() it first")
            if self._loop.refused is not None:
                self._raised = self._loop.refused
                if self._member.error is not None:  # the run is on the way to its end
                    await asyncio.wait([self._run])
                raise self._loop.refused
            if self._run.done():
                self._raised = self._run.exception()
                await self._run
            if self._is_processed(self._member):
                return
            await asyncio.sleep(SETTLE_STEP_S)
        raise TimeoutError(f"not everything was processed within {SETTLE_LIMIT_S:.0f} s of virtual time")


@contextmanager
def _silent() -> Iterator[None]:
    """Drop the log lines of the killed process: no other code runs on this thread."""
    thread = get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _check_partitions(partitions: int | Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The numbers of partitions: by topic, and of all other topics. Raises SettingsError."""
    by_topic = dict(partitions) if isinstance(partitions, Mapping) else {}
    others = PARTITIONS if isinstance(partitions, Mapping) else partitions
    for topic, count in [*by_topic.items(), (None, others)]:
        if topic is not None:
            check_topic_name(topic, "app.test(): partitions")
        if type(count) is not int or not 1 <= count <= PARTITIONS_MAX:
            where = "" if topic is None else f" of {topic!r}"
            raise SettingsError(
                f"app.test(): the partitions{where} are a whole number from 1 to {PARTITIONS_MAX}; seen {count!r}: "
                'write partitions=8 for all topics, or partitions={"orders": 8} for some'
            )
    return by_topic, others
