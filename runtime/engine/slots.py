"""Slots run workers: the event loop runs async handlers, threads run sync handlers, one record of a worker at a time.

``Slots`` is the door to the parts:

- ``RecordGate``: whether a worker's next record begins.
- ``StraightRunner``: records that run straight from a batch, for their workers have nothing else to do.
- ``QueueRunner``: records that waited in the queue of a worker; ``SlotTasks`` has the tasks for both.
- ``Lanes``: threads, for ``def`` handlers.
- ``Attempts``: attempts at a record, until an attempt succeeds or the record has failed for good.

While the thread of a timed-out handler still runs, the worker takes no next record: nobody can stop a thread, and two
records of one key must not run at once.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...brokers.protocol import Batch
from ...state.overlay import OverlayEntry
from ..partition.worker import Worker
from ..settings import Settings
from ..watch.failures import Failures
from ..watch.statistics import RunningRecord
from .attempts import Attempts
from .commit_alarm import CommitAlarm
from .destinations import Destinations
from .lanes import Lanes, RecordCall
from .partition_run import PartitionRun
from .queue_runner import QueueRunner
from .record_gate import RecordGate
from .slot_tasks import SlotTasks
from .straight_runner import STRETCHES_MIN, StraightRunner
from .task_work import StraightBatch
from .threads import HandlerThreads
from .turns import Turns

logger = logging.getLogger("keylanes")


class Slots:
    """Runs the workers of all partitions. ``fail`` is called with the error that ends the application.

    ``cpu_s``: the processor time of the calling thread; ``now_s``: the loop's time, for any thread.
    """

    def __init__(
        self,
        destinations: Destinations,
        settings: Settings,
        fail: Callable[[BaseException], None],
        alarm: CommitAlarm,
        *,
        cpu_s: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self.destinations = destinations
        self.fail = fail
        self.turns = Turns(self.activate)
        self.failures = Failures(settings.limits.failure_log_interval_ms)
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        # Any free thread takes any worker's next record: with a thread of its own, a worker would wait behind a handler
        # that hangs.
        self._threads = HandlerThreads(settings.threads, "keylanes-slot", now_s, cpu_s)
        self._gate = RecordGate(self.turns, alarm, settings.limits.done_bytes_max)
        self._attempts = Attempts(
            destinations, settings, turns=self.turns, failures=self.failures, threads=self._threads
        )
        queues = QueueRunner(self._attempts, self._gate)
        self._straight = StraightRunner(
            self._attempts,
            self._gate,
            queues,
            self.turns,
            start=self.activate,
            cpu_s=cpu_s,
            stretch_records_max=settings.limits.generation_records_max // STRETCHES_MIN,
        )
        self.tasks = SlotTasks(self._attempts, queues, self._straight, self.turns, fail=fail)
        self._lanes = Lanes(self._attempts, self._gate, self._threads, begin=self.tasks.begin, fail=fail)

    # --- work --------------------------------------------------------------------------------------------------------

    def activate(self, run: PartitionRun, workers: Iterable[Worker]) -> None:
        """Start the workers; each was marked active by the dispatch."""
        if run.has_lanes:
            self._lanes.enter(run, workers)
            return
        waiting = [*workers]
        waiting.reverse()
        self.tasks.start(run, waiting)

    async def hand_through(self, run: PartitionRun, batch: Batch, cells: Sequence[OverlayEntry | None] = ()) -> int:
        """Run the records of a batch straight, where possible. Returns the index from which on the caller hands out the
        batch. ``cells``: the overlay entry of each record's state, where looked up.

        For handlers without a context. While this runs, no other caller hands out to the partition's workers.
        """
        going = StraightBatch(run, batch, cells, self._clock())
        self.tasks.begin(going)
        return await going.through

    def take_variables(self) -> None:
        """Take the caller's context variables for the handlers."""
        self._attempts.take_variables()

    def stop(self) -> None:
        """Workers take no next record from now on."""
        self._gate.stop()

    def hold(self, *, is_held: bool) -> None:
        """Begin no record as long as ``is_held``, as if there were no room for results."""
        if is_held:
            self._gate.hold()
        else:
            self._activate_all(self._gate.end_hold())

    async def close(self, limit_s: float) -> None:
        """Cancel all running handlers, for at most ``limit_s``, and let go of the threads. Further calls do nothing."""
        if self._attempts.is_closing:
            return
        self._attempts.is_closing = True
        self.stop()
        await self.tasks.close(limit_s)
        self._threads.close()
        self.turns.close()
        self._lanes.records = 0

    def _activate_all(self, waiting: Mapping[PartitionRun, Iterable[Worker]]) -> None:
        for run, workers in waiting.items():
            self.activate(run, workers)

    # --- results that wait for a commit ------------------------------------------------------------------------------

    @property
    def records_done(self) -> int:
        """How many records are done."""
        return self._gate.records_done

    @property
    def done_bytes(self) -> int:
        """The bytes of results that wait for a commit, without the bytes of a hold."""
        return self._gate.done_bytes - self._gate.held_bytes

    @property
    def has_paused(self) -> bool:
        """Whether workers wait for room for results."""
        return bool(self._gate.paused)

    def bound_done(self, bytes_max: int) -> None:
        """Bound the bytes of results that wait for a commit."""
        self._gate.done_bytes_max = bytes_max

    def bound_stretches(self, bytes_max: int) -> None:
        """Bound the size of stretches."""
        self._straight.stretch_bytes_max = bytes_max

    def note_growth(self, grown_bytes: int) -> None:
        """Results that wait for a commit were replaced by others, with ``grown_bytes`` more."""
        self._gate.done_bytes += grown_bytes

    def note_commit(self, size: int) -> None:
        """Results of ``size`` bytes were committed: start workers that waited for room, and go on with batches."""
        self._activate_all(self._gate.free(size))

    # --- running records ---------------------------------------------------------------------------------------------

    @property
    def has_unstarted(self) -> bool:
        """Whether workers have records and wait for the loop: the loop has no time for more."""
        return self.tasks.unstarted > 0

    def is_idle(self) -> bool:
        """Whether no worker has anything to do, except workers that wait for room or for their turn."""
        return not self.tasks.working and not self._lanes.records

    def count_running(self) -> int:
        """How many records have begun and are not done, without records that wait for their turn to be tried again."""
        begun = sum(1 for going in list(self.tasks.working.values()) if going.running_record() is not None)
        return begun + self._lanes.records - self.turns.records_resuming

    def oldest_running(self, now: float) -> RunningRecord | None:
        """The record that has been running longest. May be called from any thread; ``now`` is the loop's time."""
        running = [
            (found[1], going.run.label, found[0].offset)
            for going in list(self.tasks.working.values())  # a single step: the watch has a thread of its own
            if (found := going.running_record()) is not None and found[1] < math.inf
        ]
        running += [
            (started_s, call.run.label, call.record.offset)
            for call in self._calls_in_threads()
            if (started_s := call.worker.started_s) < math.inf
        ]
        if not running:
            return None
        started, label, offset = min(running)
        return RunningRecord(label, offset, max(0.0, now - started))

    def end_overdue(self, now: float) -> None:
        """Cancel attempts of async handlers that take too long; log attempts of sync handlers that take too long."""
        for call in self._calls_in_threads():
            self._is_overdue(call.run, call.worker, now)
        for task, going in list(self.tasks.working.items()):
            run, worker = going.run, going.worker
            if worker is not None and self._is_overdue(run, worker, now) and run.handler.is_async:
                task.cancel()

    def _is_overdue(self, run: PartitionRun, worker: Worker, now: float) -> bool:
        """Whether the attempt at a worker's record takes too long, for the first time; logs the attempt."""
        limit_ms = self._attempts.timeout_ms(run)
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

    def _calls_in_threads(self) -> list[RecordCall]:
        """The calls of lanes that threads make now. May be called from any thread."""
        return [call for call in self._threads.calls_under_way() if isinstance(call, RecordCall)]
