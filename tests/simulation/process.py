"""One process of the simulated application: what its handlers, its commit cycle and its folder tell of it."""

import asyncio
import math
from typing import TYPE_CHECKING, Final

from keylanes.runtime.brokers.simulated import EPOCH_MS
from keylanes.runtime.context import Context
from keylanes.runtime.dispatch import bytes_of
from keylanes.runtime.member import Member

from .folders import LivingCopies
from .workload import handlers

if TYPE_CHECKING:
    from .world import World

APP = "sim"
FACTORS: Final = (1, 1, 2, 3, 4, 7, 12, 24)
STEPS: Final = ("take", "transact", "committed", "applied", "write", "write", "write")
"""Where a process may die: steps of the commit cycle, and between two writes to its folder."""


class Process:
    """One process of the application, from its start to its end."""

    def __init__(self, world: "World", number: int) -> None:
        loop = asyncio.get_running_loop()
        self.world = world
        self.connection = world.cluster.connect(f"{APP}-{number}")
        self.folder = world.folders.take()
        self.dies_at = world.rng.choice((None, None, *STEPS))
        self.dies_after = world.rng.randint(1, 8)
        factors = {topic: world.rng.choice(FACTORS) for topic in world.mix.sources}
        self.member = Member(
            APP,
            handlers(factors, self, stateful=world.mix.stateful),
            self.connection,
            world.mix.settings,
            instance=f"p{number}",
            wall_ms=lambda: EPOCH_MS + int(loop.time() * 1000),
            on_step=self.hears,
            open_copies=lambda _: LivingCopies(self.folder, self.may_write),
        )
        self.started_s = loop.time()
        self.was_killed = False
        self.was_stopped = False
        self.lacks = 0
        """Ranges that it released and was not granted again."""
        self._running: dict[tuple[str, int, bytes], int] = {}
        self._last: dict[tuple[str, int, bytes], int] = {}
        self.ended_s = math.inf
        self.task = loop.create_task(self.member.run())
        self.task.add_done_callback(self._ended)

    def begins(self, context: Context) -> None:
        """One record of a key at a time, in offset order, each once in a process's life but for its attempts."""
        if context.key is None:
            return
        lane = (context.topic, context.partition, context.key)
        last = self._last.get(lane, -1)
        if lane in self._running:
            self.world.wrong.append(f"{lane}: {self._running[lane]} and {context.offset} run at once")
        if context.offset <= last and (context.attempt == 1 or context.offset < last):
            self.world.wrong.append(f"{lane}: {context.offset} is run after {last}")
        self._running[lane] = self._last[lane] = context.offset

    def ends(self, context: Context) -> None:
        """The attempt is over, however it ended."""
        if context.key is not None:
            self._running.pop((context.topic, context.partition, context.key), None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.ended_s = asyncio.get_running_loop().time()
        self.world.folders.give_back(self.folder)
        if not self.was_killed and not task.cancelled():
            self.world.reached[f"ended with {type(task.exception()).__name__}"] += 1

    def may_write(self) -> bool:
        """Asked before each write to its folder."""
        self._reach("write")
        return not self.was_killed

    def _reach(self, step: str) -> None:
        """A process that was drawn to die at this step dies when it has come to it often enough."""
        if step == self.dies_at and not self.was_killed and self.world.is_happening and self.world.mix.stateful:
            self.dies_after -= 1
            if self.dies_after == 0:
                self.world.reached[f"died at {step}"] += 1
                self.was_killed = True
                self.connection.sever()
                asyncio.get_running_loop().call_soon(self.task.cancel)

    def hears(self, step: str) -> None:
        """A step of the commit cycle. All queues together are within their limit, but for one record each.

        When workers become fewer or more, the shares change while queues are still filled by the old ones.
        """
        self._reach(step)
        workers = [worker for run in self.member.runs for worker in run.dispatch.workers]
        held = sum(worker.queue_bytes for worker in workers)
        spared = sum(max(map(bytes_of, worker.queue), default=0) for worker in workers)
        assert held <= 2 * self.world.mix.settings.buffer_bytes_max + spared, f"{held} bytes are queued"

    @property
    def is_working(self) -> bool:
        """Started and not ended."""
        return self.member.is_ready.is_set() and not self.task.done()

    async def kill(self) -> None:
        """Kill -9: nothing it does from here on has an effect."""
        self.was_killed = True
        self.connection.sever()
        self.task.cancel()
        await asyncio.wait([self.task])
