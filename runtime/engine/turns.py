"""Whose turn it is, where a handler says how many of its records may run at once (``max_in_flight``).

A worker takes a permit before it begins a record, and stands in line, without a task, where there is none. When others
wait it gives way behind each record. A record that is tried again lets go of its permit between two attempts. Records
that run straight from their batch run one after the other, so a stretch of them has one permit; the record that
suspends keeps it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ..partition.permits import Permits
from ..partition.worker import PERMIT_NEW, PERMIT_NONE, PERMIT_USED, Worker
from .partition_run import PartitionRun

Waiting: TypeAlias = tuple[PartitionRun, Worker]


class Turns:
    """The permits of all handlers that have a limit. ``start`` has workers begin that were in line."""

    def __init__(self) -> None:
        self.start: Callable[[PartitionRun, Iterable[Worker]], None] | None = None
        self._permits: dict[str, Permits[Waiting]] = {}
        self._resuming: dict[Worker, asyncio.Future[None]] = {}
        """Workers whose record waits for its next attempt."""

    @property
    def resuming(self) -> int:
        """How many records that are tried again wait for a permit."""
        return len(self._resuming)

    def may_begin(self, run: PartitionRun, worker: Worker) -> bool:
        """Whether a worker of a handler with a limit may begin its next record. False: it is in line."""
        permits = self._permits_of(run)
        if worker.permit == PERMIT_USED and permits.is_awaited:
            self.give_back(run, worker)
        if worker.permit == PERMIT_NONE:
            if not worker.queue:
                return True
            if not permits.take():
                permits.wait(run.label, (run, worker))
                return False
        worker.permit = PERMIT_USED
        return True

    def give_back(self, run: PartitionRun, worker: Worker) -> None:
        """Let go of a worker's permit, if it has one."""
        if worker.permit != PERMIT_NONE:
            worker.permit = PERMIT_NONE
            self.end_stretch(run)

    def begin_stretch(self, run: PartitionRun) -> bool:
        """Take a permit for records that run straight; False: there is none."""
        return self._permits_of(run).take()

    def end_stretch(self, run: PartitionRun) -> None:
        """Give back a permit; who is next goes on."""
        permits = self._permits_of(run)
        while (found := permits.give_back()) is not None:
            waiting, worker = found
            resumed = self._resuming.pop(worker, None)
            if resumed is not None and resumed.done():  # it was cancelled, and is about to say so
                continue
            worker.permit = PERMIT_NEW
            if resumed is not None:
                resumed.set_result(None)
            else:
                assert self.start is not None, "somebody starts those in line"
                self.start(waiting, [worker])
            return

    async def resume(self, run: PartitionRun, worker: Worker) -> None:
        """Wait for a permit for another attempt at the record that the worker runs."""
        if not run.is_limited or worker.permit != PERMIT_NONE:
            return
        permits = self._permits_of(run)
        if permits.take():
            worker.permit = PERMIT_USED
            return
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resuming[worker] = resumed
        permits.wait(run.label, (run, worker))
        try:
            await resumed
        except BaseException:
            if self._resuming.pop(worker, None) is not None:
                permits.forget(run.label, (run, worker))
            raise

    def _permits_of(self, run: PartitionRun) -> Permits[Waiting]:
        most = run.handler.max_in_flight
        assert most is not None, "the handler has a limit"
        permits = self._permits.get(run.handler.topic)
        if permits is None:
            permits = self._permits[run.handler.topic] = Permits(most)
        return permits
