"""Turns of workers, where a handler limits how many of its records run at once (``max_in_flight``), or how many
attempts begin in a second (``rate_per_s``).

A worker takes a permit before a record begins. Without a free permit the worker waits in a queue, without a task. While
others wait, a worker gives its permit back behind each record. Between two attempts at a record the permit is given
back, too. Records that run straight from their batch run one after the other, and share a permit; the record with a
suspended handler keeps the permit. Where there is a rate, each attempt has a permit of its own, and no record runs
straight.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..handlers.handler import IN_FLIGHT_MAX, Handler
from ..partition.pace import AttemptPace
from ..partition.permits import Permits
from ..partition.worker import PERMIT_NEW, PERMIT_NONE, PERMIT_USED, Worker
from .partition_run import PartitionRun

Waiting: TypeAlias = tuple[PartitionRun, Worker]


@dataclass(slots=True, eq=False)
class _Limit:
    """The limit of one handler. ``due``: the timer of the next look at workers that wait for the pace."""

    permits: Permits[Waiting]
    due: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Turns:
    """The permits of all handlers with a limit. ``start`` starts workers that waited in a queue."""

    start: Callable[[PartitionRun, Iterable[Worker]], None]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _limits: dict[str, _Limit] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)
    """How many attempts may begin in a second in this process, by topic."""
    _resuming: dict[Worker, "asyncio.Future[None]"] = field(default_factory=dict)
    """Workers whose record waits for a permit for its next attempt."""

    @property
    def records_resuming(self) -> int:
        """How many records wait for a permit for their next attempt."""
        return len(self._resuming)

    def rates(self) -> dict[str, float]:
        """How many attempts may begin in a second in this process, by topic."""
        return dict(self._rates)

    def set_rate(self, topic: str, per_s: float) -> None:
        """Set how many attempts may begin in a second in this process, at the records of a topic with a limited rate;
        before the first call, no attempt begins.
        """
        self._rates[topic] = per_s
        limit = self._limits.get(topic)
        if limit is not None and limit.permits.pace is not None:
            limit.permits.pace.change(per_s, self._loop.time())
            self._serve(limit)

    def may_begin(self, run: PartitionRun, worker: Worker) -> bool:
        """Whether a worker of a handler with a limit may begin its next record. False: the worker waits in a queue."""
        if not worker.has_next():
            return True
        permits = self._limit_of(run).permits
        if worker.permit == PERMIT_USED and (permits.is_awaited or permits.pace is not None):
            self.give_back(run, worker)
        if worker.permit == PERMIT_NONE and not self._take(run):
            self._wait(run, worker)
            return False
        worker.permit = PERMIT_USED
        return True

    def give_back(self, run: PartitionRun, worker: Worker) -> None:
        """Give a worker's permit back, if any."""
        if worker.permit != PERMIT_NONE:
            is_unused, worker.permit = worker.permit == PERMIT_NEW, PERMIT_NONE
            self._give_back(self._limit_of(run), is_unused=is_unused)

    def take_batch_permit(self, run: PartitionRun) -> bool:
        """Take a permit for records that run straight; False: no permit is free, or the handler has a rate."""
        permits = self._limit_of(run).permits
        return permits.pace is None and permits.take()

    def return_batch_permit(self, run: PartitionRun) -> None:
        """Give back the permit of records that ran straight; the next waiting worker goes on."""
        self._give_back(self._limit_of(run), is_unused=False)

    async def resume(self, run: PartitionRun, worker: Worker) -> None:
        """Wait for a permit for another attempt at the worker's running record."""
        if not run.is_limited or worker.permit != PERMIT_NONE:
            return
        if self._take(run):
            worker.permit = PERMIT_USED
            return
        resumed: asyncio.Future[None] = self._loop.create_future()
        self._resuming[worker] = resumed
        self._wait(run, worker)
        try:
            await resumed
        except BaseException:
            if self._resuming.pop(worker, None) is not None:
                self._limit_of(run).permits.forget(run.label, (run, worker))
            raise
        worker.permit = PERMIT_USED

    def close(self) -> None:
        """Cancel the timers: the pace lets no waiting worker begin any more."""
        for limit in self._limits.values():
            if limit.due is not None:
                limit.due.cancel()

    def _give_back(self, limit: _Limit, *, is_unused: bool) -> None:
        limit.permits.give_back(is_unused=is_unused)
        self._serve(limit)

    def _take(self, run: PartitionRun) -> bool:
        return self._limit_of(run).permits.take(self._loop.time())

    def _wait(self, run: PartitionRun, worker: Worker) -> None:
        limit = self._limit_of(run)
        limit.permits.wait(run.label, (run, worker))
        if limit.permits.pace is not None and limit.due is None:
            self._serve(limit)

    def _serve(self, limit: _Limit) -> None:
        """Give permits to waiting workers as long as permits are free; set a timer for the next permit by the pace."""
        now_s = self._loop.time()
        while (found := limit.permits.serve(now_s)) is not None:
            run, worker = found
            resumed = self._resuming.pop(worker, None)
            if resumed is not None and resumed.done():  # the waiting attempt was cancelled
                limit.permits.give_back(is_unused=True)
                continue
            worker.permit = PERMIT_NEW
            if resumed is not None:
                resumed.set_result(None)
            else:
                self.start(run, [worker])
        if limit.permits.pace is None:
            return
        if limit.due is not None:
            limit.due.cancel()
            limit.due = None
        wait_s = limit.permits.due_s(now_s)
        if wait_s is not None and wait_s < math.inf:
            limit.due = self._loop.call_later(wait_s, self._serve, limit)

    def _limit_of(self, run: PartitionRun) -> _Limit:
        topic = run.handler.topic
        limit = self._limits.get(topic)
        if limit is None:
            limit = self._limits[topic] = self._make_limit(run.handler)
        return limit

    def _make_limit(self, handler: Handler) -> _Limit:
        pace: AttemptPace | None = None
        if handler.rate_per_s is not None:
            pace = AttemptPace(self._loop.time())
            pace.change(self._rates.get(handler.topic, 0.0), self._loop.time())
        return _Limit(Permits(handler.max_in_flight or IN_FLIGHT_MAX, pace))
