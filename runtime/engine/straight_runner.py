"""Records that run straight from their batch, without the queues of their workers.

A record whose worker has nothing else to do runs at once; all other records go to the queues. As long as no handler
suspends, the records of a batch run in one task, as if no record took any time: no worker has a running record. The
first record with a suspended handler becomes the running record of its worker, and keeps the task.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...brokers.protocol import ConsumerRecord
from ...brokers.throttling import BYTES_OPEN
from ..handlers.record_result import RecordResult
from ..partition.worker import PERMIT_NONE, PERMIT_USED, Worker
from .attempts import Attempts, first_error
from .calls import NOTHING, LoopCalls
from .partition_run import Attempt, PartitionRun
from .queue_runner import QueueRunner
from .record_gate import RecordGate
from .task_work import StraightBatch, driven
from .turns import Turns

STRETCH_RECORDS_MAX: Final = 256
STRETCH_S: Final = 0.002
"""A task that runs a batch straight lets other tasks run after this number of records, or this processor time."""
STRETCHES_MIN: Final = 4
"""A generation of the largest size has about this number of stretches at least: a generation takes a stretch whole."""
LOOK_EVERY_RECORDS: Final = 64
"""The number of records between two looks at the processor time."""


class StraightRunner:
    """Runs batches straight. ``start`` starts workers with new records in their queues. ``stretch_bytes_max``: the
    greatest size of a stretch. ``stretch_records_max``: the greatest number of outputs in a stretch.
    """

    def __init__(
        self,
        attempts: Attempts,
        gate: RecordGate,
        queues: QueueRunner,
        turns: Turns,
        *,
        start: Callable[[PartitionRun, Sequence[Worker]], None],
        cpu_s: Callable[[], float],
        stretch_records_max: int,
    ) -> None:
        self.stretch_bytes_max = BYTES_OPEN
        self.stretch_records_max = stretch_records_max
        self._attempts = attempts
        self._gate = gate
        self._queues = queues
        self._turns = turns
        self._start = start
        self._cpu_s = cpu_s
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    async def run(self, going: StraightBatch) -> None:
        """Run a batch in time slices; other tasks run between two slices."""
        gate, run = self._gate, going.run
        while not going.through.done():
            if gate.done_bytes >= gate.done_bytes_max:
                await gate.wait_for_room()
            if gate.is_stopping:
                going.end(going.at)
                return
            if run.is_limited and not self._turns.take_batch_permit(run):
                going.end(going.at)  # the rest is queued, and the workers wait for permits
                return
            going.is_permitted = run.is_limited
            going.since_s = self._clock()
            try:
                await driven(self._run_slice(going), going, self._part)
            except BaseException:
                # A commit may still take the results of records below the failed record. The failed record bounds the
                # edge, as the running record of its worker.
                if going.record is not None and not going.has_parted:
                    self._begin_running(going)
                self._end_permit(going)
                raise
            self._end_permit(going)
            going.record = going.worker = None
            if not going.has_parted:
                self._end_slice(going)
                await asyncio.sleep(0)

    async def _run_slice(self, going: StraightBatch) -> None:
        """Run a time slice of a batch. The first attempt at each record is made here; ``Attempts`` makes further
        attempts and unusual results. ``QueueRunner.run_worker`` does the same for queued records.
        """
        attempts, gate, run = self._attempts, self._gate, going.run
        dispatch, calls = run.dispatch, run.calls(attempts.variables)
        going.full_at = min(gate.done_bytes_max, gate.done_bytes + self.stretch_bytes_max)
        full_at, is_stateful = going.full_at, run.state is not None
        going.look_at, going.last = going.at + LOOK_EVERY_RECORDS, going.at + STRETCH_RECORDS_MAX
        going.until_s = self._cpu_s() + STRETCH_S
        route = going.route
        route.at = going.at
        while dispatch.step(route):
            i, worker, record = route.at - 1, route.worker, route.record
            if (i >= going.look_at or gate.done_bytes >= full_at) and self._is_over(going, i):
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
                done = await attempts.process(run, worker, record, first_error(attempt, failed))
            else:
                going.is_called, result = False, calls.result()
                if going.has_parted:
                    done = await self._end_suspended(run, worker, record, result, attempt, calls)
                elif (result is not None or is_stateful) and not self._lay_down(
                    run, worker, record, result, attempt, calls
                ):
                    self._begin_running(going)
                    done = await attempts.produce(run, worker, record, result, attempt, calls.context)
            if worker.running is None:
                worker.done_to = route.offset + 1
                if done is not None:
                    worker.keep(done)
            else:
                dispatch.finish(worker, done)
            gate.count(run, worker, done)
            if going.has_parted:
                run.put_back_calls(calls)
                await self._queues.run_worker(run, worker)
                return
            self._end_running(going, worker)
        else:
            dispatch.pass_by(going.batch)
            going.end(len(going.batch.records))
        run.put_back_calls(calls)

    def _is_over(self, going: StraightBatch, i: int) -> bool:
        """Whether a time slice ends in front of the record with index ``i``."""
        gate = self._gate
        if gate.is_stopping:
            going.end(i)
            return True
        if i < going.last and gate.done_bytes < going.full_at and self._cpu_s() < going.until_s:
            going.look_at = i + LOOK_EVERY_RECORDS
            return False
        going.at = i
        return True

    def _end_slice(self, going: StraightBatch) -> None:
        going.run.dispatch.bound_stretch(self.stretch_bytes_max, self.stretch_records_max)
        if going.ready:
            ready, going.ready = going.ready, []
            self._start(going.run, ready)

    def _part(self, going: StraightBatch) -> None:
        """The handler of the present record is suspended: the reader hands out the rest of the batch."""
        going.has_parted = True
        self._begin_running(going)
        self._end_slice(going)
        going.end(going.at + 1)
        going.let_go()

    def _end_permit(self, going: StraightBatch) -> None:
        if going.is_permitted:  # else the worker has the permit, for the record with a suspended handler
            going.is_permitted = False
            self._turns.return_batch_permit(going.run)

    # --- the present record ------------------------------------------------------------------------------------------

    def _begin_running(self, going: StraightBatch) -> None:
        """Make the present record the running record of its worker, unless the worker has a running record."""
        worker, record = going.worker, going.record
        assert worker is not None, "a record runs"
        assert record is not None, "a record runs"
        if worker.running is None:
            going.run.dispatch.begin(worker, record)
            worker.started_s, worker.timed_out = (self._clock() if going.is_called else math.inf), False
            if going.is_permitted:
                going.is_permitted, worker.permit = False, PERMIT_USED

    def _end_running(self, going: StraightBatch, worker: Worker) -> None:
        """The record is done, and no handler suspended: the worker is as idle as before."""
        worker.active = False
        if worker.permit != PERMIT_NONE:
            going.is_permitted, worker.permit = True, PERMIT_NONE

    def _lay_down(
        self,
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        result: Any,
        attempt: Attempt | None,
        calls: LoopCalls,
    ) -> bool:
        """Put the result of a record into the partition's stretch: ``Attempts.produce`` for a single output or changes
        of state, without a ``RecordResult``. False: the result is neither, or can't be sent.
        """
        stretch = run.dispatch.open_stretch(worker)
        if stretch is None:
            return False
        if attempt is None:
            try:
                built = self._attempts.build_one(result, record, run, calls.context)
            except Exception:  # noqa: BLE001  # ``produce`` meets the error again, and deals with the error
                return False
            if built is None:
                return False
            output, digest, size = built
            stretch.send(worker, record, output, digest)
        else:
            scope = attempt[0]
            if result is not None or scope.failed is not None:
                return False
            assert run.state is not None, "only a handler with stores changes state"
            size = run.state.overlay.move(scope.close(), stretch.changes)
            run.put_back(attempt)
        stretch.size += size
        self._gate.done_bytes += size
        return True

    async def _end_suspended(
        self,
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        result: Any,
        attempt: Attempt | None,
        calls: LoopCalls,
    ) -> RecordResult | None:
        """The result of a record whose handler was suspended and has returned."""
        attempts = self._attempts
        if attempts.is_closing:  # the handler was cancelled, and came to its end all the same
            raise asyncio.CancelledError
        worker.load.spend(worker.started_s, self._clock(), run.dispatch.partition, record)
        if worker.timed_out:
            return await attempts.process(run, worker, record, first_error(attempt, asyncio.CancelledError()))
        worker.started_s = math.inf
        if result is None and attempt is None:
            return None
        return await attempts.produce(run, worker, record, result, attempt, calls.context)
