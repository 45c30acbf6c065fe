"""Slots run workers: the event loop runs async handlers, threads run sync ones, one record of a worker at a time.

A record whose worker has nothing else to do runs straight from its batch; all others wait in their workers' queues.
Async handlers have tasks, which are here; ``def`` handlers run in lanes. A worker takes no next record while a
timed-out handler's thread still runs: a thread can't be stopped, and two records of one key must not run at once.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...brokers.patience import abandon
from ...brokers.protocol import Batch
from ...brokers.throttling import BYTES_OPEN
from ...errors import HandlerFailed
from ...state.overlay import OverlayEntry
from ..handlers.record_result import RecordResult
from ..partition.worker import Worker
from ..settings import Settings
from ..watch.statistics import RunningRecord
from .attempts import first_error
from .calls import NOTHING
from .commit_alarm import CommitAlarm
from .destinations import Destinations
from .lanes import Lanes, RecordCall, Returned
from .partition_run import PartitionRun
from .task_work import StraightBatch, TaskWork, driven
from .turns import Turns

logger = logging.getLogger("keylanes")

HELD_BYTES: Final = 1 << 60
"""More than any limit."""
YIELD_EVERY_RECORDS: Final = 64
"""A task whose handlers never suspend lets others run after so many records."""

TASKS_AT_ONCE: Final = 4
"""When a handler suspends, those that wait are parted among so many tasks, and each has one when the next one suspends,
too: in one task each takes a turn of the loop, and for handlers that do not suspend a task each costs too much.
"""

IDLE_TASKS_MAX: Final = 1_000
"""So many tasks whose work is done are kept for more of it: a new one costs as much as a record."""

STRETCH_RECORDS_MAX: Final = 256
STRETCH_S: Final = 0.002
"""So does one that runs a batch straight, after as many records or so much of the processor's time."""

STRETCHES_MIN: Final = 4
"""A generation of the largest size has about so many stretches at least: it takes each as a whole."""
LOOK_EVERY_RECORDS: Final = 64
"""How often it looks at that time."""


class Slots(Lanes):
    """Runs the workers of all partitions. ``fail`` is called once with the error that ends the application."""

    def __init__(
        self,
        destinations: Destinations,
        settings: Settings,
        fail: Callable[[BaseException], None],
        alarm: CommitAlarm,
        cpu_s: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(destinations, settings, Turns(self.activate), fail, alarm, cpu_s, now_s)
        self._cpu_s = cpu_s
        self.tasks: dict[asyncio.Task[None], TaskWork] = {}
        self._idle: list[tuple[asyncio.Task[None], asyncio.Future[TaskWork]]] = []
        """Tasks that have no work, and how it is given to them; the last one first."""
        self.unstarted = 0
        """Workers that have something to do and wait for the loop: it has no time for more."""
        self.held_bytes = 0
        """So many of ``done_bytes`` are there only because records are not to be begun."""
        self.stretch_bytes_max = BYTES_OPEN
        self._room = asyncio.Event()
        """A commit made room, or nothing is waited for any more."""

    def activate(self, run: PartitionRun, workers: Iterable[Worker]) -> None:
        """Start the workers; each was marked active by the dispatch."""
        if run.has_lanes:
            self._enter(run, workers)
            return
        waiting = [*workers]
        waiting.reverse()
        self.unstarted += len(waiting)
        self._start(run, waiting)

    async def hand_through(self, run: PartitionRun, batch: Batch, cells: Sequence[OverlayEntry | None] = ()) -> int:
        """Run what can be run of a batch as it comes, without queues; from which index on it is still to be handed out.
        ``cells``: where the state of its records is, if that was looked up.

        For plain handlers. While this runs nobody else hands out to the partition's workers.
        """
        going = StraightBatch(run, batch, cells, self._clock())
        self._begin(going)
        return await going.through

    def _start(self, run: PartitionRun, waiting: list[Worker], *, parted: bool = False) -> None:
        if waiting:
            self._begin(TaskWork(run, waiting, parted=parted))

    def _begin(self, going: TaskWork) -> None:
        """In a task that has nothing to do; in a new one when there is none."""
        while self._idle:
            task, given = self._idle.pop()
            if not given.done():  # nobody cancelled it
                self.tasks[task] = going
                given.set_result(going)
                return
        task = asyncio.get_running_loop().create_task(self._run(going), context=self.variables.copy())
        self.tasks[task] = going
        task.add_done_callback(self._ended)

    async def _run(self, going: TaskWork | None) -> None:
        """A task: one work after the other, as long as there is room for those that wait."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "a coroutine runs in one"
        while going is not None:
            if isinstance(going, StraightBatch):
                await self._run_straight(going)
            elif len(going.waiting) == 1:  # the usual case for handlers that suspend: one coroutine less to go through
                await self._run_worker(going.run, self._next(going))
            elif isinstance(going, Returned):
                await self._run_returned(going)
            else:
                await self._run_workers(going)
            going = None  # an idle task holds no batch
            if len(self._idle) < IDLE_TASKS_MAX and not task.cancelling() and not self._is_closing:
                del self.tasks[task]
                given: asyncio.Future[TaskWork] = loop.create_future()
                self._idle.append((task, given))
                going = await given

    def stop(self) -> None:
        """Workers take no next record from now on."""
        self.is_stopping = True
        self._room.set()

    def hold(self, *, is_held: bool) -> None:
        """Begin no record as long as it is held: as if there were no room for what it produces."""
        if is_held:
            self.held_bytes += HELD_BYTES
            self.done_bytes += HELD_BYTES
        else:
            self.held_bytes -= HELD_BYTES
            self.committed(HELD_BYTES)

    def replaced(self, grown_bytes: int) -> None:
        """What a record produced was replaced, by so many bytes more."""
        self.done_bytes += grown_bytes

    def committed(self, size: int) -> None:
        """So many bytes of what is done were committed: start workers that waited for room for what they produce, and
        what waits to run straight.
        """
        self.done_bytes -= size
        self._room.set()
        waiting: dict[PartitionRun, list[Worker]] = {}
        for run, worker in self.paused:
            waiting.setdefault(run, []).append(worker)
        self.paused = []
        for run, workers in waiting.items():
            self.activate(run, workers)

    def overdue(self, now: float) -> None:
        """End attempts of async handlers that take too long; name those of sync handlers aloud."""
        for call in self._made_now():
            self._is_overdue(call.run, call.worker, now)
        for task, going in list(self.tasks.items()):
            run, worker = going.run, going.worker
            if worker is not None and self._is_overdue(run, worker, now) and run.handler.is_async:
                task.cancel()

    def _is_overdue(self, run: PartitionRun, worker: Worker, now: float) -> bool:
        """Whether a worker's record takes too long since now: says so."""
        limit_ms = self.timeout_ms(run)
        limit = limit_ms / 1000
        if worker.running is None or worker.timed_out or worker.started_s + limit > now:
            return False
        worker.timed_out = True
        handler, offset = run.handler, worker.running.offset
        then = "it is cancelled" if handler.is_async else "its thread can't be stopped, its range waits"
        if (more := self.failures.line_end(handler.topic, "overdue", then, now)) is not None:
            text = "handler %s takes longer than %d ms at %s offset %d; %s%s"
            logger.error(text, handler.name, limit_ms, run.label, offset, then, more)
        return True

    def is_idle(self) -> bool:
        """Whether no worker has anything to do, but those that wait for room or for their turn."""
        return not self.tasks and not self._in_lanes

    def running(self) -> int:
        """How many records were begun and are not through, without those that wait for their turn to be tried again."""
        begun = sum(1 for going in list(self.tasks.values()) if going.running_record() is not None)
        return begun + self._in_lanes - self.turns.records_resuming

    def oldest_running(self, now: float) -> RunningRecord | None:
        """The record that has been running longest. May be called from any thread; ``now`` is the loop's time."""
        running = [
            (found[1], going.run.label, found[0].offset)
            for going in list(self.tasks.values())  # at one stroke: the watch asks from a thread of its own
            if (found := going.running_record()) is not None and found[1] < math.inf
        ]
        running += [
            (started_s, call.run.label, call.record.offset)
            for call in self._made_now()
            if (started_s := call.worker.started_s) < math.inf
        ]
        if not running:
            return None
        started, label, offset = min(running)
        return RunningRecord(label, offset, max(0.0, now - started))

    async def close(self, limit_s: float) -> None:
        """Cancel what still runs and let go of the threads; bounded in time. A second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self.stop()
        tasks = [*self.tasks, *(task for task, _ in self._idle)]
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=limit_s)
            for going in (self.tasks[task] for task in pending if task in self.tasks):
                found = going.running_record()
                where = f"{going.run.label} offset {None if found is None else found[0].offset}"
                logger.error("handler %s at %s ignores that it is cancelled", going.run.handler.name, where)
            for task in pending:
                task.remove_done_callback(self._ended)
                abandon(task)
        self._threads.close()
        self.turns.close()
        self._in_lanes = 0

    def _made_now(self) -> list[RecordCall]:
        """What threads are at of what is in lanes. May be called from any thread."""
        return [call for call in self._threads.calls_under_way() if isinstance(call, RecordCall)]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        going = self.tasks.pop(task, None)
        if going is None:  # cancelled while it had nothing to do: nothing is lost
            return
        self.unstarted -= len(going.waiting)
        if not self._is_closing and (task.cancelled() or task.exception() is not None):
            for worker in (going.worker, *going.waiting):
                if worker is not None:
                    self.turns.give_back(going.run, worker)
        if task.cancelled():
            for worker in (going.worker, *going.waiting):
                if worker is not None:
                    worker.active = False
            if not self._is_closing:  # or the worker would stand still for ever, and nobody knew
                self.fail(HandlerFailed(f"{going.run.label}: the task of a worker was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self.fail(error)

    async def _run_workers(self, going: TaskWork) -> None:
        """One worker after the other, as long as no handler suspends: a task costs more than a short handler. The first
        that suspends keeps this task, and those that wait get another one.
        """
        count = 0
        while going.waiting:
            work = self._run_worker(going.run, self._next(going))
            if going.waiting:
                count += await driven(work, going, self._part)
            else:
                count += await work
            if count >= YIELD_EVERY_RECORDS:
                count = 0
                await asyncio.sleep(0)

    def _next(self, going: TaskWork) -> Worker:
        """Who waited longest runs from here on."""
        worker = going.waiting.pop()
        going.worker = worker
        self.unstarted -= 1
        return worker

    def _part(self, going: TaskWork) -> None:
        waiting, going.waiting = going.waiting, []
        waiting.reverse()
        tasks = len(waiting) if going.parted else min(TASKS_AT_ONCE, len(waiting))
        for i in range(tasks):
            part = waiting[i::tasks]
            part.reverse()
            self._start(going.run, part, parted=True)

    async def _run_straight(self, going: StraightBatch) -> None:
        """Stretches of a batch, between which others run."""
        while not going.through.done():
            while self.done_bytes >= self.done_bytes_max and not self.is_stopping:
                self.alarm.note_full()
                # Queued meanwhile, all that follows would have to be queued behind it, as long as there is much to do.
                self._room.clear()
                await self._room.wait()
            if self.is_stopping:
                going.end(going.at)
                return
            if going.run.is_limited and not self.turns.take_batch_permit(going.run):
                going.end(going.at)  # the rest is queued, and its workers stand in line
                return
            going.is_permitted = going.run.is_limited
            going.since_s = self._clock()
            try:
                await driven(self._run_stretch(going), going, self._part_straight)
            except BaseException:
                # What was laid down lies below the record that ended it: the front must not stand behind that.
                if going.record is not None and not going.has_parted:
                    self._begin_running(going)
                self._end_permit(going)
                raise
            self._end_permit(going)
            going.record = going.worker = None
            if not going.has_parted:
                self._end_stretch(going)
                await asyncio.sleep(0)

    def _end_permit(self, going: StraightBatch) -> None:
        if going.is_permitted:  # else it is the worker's, whose record suspended
            going.is_permitted = False
            self.turns.return_batch_permit(going.run)

    def _end_stretch(self, going: StraightBatch) -> None:
        going.run.dispatch.bound_stretch(self.stretch_bytes_max, self.settings.limits.generation_records_max // 4)
        if going.ready:
            ready, going.ready = going.ready, []
            self.activate(going.run, ready)

    def _part_straight(self, going: StraightBatch) -> None:
        going.has_parted = True
        self._begin_running(going)
        self._end_stretch(going)
        going.end(going.at + 1)
        going.let_go()

    async def _run_stretch(self, going: StraightBatch) -> None:
        """Some records of a batch. Their first attempts are made here, and all else where ``_run_worker`` has it made,
        which does the same for records that were queued.
        """
        run = going.run
        dispatch, calls = run.dispatch, run.calls(self.variables)
        going.full_at = min(self.done_bytes_max, self.done_bytes + self.stretch_bytes_max)
        full_at, is_stateful = going.full_at, run.state is not None
        going.look_at, going.last = going.at + LOOK_EVERY_RECORDS, going.at + STRETCH_RECORDS_MAX
        going.until_s = self._cpu_s() + STRETCH_S
        route = going.route
        route.at = going.at
        while dispatch.step(route):
            i, worker, record = route.at - 1, route.worker, route.record
            if (i >= going.look_at or self.done_bytes >= full_at) and self._is_over(going, i):
                dispatch.pause(record)
                break
            if worker.active or worker.queue_bytes or worker.hold_at is not None or worker.retired:
                if not dispatch.try_queue(worker, record, going.ready):
                    continue
                dispatch.pause(record)
                going.end(i)
                break
            done: RecordResult | None = None
            going.at, going.worker, going.record, going.is_called = i, worker, record, True
            attempt = run.attempt(record, route.entry) if is_stateful else None
            if not calls.begin(record.value, NOTHING if attempt is None else attempt[1]):
                await calls
            failed = calls.take_exception()
            if failed is not None:
                self._begin_running(going)
                done = await self._process(run, worker, record, first_error(attempt, failed))
            else:
                going.is_called, result = False, calls.result()
                if going.has_parted:
                    done = await self._come_back(run, worker, record, result, attempt, calls)
                elif (result is not None or is_stateful) and not self._lay_down(
                    run, worker, record, result, attempt, calls
                ):
                    self._begin_running(going)
                    done = await self._produced(run, worker, record, result, attempt, calls.context)
            if worker.running is None:
                worker.done_to = route.offset + 1
                if done is not None:
                    worker.keep(done)
            else:
                dispatch.finish(worker, done)
            self._count(run, worker, done)
            if going.has_parted:
                run.put_back_calls(calls)
                await self._run_worker(run, worker)
                return
            self._end_running(going, worker)
        else:
            dispatch.pass_by(going.batch)
            going.end(len(going.batch.records))
        run.put_back_calls(calls)

    def _is_over(self, going: StraightBatch, i: int) -> bool:
        """Whether a stretch ends in front of a record of its batch."""
        if self.is_stopping:
            going.end(i)
            return True
        if i < going.last and self.done_bytes < going.full_at and self._cpu_s() < going.until_s:
            going.look_at = i + LOOK_EVERY_RECORDS
            return False
        going.at = i
        return True

    async def _run_worker(self, run: PartitionRun, worker: Worker) -> int:
        """The records of a worker until it has none that it may run; how many it ran since it last suspended.

        The first attempt of a handler without a context is made here, and all else in ``_process``: that is the same,
        and slower.
        """
        dispatch, clock, is_stateful = run.dispatch, self._clock, run.state is not None
        calls = None if run.handler.takes_context else run.calls(self.variables)
        count, now = 0, clock()
        while (record := self._next_record(run, worker)) is not None:
            done: RecordResult | None = None
            worker.started_s = now
            if calls is None:
                done = await self._process(run, worker, record)
                now = clock()
            else:
                attempt = run.attempt(record) if is_stateful else None
                if not calls.begin(record.value, NOTHING if attempt is None else attempt[1]):
                    await calls
                failed = calls.take_exception()
                if failed is not None:
                    done = await self._process(run, worker, record, first_error(attempt, failed))
                    now = clock()
                elif self._is_closing:  # it was cancelled, and came to an end all the same
                    raise asyncio.CancelledError
                else:
                    now, result = clock(), calls.result()
                    worker.load.spend(worker.started_s, now, dispatch.partition, record)
                    if worker.timed_out:
                        done = await self._process(run, worker, record, first_error(attempt, asyncio.CancelledError()))
                        now = clock()
                    elif result is not None or attempt is not None:
                        worker.started_s = math.inf
                        done = await self._produced(run, worker, record, result, attempt, calls.context)
                        now = clock()  # what can't be sent was tried again
            dispatch.finish(worker, done)
            self._count(run, worker, done)
            count += 1
            if count == YIELD_EVERY_RECORDS:
                count = 0
                await asyncio.sleep(0)
                now = clock()
        if calls is not None:
            run.put_back_calls(calls)
        return count
