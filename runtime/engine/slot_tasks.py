"""Tasks of the event loop that run async handlers.

A task runs workers one after the other as long as no handler suspends: a task costs more than a short handler. The
first worker with a suspended handler keeps the task, and the waiting workers get other tasks. An idle task waits for
more work: a new task costs as much as a record.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...brokers.patience import abandon
from ...errors import HandlerFailed
from ..partition.worker import Worker
from .attempts import Attempts
from .lanes import Returned
from .partition_run import PartitionRun
from .queue_runner import YIELD_EVERY_RECORDS, QueueRunner
from .straight_runner import StraightRunner
from .task_work import StraightBatch, TaskWork, driven
from .turns import Turns

logger = logging.getLogger("keylanes")

TASKS_AT_ONCE: Final = 4
"""When a handler suspends, the waiting workers are divided among this number of tasks; when a handler suspends in such
a task, each waiting worker gets a task of its own. In a single task each worker would take a turn of the loop; and for
handlers that do not suspend, a task for each worker costs too much.
"""
IDLE_TASKS_MAX: Final = 1_000
"""The most idle tasks that are kept."""


class SlotTasks:
    """The tasks of all partitions. ``fail`` is called with the error that ends the application.

    - ``working``: the work of each task that is not idle.
    - ``unstarted``: how many workers have records and wait for the loop: the loop has no time for more.
    """

    def __init__(
        self,
        attempts: Attempts,
        queues: QueueRunner,
        straight: StraightRunner,
        turns: Turns,
        *,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.working: dict[asyncio.Task[None], TaskWork] = {}
        self.unstarted = 0
        self._attempts = attempts
        self._queues = queues
        self._straight = straight
        self._turns = turns
        self._fail = fail
        self._idle: list[tuple[asyncio.Task[None], asyncio.Future[TaskWork]]] = []
        """Idle tasks, each with the future that brings the next work; the last task gets the next work."""

    def start(self, run: PartitionRun, waiting: list[Worker]) -> None:
        """Run workers; the last one first."""
        self.unstarted += len(waiting)
        if waiting:
            self.begin(TaskWork(run, waiting))

    def begin(self, going: TaskWork) -> None:
        """Give work to an idle task, or to a new task where no task is idle."""
        while self._idle:
            task, given = self._idle.pop()
            if not given.done():  # else somebody cancelled the idle task
                self.working[task] = going
                given.set_result(going)
                return
        task = asyncio.get_running_loop().create_task(self._run(going), context=self._attempts.variables.copy())
        self.working[task] = going
        task.add_done_callback(self._end)

    async def close(self, limit_s: float) -> None:
        """Cancel all tasks; abandon and name those that still run after ``limit_s``."""
        tasks = [*self.working, *(task for task, _ in self._idle)]
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=limit_s)
        for going in (self.working[task] for task in pending if task in self.working):
            found = going.running_record()
            where = f"{going.run.label} offset {None if found is None else found[0].offset}"
            logger.error("handler %s at %s ignores that it is cancelled", going.run.handler.name, where)
        for task in pending:
            task.remove_done_callback(self._end)
            abandon(task)

    async def _run(self, going: TaskWork | None) -> None:
        """A task: run the given work, then further work, as long as not too many tasks are idle."""
        queues, straight = self._queues, self._straight
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "a coroutine runs in one"
        while going is not None:
            if isinstance(going, StraightBatch):
                await straight.run(going)
            elif len(going.waiting) == 1:  # the usual case for handlers that suspend: a coroutine less to go through
                await queues.run_worker(going.run, self._next(going))
            elif isinstance(going, Returned):
                await going.call.lanes.run_returned(going)
            else:
                await self._run_workers(going)
            going = None  # an idle task holds no batch
            if len(self._idle) < IDLE_TASKS_MAX and not task.cancelling() and not self._attempts.is_closing:
                del self.working[task]
                given: asyncio.Future[TaskWork] = loop.create_future()
                self._idle.append((task, given))
                going = await given

    async def _run_workers(self, going: TaskWork) -> None:
        """Run workers one after the other; give the waiting workers to other tasks when a handler suspends."""
        queues, count = self._queues, 0
        while going.waiting:
            work = queues.run_worker(going.run, self._next(going))
            if going.waiting:
                count += await driven(work, going, self._part)
            else:
                count += await work
            if count >= YIELD_EVERY_RECORDS:
                count = 0
                await asyncio.sleep(0)

    def _next(self, going: TaskWork) -> Worker:
        """Take the worker that waited longest."""
        worker = going.waiting.pop()
        going.worker = worker
        self.unstarted -= 1
        return worker

    def _part(self, going: TaskWork) -> None:
        """Give the waiting workers of a task to other tasks."""
        waiting, going.waiting = going.waiting, []
        waiting.reverse()
        tasks = len(waiting) if going.parted else min(TASKS_AT_ONCE, len(waiting))
        for i in range(tasks):
            part = waiting[i::tasks]
            part.reverse()
            self.begin(TaskWork(going.run, part, parted=True))

    def _end(self, task: "asyncio.Task[None]") -> None:
        """A task has ended: for want of work, by a cancellation or by an error."""
        going = self.working.pop(task, None)
        if going is None:  # the task was cancelled while idle: nothing is lost
            return
        self.unstarted -= len(going.waiting)
        if not self._attempts.is_closing and (task.cancelled() or task.exception() is not None):
            for worker in (going.worker, *going.waiting):
                if worker is not None:
                    self._turns.give_back(going.run, worker)
        if task.cancelled():
            for worker in (going.worker, *going.waiting):
                if worker is not None:
                    worker.active = False
            if not self._attempts.is_closing:  # else the worker would stand still for ever, and nobody would know
                self._fail(HandlerFailed(f"{going.run.label}: the task of a worker was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self._fail(error)
