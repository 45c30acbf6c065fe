"""Split hot ranges and merge cold ranges back while the process runs: look, decide by policy.py, ask with wishes.

After the windows of a partition's workers were closed (windows.py), the policy decides on splits and merges, and the
commit cycle makes the changes between two transactions. While a wish for a partition is open, the partition gets no
further wish: the policy sees the workers as they are, never as they are about to be.

A partition declared with one worker keeps one worker: the declaration asks for one record at a time. In a partition
with other members, the number of workers here is limited by this process's part of the points. While the loop's thread
has no time left, only workers with a far higher demand than others are split.

A worker's histogram begins with its waiting records. Many waiting records are enough to choose the cut at once:
otherwise a hot range would stay a bottleneck for another interval.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import chain, islice

import msgspec

from ...keyrange.hashing import SPACE_END, point_of_key
from ...keyrange.policy import (
    FULL,
    Decision,
    Merge,
    PolicyLimits,
    Split,
    Unsplittable,
    WorkerLoad,
    decide,
    workers_to_watch,
)
from ...keyrange.ranges import KeyRange
from ..partition.load import SEEDS_MAX, SEEDS_MIN
from ..partition.wishes import MergeWish, SplitWish, Wish
from ..partition.worker import Worker
from ..settings import Settings
from ..watch.statistics import HotKey
from .partition_run import PartitionRun
from .range_changes import RangeChanges

logger = logging.getLogger("keylanes")

WORKERS_FACTOR_MAX = 4
"""Splits make at most this number times the declared workers."""
SAY_LOOKS = 3
"""A key is logged when hot in this number of looks in a row: while splits go on, many keys are hot for a moment."""

SATURATED_SHARE = 0.9
"""A thread that is on a processor for this part of an interval has no time left."""

SATURATED_DEMAND = 1.5
"""When the loop's thread has no time left, only workers with this number times the average demand are split."""

SAID_LOOKS = 600
"""A key that was not hot for this number of looks is logged again."""


class Balance:
    """Splits and merges workers by their costs: looks at the windows of all partitions. ``cpu_s``: the processor time
    of the loop's thread so far, in seconds.
    """

    def __init__(
        self,
        runs: Sequence[PartitionRun],
        range_changes: RangeChanges,
        settings: Settings,
        cpu_s: Callable[[], float],
    ) -> None:
        self.runs = runs
        self.range_changes = range_changes
        self.settings = settings
        self.cpu_s = cpu_s
        self._began = asyncio.get_running_loop().time(), cpu_s()
        """When the last look began: by the loop's time, and by ``cpu_s``."""
        self.is_saturated = False
        """The loop's thread had no time left in the last interval."""
        self.looks = 0
        self.calm_looks = 0
        """The number of looks in a row without a busy worker and without a wish."""
        self.splits = 0
        self.merges = 0
        self._hot: dict[PartitionRun, dict[HotKey, int]] = {}
        """The hot keys of the last look, each with the number of looks in a row in which it was hot."""
        self._logged: dict[tuple[str, int], int] = {}
        """By partition and point of a logged key: the last look in which the key was hot."""
        self._open: dict[PartitionRun, set[asyncio.Future[None]]] = {}
        """The open wishes of each partition."""
        self._is_stopped = False

    @property
    def hot_keys(self) -> list[HotKey]:
        """The keys that are a bottleneck of their partition, as of the last look."""
        return [key for run in self.runs for key in self._hot.get(run, ())]

    def next_look(self) -> None:
        """Begin another look at all partitions."""
        began_s, began_cpu_s = self._began
        self._began = now_s, now_cpu_s = asyncio.get_running_loop().time(), self.cpu_s()
        self.is_saturated = now_cpu_s - began_cpu_s >= SATURATED_SHARE * (now_s - began_s)
        self.looks += 1
        self.calm_looks += 1
        self._logged = {key: look for key, look in self._logged.items() if look > self.looks - SAID_LOOKS}

    def stop(self) -> None:
        """Ask for no more changes, and cancel wishes that have not begun."""
        self._is_stopped = True
        for wishes in self._open.values():
            for wish in list(wishes):
                wish.cancel()

    async def look(self, run: PartitionRun, workers: Sequence[Worker], loads: list[WorkerLoad]) -> None:
        """Ask for the policy's splits and merges of workers whose windows were closed just now."""
        if run.handler.parallelising_factor == 1:
            return
        if any(load.busy for load in loads):
            self.calm_looks = 0
        if self._open.get(run):
            return
        limits = PolicyLimits(
            workers_max=self._workers_max(run, workers),
            demand_factor=SATURATED_DEMAND if self.is_saturated else 0.0,
        )
        _watch(run, workers, loads, {load.number for load in workers_to_watch(loads, limits)})
        await asyncio.sleep(0)
        decisions = decide(loads, run.cut, limits)
        if workers == run.dispatch.workers and not self._is_stopped:  # workers may have changed during the sleep
            self._carry_out(run, workers, decisions)

    def _workers_max(self, run: PartitionRun, workers: Sequence[Worker]) -> int:
        """The limit of workers for splits here: the partition's limit times this process's part of the points, and at
        least one worker for each range of the declared cut here.
        """
        cut = run.cut
        ranges = {bisect_right(cut, worker.first) for worker in workers}
        points = sum(worker.end - worker.first for worker in workers)
        most = run.handler.parallelising_factor * WORKERS_FACTOR_MAX
        return max(len(ranges), most * points // SPACE_END)

    def _carry_out(self, run: PartitionRun, workers: Sequence[Worker], decisions: Sequence[Decision]) -> None:
        by_number = {worker.number: worker for worker in workers}
        before = {key.point: (looks, key.key) for key, looks in self._hot.get(run, {}).items()}
        hot = self._hot[run] = {}
        for decision in decisions:
            match decision:
                case Split():
                    logger.debug("%s: a hot range is split at %08x", run.label, decision.at)
                    self._ask(run, SplitWish(run.dispatch, decision.at), self._has_split)
                case Merge():
                    group = [by_number[number] for number in decision.workers]
                    within = KeyRange(group[0].first, group[-1].end)
                    logger.debug("%s: %d workers of %s have little to do and are merged", run.label, len(group), within)
                    wish = MergeWish(run.dispatch, within)
                    self._ask(run, wish, self._has_merged, partial(_unsettle, group))
                case Unsplittable():
                    looks, known = before.get(decision.point, (0, None))
                    found = known or _key_at(by_number[decision.worker], decision.point)
                    key = HotKey(
                        topic=run.dispatch.topic,
                        partition=run.dispatch.partition,
                        point=decision.point,
                        share=decision.share,
                        key=found,
                    )
                    hot[key] = looks + 1
                    if hot[key] >= SAY_LOOKS:
                        self._log(run, key)

    def _ask(
        self,
        run: PartitionRun,
        wish: Wish,
        done: Callable[[], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand in a wish; call ``done`` or ``refused`` when the answer has come. A wish is refused when its range is
        being given up, or its workers did not come to the same edge. A later look decides anew.
        """
        open_wishes = self._open.setdefault(run, set())

        def answered(settled: "asyncio.Future[None]") -> None:
            open_wishes.discard(settled)
            if settled.cancelled():
                return
            if (refusal := settled.exception()) is None:
                done()
            else:
                logger.debug("not done: %s", refusal)
                refused()

        try:
            settled = self.range_changes.ask(wish)
        except ValueError as refusal:
            logger.debug("not done: %s", refusal)
            refused()
            return
        self.calm_looks = 0
        open_wishes.add(settled)
        settled.add_done_callback(answered)

    def _has_split(self) -> None:
        self.splits += 1

    def _has_merged(self) -> None:
        self.merges += 1

    def _log(self, run: PartitionRun, key: HotKey) -> None:
        """Log a hot key, unless it was logged and has been hot since."""
        if (run.label, key.point) not in self._logged:
            logger.warning(
                "%s: %s is a bottleneck that can't be split: it keeps a worker busy for %.0f%% of the time, and its "
                "records wait",
                run.label,
                key,
                100 * key.share,
            )
        self._logged[run.label, key.point] = self.looks


def _key_at(worker: Worker, point: int) -> bytes | None:
    """The key of a point, if a running or waiting record of the worker has a key of the point."""
    running = () if worker.running is None else (worker.running,)
    keys = (record.key for record in chain(running, islice(worker.queue, SEEDS_MAX)))
    return next((key for key in keys if key is not None and point_of_key(key) == point), None)


def _watch(run: PartitionRun, workers: Sequence[Worker], loads: list[WorkerLoad], numbers: Container[int]) -> None:
    """Keep histograms of the workers ``numbers`` only. Many waiting records give a new histogram's load at once."""
    for i, worker in enumerate(workers):
        if worker.number not in numbers:
            worker.load.unwatch()
        elif worker.load.watch(run.dispatch.partition, worker.queue) >= SEEDS_MIN:
            loads[i] = msgspec.structs.replace(loads[i], points=worker.load.known_points())


def _unsettle(workers: Sequence[Worker]) -> None:
    """Count workers of a refused merge as busy for a while: otherwise the next look would ask for the same merge, and
    repeated holds in vain would delay the workers' keys.
    """
    for worker in workers:
        worker.load.average = FULL
