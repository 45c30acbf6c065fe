"""The application as users write it: declare handlers, then run the application."""

import asyncio
import logging
import os
import platform
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from ..brokers.partitioner import Partitioner
from ..brokers.protocol import Broker, Headers
from ..errors import EXIT_ABORTED, KeylanesError, SettingsError, StateNotReady
from ..keyrange.ranges import KeyRange
from .app_runs import AppRuns
from .block import Block
from .build_info import IS_COMPILED
from .connect import SCHEMES, connect
from .declared_partitioners import partitioners_of
from .declared_start import StartFrom, start_of
from .handler_watch import HandlerWatch
from .handlers.acceptances import check_accepted
from .handlers.context import Record
from .handlers.functions import codes_of
from .handlers.handler import (
    PARALLELISING_FACTOR,
    DeadLetter,
    Handler,
    Retry,
    Stop,
    Timestamps,
    check_beside,
    check_called,
    check_declared,
    check_topic_name,
    declare,
)
from .handlers.store_declarations import check_store
from .handlers.values import Codec
from .member import AppRun
from .membership.offer import Origin
from .process import check_loop, run_in_own_loop
from .processes.child import SIBLING
from .processes.parent import Processes, count_of, run_processes
from .run_log import log_fatal
from .sender import Sender
from .settings import Settings
from .shutdown import ENDED, StopBudget
from .stop_signals import obey
from .stores.view import DeclaredStore, StoreView
from .testing import PARTITIONS, Call, SimulatedApp
from .watch.statistics import Health, Statistics
from .watch.steps import Step, ignore_step
from .watch.watchdog import LoopWatch

logger = logging.getLogger("keylanes")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
OnFatal = Callable[[BaseException], None]

BROKER_VARIABLE = "KEYLANES_BROKER"

AT_WORK = ("starting", "running", "stopping")
"""The states of a run that has not ended."""


class App:
    """A named application on a broker.

    ``name`` is part of the names of the application's logs: under another name the application processes everything
    again. ``broker`` is ``kafka://host:port``, ``embedded:folder`` or a Broker object; None: the value of
    ``KEYLANES_BROKER``. Without both the application can be tested, and does not run. The application opens a Broker
    object, and the caller closes the object. ``on_fatal`` is called with the error that ends a run. ``partitioners``:
    the partitioner of each topic not written by murmur2; outputs, dead letters and sources alike.
    ``accept_moved_keys``: topics with state to start although keys lie where fewer partitions put them
    (docs/partitioners.md). ``accept_outputs_of_others``: topics, written and read by this application, that may hold
    outputs of another application with the same sources (docs/process-again.md). Raises SettingsError.
    """

    def __init__(
        self,
        name: str,
        *,
        broker: str | Broker | None = None,
        settings: Settings | None = None,
        on_fatal: OnFatal | None = None,
        partitioners: Mapping[str, Partitioner] | None = None,
        accept_moved_keys: Iterable[str] = (),
        accept_outputs_of_others: Iterable[str] = (),
    ) -> None:
        if not __debug__:
            raise SettingsError(
                "keylanes does not run under python -O: guards against broken rules are assertions, without "
                "them something wrong could be committed"
            )
        check_topic_name(f"{name}.control", f"application name {name!r}")
        self.name = name
        self.broker: str | Broker | None = (os.environ.get(BROKER_VARIABLE) or None) if broker is None else broker
        self.settings = settings or Settings()
        self.on_fatal = on_fatal
        self.handlers: dict[str, Handler] = {}
        self.partitioners = partitioners_of(partitioners)
        self.accepts = check_accepted(moved_keys=accept_moved_keys, outputs_of_others=accept_outputs_of_others)
        if isinstance(self.broker, str):
            connect(self.broker, self.settings, name)  # no I/O: raises at once for a wrong address
        self._sender = self._new_sender()
        self._member: AppRun | None = None
        self._runs: AppRuns | None = None
        self._call: Call = _as_it_is
        """How a call gets to the loop of the run; anything but ``_as_it_is``: the application is under test."""
        self._watch: LoopWatch | HandlerWatch | None = None
        self._block: Block | None = None

    # --- declaring -------------------------------------------------------------------------------------------------

    def handler(
        self,
        topic: str,
        *,
        to: str | None = None,
        sends: Sequence[str] = (),
        parallelising_factor: int = PARALLELISING_FACTOR,
        retry: Retry | None = None,
        on_failure: DeadLetter | Stop | None = None,
        codec: Codec | None = None,
        max_in_flight: int | None = None,
        timeout_ms: int | None = None,
        start: StartFrom = "earliest",
        rate_per_s: float | None = None,
        own_task: bool = False,
        timestamps: Timestamps = "record",
    ) -> Callable[[F], F]:
        """Declare the handler of a topic's records: ``f(value)`` or ``f(value, ctx)``, and stores behind the value.

        An ``async def`` handler runs on the event loop, a ``def`` handler on a thread. The value is decoded to its
        annotation. A returned value goes to ``to`` with the record's key; return a ``Record``, or a list, to set
        another key or topic. ``sends`` are the topics of ``Record`` and ``Context.send``: keylanes makes the topics of
        ``to`` and ``sends`` at the start; other topics have to exist. ``parallelising_factor`` is the number of workers
        per partition: more than rate x handler time. Without ``on_failure`` a record that fails for good stops the
        application. Raises SettingsError.

        At most ``max_in_flight`` records of the handler run at once in this process, over all partitions; the others
        wait, and the clock of a waiting record does not run. At most ``rate_per_s`` attempts begin in a second, over
        all processes of the application (docs/placement.md). ``timeout_ms`` bounds an attempt, in place of the setting
        ``handler_timeout_ms``. ``start``: where the first start begins: "earliest", "latest", a datetime, or
        "group:NAME" (docs/migration.md). ``own_task``: each attempt runs in an ``asyncio.Task`` of its own, for
        libraries that keep values by task (docs/mistakes.md); a task costs some microseconds a record. ``timestamps``:
        an output without a timestamp gets the record's ("record"), or the time of sending ("now", docs/bad-input.md).
        """
        check_called(topic)

        def register(function: F) -> F:
            declared = declare(
                function,
                topic,
                to=to,
                sends=sends,
                parallelising_factor=parallelising_factor,
                retry=retry,
                on_failure=on_failure,
                codec=codec,
                max_in_flight=max_in_flight,
                timeout_ms=timeout_ms,
                start=start_of(start, topic),
                rate_per_s=rate_per_s,
                own_task=own_task,
                timestamps=timestamps,
            )
            check_beside(declared, self.handlers.values())
            self.handlers[topic] = declared
            return function

        return register

    # --- running ---------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until: Literal["level"] | None = None,
        processes: Processes = 1,
        on_step: Callable[[Step], None] = ignore_step,
    ) -> None:
        """Run until SIGTERM or SIGINT; with ``until="level"`` also until the current ends of the topics are reached.

        The first signal stops in order, and ``run`` returns; the second signal hurries the stop, see ``stop``; the
        third aborts. With ``until="level"`` the run waits for each released range until its next grant, too; when
        nothing else is left, the wait is logged. A fatal error is logged CRITICAL and raises SystemExit with an exit
        code of errors.py. ``on_step`` is called with each step of the commit cycle. ``run`` assumes a process of its
        own: garbage collection runs less often, and glibc keeps more freed memory.

        ``processes``: the number of processes for the work, or "cores": a process on each core. This process starts
        the others and runs no handler: each other process runs the program from the beginning, up to its own ``run``
        and beyond. With ``group_instance_id`` the processes are named ``<group_instance_id>-1`` and so on.
        """
        if until not in (None, "level"):
            raise SettingsError(f"until is 'level' or None; seen {until!r}")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("app.run() has a loop of its own; inside a running one it is `async with app:`")
        if SIBLING is not None:
            SIBLING.number_log_lines()
        elif count_of(processes) > 1:
            check_declared(self.name, self.handlers)
            run_processes(self.name, self.broker, self.settings, processes, until_level=until == "level")
            return
        try:
            run_in_own_loop(self._run_with_signals(until_level=until == "level", on_step=on_step), self._stop_left_s)
        except KeylanesError as error:
            if SIBLING is not None:
                SIBLING.tell_end(error)
            if self._member is None or self._member.cause is not error:
                logger.critical("%s does not start: %s", self.name, error)
            raise SystemExit(getattr(error, "exit_code", 1)) from error
        except asyncio.CancelledError:
            raise SystemExit(EXIT_ABORTED) from None

    async def __aenter__(self) -> Self:
        """Start inside a service: returns when the first records may be handled. No signal handlers are installed.

        A fatal error cancels the body of the ``async with``, and is raised at its end, as by asyncio.TaskGroup.
        """
        loop = asyncio.get_running_loop()
        runs = self._begin(ignore_step)
        running = loop.create_task(self._run(runs, until_level=False))
        try:
            await runs.wait_until_started(running)
        except asyncio.CancelledError:  # Python calls no __aexit__ for a block that was not entered
            running.cancel()
            await asyncio.wait([running])
            raise
        self._block = Block(running)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order; raises the fatal error that ended the run, if any."""
        assert self._block is not None, "__aenter__ has set the block"
        self.stop()
        await self._block.wait_for_end()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order: work on until others have copies of the state, ``leave_ms`` at most, drain for
        ``drain_timeout_ms`` at most, commit, leave the group, close. ``at_once``, also in a second call: wait neither
        for other processes nor for handlers.
        """
        if self._runs is not None:
            self._runs.stop(at_once=at_once)

    async def _run_with_signals(self, *, until_level: bool, on_step: Callable[[Step], None]) -> None:
        main = asyncio.current_task()
        assert main is not None, "a coroutine runs in a task"
        obey(self.name, self.stop, lambda: self.stop(at_once=True), main.cancel)
        await self._run(self._begin(on_step), until_level=until_level)

    def _begin(self, on_step: Callable[[Step], None]) -> AppRuns:
        check_declared(self.name, self.handlers)
        check_loop(asyncio.get_running_loop())
        if self._state in AT_WORK:
            raise SettingsError(f"application {self.name!r} runs already in this process")
        self._runs = AppRuns(
            lambda: self._make_member(on_step), lambda member: self._adopt(member, _as_it_is), self.settings
        )
        return self._runs

    async def _run(self, runs: AppRuns, *, until_level: bool) -> None:
        codes = {code: one.name for one in self.handlers.values() if one.is_async for code in codes_of(one.function)}
        self._watch = watch = LoopWatch(self.settings.limits.loop_lag_ms, codes)
        watching = asyncio.get_running_loop().create_task(watch.run())
        try:
            await runs.run(until_level=until_level)
        except Exception as error:
            log_fatal(self.name, error, self.on_fatal)
            raise
        finally:
            watching.cancel()
            await self._sender.close(int(self._stop_left_s(asyncio.get_running_loop().time()) * 1000))

    def _stop_left_s(self, now_s: float) -> float:
        """The seconds that the stop may still take, by the loop's time."""
        return (StopBudget(self.settings) if self._runs is None else self._runs.budget).left_s(ENDED, now_s)

    def _make_broker(self, role: str = "") -> tuple[Broker, bool]:
        """The broker, and whether this application has made, and closes, the broker."""
        if self._call is not _as_it_is:
            if self._member is None:
                raise KeylanesError(f"application {self.name!r} is under test and does not run: restart() it first")
            return self._member.broker, False
        if self.broker is None:
            raise SettingsError(
                f"application {self.name!r} has no broker: seen broker=None, and {BROKER_VARIABLE} is not set; a "
                f"broker's address is {SCHEMES}: give App(broker=…), or set {BROKER_VARIABLE}"
            )
        if isinstance(self.broker, str):
            return connect(self.broker, self.settings, self.name, role, self._broker_in_use()), True
        return self.broker, False

    def _broker_in_use(self) -> Broker | None:
        """The broker that the run, or else ``send``, has in use on this loop."""
        runs = self._runs
        if runs is not None and self._state in AT_WORK and runs.loop is asyncio.get_running_loop():
            return runs.member.broker
        return self._sender.broker

    def _make_member(self, on_step: Callable[[Step], None]) -> AppRun:
        broker, is_ours = self._make_broker()
        birth, settings = os.urandom(8).hex(), self.settings
        if SIBLING is not None:
            SIBLING.tell_birth(birth)
            settings = SIBLING.settings(settings)
        return AppRun(
            self.name,
            list(self.handlers.values()),
            broker,
            settings,
            birth=birth,
            wall_ms=lambda: int(time.time() * 1000),
            on_step=on_step,
            closes_broker=is_ours,
            cpu_s=time.thread_time,
            now_s=time.monotonic,
            partitioners=self.partitioners,
            address=self.broker if isinstance(self.broker, str) else None,
            origin=Origin(platform.node(), 0 if SIBLING is None else SIBLING.count),
            accepts=self.accepts,
        )

    # --- sending ---------------------------------------------------------------------------------------------------

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
        """Write a record outside of handlers; returns when the record is acknowledged. ``value`` None is a tombstone.

        The codec of the topic's reading handler encodes the value (else the codec of a writing handler, else JSON).
        The topic's partitioner gives the key its partition; without a key partitions take turns. ``timestamp`` is in
        ms since the epoch. The record belongs to no transaction and carries no provenance header, as source records
        do. A handler returns its outputs or uses ``Context.send`` instead: with this call outputs may be doubled.

        Calls may be made side by side: records of a partition are written in the order of the calls. Beyond
        ``send_bytes_max`` a call waits; a call cancelled while waiting is not sent. Raises OutputRefused for a record
        that can't be written, and for a missing topic; SendUnknown when the answer is lost: the record may be written
        or not; AccessRefused when an ACL is missing; BrokerUnavailable, StoreError without a broker.
        """
        check_topic_name(topic, "send: topic")
        output = Record(value, topic=topic, key=key, partition=partition, headers=tuple(headers), timestamp=timestamp)
        await self._call(self._sender.send(output))

    async def send_many(self, topic: str, records: Iterable[Record]) -> None:
        """Write records, as ``Record(value, key=…)``, in their order; returns when each record has its outcome. Reads
        an iterator only as far as there is room. Raises the first error, as ``send`` does; all other records are tried.
        """
        check_topic_name(topic, "send_many: topic")
        await self._call(self._sender.send_many(topic, records))

    async def close(self) -> None:
        """Close the connection of ``send`` on this loop, once all calls have their outcome, within
        ``close_timeout_ms``. The end of a run closes the connection, too. The next ``send`` opens a new connection.
        """
        await self._call(self._sender.close())

    def _new_sender(self) -> Sender:
        return Sender(
            app=self.name,
            handlers=self.handlers,
            settings=self.settings,
            partitioners=self.partitioners,
            make=self._make_broker,
        )

    # --- looking ---------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Whether the application may stay in service; ``cause`` says why not."""
        member, state = self._member, self._state
        stalled = member is not None and member.run_watch.stall.is_stalled
        # While the process joins again, ``cause`` is still the cause that ended the run before.
        failure = None if member is None or state == "starting" else member.cause
        cause = str(failure) if failure else ("records wait and nothing moves" if stalled else None)
        is_good = state in AT_WORK and not stalled
        return Health(state, is_good, cause, self._lag_ms())

    def statistics(self) -> Statistics:
        """The state of the run, with lag and failures; all zero before the first run."""
        return Statistics(is_compiled=IS_COMPILED) if self._member is None else self._member.statistics(self._lag_ms())

    @overload
    def store(self, name: str) -> StoreView[Any]: ...
    @overload
    def store(self, name: str, kind: type[T]) -> StoreView[T]: ...
    @overload
    def store(self, name: str, kind: Any) -> StoreView[Any]: ...
    def store(self, name: str, kind: Any = None) -> StoreView[Any]:
        """A view of a handler's store that reads committed state.

        ``kind`` is the declared type of the store's values, for type checkers. Raises SettingsError for an unknown
        name, and for a type of another shape.
        """
        check_store(self.name, [store for handler in self.handlers.values() for store in handler.stores], name, kind)

        def find() -> DeclaredStore:
            if self._member is None:
                raise StateNotReady(f"store {name!r} can't be read: the application does not run")
            return self._member.keeper.queries.find(name)

        return StoreView(name, find)

    # --- changing who works on what ----------------------------------------------------------------------------------

    async def split(self, topic: str, partition: int, at: int) -> None:
        """Split the worker that owns point ``at``; the second half begins at ``at``. Returns after the commit.

        Handlers go on meanwhile. Raises ValueError when no split is possible, CancelledError when the run ends first.
        """
        await self._call(self._running_member().work.requests.split((topic, partition), at))

    async def merge(self, topic: str, partition: int, within: KeyRange) -> None:
        """Merge the workers of a key range into a single worker. Returns after the commit.

        The workers wait for each other for a second at most. Raises as ``split`` does.
        """
        await self._call(self._running_member().work.requests.merge((topic, partition), within))

    async def release(self, topic: str, partition: int, within: KeyRange) -> None:
        """Ask to move a key range of a source partition from this process to another process of the application. The
        range comes back when no other process can have the range.

        Returns when the running records of the range are done and committed, and the range is given up. Cancelling the
        call does not undo the request. Raises as ``split`` does.
        """
        await self._call(self._running_member().work.requests.release((topic, partition), within))

    async def grant(self, topic: str, partition: int, within: KeyRange) -> None:
        """Ask to move a key range of a source partition to this process, from any owner. Returns when the range's
        state is whole here and its workers run. Raises as ``split`` does.
        """
        await self._call(self._running_member().work.requests.grant((topic, partition), within))

    def _running_member(self) -> AppRun:
        if self._member is None or self._state != "running":
            raise ValueError(f"application {self.name!r} does not run: it is {self._state}")
        return self._member

    @property
    def _state(self) -> str:
        if self._runs is not None and self._runs.is_coming_back:
            return "starting"
        return "idle" if self._member is None else self._member.state

    def _lag_ms(self) -> float:
        return 0.0 if self._watch is None else self._watch.lag_max_s * 1000

    # --- testing ---------------------------------------------------------------------------------------------------

    def test(self, *, seed: int = 0, partitions: int | Mapping[str, int] = PARTITIONS) -> SimulatedApp:
        """Run this application on a simulated broker in virtual time: no Kafka, no Java, the real engine.

        ``async with app.test(seed=7) as broker``: ``send``, ``read``, ``crash``, ``restart``, ``advance``.
        ``partitions``: the number of partitions of each topic, 2 by default; ``{"orders": 8}`` names topics, and also
        makes topics that no handler declares. Raises SettingsError.

        Time is virtual and waits for nothing real: a handler that asks the loop for a socket, a host name or a process
        ends the test with NotSimulated; give it a fake client. ``def`` handlers run in turn. A blocking call in a
        handler blocks the test; real sockets work there, and no virtual time passes meanwhile.
        """
        check_declared(self.name, self.handlers)
        self._watch = watch = HandlerWatch(self.settings.limits.loop_lag_ms)
        return SimulatedApp(
            name=self.name,
            handlers=self.handlers,
            settings=self.settings,
            adopt=self._adopt,
            watch=watch,
            seed=seed,
            partitioners=self.partitioners,
            partitions=partitions,
        )

    def _adopt(self, member: AppRun | None, call: Call | None) -> None:
        """Let calls of the application go to ``member``; ``call`` carries them to the run's loop (None: no test)."""
        self._member, self._call = member, call or _as_it_is
        if call is not _as_it_is:  # a test has begun, or (None) has ended: the broker has changed
            self._sender = self._new_sender()


async def _as_it_is(work: Coroutine[Any, Any, None]) -> None:
    """Await the work: the run is on the caller's loop."""
    await work
