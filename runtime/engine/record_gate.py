"""The gate in front of every record: whether a worker's next record begins; and the count of records behind the gate.

A record begins if memory has room for more results, if the application does not stop, if the limit of the handler has a
permit, and if the worker has a record below its hold. Results wait for a commit; a commit makes room.
"""

import asyncio
from typing import Final

from ...brokers.protocol import ConsumerRecord
from ...brokers.throttling import BYTES_OPEN
from ..handlers.record_result import RecordResult
from ..partition.worker import Worker
from .commit_alarm import CommitAlarm
from .partition_run import PartitionRun
from .turns import Turns

HELD_BYTES: Final = 1 << 60
"""More than any limit of done bytes."""


class RecordGate:
    """Lets records begin, and counts done records.

    - ``done_bytes``: the bytes of results that wait for a commit; at most about ``done_bytes_max``, see
      ``Transactions.bound_done``. ``held_bytes``: the part of ``done_bytes`` that only keeps records from beginning.
    - ``records_done``: how many records are done.
    - ``is_stopping``: workers take no next record.
    - ``paused``: workers that wait for room.
    """

    def __init__(self, turns: Turns, alarm: CommitAlarm, done_bytes_max: int) -> None:
        self.done_bytes = 0
        self.done_bytes_max = min(done_bytes_max, BYTES_OPEN)
        self.held_bytes = 0
        self.records_done = 0
        self.is_stopping = False
        self.paused: list[tuple[PartitionRun, Worker]] = []
        self._turns = turns
        self._alarm = alarm
        self._room = asyncio.Event()
        """A commit made room, or the application stops."""

    def next_record(self, run: PartitionRun, worker: Worker) -> ConsumerRecord | None:
        """Begin a worker's next record. None: the queue is empty, or the worker waits for room or for its turn."""
        if self.done_bytes >= self.done_bytes_max:
            self.paused.append((run, worker))
            self._alarm.note_full()
        elif self.is_stopping:
            worker.active = False
        elif not run.is_limited or self._turns.may_begin(run, worker):
            record = run.dispatch.next_record(worker)
            if record is not None:
                worker.timed_out = False
                if worker.awaited_bytes or worker.dropped_from is not None:
                    _tell_room(run, worker)
                return record
        if worker.hold_at is not None:
            self._alarm.note_held(worker)
        self._turns.give_back(run, worker)
        return None

    def count(self, run: PartitionRun, worker: Worker, done: RecordResult | None) -> None:
        """Count a done record, and put the record's changes of state into the overlay."""
        worker.records += 1
        self.records_done += 1
        if done is not None:
            self.done_bytes += done.size
            if done.changes:
                assert run.state is not None, "only a handler with stores changes state"
                run.state.overlay.add(done.changes)

    async def wait_for_room(self) -> None:
        """Wait for room for the results of more records, or for the stop of the application.

        The rest of a batch that runs straight waits here. Queued instead, the rest would make all later records queue
        behind, for as long as there is much to do.
        """
        while self.done_bytes >= self.done_bytes_max and not self.is_stopping:
            self._alarm.note_full()
            self._room.clear()
            await self._room.wait()

    def free(self, size: int) -> dict[PartitionRun, list[Worker]]:
        """Free room for ``size`` bytes. Returns the workers that waited for room: the caller starts the workers."""
        self.done_bytes -= size
        self._room.set()
        waiting: dict[PartitionRun, list[Worker]] = {}
        for run, worker in self.paused:
            waiting.setdefault(run, []).append(worker)
        self.paused = []
        return waiting

    def hold(self) -> None:
        """Begin no record until ``end_hold``, as if there were no room."""
        self.held_bytes += HELD_BYTES
        self.done_bytes += HELD_BYTES

    def end_hold(self) -> dict[PartitionRun, list[Worker]]:
        """End a hold; see ``free``."""
        self.held_bytes -= HELD_BYTES
        return self.free(HELD_BYTES)

    def stop(self) -> None:
        """Begin no more records."""
        self.is_stopping = True
        self._room.set()


def _tell_room(run: PartitionRun, worker: Worker) -> None:
    """Wake the readers that wait for room in a worker's queue, or for the room of a worker with dropped records."""
    dispatch = run.dispatch
    if worker.dropped_from is not None and worker.queue_bytes * 2 <= dispatch.quota_bytes:
        run.lacks.set()
    if worker.awaited_bytes and dispatch.has_room_again(worker, worker.awaited_bytes):
        worker.awaited_bytes = 0
        run.room.set()
        run.catch_up_room.set()
