"""One process of the simulated application: what its handlers, its commit cycle and its folder tell of it."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS, SimulatedConnection
from keylanes.group.held_ranges import HeldRanges
from keylanes.group.member import OwnProcess, next_steps
from keylanes.group.member import Step as MemberStep
from keylanes.keyrange.hashing import point_of
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.offsets.ledger import Ledger
from keylanes.runtime.app_runs import AppRuns
from keylanes.runtime.handlers.context import Context
from keylanes.runtime.handlers.sizes import bytes_of
from keylanes.runtime.member import AppRun
from keylanes.runtime.membership.offer import Origin
from keylanes.runtime.partition.worker import Worker
from keylanes.runtime.watch.steps import Step
from keylanes.state.tables import Change, LocalCopy, Mark, Marker

from .folders import LivingCopies, disk_full
from .key_order import Lane
from .loop import PausingLoop, context_of
from .steadiness import Bands, Steadiness
from .workload import handlers

if TYPE_CHECKING:
    from .world import World

APP = "sim"
FACTORS: Final = (1, 1, 2, 3, 4, 7, 12, 24)
Death: TypeAlias = Step | Literal["write"]
STEPS: Final[tuple[Death, ...]] = ("take", "transact", "committed", "applied", "write", "write", "write")
"""Where a process may die: steps of the commit cycle, and between two writes to its folder."""


class Process:
    """One process of the application, from its start to its end; it takes part once or, expelled, several times."""

    def __init__(self, world: "World", number: int, name: str | None = None) -> None:
        self.loop: PausingLoop = world.loop
        self.world = world
        self.name = f"{APP}-{number}"
        self.rng = random.Random(f"process {world.plan.seed} {number}")
        self.context = context_of(self.name)
        self.connections: list[SimulatedConnection] = []
        self.folder = world.folders.take(self.rng)
        self.dies_at = self.rng.choice(STEPS) if world.mix.dying and self.rng.random() < 0.7 else None
        self.dies_after = self.rng.randint(1, 8)
        self.clock_ms = 0
        """How far its clock is ahead of the others'."""
        self.disk_s = 0.0
        """The longest that a job on its disk takes."""
        self.is_disk_full = False
        self.saw_full_disk = False
        self.factors = dict(world.factors)
        if self.rng.random() < world.mix.differing:
            self.factors[self.rng.choice(list(self.factors))] = self.rng.choice(FACTORS)
        drawn = self.rng.choice(world.mix.names) if world.mix.names else None
        self.settings = msgspec.structs.replace(world.settings, group_instance_id=name or drawn)
        by_chance = random.Random(f"level {world.plan.seed} {number}").random()
        self.until_level = world.is_happening and by_chance < world.mix.until_level
        """It ends by itself at the level of the sources."""
        self.pins_before = len(world.watch.pins)
        """So many ends were pinned before it started."""
        self.started_s = self.loop.time()
        self.was_killed = False
        self.was_stopped = False
        self.is_paused = False
        self.loses_power = False
        """Its machine goes with it, and what its disk had not synced."""
        self.loses_folder = False
        """Its disk goes with it."""
        self._running: dict[Lane, int] = {}
        self._at_once: Counter[str] = Counter()
        self._last: dict[Lane, int] = {}
        self.ended_s = math.inf
        self.heard = 0
        """Up to where it had read the control log when it last decided what becomes of its ranges."""
        self.read = (0, 0)
        """The same at the last commit but one, and at the last."""
        self.steadiness = Steadiness(self.loop.time, self._bands, self.settings.commit_interval_ms / 1000)
        self.members: list[AppRun] = []
        """One for each time that it asked to take part."""
        self.life = AppRuns(self._make, self._adopt, self.settings)
        self.task = self.spawn(self.life.run(until_level=self.until_level))
        self.task.add_done_callback(self._ended)

    def _make(self) -> AppRun:
        connection = self.world.cluster.connect(self.name)
        self.connections.append(connection)
        mix = self.world.mix
        return AppRun(
            APP,
            handlers(
                self.factors,
                self,
                stateful=mix.stateful,
                max_in_flight=mix.max_in_flight,
                rate_per_s=mix.rate_per_s,
            ),
            connection,
            self.settings,
            birth=f"{self.name}.{len(self.members)}",
            wall_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000) + self.clock_ms,
            on_step=self.hears,
            decide=self._decide,
            cpu_s=lambda: 0.0,
            now_s=self.loop.time,
            open_copies=lambda _: LivingCopies(self.folder, self.may_write, self._writes, self._clears, self._marks),
            origin=Origin("", mix.members if mix.together else 0),
        )

    def _adopt(self, member: AppRun) -> None:
        """Nothing of before is known to the next one."""
        self._at_once.clear()
        self._running.clear()
        self._last.clear()
        self.steadiness.forget()
        self.heard, self.read = 0, (0, 0)
        self.members.append(member)

    def _decide(self, ledger: Ledger, own: OwnProcess, held: HeldRanges) -> list[MemberStep]:
        """What the production decides."""
        logs = self.member.logs
        self.heard = logs.positions[logs.control]
        return next_steps(ledger, own, held)

    @property
    def member(self) -> AppRun:
        """As which it takes part now, or did last."""
        return self.members[-1]

    # --- what it tells ---------------------------------------------------------------------------------------------

    def begins(self, context: Context) -> None:
        """One record of a key at a time, in offset order, each once in a process's life but for its attempts; and no
        more at once than the handler's limit allows.
        """
        self._at_once[context.topic] += 1
        limit = self.world.mix.max_in_flight
        if limit is not None and self._at_once[context.topic] > limit:
            self.world.fail(f"{context.topic}: {self._at_once[context.topic]} run at once, {limit} may")
        if wrong := self.world.rates.begins(context.topic, self.loop.time(), len(self.world.alive())):
            self.world.fail(wrong)
        if context.key is None:
            return
        lane = (context.topic, context.partition, context.key)
        last = self._last.get(lane, -1)
        self._begins_in_world(context, lane)
        if lane in self._running:
            self.world.fail(f"{lane}: {self._running[lane]} and {context.offset} run at once")
        if context.offset <= last and (context.attempt == 1 or context.offset < last):
            self.world.fail(f"{lane}: {context.offset} is run after {last}")
        self._running[lane] = self._last[lane] = context.offset

    def _begins_in_world(self, context: Context, lane: Lane) -> None:
        point, incarnation = point_of(context.key, context.partition, context.offset), self.incarnation
        own = (worker for worker in self.workers_of(lane[:2]) if worker.first <= point < worker.end)
        worker = next(own, None)
        if worker is None:
            self.world.fail(f"{lane}: {context.offset} is run by {self.name}, which does not hold it")
        elif wrong := self.world.key_order.begins(lane, worker.epoch, incarnation):
            self.world.fail(f"{context.offset} of {wrong}")
        elif self.world.mix.stateful:
            place = TopicPartition(context.topic, context.partition)
            copy = self.folder.copies.copy(*place)
            self.world.check(partial(self.world.watch.copied.begins, copy, place, worker.epoch, point, incarnation))

    def ends(self, context: Context) -> None:
        """The attempt is over, however it ended."""
        self._at_once[context.topic] -= 1
        if context.key is not None:
            lane = (context.topic, context.partition, context.key)
            self._running.pop(lane, None)
            self.world.key_order.ends(lane, self.incarnation)

    def _bands(self) -> Bands:
        workers = [(*run.dispatch.place, w.first, w.end) for run in self.member.runs for w in run.dispatch.workers]
        return tuple(sorted(workers))

    @property
    def incarnation(self) -> int:
        """Under which it takes part; 0: it has not joined."""
        return self.member.identity.incarnation or 0

    def workers_of(self, place: tuple[str, int]) -> list[Worker]:
        """What it works on of a source partition."""
        return [w for run in self.member.runs if run.dispatch.place == place for w in run.dispatch.workers]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.ended_s = self.loop.time()
        if self.loses_power:
            self.world.reached["writes lost with power"] += self.folder.lose(self.rng)
        if self.loses_folder:
            self.folder.wipe()
        self.world.folders.give_back(self.folder)
        error = None if task.cancelled() else task.exception()
        self.world.tell(f"{self.name} {'was killed' if self.was_killed else f'ended: {error!r}'}")
        if not self.was_killed:
            self.world.reached[f"ended with {type(error).__name__}"] += 1
        if error is None and not task.cancelled() and not self.was_killed and not self.was_stopped:
            self.world.judge_level(self)

    def may_write(self) -> bool:
        """Asked before each write to its folder. Raises RocksError when its disk is full."""
        self._reach("write")
        if self.is_disk_full and not self.was_killed:
            self.world.faults["full disk"] += not self.saw_full_disk
            self.saw_full_disk = True
            self.world.reached["wrote to a full disk"] += 1
            raise disk_full()
        return not self.was_killed

    def _writes(self, place: TopicPartition, markers: Steps[Marker], changes: Sequence[Change]) -> None:
        self.world.check(partial(self.world.watch.copied.written, place, self.incarnation, markers, changes))

    def _marks(self, place: TopicPartition, before: Steps[Marker], marks: Sequence[Mark], copy: LocalCopy) -> None:
        self.world.check(partial(self.world.watch.copied.marked, place, before, marks, copy))

    def _clears(self, place: TopicPartition, markers: Steps[Marker], within: KeyRange) -> None:
        """Where clocks are set, copies get old."""
        if not any(happening.kind == "clock" for happening in self.world.plan.happenings):
            self.world.check(partial(self.world.watch.copied.cleared, place, markers, within))

    def _reach(self, step: Death) -> None:
        """A process that was drawn to die at this step dies when it has come to it often enough."""
        if step == self.dies_at and not self.was_killed and self.world.is_happening:
            self.dies_after -= 1
            if self.dies_after == 0:
                self.world.reached[f"died at {step}"] += 1
                self.world.count_fault("death")
                self.was_killed = True
                self._sever()
                self.loop.call_soon(self.task.cancel)

    def hears(self, step: Step) -> None:
        """A step of the commit cycle. What is held in memory is within its limits."""
        self._reach(step)
        self._check_memory()
        if step == "take":
            self.read = (self.read[1], self.heard)
        if self.disk_s or self.was_stopped or self.member.state != "running":
            self.steadiness.forget()
        elif wrong := self.steadiness.hears(step):
            self.world.fail(f"{self.name}: {wrong}")
        if self.world.happenings.hand_overs.waits:
            self.world.happenings.hand_overs.heard(self, step)

    def _check_memory(self) -> None:
        """All queues together are within their limit, but for one record each; so is what waits for a commit.

        Twice the limit while ranges change: shares become larger when workers go, and queues that were filled by the
        larger shares of before are still there (seed 533).
        """
        limits, member = self.world.settings.limits, self.member
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
        if left or self.member.slots.done_bytes or not self.member.slots.is_idle():
            self.world.fail(f"idle, and {self.member.slots.done_bytes} bytes wait for a commit; held by {left}")

    # --- what is done to it ----------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task of this process: it stands still when the process does."""
        return self.loop.create_task(work, context=self.context)

    @property
    def is_working(self) -> bool:
        """It takes part, and works on what it was granted first."""
        is_up = self.member.state == "running" and self.member.is_ready.is_set()
        return is_up and not self.task.done() and not self.is_paused

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True
        self.steadiness.forget()
        self.loop.pause(self.name)

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        self.steadiness.forget()
        self.loop.resume(self.name)

    def stop(self) -> None:
        """SIGTERM; one that stands still hears it later."""
        self.was_stopped = True
        self.loop.call_soon(self.life.stop, context=self.context)

    async def kill(self) -> None:
        """SIGKILL: nothing it does from here on has an effect."""
        self.was_killed = True
        self._sever()
        self.resume()
        self.task.cancel()
        await asyncio.wait([self.task])

    def _sever(self) -> None:
        for connection in self.connections:
            connection.sever()
