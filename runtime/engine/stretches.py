"""What records that ran straight produced, and how one becomes its worker's running record."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

from ...brokers.protocol import ConsumerRecord
from ..handlers.record_result import RecordResult
from ..partition.worker import PERMIT_NONE, PERMIT_USED, Worker
from ..settings import Settings
from .attempts import Attempts, first_error
from .calls import LoopCalls
from .destinations import Destinations
from .partition_run import Attempt, PartitionRun
from .task_work import StraightBatch
from .turns import Turns


class StraightRunner(Attempts):
    """Attempts, and what is done behind one that was made straight from a batch. ``done_bytes`` wait for a commit."""

    def __init__(
        self,
        destinations: Destinations,
        settings: Settings,
        turns: Turns,
        cpu_s: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(destinations, settings, turns, cpu_s, now_s)
        self.done_bytes = 0
        self.records_done = 0

    def _begin_running(self, going: StraightBatch) -> None:
        """What ran as if it took no time is its worker's running record from here on."""
        worker, record = going.worker, going.record
        assert worker is not None, "a record runs"
        assert record is not None, "a record runs"
        if worker.running is None:
            going.run.dispatch.begin(worker, record)
            worker.started_s, worker.timed_out = (self._clock() if going.is_called else math.inf), False
            if going.is_permitted:
                going.is_permitted, worker.permit = False, PERMIT_USED

    def _end_running(self, going: StraightBatch, worker: Worker) -> None:
        """The record is through, and nothing suspended: the worker is as idle as it was."""
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
        """Put what a record produced that ran straight into its partition's stretch: ``_produced``, for the usual case
        and without a ``RecordResult``. False: it is another case, or can't be sent.
        """
        stretch = run.dispatch.open_stretch(worker)
        if stretch is None:
            return False
        if attempt is None:
            try:
                built = self._built_one(result, record, run, calls.context)
            except Exception:  # noqa: BLE001  # it comes again, and is dealt with
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
        self.done_bytes += size
        return True

    async def _come_back(
        self,
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        result: Any,
        attempt: Attempt | None,
        calls: LoopCalls,
    ) -> RecordResult | None:
        """A handler that was suspended has ended."""
        if self._is_closing:  # it was cancelled, and came to an end all the same
            raise asyncio.CancelledError
        worker.load.spend(worker.started_s, self._clock(), run.dispatch.partition, record)
        if worker.timed_out:
            return await self._process(run, worker, record, first_error(attempt, asyncio.CancelledError()))
        worker.started_s = math.inf
        if result is None and attempt is None:
            return None
        return await self._produced(run, worker, record, result, attempt, calls.context)

    def _count(self, run: PartitionRun, worker: Worker, done: RecordResult | None) -> None:
        worker.records += 1
        self.records_done += 1
        if done is not None:
            self.done_bytes += done.size
            if done.changes:
                assert run.state is not None, "only a handler with stores changes state"
                run.state.overlay.add(done.changes)
