"""Hot ranges are split and cold ones merged back while the process runs: looks, decides by policy.py, asks.

When the windows of a partition's workers were closed (windows.py), the policy says what is to be done about them, and
the commit cycle does it between two transactions. While something that was asked for is under way, nothing more is
asked of that partition: the policy sees the workers as they are, never as they are about to be.

A partition that was declared with one worker keeps it: whoever declares that wants one record at a time. Of one that is
shared with other members as many workers are made here as its part of the points allows. While the loop's thread has no
time left, only workers are split that have far more to do than others.

A worker's histogram begins with the records that wait for it. When they are many they are enough to say at once where
it is to be cut: else a hot range would stay a bottleneck for one interval more.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import chain, islice

import msgspec

from ...keyrange.hashing import SPACE_END, point_of_key
from ...keyrange.policy import FULL, Decision, Limits, Merge, Split, Unsplittable, WorkerLoad, decide, workers_to_watch
from ...keyrange.ranges import KeyRange
from ..partition.load import SEEDS_MAX, SEEDS_MIN
from ..partition.reshape import MergeWish, SplitWish, Wish
from ..partition.worker import Worker
from ..settings import Settings
from ..watch.statistics import HotKey
from .partition_run import PartitionRun
from .reshaping import Reshaping

logger = logging.getLogger("keylanes")

SAY_LOOKS = 3
"""A hot key is said when it was hot in so many looks one after the other: while splits go on, many are for a moment."""

SATURATED_SHARE = 0.9
"""A thread that had so much of an interval on a processor has no time left."""

SATURATED_DEMAND = 1.5
"""When it has none, only workers with so many times the demand of an average one are split."""

SAID_LOOKS = 600
"""One that was not hot for so many looks is said again."""


class Balance:
    """Who is split and merged for what it costs: looks at the windows of all partitions."""

    def __init__(
        self,
        runs: Sequence[PartitionRun],
        reshape: Reshaping,
        settings: Settings,
        cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.runs, self.reshape, self.settings, self.cpu_s = runs, reshape, settings, cpu_s
        self._began = asyncio.get_running_loop().time(), cpu_s()
        self.is_saturated = False
        """The loop's thread had no time left in the last interval. ``cpu_s``: its processor time so far, in seconds."""
        self.looks = 0
        self.calm_looks = 0
        """For so many looks no worker was busy and nothing was asked for."""
        self.splits = 0
        self.merges = 0
        self._hot: dict[PartitionRun, dict[HotKey, int]] = {}
        self._said: dict[tuple[str, int], int] = {}
        self._asked: dict[PartitionRun, set[asyncio.Future[None]]] = {}
        self._is_stopped = False

    @property
    def hot_keys(self) -> list[HotKey]:
        """The keys that are the bottleneck of their partition, as of the last look."""
        return [key for run in self.runs for key in self._hot.get(run, ())]

    def next_look(self) -> None:
        """The partitions are looked at once more."""
        began_s, began_cpu_s = self._began
        self._began = now_s, now_cpu_s = asyncio.get_running_loop().time(), self.cpu_s()
        self.is_saturated = now_cpu_s - began_cpu_s >= SATURATED_SHARE * (now_s - began_s)
        self.looks += 1
        self.calm_looks += 1
        self._said = {key: look for key, look in self._said.items() if look > self.looks - SAID_LOOKS}

    def stop(self) -> None:
        """Ask for nothing more. What was asked for and has not begun is not done."""
        self._is_stopped = True
        for asked in self._asked.values():
            for settled in list(asked):
                settled.cancel()

    async def look(self, run: PartitionRun, workers: Sequence[Worker], loads: list[WorkerLoad]) -> None:
        """Ask for what the policy decides about workers whose windows were closed just now."""
        if run.handler.parallelising_factor == 1:
            return
        if any(load.busy for load in loads):
            self.calm_looks = 0
        if self._asked.get(run):
            return
        limits = Limits(
            workers_max=self._workers_max(run, workers),
            demand_share=SATURATED_DEMAND if self.is_saturated else 0.0,
        )
        _watch(run, workers, loads, {load.number for load in workers_to_watch(loads, limits)})
        await asyncio.sleep(0)
        decisions = decide(loads, run.cut, limits)
        if workers == run.dispatch.workers and not self._is_stopped:
            self._carry_out(run, workers, decisions)

    def _workers_max(self, run: PartitionRun, workers: Sequence[Worker]) -> int:
        """How many workers splits may make here: of those of the whole partition the share of the points that are held
        here, and one for each cell of the declared cut.
        """
        cut = run.cut
        cells = {bisect_right(cut, worker.first) for worker in workers}
        points = sum(worker.end - worker.first for worker in workers)
        most = run.handler.parallelising_factor * self.settings.workers_factor_max
        return max(len(cells), most * points // SPACE_END)

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
                    key = HotKey(run.dispatch.topic, run.dispatch.partition, decision.point, decision.share, found)
                    hot[key] = looks + 1
                    if hot[key] >= SAY_LOOKS:
                        self._say(run, key)

    def _ask(
        self,
        run: PartitionRun,
        wish: Wish,
        done: Callable[[], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask. What is refused, because the range is being given up or does not become level, is looked at again."""
        asked = self._asked.setdefault(run, set())

        def answered(settled: "asyncio.Future[None]") -> None:
            asked.discard(settled)
            if settled.cancelled():
                return
            if (refusal := settled.exception()) is None:
                done()
            else:
                logger.debug("not done: %s", refusal)
                refused()

        try:
            settled = self.reshape.ask(wish)
        except ValueError as refusal:
            logger.debug("not done: %s", refusal)
            refused()
            return
        self.calm_looks = 0
        asked.add(settled)
        settled.add_done_callback(answered)

    def _has_split(self) -> None:
        self.splits += 1

    def _has_merged(self) -> None:
        self.merges += 1

    def _say(self, run: PartitionRun, key: HotKey) -> None:
        if (run.label, key.point) not in self._said:
            logger.warning(
                "%s: %s is a bottleneck that can't be split: it keeps a worker busy for %.0f%% of the time, and its "
                "records wait",
                run.label,
                key,
                100 * key.share,
            )
        self._said[run.label, key.point] = self.looks


def _key_at(worker: Worker, point: int) -> bytes | None:
    """Whose point it is, as far as a record of it is at hand."""
    running = () if worker.running is None else (worker.running,)
    keys = (record.key for record in chain(running, islice(worker.queue, SEEDS_MAX)))
    return next((key for key in keys if key is not None and point_of_key(key) == point), None)


def _watch(run: PartitionRun, workers: Sequence[Worker], loads: list[WorkerLoad], numbers: Container[int]) -> None:
    """Keep histograms of these workers and of no others; what waits may say at once where a new one's load lies."""
    for i, worker in enumerate(workers):
        if worker.number not in numbers:
            worker.load.unwatch()
        elif worker.load.watch(run.dispatch.partition, worker.queue) >= SEEDS_MIN:
            loads[i] = msgspec.structs.replace(loads[i], points=worker.load.known_points())


def _unsettle(workers: Sequence[Worker]) -> None:
    """They count as busy for a while: whoever is held in vain again and again would serve its keys late."""
    for worker in workers:
        worker.load.average = FULL
