"""Hot ranges are split and cold ones merged back while the process runs: looks, decides by policy.py, asks.

In every interval each worker's window is closed, the policy says what is to be done about the workers of a partition,
and the commit cycle does it between two transactions. While something that was asked for is under way, nothing more is
asked of that partition: the policy sees the workers as they are, never as they are about to be.

A partition that was declared with one worker keeps it: whoever declares that wants one record at a time. While the
loop's thread has no time left, only workers are split that have far more to do than others.

A look is work in proportion to the workers, and records wait for the loop meanwhile: it takes several turns.

A worker's histogram begins with the records that wait for it. When they are many they are enough to say at once where
it is to be cut: else a hot range would stay a bottleneck for one interval more.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import chain, islice

import msgspec

from ...keyrange.hashing import point_of_key
from ...keyrange.policy import FULL, Decision, Limits, Merge, Split, Unsplittable, WorkerLoad, decide, watched
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

WORKERS_PER_TURN = 128
"""So many windows are closed in one turn of the loop."""


class Balance:
    """What the workers of all partitions cost, and who is split and merged for it."""

    def __init__(
        self,
        runs: Sequence[PartitionRun],
        reshape: Reshaping,
        settings: Settings,
        cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.runs, self.reshape, self.settings, self.cpu_s = runs, reshape, settings, cpu_s
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

    async def run(self) -> None:
        """Look in intervals until stopped or cancelled, with a breath for others between partitions."""
        loop = asyncio.get_running_loop()
        looked_s = dict.fromkeys(self.runs, loop.time())
        interval_s = self.settings.balance_interval_ms / 1000
        while True:
            began_s, began_cpu_s = loop.time(), self.cpu_s()
            await asyncio.sleep(interval_s)
            if self._is_stopped:
                return
            self.is_saturated = self.cpu_s() - began_cpu_s >= SATURATED_SHARE * (loop.time() - began_s)
            self.looks += 1
            self.calm_looks += 1
            for run in self.runs:
                if self._is_stopped:
                    return
                now = loop.time()
                await self._look(run, now - looked_s.get(run, now - interval_s))  # some are added while it runs
                looked_s[run] = now
                await asyncio.sleep(0)
            self._said = {key: look for key, look in self._said.items() if look > self.looks - SAID_LOOKS}

    def stop(self) -> None:
        """Ask for nothing more. What was asked for and has not begun is not done."""
        self._is_stopped = True
        for asked in self._asked.values():
            for settled in list(asked):
                settled.cancel()

    async def _look(self, run: PartitionRun, seconds: float) -> None:
        """Close the windows of a partition's workers, which lasted so long, and ask for what the policy decides."""
        factor = run.handler.parallelising_factor
        if factor == 1:
            return
        is_settled = not self._asked.get(run)
        workers = list(run.dispatch.workers)
        loads = await _close_windows(run, workers, seconds)
        if any(load.busy for load in loads):
            self.calm_looks = 0
        if not is_settled:
            return
        limits = Limits(
            workers_max=factor * self.settings.workers_factor_max,
            demand_share=SATURATED_DEMAND if self.is_saturated else 0.0,
        )
        _watch(run, workers, loads, {load.number for load in watched(loads, limits)})
        await asyncio.sleep(0)
        decisions = decide(loads, run.cut, limits)
        if workers == run.dispatch.workers and not self._is_stopped:
            self._carry_out(run, workers, decisions)

    def _carry_out(self, run: PartitionRun, workers: Sequence[Worker], decisions: Sequence[Decision]) -> None:
        by_number = {worker.number: worker for worker in workers}
        before = {key.point: (looks, key.key) for key, looks in self._hot.get(run, {}).items()}
        hot = self._hot[run] = {}
        for decision in decisions:
            match decision:
                case Split():
                    logger.info("%s: a hot range is split at %08x", run.label, decision.at)
                    self._ask(run, SplitWish(run.dispatch, decision.at), self._has_split)
                case Merge():
                    group = [by_number[number] for number in decision.workers]
                    within = KeyRange(group[0].first, group[-1].end)
                    logger.info("%s: %d workers of %s have little to do and are merged", run.label, len(group), within)
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
                logger.info("not done: %s", refusal)
                refused()

        try:
            settled = self.reshape.ask(wish)
        except ValueError as refusal:
            logger.info("not done: %s", refusal)
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
                "%s: %s is a bottleneck that can't be split: it takes %.0f%% of the partition's handler time, and a "
                "worker all to itself",
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


async def _close_windows(run: PartitionRun, workers: Sequence[Worker], seconds: float) -> list[WorkerLoad]:
    """What these workers cost in windows of this length, some workers in each turn of the loop."""
    loop = asyncio.get_running_loop()
    loads: list[WorkerLoad] = []
    for i in range(0, len(workers), WORKERS_PER_TURN):
        loads += run.dispatch.close_windows(workers[i : i + WORKERS_PER_TURN], loop.time(), seconds)
        await asyncio.sleep(0)
    return loads


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
