"""Lanes: threads run the workers of ``def`` handlers.

A lane is a worker whose record waits for a thread, or runs in a thread. A lane has no task and no future: when a call
is finished, the loop finishes the record, and at once begins the worker's next record. A record that has to wait goes
on in a task (``Returned``), and its lane with the record: an attempt failed or ran over its time, or the destination of
an output is unknown.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context as Variables
from typing import Any

from ...brokers.protocol import ConsumerRecord
from ..handlers.context import Context, Output
from ..handlers.record_result import RecordResult
from ..partition.worker import Worker
from .attempts import Attempts, first_error
from .calls import NOTHING
from .partition_run import Attempt, PartitionRun
from .record_gate import RecordGate
from .task_work import TaskWork
from .threads import HandlerThreads, ThreadCall


class RecordCall(ThreadCall):
    """The first attempt at a record, in a lane. ``asked``: the context, for a handler that takes the context."""

    __slots__ = ("asked", "attempt", "lanes", "record", "run")

    def __init__(
        self,
        lanes: "Lanes",
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        *,
        attempt: Attempt | None,
        variables: Variables,
    ) -> None:
        handler = run.handler
        asked = Context(run.dispatch.topic, run.dispatch.partition, record, 1) if handler.takes_context else None
        further: Sequence[Any] = NOTHING if attempt is None else attempt[1]
        if asked is not None:
            further = _further(run, asked, further)
        super().__init__(worker, variables, _call, (handler.function, handler.decode, record.value, further))
        self.lanes = lanes
        self.run = run
        self.record = record
        self.attempt = attempt
        self.asked = asked

    def take_sent(self) -> Sequence[Output]:
        """The outputs that the handler sent by the context. The attempt has ended, so the context is closed."""
        return NOTHING if self.asked is None else self.asked.close()

    def end(self) -> None:
        """See ThreadCall."""
        self.lanes.go_on(self)


class Returned(TaskWork):
    """A task's work: a record whose call is finished, and that has to wait for something."""

    __slots__ = ("call",)

    def __init__(self, call: RecordCall) -> None:
        super().__init__(call.run, [])
        self.call = call
        self.worker = call.worker


class Lanes:
    """The lanes of all partitions. ``records``: how many records are in lanes. ``begin`` has a task go on with a record
    that has to wait. ``fail`` is called with the error that ends the application.
    """

    def __init__(
        self,
        attempts: Attempts,
        gate: RecordGate,
        threads: HandlerThreads,
        *,
        begin: Callable[[TaskWork], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.records = 0
        self._attempts = attempts
        self._gate = gate
        self._threads = threads
        self._begin = begin
        self._fail = fail
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._entering: deque[tuple[PartitionRun, Worker]] = deque()
        self._is_entering = False

    def enter(self, run: PartitionRun, workers: Iterable[Worker]) -> None:
        """Begin the next records of workers, in lanes.

        A worker that gives back its permit, or asks for a permit, may start another worker or be started itself, by a
        call of this method from within: those workers enter behind the present ones.
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
        """Hand the worker's next record to the threads."""
        record = self._gate.next_record(run, worker)
        if record is None:
            return
        worker.started_s = math.inf
        self.records += 1
        variables = self._attempts.variables.copy()
        self._threads.begin(RecordCall(self, run, worker, record, attempt=run.attempt(record), variables=variables))

    def go_on(self, call: RecordCall) -> None:
        """Go on after a finished call."""
        if self._attempts.is_closing:  # the record is for the next start
            return
        self.records -= 1
        try:
            self._take_back(call)
        except Exception as error:  # noqa: BLE001  # nobody awaits this call: the error would be lost
            self._fail(error)

    def _take_back(self, call: RecordCall) -> None:
        """Finish the record of a call, or have a task go on with the record."""
        run, worker, record = call.run, call.worker, call.record
        now = self._clock()
        worker.started_s = now - call.seconds
        call.arguments = NOTHING
        sent = call.take_sent()
        if call.failed is not None or worker.timed_out:
            self._begin(Returned(call))
            return
        worker.load.spend(worker.started_s, now, run.dispatch.partition, record)
        worker.started_s = math.inf
        done: RecordResult | None = None
        if call.result is not None or call.attempt is not None or sent:
            try:
                done = self._attempts.produce_now(run, record, call.result, call.attempt, call.context, sent)
            except Exception:  # noqa: BLE001  # ``produce`` meets the error again, and deals with the error
                self._begin(Returned(call))
                return
        self._finish(run, worker, done)

    async def run_returned(self, going: Returned) -> None:
        """Finish a record that has to wait; afterwards its worker is in a lane again."""
        attempts, call, run = self._attempts, going.call, going.run
        worker, record, attempt, failed = call.worker, call.record, call.attempt, call.failed
        if failed is None and worker.timed_out:
            failed = asyncio.CancelledError()
        if failed is not None:
            done = await attempts.process(run, worker, record, first_error(attempt, failed))
        else:
            sent = call.take_sent()
            done = await attempts.produce(run, worker, record, call.result, attempt, call.context, sent)
        going.worker = None
        self._finish(run, worker, done)

    def _finish(self, run: PartitionRun, worker: Worker, done: RecordResult | None) -> None:
        run.dispatch.finish(worker, done)
        self._gate.count(run, worker, done)
        self.enter(run, (worker,))


def _further(run: PartitionRun, asked: Context, stores: Sequence[Any]) -> Sequence[Any]:
    """The handler's arguments behind the value, in the order of the handler's signature."""
    left = iter(stores)
    return [asked if binding is None else next(left) for binding in run.bindings]


def _call(
    function: Callable[..., Any], decode: Callable[[bytes | None], Any], value: bytes | None, further: Sequence[Any]
) -> Any:
    return function(decode(value), *further)
