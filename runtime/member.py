"""One process at work: connects, joins its group, works on what it is granted, and stops in order.

The host of the pure heart. It owns every task; an error in any of them ends the run and comes out of it.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from ..brokers.partitioner import Partitioner, check_partitioner
from ..brokers.patience import close_within, fatal_of, rest, within_limit
from ..brokers.protocol import (
    Broker,
    BrokerError,
    BrokerProducer,
    ConsumerRecord,
    CorruptRecord,
    TopicDescription,
    TopicPartition,
)
from ..errors import InvariantBroken, LogError, SourceError, StateError, shortage_in
from ..group.member import NextSteps, next_steps
from ..offsets.ledger import SourcePartition
from ..state.overlay import OverlayEntry
from ..state.restore import Writers
from .build_info import IS_COMPILED
from .ends_watch import CatchUpProgress, EndsWatch
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.commit_alarm import CommitAlarm, Releases
from .engine.destinations import Destinations
from .engine.old_records import OldRecords
from .engine.partition_run import PartitionRun
from .engine.range_changes import RangeChanges
from .engine.readers import CatchUp, MainReader
from .engine.slots import Slots
from .engine.transaction import Transactions
from .engine.windows import Windows
from .handlers.acceptances import NOTHING, Accepted, topics_in_loop
from .handlers.handler import Handler
from .holding import Holding
from .load_report import LoadReport
from .logs.own_ledger import Expelled, Identity, OwnLedger
from .logs.reader import LogReader, offsets_topic
from .logs.rights import prepare_with_rights
from .logs.snapshots import Snapshots
from .logs.topics import destinations_of, reserved_topics
from .membership.first_look import FirstLook
from .membership.group import Group
from .membership.offer import SOMEWHERE, Origin, offer_of
from .membership.patience import StartPatience
from .requests import Requests
from .run_log import RunLog
from .run_watch import RunWatch
from .settings import Settings
from .shutdown import BROKER_CLOSED, CONNECTIONS_CLOSED, COPIES_CLOSED, TASKS_ENDED, TOLD, Shutdown
from .stores.keeper import Keeper, OpenCopies, open_state_folder
from .watch.foreign_outputs import ForeignOutputs
from .watch.statistics import RunningRecord, Statistics
from .watch.steps import Step
from .work import Work

logger = logging.getLogger("keylanes")

WATCH_INTERVAL_MS = 100

NO_PARTITIONERS: Final[Mapping[str, Partitioner]] = MappingProxyType({})
RunState: TypeAlias = Literal["starting", "running", "stopping", "stopped", "failed"]


def unheard(step: Step) -> None:
    """Nobody listens to the steps of the commit cycle."""


class AppRun:
    """One run of an application. ``birth`` is text that no other run of a process ever had. ``decide``: the next steps
    of this member; ``now_s``: the time of the loop that the run is on, also for calls from other threads.
    """

    def __init__(
        self,
        app: str,
        handlers: Sequence[Handler],
        broker: Broker,
        settings: Settings,
        *,
        birth: str,
        wall_ms: Callable[[], int],
        on_step: Callable[[Step], None] = unheard,
        decide: NextSteps = next_steps,
        closes_broker: bool = True,
        open_copies: OpenCopies | None = None,
        cpu_s: Callable[[], float] = lambda: 0.0,
        now_s: Callable[[], float] = time.monotonic,
        partitioners: Mapping[str, Partitioner] = NO_PARTITIONERS,
        address: str | None = None,
        origin: Origin = SOMEWHERE,
        accepts: Accepted = NOTHING,
    ) -> None:
        self.app, self.handlers, self.broker, self.settings = app, handlers, broker, settings
        self.wall_ms, self.cpu_s, self.on_step, self.closes_broker = wall_ms, cpu_s, on_step, closes_broker
        self.now_s, self.origin, self.accepts = now_s, origin, accepts
        self.state: RunState = "starting"
        self.cause: Exception | None = None
        """The error that ended the run."""
        self.logs = LogReader(app, broker, settings)
        self.identity = Identity(app, birth, broker, self.logs, settings, settings.group_instance_id or "")
        self.own_ledger = OwnLedger(self.identity)
        self.patience = StartPatience(settings.start_timeout_ms)
        placed = {topic: check_partitioner(partitioner, topic) for topic, partitioner in partitioners.items()}
        reserved = reserved_topics(app, [handler.topic for handler in handlers if handler.stores])
        self.destinations = Destinations(broker, settings, reserved, placed)
        self.alarm = CommitAlarm(Releases(settings.limits.merge_hold_ms), broker.throttling.writing)
        self.slots = Slots(self.destinations, settings, self.fail, self.alarm, cpu_s=cpu_s, now_s=now_s)
        opens = open_copies or open_state_folder(app, settings, birth)
        self.keeper = Keeper(app, broker, settings, handlers, wall_ms, opens, partitioners)
        self.run_log = RunLog(app, address or type(broker).__name__, settings, lambda: self.statistics(0.0))
        self.group = Group(
            own_ledger=self.own_ledger,
            stores=self.keeper.wanted,
            on_control_read=self._note_control_read,
            set_rate=self.slots.turns.set_rate,
            wall_ms=wall_ms,
            now_s=now_s,
            is_alone=broker.is_alone,
        )
        self.keeper.group = self.group.view()
        by_topic = {handler.topic: handler for handler in handlers}
        self.foreign_outputs = ForeignOutputs(
            topics_in_loop(handlers, accepts), by_topic, lambda: self.own_ledger.app_id
        )
        self.range_changes = RangeChanges([], self.slots, self.alarm.releases, settings)
        self.holding = Holding(
            own_ledger=self.own_ledger,
            member_signals=self.group.member_signals,
            sources=self.group.sources,
            handlers=by_topic,
            keeper=self.keeper,
            range_changes=self.range_changes,
            alarm=self.alarm,
            readers=self,
            log_ends=self.run_log.log_new_partitions,
            settings=settings,
            on_step=on_step,
            decide=decide,
        )
        self.keeper.learner.tell = self.group.member_signals.tell_copies
        self.keeper.learner.writers = self._read_writers
        self.run_watch = RunWatch(self.slots, self.group.control_tail, self.run_log, settings)
        self._work: Work | None = None
        self.error: BaseException | None = None
        self._damage: BaseException | None = None
        self._catching_up: dict[TopicPartition, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self.shutdown = Shutdown(
            self.group, self.holding, self.slots, self.run_log, self._ended.is_set, lambda: self.error is not None
        )
        self._tasks: list[asyncio.Task[None]] = []

    # --- the run ---------------------------------------------------------------------------------------------------

    async def run(self, *, until_level: bool = False) -> None:
        """Work until ``stop``, or until the ends that were found at the start are reached; raises what ended it."""
        self.slots.variables = contextvars.copy_context()
        clock, how = asyncio.get_running_loop().time, "in order"
        self.run_log.log_start(clock())
        try:
            await self._run(until_level=until_level)
            self.state = "stopped"
        except Exception as error:
            shortage = shortage_in(error)
            self.state, self.cause, how = "failed", shortage or error, f"by {type(shortage or error).__name__}"
            if shortage is not None:
                raise shortage from error
            raise
        except BaseException:
            self.state, how = "stopped", "at once, without draining"
            raise
        finally:
            self.run_log.log_end(how, clock())

    async def _run(self, *, until_level: bool) -> None:
        try:
            if await self._has_started(until_level=until_level):
                self.state = "stopping" if self.shutdown.stop_ordered.is_set() else "running"
                await self._carry_on(self.work, until_level=until_level)
        except Expelled:
            if not self.holding.has_left():  # else what it still sent was of nothing that it holds
                raise
        except (LogError, SourceError, StateError) as error:
            if self.identity.incarnation is not None and not self.holding.has_left():
                await self._end_tasks()  # or records would be begun and committed while it asks
                await self.shutdown.raise_if_out(error)
            raise
        finally:
            await self._close()

    async def started(self, running: "asyncio.Task[None]") -> None:
        """Wait until it works on what it was granted first. Raises what ended the task of ``run`` before that."""
        ready = asyncio.get_running_loop().create_task(self.is_ready.wait())
        try:
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if running.done():
            await running

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order, see shutdown.py; ``at_once``: wait neither for others nor for handlers."""
        if self.state == "running":
            self.state = "stopping"
        self.shutdown.order_stop(self.now_s(), at_once=at_once)

    def statistics(self, loop_lag_ms_max: float) -> Statistics:
        """Where the run stands. ``loop_lag_ms_max``: what was seen of the loop that it runs on."""
        if self._work is None:
            return Statistics(restoring=self.keeper.restoring, is_compiled=IS_COMPILED)
        seen = self._work.statistics(self.slots, self.now_s())
        restoring, cut_off, rates = self.keeper.restoring, self.run_log.cut_off, self.slots.turns.rates()
        return replace(seen, loop_lag_ms_max=loop_lag_ms_max, restoring=restoring, cut_off=cut_off, rates=rates)

    def oldest_running(self) -> RunningRecord | None:
        """The record that has been running longest. Any thread may ask."""
        return self.slots.oldest_running(self.now_s())

    def is_at_rest(self) -> bool:
        """Whether nothing is moved, copied, restored or waited for by name."""
        return self.keeper.restoring is None and self.holding.is_at_rest() and self.group.is_at_rest()

    @property
    def is_ready(self) -> asyncio.Event:
        """It works on what it was granted first."""
        return self.holding.is_settled

    @property
    def work(self) -> Work:
        """What it works on; raises ValueError before it is in office."""
        if self._work is None:
            raise ValueError(f"application {self.app!r} is still starting")
        return self._work

    @property
    def runs(self) -> Sequence[PartitionRun]:
        """The source partitions that it works on; none before it is in office."""
        return () if self._work is None else self._work.runs

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if isinstance(error, CorruptRecord):
            # What was read in front of it is good: it is committed, so that only what is damaged is left to be mended.
            self._damage = self._damage or fatal_of(error)
        elif self.error is None:
            self.error = shortage_in(error) or (fatal_of(error) if isinstance(error, BrokerError) else error)
        self._ended.set()

    async def _has_started(self, *, until_level: bool) -> bool:
        """Start, within the limit; False when it was told to stop meanwhile."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._start(until_level=until_level))
        stopping = loop.create_task(self.shutdown.stop_ordered.wait())
        ended = loop.create_task(self._ended.wait())
        try:
            await asyncio.wait([starting, stopping, ended], return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None and not starting.done():
                raise self.error
            if not starting.done():
                return False
            await starting
        except BrokerError as error:
            raise fatal_of(error) from error
        finally:
            for task in (starting, stopping, ended):
                task.cancel()
            await asyncio.wait([starting, stopping, ended], timeout=self.shutdown.left_s(TASKS_ENDED))
            if starting.done() and not starting.cancelled():
                starting.exception()  # looked at, so that asyncio does not call it lost
        return True

    async def _start(self, *, until_level: bool) -> None:
        """Find the topics, join, and set up what works; ranges come after that, as they are granted."""
        topics = await self.patience.within(self._prepare())
        offer = offer_of(self.handlers, self.keeper.wanted, self.origin, self.settings, until_level=until_level)
        for task in self.group.tasks():
            self._spawn(task)
        # Who did not leave in order is waited for: the coordinator for a session, and then the member for another one.
        limit_ms = self.settings.start_timeout_ms + 2 * self.settings.session_timeout_ms
        joined = await within_limit(self.group.join(offer), limit_ms, "joining")
        logger.info("%s: joined as incarnation %d", self.app, joined.incarnation)
        producer = await self.patience.within(self._first_producer())
        await within_limit(self._set_up(producer, topics), self.settings.start_timeout_ms, "starting")

    async def _prepare(self) -> dict[str, TopicDescription]:
        """Whatever keeps it from working shall be found before it joins."""
        ask = self.patience.ask
        await ask(self.broker.open)
        topics = await ask(lambda: prepare_with_rights(self.app, self.handlers, self.broker, self.settings))
        await self.keeper.check()
        for name in destinations_of(self.handlers):
            self.destinations.learn(topics[name])
        self.logs.log_partitions = topics[offsets_topic(self.app)].partitions
        sources = [(h.topic, p) for h in self.handlers for p in range(topics[h.topic].partitions)]
        identities = {handler.topic: topics[handler.topic].identity for handler in self.handlers}
        starts = {handler.topic: handler.start for handler in self.handlers}
        unread = await ask(lambda: self.group.check(sources, identities, starts))
        look = FirstLook(self.app, self.own_ledger, self.handlers, self.destinations.partitioners, self.accepts)
        await ask(lambda: look.check(unread, topics))
        return topics

    async def _first_producer(self) -> BrokerProducer:
        """INIT → READ, as each time: who was expelled before it made its first producer works on no old grant."""
        producer = await self.patience.ask(self.identity.make_producer)
        try:
            await self.patience.ask(self.own_ledger.confirm)
            await self.patience.ask(self.own_ledger.read)
        except BaseException:
            await asyncio.shield(close_within(self.settings.close_timeout_ms, producer.close(), "closing a producer"))
            raise
        return producer

    async def _set_up(self, producer: BrokerProducer, topics: Mapping[str, TopicDescription]) -> None:
        settings, slots, keeper = self.settings, self.slots, self.keeper
        await keeper.open(self.own_ledger.ledger, topics)
        snaps = Snapshots(self.own_ledger, settings, self.wall_ms, self.group.takes_snapshots)
        transactions = Transactions(
            own_ledger=self.own_ledger,
            producer=producer,
            slots=slots,
            keeper=keeper,
            snapshots=snaps,
            policies={handler.topic: handler.on_failure for handler in self.handlers},
            settings=settings,
            on_step=self.on_step,
            on_release_committed=self.holding.note_released,
        )
        cycle = CommitCycle(
            transactions=transactions,
            range_changes=self.range_changes,
            slots=slots,
            alarm=self.alarm,
            keeper=keeper,
            settings=settings,
            on_step=self.on_step,
            on_release_settled=self.holding.note_release_settled,
        )
        self._work = self._make_work(cycle)

    def _make_work(self, cycle: CommitCycle) -> Work:
        broker, slots, settings, holding = self.broker, self.slots, self.settings, self.holding
        runs, ends = holding.runs, holding.found
        balance = Balance(runs, cycle.range_changes, settings, self.cpu_s) if settings.split_hot_ranges else None
        windows = Windows(runs, settings, balance)
        ends_watch = EndsWatch(broker, settings, holding, self.group.unowned_ranges, asyncio.get_running_loop().time())
        load_report = LoadReport(windows, ends_watch, self.keeper, self.group, settings)
        return Work(
            runs=runs,
            ends=ends,
            own_ledger=self.own_ledger,
            cycle=cycle,
            reader=MainReader(
                broker, slots, settings, self._read_ahead, OldRecords(self.destinations.known, self.wall_ms)
            ),
            catch_up=CatchUp(broker, slots, settings, self._read_ahead),
            windows=windows,
            balance=balance,
            requests=Requests(holding, cycle, self.group.member_signals),
            ends_watch=ends_watch,
            load_report=load_report,
            way=CatchUpProgress(ends_watch),
            holding=holding,
        )

    async def _carry_on(self, work: Work, *, until_level: bool) -> None:
        self.run_log.note_work(work, asyncio.get_running_loop().time())
        for task in (*work.tasks(), self._watch(work, until_level=until_level)):
            self._spawn(task)
        committing = self._spawn(work.cycle.run())
        await self._works()
        if not self._ended.is_set():
            await self.shutdown.leave()
        self._ended.set()
        if self.error is None:
            self.run_log.log_stop(self._why_it_stops(), self.slots.running())
            await self.shutdown.drain(work, committing)
        if (error := self.error or self._damage) is not None:
            raise error

    async def _works(self) -> None:
        """Until it is told to stop, or has come to its end."""
        loop = asyncio.get_running_loop()
        waiting = [loop.create_task(event.wait()) for event in (self._ended, self.shutdown.stop_ordered)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _why_it_stops(self) -> str:
        if self.shutdown.stop_ordered.is_set():
            return "it was told to"
        return "damage" if self._damage else "it is level with its sources"

    # --- the readers of the ranges -----------------------------------------------------------------------------------

    def begin_reading(self, runs: Sequence[PartitionRun]) -> None:
        """See ``Readers``."""
        self.work.way.take_pinned()
        for run in runs:
            self.work.reader.add(run)
            self._catching_up[run.dispatch.place] = self._spawn(self.work.catch_up.run(run))

    def end_reading(self, run: PartitionRun) -> None:
        """See ``Readers``."""
        self.work.reader.remove(run)
        task = self._catching_up.pop(run.dispatch.place)
        self._tasks.remove(task)
        task.remove_done_callback(self._task_ended)
        task.cancel()

    def expect_more(self) -> None:
        """See ``Readers``."""
        self.work.catch_up.make_ready()

    def _note_control_read(self) -> None:
        """At ``seen_ms`` no other process held a range of this process."""
        self.holding.wake()
        if self._work is not None:
            self._work.load_report.wake()
        own = self.identity.incarnation
        if own is not None and not self.own_ledger.ledger.control.is_expelled(own):
            self.keeper.was_in_office(self.group.control_tail.seen_ms)
            self.keeper.renew_marks_when_due()

    async def _read_writers(self, place: SourcePartition) -> Writers:
        """Read the logs, for the writers of a partition's state. Raises LogError, BrokerError."""
        await self.own_ledger.read_of([place])
        return self.keeper.writers(self.own_ledger.ledger, place, self.own_ledger.incarnation)

    async def _read_ahead(self, run: PartitionRun, records: Sequence[ConsumerRecord]) -> Sequence[OverlayEntry | None]:
        self.keeper.key_places.look(run.dispatch.place, run.dispatch.partitions, records)
        self.foreign_outputs.look(run.dispatch.topic, records)
        return await self.keeper.read_ahead(run.state, run.bindings, records)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=f"{self.app}: {getattr(work, '__qualname__', work)}")
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            if not self._ended.is_set():  # or it would just be missing: a reader that no longer reads
                self.fail(InvariantBroken(f"{task.get_name()} was cancelled by somebody else"))
        elif (error := task.exception()) is not None:
            self.fail(error)

    # --- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, work: Work, *, until_level: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await rest(WATCH_INTERVAL_MS / 1000)
            self.run_watch.look(work, loop.time())
            # Ready: its state is whole, and the sources are there.
            if until_level and self.is_ready.is_set() and self.group.has_caught_up():
                self.slots.stop()  # what is queued beyond the ends is for the next start
                self._ended.set()
                return

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _end_tasks(self) -> None:
        """No record is begun any more, nothing read and nothing committed. A second call does nothing."""
        self.slots.stop()
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.shutdown.left_s(TASKS_ENDED))

    async def _close(self) -> None:
        """Every step is bounded, also when the broker is gone; connections are closed side by side."""
        self.keeper.withhold("this process does not work any more")
        self.shutdown.begin_close()
        await asyncio.gather(self._end_tasks(), self.slots.close(self.shutdown.left_s(TASKS_ENDED)))
        self.holding.close()
        await self.shutdown.close_part(self.group.tell_end, TOLD)
        closing = [self.logs.close, self.group.close]
        if self._work is not None:
            closing += [self._work.catch_up.close, self._work.cycle.close]
        await asyncio.gather(*(self.shutdown.close_part(close, CONNECTIONS_CLOSED) for close in closing))
        await self.shutdown.close_part(self.keeper.close, COPIES_CLOSED)
        if self.closes_broker:
            await self.shutdown.close_part(self.broker.close, BROKER_CLOSED)
        self.run_log.log_unclosed(self.shutdown.unclosed)
