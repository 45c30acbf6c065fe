"""Records of a worker's queue on the event loop: one after the other, in offset order."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from ..handlers.record_result import RecordResult
from ..partition.worker import Worker
from .attempts import Attempts, first_error
from .calls import NOTHING
from .partition_run import PartitionRun
from .record_gate import RecordGate

YIELD_EVERY_RECORDS: Final = 64
"""A task whose handlers never suspend lets other tasks run after this number of records."""


class QueueRunner:
    """Runs the queues of workers with async handlers, each in the task of the caller."""

    def __init__(self, attempts: Attempts, gate: RecordGate) -> None:
        self._attempts = attempts
        self._gate = gate
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    async def run_worker(self, run: PartitionRun, worker: Worker) -> int:
        """Run a worker's records until no record may begin. Returns how many records ran since the last suspension.

        The first attempt for a handler without a context is made here. ``Attempts.process`` makes all other attempts:
        the same steps, and slower.
        """
        attempts, gate = self._attempts, self._gate
        dispatch, clock, is_stateful = run.dispatch, self._clock, run.state is not None
        calls = None if run.handler.takes_context else run.calls(attempts.variables)
        count, now = 0, clock()
        while (record := gate.next_record(run, worker)) is not None:
            done: RecordResult | None = None
            worker.started_s = now
            if calls is None:
                done = await attempts.process(run, worker, record)
                now = clock()
            else:
                attempt = run.attempt(record) if is_stateful else None
                if not calls.begin(record.value, NOTHING if attempt is None else attempt[1]):
                    await calls
                failed = calls.take_exception()
                if failed is not None:
                    done = await attempts.process(run, worker, record, first_error(attempt, failed))
                    now = clock()
                elif attempts.is_closing:  # the handler was cancelled, and came to its end all the same
                    raise asyncio.CancelledError
                else:
                    now, result = clock(), calls.result()
                    worker.load.spend(worker.started_s, now, dispatch.partition, record)
                    if worker.timed_out:
                        error = first_error(attempt, asyncio.CancelledError())
                        done = await attempts.process(run, worker, record, error)
                        now = clock()
                    elif result is not None or attempt is not None:
                        worker.started_s = math.inf
                        done = await attempts.produce(run, worker, record, result, attempt, calls.context)
                        now = clock()  # an output that can't be sent had further attempts
            dispatch.finish(worker, done)
            gate.count(run, worker, done)
            count += 1
            if count == YIELD_EVERY_RECORDS:
                count = 0
                await asyncio.sleep(0)
                now = clock()
        if calls is not None:
            run.put_back_calls(calls)
        return count
