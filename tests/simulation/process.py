"""One process of the simulated application: what its handlers, its commit cycle and its folder tell of it."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.runtime.handlers.context import Context
from keylanes.runtime.handlers.sizes import bytes_of
from keylanes.runtime.member import Member
from keylanes.runtime.watch.steps import Step

from .folders import LivingCopies, disk_full
from .loop import PausingLoop, context_of
from .workload import handlers

if TYPE_CHECKING:
    from .world import World

APP = "sim"
FACTORS: Final = (1, 1, 2, 3, 4, 7, 12, 24)
Death: TypeAlias = Step | Literal["write"]
STEPS: Final[tuple[Death, ...]] = ("take", "transact", "committed", "applied", "write", "write", "write")
"""Where a process may die: steps of the commit cycle, and between two writes to its folder."""


class Process:
    """One process of the application, from its start to its end."""

    def __init__(self, world: "World", number: int) -> None:
        self.loop: PausingLoop = world.loop
        self.world = world
        self.name = f"{APP}-{number}"
        self.rng = random.Random(f"process {world.plan.seed} {number}")
        self.context = context_of(self.name)
        self.connection = world.cluster.connect(self.name)
        self.folder = world.folders.take(self.rng)
        self.dies_at = self.rng.choice(STEPS) if world.mix.dying and self.rng.random() < 0.7 else None
        self.dies_after = self.rng.randint(1, 8)
        self.clock_ms = 0
        """How far its clock is ahead of the others'."""
        self.disk_s = 0.0
        """The longest that a job on its disk takes."""
        self.is_disk_full = False
        self.saw_full_disk = False
        factors = {topic: self.rng.choice(FACTORS) for topic in world.mix.sources}
        self.member = Member(
            APP,
            handlers(factors, self, stateful=world.mix.stateful, max_in_flight=world.mix.max_in_flight),
            self.connection,
            world.settings,
            birth=f"p{number}",
            wall_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000) + self.clock_ms,
            on_step=self.hears,
            open_copies=lambda _: LivingCopies(self.folder, self.may_write),
        )
        self.started_s = self.loop.time()
        self.was_killed = False
        self.was_stopped = False
        self.is_paused = False
        self.loses_power = False
        """Its machine goes with it, and what its disk had not synced."""
        self._running: dict[tuple[str, int, bytes], int] = {}
        self._at_once: Counter[str] = Counter()
        self._last: dict[tuple[str, int, bytes], int] = {}
        self.ended_s = math.inf
        self.task = self.spawn(self.member.run())
        self.task.add_done_callback(self._ended)

    # --- what it tells ---------------------------------------------------------------------------------------------

    def begins(self, context: Context) -> None:
        """One record of a key at a time, in offset order, each once in a process's life but for its attempts; and no
        more at once than the handler's limit allows.
        """
        self._at_once[context.topic] += 1
        limit = self.world.mix.max_in_flight
        if limit is not None and self._at_once[context.topic] > limit:
            self.world.fail(f"{context.topic}: {self._at_once[context.topic]} run at once, {limit} may")
        if context.key is None:
            return
        lane = (context.topic, context.partition, context.key)
        last = self._last.get(lane, -1)
        if lane in self._running:
            self.world.fail(f"{lane}: {self._running[lane]} and {context.offset} run at once")
        if context.offset <= last and (context.attempt == 1 or context.offset < last):
            self.world.fail(f"{lane}: {context.offset} is run after {last}")
        self._running[lane] = self._last[lane] = context.offset

    def ends(self, context: Context) -> None:
        """The attempt is over, however it ended."""
        self._at_once[context.topic] -= 1
        if context.key is not None:
            self._running.pop((context.topic, context.partition, context.key), None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.ended_s = self.loop.time()
        if self.loses_power:
            self.world.reached["writes lost with power"] += self.folder.lose(self.rng)
        self.world.folders.give_back(self.folder)
        error = None if task.cancelled() else task.exception()
        self.world.tell(f"{self.name} {'was killed' if self.was_killed else f'ended: {error!r}'}")
        if not self.was_killed:
            self.world.reached[f"ended with {type(error).__name__}"] += 1

    def may_write(self) -> bool:
        """Asked before each write to its folder. Raises RocksError when its disk is full."""
        self._reach("write")
        if self.is_disk_full and not self.was_killed:
            self.world.faults["full disk"] += not self.saw_full_disk
            self.saw_full_disk = True
            self.world.reached["wrote to a full disk"] += 1
            raise disk_full()
        return not self.was_killed

    def _reach(self, step: Death) -> None:
        """A process that was drawn to die at this step dies when it has come to it often enough."""
        if step == self.dies_at and not self.was_killed and self.world.is_happening:
            self.dies_after -= 1
            if self.dies_after == 0:
                self.world.reached[f"died at {step}"] += 1
                self.world.count_fault("death")
                self.was_killed = True
                self.connection.sever()
                self.loop.call_soon(self.task.cancel)

    def hears(self, step: Step) -> None:
        """A step of the commit cycle. What is held in memory is within its limits."""
        self._reach(step)
        self._check_memory()

    def _check_memory(self) -> None:
        """All queues together are within their limit, but for one record each; so is what waits for a commit.

        Twice the limit while ranges change: shares become larger when workers go, and queues that were filled by the
        larger shares of before are still there (seed 533).
        """
        limits, member = self.world.settings, self.member
        all_workers = (worker for run in member.runs for worker in run.dispatch.workers)
        workers = [worker for worker in all_workers if worker.queue_bytes or worker.queue or worker.done]
        held = sum(worker.queue_bytes for worker in workers)
        queued = [[bytes_of(record) for record in worker.queue] for worker in workers]
        if held != sum(map(sum, queued)):
            self.world.fail(f"{held} bytes are counted in queues that hold {sum(map(sum, queued))}")
        spared = sum(max(sizes, default=0) for sizes in queued)
        if held > 2 * limits.buffer_bytes_max + spared:
            self.world.fail(f"{held} bytes are queued, {limits.buffer_bytes_max} may be")
        done = [[one.size for one in worker.done] for worker in workers]
        beyond = sum(sum(sizes) - max(sizes, default=0) for sizes in done)  # each may end what it was at
        if beyond > limits.done_bytes_max:
            self.world.fail(f"{sum(map(sum, done))} bytes wait for a commit, {limits.done_bytes_max} may")

    def check_idle(self) -> None:
        """Nothing is held, and nothing is counted as held."""
        workers = [worker for run in self.member.runs for worker in run.dispatch.workers]
        left = [worker for worker in workers if worker.queue or worker.queue_bytes or worker.running or worker.done]
        if left or self.member.slots.done_bytes or self.member.slots.tasks:
            self.world.fail(f"idle, and {self.member.slots.done_bytes} bytes wait for a commit; held by {left}")

    # --- what is done to it ----------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task of this process: it stands still when the process does."""
        return self.loop.create_task(work, context=self.context)

    @property
    def is_working(self) -> bool:
        """Started and not ended."""
        return self.member.is_ready.is_set() and not self.task.done() and not self.is_paused

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.loop.pause(self.name)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.loop.resume(self.name)

    def stop(self) -> None:
        """SIGTERM; one that stands still hears it later."""
        self.was_stopped = True
        self.loop.call_soon(self.member.stop, context=self.context)

    async def kill(self) -> None:
        """SIGKILL: nothing it does from here on has an effect."""
        self.was_killed = True
        self.connection.sever()
        self.resume()
        self.task.cancel()
        await asyncio.wait([self.task])
