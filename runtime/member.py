"""One run of a process: the process connects, joins its group, works on its ranges, and stops in order.

The run owns every task. An error in any task ends the run, and comes out of ``AppRun.run``.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from ..brokers.partitioner import Partitioner, check_partitioner
from ..brokers.patience import fatal_of, rest, within_limit
from ..brokers.protocol import (
    Broker,
    BrokerError,
    BrokerProducer,
    ConsumerRecord,
    CorruptRecord,
    TopicDescription,
    TopicPartition,
)
from ..errors import LogError, SourceError, StateError, shortage_in
from ..group.member import NextSteps, next_steps
from ..state.overlay import OverlayEntry
from .build_info import IS_COMPILED
from .engine.commit import CommitCycle
from .engine.commit_alarm import CommitAlarm, Releases
from .engine.destinations import Destinations
from .engine.old_records import OldRecords
from .engine.partition_run import PartitionRun
from .engine.range_changes import RangeChanges
from .engine.slots import Slots
from .engine.transaction import Transactions
from .handlers.acceptances import NOTHING, Accepted, topics_in_loop
from .handlers.handler import Handler
from .holding import Holding
from .logs.own_ledger import Expelled, Identity, OwnLedger
from .logs.reader import LogReader
from .logs.snapshots import Snapshots
from .logs.topics import reserved_topics
from .membership.group import Group
from .membership.offer import SOMEWHERE, Origin, offer_of
from .membership.patience import StartPatience
from .preparation import Preparation
from .run_log import RunLog
from .run_tasks import RunTasks
from .run_watch import RunWatch
from .settings import Settings
from .shutdown import BROKER_CLOSED, CONNECTIONS_CLOSED, COPIES_CLOSED, TASKS_ENDED, TOLD, Shutdown
from .stores.folder import OpenCopies, open_state_folder, wanted_stores
from .stores.keeper import Keeper
from .watch.foreign_outputs import ForeignOutputs
from .watch.statistics import RunningRecord, Statistics
from .watch.steps import Step
from .work import Work, make_work

logger = logging.getLogger("keylanes")

WATCH_INTERVAL_MS = 100

NO_PARTITIONERS: Final[Mapping[str, Partitioner]] = MappingProxyType({})
RunState: TypeAlias = Literal["starting", "running", "stopping", "stopped", "failed"]


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
        cpu_s: Callable[[], float],
        now_s: Callable[[], float],
        on_step: Callable[[Step], None],
        decide: NextSteps = next_steps,
        closes_broker: bool = True,
        open_copies: OpenCopies | None = None,
        partitioners: Mapping[str, Partitioner] = NO_PARTITIONERS,
        address: str | None = None,
        origin: Origin = SOMEWHERE,
        accepts: Accepted = NOTHING,
    ) -> None:
        self.app = app
        self.handlers = handlers
        self.broker = broker
        self.settings = settings
        self.wall_ms = wall_ms
        self.cpu_s = cpu_s
        self.now_s = now_s
        self.on_step = on_step
        self.closes_broker = closes_broker
        self.origin = origin
        self.accepts = accepts
        self.state: RunState = "starting"
        self.cause: Exception | None = None
        """The error that ended the run."""
        self.logs = LogReader(app, broker, settings)
        self.identity = self._make_identity(birth)
        self.own_ledger = OwnLedger(self.identity)
        self.patience = StartPatience(settings.start_timeout_ms)
        self.destinations = self._make_destinations(partitioners)
        self.alarm = CommitAlarm(Releases(settings.limits.merge_hold_ms), broker.throttling.writing)
        self.slots = Slots(self.destinations, settings, self.fail, self.alarm, cpu_s=cpu_s, now_s=now_s)
        self.run_log = RunLog(app, address or type(broker).__name__, settings, lambda: self.statistics(0.0))
        self.group = self._make_group()
        self.keeper = self._make_keeper(open_copies or open_state_folder(app, settings, birth), partitioners)
        self.foreign_outputs = ForeignOutputs(
            topics_in_loop(handlers, accepts), {h.topic for h in handlers}, lambda: self.own_ledger.app_id
        )
        self.range_changes = RangeChanges([], self.slots, self.alarm.releases, settings)
        self.holding = self._make_holding(decide)
        self.run_watch = RunWatch(self.slots, self.group.control_tail, self.run_log, settings)
        self._work: Work | None = None
        self.error: BaseException | None = None
        self._damage: BaseException | None = None
        self._ended = asyncio.Event()
        self.shutdown = self._make_shutdown()
        self._tasks = RunTasks(app, self.fail, self._ended.is_set)
        self._catching_up: dict[TopicPartition, asyncio.Task[None]] = {}

    # --- the parts ---------------------------------------------------------------------------------------------------

    def _make_identity(self, birth: str) -> Identity:
        return Identity(
            app=self.app,
            birth=birth,
            broker=self.broker,
            logs=self.logs,
            settings=self.settings,
            instance=self.settings.group_instance_id or "",
        )

    def _make_destinations(self, partitioners: Mapping[str, Partitioner]) -> Destinations:
        reserved = reserved_topics(self.app, [handler.topic for handler in self.handlers if handler.stores])
        placed = {topic: check_partitioner(partitioner, topic) for topic, partitioner in partitioners.items()}
        return Destinations(self.broker, self.settings, reserved, placed)

    def _make_keeper(self, open_copies: OpenCopies | None, partitioners: Mapping[str, Partitioner]) -> Keeper:
        return Keeper(
            app=self.app,
            broker=self.broker,
            settings=self.settings,
            handlers=self.handlers,
            wall_ms=self.wall_ms,
            open_copies=open_copies,
            partitioners=partitioners,
            group=self.group.view(),
            tell_copies=self.group.member_signals.tell_copies,
            logs=self.own_ledger,
        )

    def _make_group(self) -> Group:
        return Group(
            own_ledger=self.own_ledger,
            stores=wanted_stores(self.handlers),
            on_control_read=self._note_control_read,
            set_rate=self.slots.turns.set_rate,
            wall_ms=self.wall_ms,
            now_s=self.now_s,
            is_alone=self.broker.is_alone,
        )

    def _make_holding(self, decide: NextSteps) -> Holding:
        return Holding(
            own_ledger=self.own_ledger,
            member_signals=self.group.member_signals,
            sources=self.group.sources,
            handlers={handler.topic: handler for handler in self.handlers},
            keeper=self.keeper,
            range_changes=self.range_changes,
            alarm=self.alarm,
            readers=self,
            log_ends=self.run_log.log_new_partitions,
            settings=self.settings,
            on_step=self.on_step,
            decide=decide,
        )

    def _make_shutdown(self) -> Shutdown:
        return Shutdown(
            group=self.group,
            holding=self.holding,
            slots=self.slots,
            run_log=self.run_log,
            is_over=self._ended.is_set,
            has_failed=lambda: self.error is not None,
        )

    # --- the run ---------------------------------------------------------------------------------------------------

    async def run(self, *, until_level: bool = False) -> None:
        """Work until ``stop``; with ``until_level``, until the group has caught up with the ends found at the start.
        Raises the error that ended the run.
        """
        self.slots.take_variables()
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
            if not self.holding.has_left():  # after leaving, only requests without any range were refused
                raise
        except (LogError, SourceError, StateError) as error:
            if self.identity.incarnation is not None and not self.holding.has_left():
                await self._end_tasks()  # or records would be begun and committed during the question
                await self.shutdown.raise_if_out(error)
            raise
        finally:
            await self._close()

    async def wait_until_started(self, running: "asyncio.Task[None]") -> None:
        """Wait until the process works on its first grants. Raises the error of ``running``, the task of ``run``, when
        the task ends before.
        """
        ready = asyncio.get_running_loop().create_task(self.is_ready.wait())
        try:
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if running.done():
            await running

    def stop(self, *, at_once: bool = False) -> None:
        """Stop in order, see shutdown.py; ``at_once``: wait neither for other processes nor for handlers."""
        if self.state == "running":
            self.state = "stopping"
        self.shutdown.order_stop(self.now_s(), at_once=at_once)

    def statistics(self, loop_lag_ms_max: float) -> Statistics:
        """The statistics of the run. ``loop_lag_ms_max``: the longest time for which the loop did not turn."""
        if self._work is None:
            return Statistics(restoring=self.keeper.restoring, is_compiled=IS_COMPILED)
        seen = self._work.statistics(self.slots, self.now_s())
        restoring, cut_off, rates = self.keeper.restoring, self.run_log.cut_off, self.slots.turns.rates()
        return replace(seen, loop_lag_ms_max=loop_lag_ms_max, restoring=restoring, cut_off=cut_off, rates=rates)

    def oldest_running(self) -> RunningRecord | None:
        """The record with the longest running time. Any thread may ask."""
        return self.slots.oldest_running(self.now_s())

    def is_at_rest(self) -> bool:
        """Whether no range is moved, copied or restored, or waits for the name of its owner."""
        return self.keeper.restoring is None and self.holding.is_at_rest() and self.group.is_at_rest()

    @property
    def is_ready(self) -> asyncio.Event:
        """Set when the process works on its first grants."""
        return self.holding.is_settled

    @property
    def work(self) -> Work:
        """The parts of the working process; raises ValueError before the process has joined."""
        if self._work is None:
            raise ValueError(f"application {self.app!r} is still starting")
        return self._work

    @property
    def runs(self) -> Sequence[PartitionRun]:
        """The source partitions with ranges in this process."""
        return () if self._work is None else self._work.runs

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if isinstance(error, CorruptRecord):
            # Records in front of the damage are good, and are committed: then only the damage is left to be mended.
            self._damage = self._damage or fatal_of(error)
        elif self.error is None:
            self.error = shortage_in(error) or (fatal_of(error) if isinstance(error, BrokerError) else error)
        self._ended.set()

    async def _has_started(self, *, until_level: bool) -> bool:
        """Start, within the limit. False: the process was told to stop meanwhile."""
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
                starting.exception()  # an error without a reader would be logged as lost
        return True

    async def _start(self, *, until_level: bool) -> None:
        """Find the topics, join, and make the working parts; ranges come later, with grants."""
        preparation = Preparation(
            own_ledger=self.own_ledger,
            group=self.group,
            handlers=self.handlers,
            keeper=self.keeper,
            destinations=self.destinations,
            accepts=self.accepts,
            patience=self.patience,
        )
        topics = await self.patience.within(preparation.prepare())
        offer = offer_of(self.handlers, self.keeper.wanted, self.origin, self.settings, until_level=until_level)
        for task in self.group.tasks():
            self._tasks.spawn(task)
        # A predecessor that did not leave in order is waited for: the coordinator for a session, then the member.
        limit_ms = self.settings.start_timeout_ms + 2 * self.settings.session_timeout_ms
        joined = await within_limit(self.group.join(offer), limit_ms, "joining")
        logger.info("%s: joined as incarnation %d", self.app, joined.incarnation)
        producer = await self.patience.within(preparation.make_producer())
        await within_limit(self._set_up(producer, topics), self.settings.start_timeout_ms, "starting")

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
        self._work = make_work(
            cycle=cycle,
            holding=self.holding,
            group=self.group,
            old_records=OldRecords(self.destinations.known, self.wall_ms),
            read_ahead=self._read_ahead,
            cpu_s=self.cpu_s,
        )

    async def _carry_on(self, work: Work, *, until_level: bool) -> None:
        self.run_log.note_work(work, asyncio.get_running_loop().time())
        for task in (*work.tasks(), self._watch(work, until_level=until_level)):
            self._tasks.spawn(task)
        committing = self._tasks.spawn(work.cycle.run())
        await self._works()
        if not self._ended.is_set():
            await self.shutdown.leave()
        self._ended.set()
        if self.error is None:
            self.run_log.log_stop(self._why_it_stops(), self.slots.count_running())
            await self.shutdown.drain(work, committing)
        if (error := self.error or self._damage) is not None:
            raise error

    async def _works(self) -> None:
        """Wait until the process is told to stop, or the run has come to its end."""
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
            self._catching_up[run.dispatch.place] = self._tasks.spawn(self.work.catch_up.run(run))

    def end_reading(self, run: PartitionRun) -> None:
        """See ``Readers``."""
        self.work.reader.remove(run)
        self._tasks.drop(self._catching_up.pop(run.dispatch.place))

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
            self.keeper.write_behind.follow(self.group.control_tail.seen_ms)

    async def _read_ahead(self, run: PartitionRun, records: Sequence[ConsumerRecord]) -> Sequence[OverlayEntry | None]:
        self.keeper.key_places.look(run.dispatch.place, run.dispatch.partitions, records)
        self.foreign_outputs.look(run.dispatch.topic, records)
        return await self.keeper.read_ahead(run.state, run.bindings, records)

    # --- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, work: Work, *, until_level: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await rest(WATCH_INTERVAL_MS / 1000)
            self.run_watch.look(work, loop.time())
            # Ready: the state is whole, and the sources are there.
            if until_level and self.is_ready.is_set() and self.group.has_caught_up():
                self.slots.stop()  # records queued beyond the ends are for the next start
                self._ended.set()
                return

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _end_tasks(self) -> None:
        """End all tasks: from now on no record begins, and nothing is read or committed. A second call does nothing."""
        self.slots.stop()
        self._ended.set()
        await self._tasks.end(self.shutdown.left_s(TASKS_ENDED))

    async def _close(self) -> None:
        """Close all parts. Every step is bounded, also without a broker; connections are closed side by side."""
        self.keeper.queries.withheld = "this process does not work any more"
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
