"""A worker's next record; and lanes, in which threads run the workers of ``def`` handlers.

A lane is a worker whose record waits for a thread, or runs in one. It has no task and no future: where a call is
through, the loop finishes its record and hands over the worker's next one at once. What has to wait for something, an
attempt that failed or ran over its time first of all, goes on in a task (``Returned``), and the lane behind it.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context as Variables
from typing import Any

from ...brokers.protocol import ConsumerRecord
from ...brokers.throttling import BYTES_OPEN
from ..handlers.context import Context, Output
from ..handlers.record_result import RecordResult
from ..partition.worker import Worker
from ..settings import Settings
from .attempts import first_error
from .calls import NOTHING
from .commit_alarm import CommitAlarm
from .destinations import Destinations
from .partition_run import Attempt, PartitionRun
from .stretches import StraightRunner
from .task_work import TaskWork
from .threads import ThreadCall
from .turns import Turns


class RecordCall(ThreadCall):
    """The first attempt at a worker's record, in a lane. ``asked``: the context, of a handler that asks for it."""

    __slots__ = ("asked", "attempt", "lanes", "record", "run")

    def __init__(
        self,
        lanes: "Lanes",
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        attempt: Attempt | None,
        variables: Variables,
    ) -> None:
        handler, dispatch = run.handler, run.dispatch
        asked = Context(dispatch.topic, dispatch.partition, record, 1) if handler.takes_context else None
        further: Sequence[Any] = NOTHING if attempt is None else attempt[1]
        if asked is not None:
            further = _further(run, asked, further)
        super().__init__(worker, variables, _call, (handler.function, handler.decode, record.value, further))
        self.lanes, self.run, self.record, self.attempt, self.asked = lanes, run, record, attempt, asked

    def sent(self) -> Sequence[Output]:
        """What was sent by the context. It is closed, as the attempt has ended."""
        return NOTHING if self.asked is None else self.asked.close()

    def end(self) -> None:
        """See ThreadCall."""
        self.lanes.go_on(self)


class Returned(TaskWork):
    """A task's work: what came back from a thread and has to wait for something."""

    __slots__ = ("call",)

    def __init__(self, call: RecordCall) -> None:
        super().__init__(call.run, [])
        self.call, self.worker = call, call.worker


class Lanes(StraightRunner, ABC):
    """Which record a worker runs next, and lanes. ``fail`` is called with the error that ends the application."""

    def __init__(
        self,
        destinations: Destinations,
        settings: Settings,
        turns: Turns,
        fail: Callable[[BaseException], None],
        alarm: CommitAlarm,
        cpu_s: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(destinations, settings, turns, cpu_s, now_s)
        self.fail = fail
        self.alarm = alarm
        self.paused: list[tuple[PartitionRun, Worker]] = []
        self.is_stopping = False
        """Workers take no next record; see ``stop``."""
        self.done_bytes_max = min(settings.limits.done_bytes_max, BYTES_OPEN)
        """So many bytes of what is done may wait for a commit, see ``Transactions.bound_done``."""
        self._in_lanes = 0
        """Records."""
        self._entering: deque[tuple[PartitionRun, Worker]] = deque()
        self._is_entering = False

    @abstractmethod
    def _begin(self, going: TaskWork) -> None:
        """Have a task do it."""

    # --- a worker's next record --------------------------------------------------------------------------------------

    def _next_record(self, run: PartitionRun, worker: Worker) -> ConsumerRecord | None:
        """It runs from here on. None: there is none, or the worker has to wait for room or for its turn."""
        if self.done_bytes >= self.done_bytes_max:
            self.paused.append((run, worker))
            self.alarm.note_full()
        elif self.is_stopping:
            worker.active = False
        elif not run.is_limited or self.turns.may_begin(run, worker):
            record = run.dispatch.next_record(worker)
            if record is not None:
                worker.timed_out = False
                if worker.awaited_bytes or worker.dropped_from is not None:
                    _tell_room(run, worker)
                return record
        if worker.hold_at is not None:
            self.alarm.note_held(worker)
        self.turns.give_back(run, worker)
        return None

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _enter(self, run: PartitionRun, workers: Iterable[Worker]) -> None:
        """Workers run their next records in lanes. One that gives back its turn, or asks for one, may have another one
        enter meanwhile, or be started itself: that comes behind it.
        """
        entering = self._entering
        for worker in workers:
            entering.append((run, worker))
        if self._is_entering:
            return
        self._is_entering = True
        try:
            while entering:
                self._hand_over(*entering.popleft())
        finally:
            self._is_entering = False

    def _hand_over(self, run: PartitionRun, worker: Worker) -> None:
        """The worker's next record, to the threads."""
        record = self._next_record(run, worker)
        if record is None:
            return
        worker.started_s = math.inf
        self._in_lanes += 1
        self._threads.begin(RecordCall(self, run, worker, record, run.attempt(record), self.variables.copy()))

    def go_on(self, call: RecordCall) -> None:
        """A call is through."""
        if self._is_closing:  # its record is for the next start
            return
        self._in_lanes -= 1
        try:
            self._take_back(call)
        except Exception as error:  # noqa: BLE001  # nobody else would hear of it
            self.fail(error)

    def _take_back(self, call: RecordCall) -> None:
        run, worker, record = call.run, call.worker, call.record
        now = self._clock()
        worker.started_s = now - call.seconds
        call.arguments, sent = NOTHING, call.sent()
        if call.failed is not None or worker.timed_out:
            self._begin(Returned(call))
            return
        worker.load.spend(worker.started_s, now, run.dispatch.partition, record)
        worker.started_s = math.inf
        done: RecordResult | None = None
        if call.result is not None or call.attempt is not None or sent:
            try:
                done = self._produced_now(run, record, call.result, call.attempt, call.context, sent)
            except Exception:  # noqa: BLE001  # it comes again, and is dealt with
                self._begin(Returned(call))
                return
        self._finish(run, worker, done)

    async def _run_returned(self, going: Returned) -> None:
        call, run = going.call, going.run
        worker, record, attempt, failed = call.worker, call.record, call.attempt, call.failed
        if failed is None and worker.timed_out:
            failed = asyncio.CancelledError()
        if failed is not None:
            done = await self._process(run, worker, record, first_error(attempt, failed))
        else:
            done = await self._produced(run, worker, record, call.result, attempt, call.context, call.sent())
        going.worker = None  # it is in its lane again
        self._finish(run, worker, done)

    def _finish(self, run: PartitionRun, worker: Worker, done: RecordResult | None) -> None:
        run.dispatch.finish(worker, done)
        self._count(run, worker, done)
        self._enter(run, (worker,))


def _further(run: PartitionRun, asked: Context, stores: Sequence[Any]) -> Sequence[Any]:
    """What a handler is called with behind the value, as it asks for it."""
    left = iter(stores)
    return [asked if binding is None else next(left) for binding in run.bindings]


def _call(
    function: Callable[..., Any], decode: Callable[[bytes | None], Any], value: bytes | None, further: Sequence[Any]
) -> Any:
    return function(decode(value), *further)


def _tell_room(run: PartitionRun, worker: Worker) -> None:
    """Readers wait for room in the queue of a worker, or it lacks records."""
    dispatch = run.dispatch
    if worker.dropped_from is not None and worker.queue_bytes * 2 <= dispatch.quota_bytes:
        run.lacks.set()
    if worker.awaited_bytes and dispatch.has_room_again(worker, worker.awaited_bytes):
        worker.awaited_bytes = 0
        run.room.set()
        run.catch_up_room.set()
