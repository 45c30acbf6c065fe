"""The costs of all partitions' workers: every interval closes the window of each worker.

balance.py gets each closed window. The costs are also summed by ranges of the declared cut until load_report.py takes
the sums: such a range is the unit of a move from member to member. Most workers lie in one range of the cut. The cost
of a worker in several ranges is divided among the ranges by points.

The work of closing is proportional to the number of workers, and records wait for the loop meanwhile. So the work takes
several turns of the loop.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from ...brokers.patience import rest
from ...keyrange.policy import WorkerLoad
from ..partition.worker import Worker
from ..settings import Settings
from .partition_run import PartitionRun

WORKERS_PER_TURN = 128
"""How many windows are closed in one turn of the loop."""


class Looks(Protocol):
    """The receiver of closed windows: ``Balance``."""

    def next_look(self) -> None:
        """Begin a look: the windows of all partitions are closed now, partition by partition."""

    async def look(self, run: PartitionRun, workers: Sequence[Worker], loads: list[WorkerLoad]) -> None:
        """Look at the closed windows of a partition's workers; the partition may have other workers meanwhile."""


class CutCosts:
    """The costs of a partition since the last ``Windows.take``, by the index of a range of the declared cut:
    microseconds of handlers, and records.

    ``bounds``: the bounds of the declared cut. ``seconds``: the total length of the windows.
    """

    __slots__ = ("bounds", "busy_us", "records", "seconds")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.busy_us: dict[int, int] = {}
        self.records: dict[int, int] = {}
        self.seconds = 0.0

    def add(self, loads: Sequence[WorkerLoad], seconds: float) -> None:
        """Add a window of all workers, with its length."""
        self.seconds += seconds
        for load in loads:
            if not (load.busy or load.records):
                continue
            busy_us, i = int(load.busy * seconds), bisect_right(self.bounds, load.first) - 1
            if load.end <= self.bounds[i + 1]:
                self._spend(i, busy_us, load.records)
                continue
            # The sums up to each bound are rounded, and their differences add up to the whole.
            size, at, busy_before, records_before = load.end - load.first, load.first, 0, 0
            while at < load.end:
                at = min(load.end, self.bounds[i + 1])
                busy, records = (value * (at - load.first) // size for value in (busy_us, load.records))
                self._spend(i, busy - busy_before, records - records_before)
                busy_before, records_before, i = busy, records, i + 1

    def _spend(self, i: int, busy_us: int, records: int) -> None:
        self.busy_us[i] = self.busy_us.get(i, 0) + busy_us
        self.records[i] = self.records.get(i, 0) + records


class Windows:
    """The windows of a process's partitions; partitions come and go. ``looks``: the receiver of windows, or None."""

    def __init__(self, runs: Sequence[PartitionRun], settings: Settings, looks: Looks | None) -> None:
        self.runs = runs
        self.settings = settings
        self.looks = looks
        self._costs: dict[PartitionRun, CutCosts] = {}
        self._is_stopped = False

    async def run(self) -> None:
        """Close the windows in intervals until stopped or cancelled, with a turn of the loop between partitions."""
        loop = asyncio.get_running_loop()
        closed_s = dict.fromkeys(self.runs, loop.time())
        interval_s = self.settings.limits.balance_interval_ms / 1000
        while True:
            await rest(interval_s)
            if self._is_stopped:
                return
            if self.looks is not None:
                self.looks.next_look()
            for run in list(self.runs):
                if self._is_stopped:
                    return
                now = loop.time()
                await self._close(run, now - closed_s.get(run, now - interval_s))  # of a new partition: an interval
                closed_s[run] = now
                await asyncio.sleep(0)
            there = set(self.runs)
            closed_s = {run: at for run, at in closed_s.items() if run in there}
            self._costs = {run: costs for run, costs in self._costs.items() if run in there}

    def stop(self) -> None:
        """Close no more windows."""
        self._is_stopped = True

    def take(self, run: PartitionRun) -> CutCosts | None:
        """Take the costs of a partition since the last call; None: no window was closed since."""
        return self._costs.pop(run, None)

    async def _close(self, run: PartitionRun, seconds: float) -> None:
        """Close the windows, ``seconds`` long, of a partition's workers, some windows in each turn of the loop."""
        loop, workers = asyncio.get_running_loop(), list(run.dispatch.workers)
        loads: list[WorkerLoad] = []
        for i in range(0, len(workers), WORKERS_PER_TURN):
            loads += run.dispatch.close_windows(workers[i : i + WORKERS_PER_TURN], loop.time(), seconds)
            await asyncio.sleep(0)
        if (costs := self._costs.get(run)) is None:
            costs = self._costs[run] = CutCosts(run.cut)
        costs.add(loads, seconds)
        if self.looks is not None and not self._is_stopped:
            await self.looks.look(run, workers, loads)
