"""One process at work: connects, takes office, cuts its grants into workers, runs them, and stops in order.

The host of the pure heart. It owns every task; an error in any of them ends the run and comes out of it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ..brokers.protocol import Broker, BrokerError, BrokerTimeout, CorruptRecord, Record, TopicPartition, Watermarks
from ..brokers.waiting import Patience, bounded, fatal_of
from ..errors import BrokerUnavailable, FatalError, FencedError, InvariantBroken, LogError, SourceError, StateError
from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange
from ..offsets.ledger import Ledger, Place
from ..state.overlay import Cell
from ..state.tables import TABLE_CONFIG
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.destinations import Destinations
from .engine.ends import Level
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader
from .engine.reshaping import share_buffer
from .engine.slots import Slots
from .engine.transaction import Transactions
from .handlers.handler import Handler
from .handlers.outputs import place_of
from .logs.office import Identity, Office, Standing
from .logs.reader import LogReader, offsets_topic
from .logs.snapshots import Snapshots
from .logs.topics import destinations_of, prepare_topics, reserved_topics
from .membership.coordinator import Coordinator
from .partition.dispatch import Numbers, PartitionDispatch
from .partition.generation import Generation
from .partition.reshape import MergeWish, ReleaseWish, SplitWish, TakeUpWish, Wish
from .settings import Settings
from .source_watch import SourceWatch
from .stores.keeper import Keeper, OpenCopies, open_state_folder
from .watch.statistics import Statistics
from .watch.watchdog import StallWatch

logger = logging.getLogger("keylanes")

WATCH_INTERVAL_MS = 100
DRAIN_TICK_MS = 10
SETTLE_SHARE = 0.2
"""In the last part of the drain no record is begun: those that run shall come to their end."""

CONTROL_CHECK_MS = 500
"""How often an idle process looks whether it was expelled."""


RunState: TypeAlias = Literal["starting", "running", "stopping", "stopped", "failed"]


def unheard(step: str) -> None:
    """Nobody listens to the steps of the commit cycle."""


class Member:
    """One run of an application. ``instance`` is text that no other process ever had."""

    def __init__(
        self,
        app: str,
        handlers: Sequence[Handler],
        broker: Broker,
        settings: Settings,
        *,
        instance: str,
        wall_ms: Callable[[], int],
        on_step: Callable[[str], None] = unheard,
        closes_broker: bool = True,
        open_copies: OpenCopies | None = None,
        cpu_s: Callable[[], float] = lambda: 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.handlers, self.broker, self.settings = app, handlers, broker, settings
        self.wall_ms, self.cpu_s, self.on_step, self.closes_broker = wall_ms, cpu_s, on_step, closes_broker
        self.now_s = now_s
        """The time of the loop that it runs on, also when another thread asks."""
        self.state: RunState = "starting"
        self.cause: Exception | None = None
        """What ended it, once it has failed."""
        self.logs = LogReader(app, broker, settings)
        self.identity = Identity(app, instance, broker, self.logs, settings)
        self.coordinator = Coordinator(self.identity)
        stateful = [handler.topic for handler in handlers if handler.stores]
        self.destinations = Destinations(broker, settings, reserved_topics(app, stateful))
        self.slots = Slots(self.destinations, settings, self.fail, cpu_s)
        self.keeper = Keeper(app, broker, settings, handlers, wall_ms, open_copies or open_state_folder(app, settings))
        self.stall = StallWatch(settings.stall_ms)
        self.runs: list[PartitionRun] = []
        self.ends: dict[TopicPartition, int] = {}
        self.standing: Standing | None = None
        self.cycle: CommitCycle | None = None
        self.reader: MainReader | None = None
        self.catch_up: CatchUp | None = None
        self.balance: Balance | None = None
        self.error: BaseException | None = None
        self._damage: BaseException | None = None
        self.is_ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._level = asyncio.Event()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._granting: dict[Place, asyncio.Lock] = {}
        self._has_named_released = False

    # --- the run ---------------------------------------------------------------------------------------------------

    async def run(self, *, until_level: bool = False) -> None:
        """Work until ``stop``, or until the ends that were found at the start are reached; raises what ended it."""
        try:
            await self._run(until_level=until_level)
            self.state = "stopped"
        except Exception as error:
            self.state, self.cause = "failed", error
            raise
        except BaseException:
            self.state = "stopped"
            raise

    async def _run(self, *, until_level: bool) -> None:
        try:
            if await self._has_started():
                self.state = "stopping" if self._stop.is_set() else "running"
                self.is_ready.set()
                await self._work(until_level=until_level)
        except (LogError, SourceError, StateError) as error:
            if (fenced := await self._taken_over()) is not None:
                raise fenced from error
            raise
        finally:
            await self._close()

    async def started(self, running: "asyncio.Task[None]") -> None:
        """Wait until the first records may be handled. Raises what ended the task of ``run`` before that."""
        ready = asyncio.get_running_loop().create_task(self.is_ready.wait())
        try:
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if running.done():
            await running

    def stop(self) -> None:
        """Stop in order: no more reading, let workers finish until the deadline, commit, close."""
        if self.state == "running":
            self.state = "stopping"
        self._stop.set()
        self._ended.set()

    def statistics(self, loop_lag_ms_max: float) -> Statistics:
        """Where the run stands. ``loop_lag_ms_max``: what was seen of the loop that it runs on."""
        if self.cycle is None:
            return Statistics(restoring=self.keeper.restoring)
        cycle, slots, balance = self.cycle, self.slots, self.balance
        return Statistics(
            partitions=tuple(run.dispatch.statistics() for run in self.runs),
            records_done=slots.records_done,
            commits=cycle.transactions.commits,
            tiles=cycle.transactions.tiles,
            event_bytes=cycle.transactions.event_bytes,
            done_bytes=slots.done_bytes,
            running=len(slots.tasks),
            oldest_running=slots.oldest_running(),
            last_commit_age_s=None
            if cycle.transactions.last_commit_s is None
            else self.now_s() - cycle.transactions.last_commit_s,
            loop_lag_ms_max=loop_lag_ms_max,
            splits=0 if balance is None else balance.splits,
            merges=0 if balance is None else balance.merges,
            restoring=self.keeper.restoring,
            hot_keys=() if balance is None else tuple(balance.hot_keys),
        )

    async def release(self, place: Place, within: KeyRange) -> None:
        """Give up a range of a source partition; returns when that is committed. Its records that run are finished.

        Raises ValueError when not all of it is held here, CancelledError when the run ends before.
        """
        await self._ask(ReleaseWish(self._run_of(place).dispatch, within))

    async def grant(self, place: Place, within: KeyRange) -> None:
        """Grant this process a range that it released, and work on it; returns when its cut into workers is committed.

        Raises ValueError when part of it is held here, or is being given up, BrokerUnavailable when the grant can't be
        written, CancelledError when the run ends before.
        """
        assert self.cycle is not None, "the start is through"
        assert self.standing is not None, "the start is through"
        run = self._run_of(place)
        async with self._granting.setdefault(place, asyncio.Lock()):
            if (leaving := self.cycle.reshape.wishes.is_leaving(run.dispatch, within)) is not None:
                raise ValueError(f"{run.label}: {within} overlaps {leaving}, which is being given up")
            # Whatever is held here is held by a grant in force: another one over it would end that one in mid-work.
            held = [w for w in run.dispatch.workers if w.first < within.end and within.first < w.end]
            if held:
                raise ValueError(f"{run.label}: not all of {within} was released: worker {held[0].number} holds a part")
            try:
                epoch = await self.coordinator.grant(self.standing.ledger, place, self.standing.incarnation, within)
            except BrokerError as error:
                if self._ended.is_set():  # its connections were closed under it
                    raise asyncio.CancelledError from error
                raise fatal_of(error) from error
            await self.take_up(place, epoch)

    async def split(self, place: Place, at: int) -> None:
        """Cut the worker that owns a point in two, the second beginning there; returns when that is committed.

        Raises ValueError when no worker owns the points on both sides, CancelledError when the run ends before.
        """
        await self._ask(SplitWish(self._run_of(place).dispatch, at))

    async def merge(self, place: Place, within: KeyRange) -> None:
        """Make one worker of those that make up a range; returns when that is committed.

        They are held until they are level, at most ``merge_hold_ms``. Raises ValueError when they do not make it up,
        are of several grants, or did not get level; CancelledError when the run ends before.
        """
        await self._ask(MergeWish(self._run_of(place).dispatch, within))

    async def take_up(self, place: Place, epoch: int) -> None:
        """Work on a grant that stands in the control log; returns when its cut into workers is committed.

        Raises ValueError when it is no grant to this process or overlaps what it holds, CancelledError when the run
        ends before.
        """
        run = self._run_of(place)
        await self._ask(TakeUpWish(run.dispatch, epoch, run.cut))

    async def _ask(self, wish: Wish) -> None:
        """Have a wish fulfilled in the next commit cycles; returns when that is committed."""
        assert self.cycle is not None, "the start is through"
        settled = self.cycle.reshape.ask(wish)
        self.cycle.wake()
        await settled

    def _run_of(self, place: Place) -> PartitionRun:
        for run in self.runs:
            if run.dispatch.place == place:
                return run
        raise ValueError(f"{place[0]}[{place[1]}] is no source partition of application {self.app!r}")

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if isinstance(error, CorruptRecord):
            # What was read in front of it is good: it is committed, so that only what is damaged is left to be mended.
            self._damage = self._damage or fatal_of(error)
        elif self.error is None:
            self.error = fatal_of(error) if isinstance(error, BrokerError) else error
        self._ended.set()

    async def _has_started(self) -> bool:
        """Start, within the limit; False when it was told to stop meanwhile."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._start())
        stopping = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            await starting
        except BrokerError as error:
            raise fatal_of(error) from error
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.wait([starting, stopping], timeout=self.settings.close_timeout_ms / 1000)
            if starting.done() and not starting.cancelled():
                starting.exception()  # looked at, so that asyncio does not call it lost
        return True

    async def _start(self) -> None:
        """Take office within the limit, then make the state whole, which takes as long as it takes, then set up."""
        office, marks = await bounded(self._take_office(), self.settings.start_timeout_ms, "starting")
        await self.keeper.restore(office.ledger)
        await bounded(self._set_up(office, marks), self.settings.start_timeout_ms, "starting")

    async def _take_office(self) -> tuple[Office, dict[TopicPartition, Watermarks]]:
        await self.broker.open()
        stateful = list(self.keeper.handlers)
        topics = await prepare_topics(self.app, self.handlers, self.broker, self.settings, stateful, TABLE_CONFIG)
        await self.keeper.check()
        for name in destinations_of(self.handlers):
            self.destinations.learn(topics[name])
        sources = [TopicPartition(h.topic, p) for h in self.handlers for p in range(topics[h.topic].partitions)]
        limit = self.settings.request_timeout_ms
        marks = await bounded(self.broker.watermarks(sources), limit, "watermarks of the sources")
        self.ends = {source: m.high for source, m in marks.items()}
        self.logs.log_partitions = topics[offsets_topic(self.app)].partitions
        await self.logs.open()
        identities = {handler.topic: topics[handler.topic].identity for handler in self.handlers}
        office = await self.coordinator.take_office(marks, self.keeper.wanted, identities)
        await self.logs.close()  # the next read is one of a commit that failed, or of a snapshot
        await self.keeper.open(office.ledger, topics)
        return office, marks

    async def _set_up(self, office: Office, marks: dict[TopicPartition, Watermarks]) -> None:
        factors = {h.topic: h for h in self.handlers}
        numbers = Numbers()
        for source in marks:
            run = self._make_run(source, factors[source.topic], office, numbers)
            if run.handler.stores:
                run.state, run.bindings = self.keeper.attach(source, run.handler)
            run.partitions = sum(1 for other in marks if other.topic == source.topic)
            self.runs.append(run)
        standing = self.standing = Standing(office, self.identity)
        transactions = Transactions(
            standing,
            office.producer,
            self.slots,
            self.keeper,
            Snapshots(standing, self.settings, self.wall_ms),
            {handler.topic: handler.on_failure for handler in self.handlers},
            self.settings,
            self.on_step,
        )
        self.cycle = CommitCycle(
            standing, transactions, self.runs, self.slots, self.keeper, self.settings, self.on_step
        )
        changes = self.cycle.reshape.begin(office.before)
        share_buffer(self.runs, self.settings.buffer_bytes_max)
        await self.cycle.send(Generation([], changes))

    def _make_run(self, source: TopicPartition, handler: Handler, office: Office, numbers: Numbers) -> PartitionRun:
        ledger = office.ledger
        fold = ledger.partition(source)
        edges = [edge for _, _, edge in fold.edges(ledger.control.started[source]).pieces()]
        dispatch = PartitionDispatch(
            source.topic, source.partition, max(edges), self.settings.buffer_bytes_max, numbers
        )
        dispatch.epoch, dispatch.incarnation = max(fold.parts), office.incarnation
        return PartitionRun(dispatch, handler, place_of(*source))

    async def _work(self, *, until_level: bool) -> None:
        assert self.cycle is not None, "the start is through"
        assert self.standing is not None, "the start is through"
        self.reader = MainReader(self.runs, self.broker, self.slots, self.settings, self._read_ahead)
        self.catch_up = CatchUp(self.broker, self.slots, self.settings, self._read_ahead)
        self._spawn(self.reader.run())
        for run in self.runs:
            self._spawn(self.catch_up.run(run))
        level = None
        if until_level:
            writes = [(handler.topic, to) for handler in self.handlers for to in destinations_of([handler])]
            level = Level(self.ends, writes)
            self.cycle.transactions.tell(level)
        self._spawn(self._watch(level))
        self._spawn(self._watch_control())
        if self.settings.split_hot_ranges:
            self.balance = Balance(self.runs, self.cycle.reshape, self.settings, self.cpu_s)
            self._spawn(self.balance.run())
        sources = SourceWatch(
            self.broker,
            self.settings,
            self.coordinator,
            self.standing,
            self.cycle,
            self.runs,
            self.ends,
            self.keeper.handlers,
            self._begin_reading,
        )
        self._spawn(sources.run())
        committing = self._spawn(self.cycle.run())
        await self._ended.wait()
        if self.error is None:
            await self._drain(committing)
        if (error := self.error or self._damage) is not None:
            raise error

    def _begin_reading(self, run: PartitionRun) -> None:
        assert self.reader is not None, "it runs"
        assert self.catch_up is not None, "it runs"
        self.reader.add(run)
        self._spawn(self.catch_up.run(run))

    async def _read_ahead(self, run: PartitionRun, records: Sequence[Record]) -> Sequence[Cell | None]:
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

    async def _watch(self, level: Level | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_MS / 1000)
            now = loop.time()
            self.slots.overdue(now)
            progress = (self.slots.records_done, sum(r.dispatch.front for r in self.runs))
            has_waiting = any(w.is_loaded or w.dropped_from is not None for r in self.runs for w in r.dispatch.workers)
            if self.stall.look(now, progress, has_waiting):
                logger.error(
                    "records wait and nothing has moved for %d ms; oldest running record: %s",
                    self.settings.stall_ms,
                    self.slots.oldest_running(),
                )
            if level is not None and await self._has_reached(level):
                self.slots.stop()  # what is queued beyond the ends is for the next start
                self._ended.set()
                return

    def is_level(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything up to these ends of all source partitions is committed."""
        return all(edge >= ends[source] for source, edge in self._edges().items())

    def _edges(self) -> dict[TopicPartition, int]:
        """The least edge of each source partition, of what was released and waits for its grant too."""
        assert self.standing is not None, "the start is through"
        edges: dict[TopicPartition, int] = {}
        for run in self.runs:
            source, workers = run.dispatch.place, run.dispatch.workers
            if sum(worker.end - worker.first for worker in workers) == SPACE_END:
                edges[source] = min(worker.edge for worker in workers)
            else:
                edges[source] = self.standing.ledger.frontier(source)
        return edges

    async def _has_reached(self, level: Level) -> bool:
        """Whether all is done, also in sources that this application writes to itself."""
        wanted = level.to_pin(self._edges())
        if wanted:
            try:
                limit = self.settings.request_timeout_ms
                marks = await bounded(self.broker.watermarks(wanted), limit, "watermarks of the sources")
            except BrokerError as error:
                logger.warning("the ends of the sources can't be read: %s", error)
                return False
            level.pin({source: m.high for source, m in marks.items()})
        edges = self._edges()
        if level.is_level(edges):
            return True
        if not self._has_named_released:
            self._name_released({source: end for source, end in level.ends.items() if edges[source] < end})
        return False

    def _name_released(self, behind: dict[TopicPartition, int]) -> None:
        """Say, once, that nothing but released ranges is waited for. ``behind``: sources before their ends."""
        runs = {self._run_of(source): end for source, end in behind.items()}
        if runs and all(worker.edge >= end for run, end in runs.items() for worker in run.dispatch.workers):
            self._has_named_released = True
            labels = ", ".join(run.label for run in runs)
            logger.warning("all that is held is level; released ranges of %s wait to be granted", labels)

    async def _watch_control(self) -> None:
        """An idle process learns here that another one took over; a busy one mostly at its next commit."""
        watch = LogReader(self.app, self.broker, self.settings, self.logs.log_partitions)
        ledger = Ledger()
        try:
            while True:
                try:
                    asked_ms = self.wall_ms()
                    ledger = await watch.read_control(ledger)
                    assert self.standing is not None, "the start is through"
                    self.identity.check_in_office(ledger, self.standing.incarnation)
                    self.keeper.was_in_office(asked_ms)
                    self.keeper.renew_marks_when_due()
                except BrokerError as error:
                    logger.warning("the control log can't be read: %s", error)
                await asyncio.sleep(CONTROL_CHECK_MS / 1000)
        finally:
            await watch.close()

    async def _taken_over(self) -> FencedError | None:
        """Whether another process is in office, for one that found damage.

        1. This one stands still, or waits for its disk. 2. Another takes over, processes and commits. 3. Retention
        takes the records that were processed, the offset log is trimmed, or the changelog goes on. 4. This one, back
        again, misses what it believes to be its own, or finds newer state than it knows of. Nothing is damaged: it has
        to go, not to be mended.
        """
        if not self.logs.log_partitions:  # it has not come as far as that
            return None
        await self._end_tasks()  # or records would be begun and committed while it asks
        watch = LogReader(self.app, self.broker, self.settings, self.logs.log_partitions)
        patience = Patience(self.settings.request_timeout_ms, "asking who is in office")
        ledger: Ledger | None = None
        try:
            while ledger is None:
                try:
                    ledger = await watch.read_control(Ledger())
                except BrokerTimeout as error:
                    await patience.wait(error)
            if any(member.instance == self.identity.instance for member in ledger.control.members.values()):
                self.identity.check_in_office(ledger, self.identity.own(ledger).incarnation)
        except FencedError as fenced:
            return fenced
        except (BrokerError, LogError) as error:
            logger.warning("whether another process took over can't be read: %s", error)
        finally:
            await watch.close()
        return None

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _drain(self, committing: "asyncio.Task[None]") -> None:
        """No more reading; workers finish what they hold until the deadline; what is done is committed."""
        assert self.cycle is not None, "it runs"
        assert self.reader is not None, "it runs"
        assert self.catch_up is not None, "it runs"
        cycle = self.cycle
        self.reader.stop()
        self.catch_up.is_stopped = True
        loop = asyncio.get_running_loop()
        drain_s = self.settings.drain_timeout_ms / 1000
        deadline = loop.time() + drain_s
        await self._until(lambda: not self.slots.tasks and not self.slots.paused, deadline - SETTLE_SHARE * drain_s)
        # What is still queued is for the next start. Were workers to go on, there would always be more to commit.
        self.slots.stop()
        await self._until(lambda: not self.slots.tasks, deadline)
        # Before the last commit: a handler that ended behind it would be run again, although it had come to its end.
        await self.slots.close(self.settings.close_timeout_ms / 1000)
        deadline = loop.time() + max(self.settings.drain_timeout_ms, self.settings.close_timeout_ms) / 1000
        await self._until(lambda: not cycle.is_sending, deadline)
        committing.cancel()
        _, going_on = await asyncio.wait([committing], timeout=self.settings.close_timeout_ms / 1000)
        if self.error is not None:
            return
        if cycle.is_sending or going_on:
            raise BrokerUnavailable("stopped without the last commit: the broker did not take it in time")
        try:
            await bounded(self._commit_rest(), max(0, int((deadline - loop.time()) * 1000)), "the last commit")
        except BrokerError as error:
            raise fatal_of(error) from error

    async def _until(self, is_reached: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition, an error or the deadline."""
        loop = asyncio.get_running_loop()
        while not is_reached() and self.error is None and loop.time() < deadline:  # noqa: ASYNC110  # only at the end
            await asyncio.sleep(DRAIN_TICK_MS / 1000)

    async def _commit_rest(self) -> None:
        assert self.cycle is not None, "it runs"
        while await self.cycle.commit():
            pass

    async def _end_tasks(self) -> None:
        """No record is begun any more, nothing read and nothing committed. A second call does nothing."""
        self.slots.stop()
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.close_timeout_ms / 1000)

    async def _close(self) -> None:
        """Every step is bounded, also when the broker is gone; connections are closed side by side."""
        await self._end_tasks()
        await self.slots.close(self.settings.close_timeout_ms / 1000)
        closing = [self.logs.close(), *(part.close() for part in (self.catch_up, self.cycle) if part is not None)]
        await asyncio.gather(*map(self._closed, closing))
        await self._closed(self.keeper.close())
        if self.closes_broker:
            await self._closed(self.broker.close())

    async def _closed(self, closing: Coroutine[Any, Any, None]) -> None:
        try:
            await bounded(closing, self.settings.close_timeout_ms, "closing")
        except (BrokerError, FatalError) as error:
            logger.warning("closing: %s", error)  # what ended the run must not be hidden behind it
