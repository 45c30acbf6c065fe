"""Threads that run handlers which are no coroutines: each takes what waits, one call after the other.

To hand a call to a thread and back costs as much as a short handler, for Python's threads share one lock. So a thread
that is at work takes the next call by itself, and the loop takes what is through in one go. How many are at work at
once depends on what calls cost (``wanted``). Where they compute, and take no time else, one more thread gains nothing:
it waits for the lock, and whoever has it is interrupted. Where they wait for something each has a thread, up to the
limit. A thread that takes no call while some wait is not counted until its own is through.
"""

import asyncio
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from threading import Lock, get_ident
from typing import Any, Final

from ...brokers.threads import DaemonThreads
from ...errors import caused
from ..partition.worker import Worker

LONG_S: Final = 0.001
"""Calls that take less are not worth a thread each."""
SLICE_S: Final = 0.005
"""So long a thread has the lock while others want it (``sys.getswitchinterval``)."""
WAITING: Final = 0.03
WAITING_MOST: Final = 0.8
"""Calls wait for something where more of them than this part, and three in each slice, stand still for ``LONG_S``: some
of those that only compute do, too, when another thread has the lock. ``WAITING_MOST`` are enough in any case.
"""
LOOK_S: Final = 0.002
"""So long a call that is through waits for the loop at most, while a thread goes on with short ones."""
TAKE_MOST: Final = 256
"""So many calls that are through go on in one turn of the loop."""
STANDS_STILL: Final = 3
"""After so many looks in a row at which no call had been begun those at work are given up for lost, and another thread
takes their place. At one look they may just have had no lock.
"""
WEIGHT: Final = 1 / 16
"""Of the newest call in the mean of what calls cost."""
PROCESSORS: Final = os.cpu_count() or 1
BUSY: Final = 0.7
"""Threads that compute for this part of the time of their calls, all taken together, are short of the processor."""


class CallCost:
    """What a call costs in the mean: how long it takes, how long it computes, and the part of calls that stand still
    for ``LONG_S``. Several threads count: what one of them overwrites is lost.
    """

    __slots__ = ("cpu_s", "waiting", "wall_s")

    def __init__(self, wall_s: float, cpu_s: float, waiting: float) -> None:
        self.wall_s, self.cpu_s, self.waiting = wall_s, cpu_s, waiting

    def count(self, wall_s: float, cpu_s: float) -> None:
        """One more call."""
        self.wall_s += (wall_s - self.wall_s) * WEIGHT
        self.cpu_s += (cpu_s - self.cpu_s) * WEIGHT
        self.waiting += ((1.0 if wall_s - cpu_s >= LONG_S else 0.0) - self.waiting) * WEIGHT


def threads_wanted(cost: CallCost, at_work: int, most: int, processors: int) -> int:
    """How many threads should be at work at once, where calls cost so much while ``at_work`` threads were."""
    waits = cost.waiting > min(WAITING + 3 * cost.cpu_s / SLICE_S, WAITING_MOST)
    if waits and cost.cpu_s * at_work < BUSY * cost.wall_s:
        return most
    return min(most, processors) if cost.cpu_s >= LONG_S else 1


class ThreadCall(ABC):
    """A call that waits for a thread, runs or is through. ``seconds``: how long it ran."""

    __slots__ = ("arguments", "context", "failed", "function", "result", "seconds", "worker")

    def __init__(
        self, worker: Worker, context: Context, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        self.worker, self.context, self.function, self.arguments = worker, context, function, arguments
        self.result: Any = None
        self.failed: BaseException | None = None
        self.seconds = 0.0

    def is_awaited(self) -> bool:
        """Whether somebody still wants it. Threads ask, too."""
        return True

    def make(self, now_s: Callable[[], float]) -> None:
        """Make the call, in this thread."""
        worker = self.worker
        worker.started_s = began_s = now_s()  # its wait for a thread is not the handler's time
        try:
            self.result = self.context.run(self.function, *self.arguments)
        except StopIteration as error:  # no coroutine can raise it
            self.failed = caused(RuntimeError("the handler raised StopIteration"), error)
        except BaseException as error:  # noqa: BLE001  # it is raised where the call is awaited
            self.failed = error
        self.seconds = now_s() - began_s
        worker.started_s = math.inf

    @abstractmethod
    def end(self) -> None:
        """It is through: go on, on the loop."""


class AwaitedCall(ThreadCall):
    """A call that a task waits for."""

    __slots__ = ("future",)

    def __init__(
        self, worker: Worker, context: Context, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        super().__init__(worker, context, function, arguments)
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_awaited(self) -> bool:
        """See ThreadCall."""
        return not self.future.cancelled()

    def end(self) -> None:
        """See ThreadCall."""
        if not self.future.done():  # nobody was cancelled who waits for it
            self.future.set_result(None)

    async def through(self, clock: Callable[[], float]) -> None:
        """Wait for it. The worker's record is as one that has come to its end just now."""
        await self.future
        self.worker.started_s = clock() - self.seconds


class HandlerThreads:
    """At most ``most`` threads, of one loop, which makes them: in the simulation a call is made where it is begun. None
    keeps a process alive: a handler may never return. ``now_s``: the loop's time, also when another thread asks;
    ``cpu_s``: the processor time of the thread that asks.
    """

    def __init__(self, most: int, name: str, now_s: Callable[[], float], cpu_s: Callable[[], float]) -> None:
        self.most, self._now_s, self._cpu_s = most, now_s, cpu_s
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads(most, name)
        self._waiting: deque[ThreadCall] = deque()
        self._through: deque[ThreadCall] = deque()
        self._making: dict[int, ThreadCall] = {}
        """What each thread is at."""
        self._guard = Lock()
        """Over the next three, and over whether there is something to do for one that stops."""
        self._at_work = self._lost = 0
        """Threads; those that were at work when nothing went on are lost until their calls are through."""
        self._generation = 0
        """So often threads were given up for lost."""
        self._is_closed = False
        self._wanted = most
        self._cost = CallCost(0.0, 0.0, 1.0)
        self._begun = self._seen = 0
        """Calls that were begun, about, and how many were when it was looked last."""
        self._stood_still = 0
        """At so many looks in a row none had been begun."""
        self._last = 0
        """The thread that was through with a call last."""
        self._is_told = self._is_looking = False

    def begin(self, call: ThreadCall) -> None:
        """Have a call made; it goes on (``end``) when it is through. Raises RuntimeError after ``close``."""
        if self._is_closed:
            raise RuntimeError("these threads were closed")
        with self._guard:
            self._waiting.append(call)
            is_wanted = self._at_work < min(self._wanted, self.most - self._lost)
            self._at_work += is_wanted
        if is_wanted:
            self._loop.run_in_executor(self._threads, self._work, self._generation)
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_S, self._look)

    def making(self) -> list[ThreadCall]:
        """The calls that threads are at. May be called from any thread."""
        return list(self._making.values())  # at one stroke

    def close(self) -> None:
        """Begin no more calls. Nobody waits for those that are being made."""
        self._is_closed = True
        self._waiting.clear()
        self._threads.shutdown()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What is through; and whether those that wait, wait for threads that take none."""
        self._take()
        if self._is_closed or not self._waiting:  # what is left is told when it is through
            self._is_looking = False
            return
        begun = self._begun
        self._stood_still = self._stood_still + 1 if begun == self._seen else 0
        if self._stood_still >= STANDS_STILL and self._at_work + self._lost < self.most:
            self._stood_still = 0
            with self._guard:
                self._lost += self._at_work
                self._generation += 1
                self._at_work = 1
            self._loop.run_in_executor(self._threads, self._work, self._generation)
        self._seen = begun
        self._loop.call_later(LOOK_S, self._look)

    def _tell(self) -> None:
        self._is_told = False
        self._take()

    def _take(self) -> None:
        """Have calls go on that are through: those that are there now, for each may begin another one."""
        through = self._through
        for _ in range(min(len(through), TAKE_MOST)):
            through.popleft().end()
        if through and not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._tell)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _work(self, generation: int) -> None:
        """Make calls as long as there are any, and this thread should."""
        waiting, making, thread, is_alone = self._waiting, self._making, get_ident(), True
        while True:
            if generation != self._generation:
                with self._guard:
                    self._lost -= 1
                    if not waiting or self._at_work >= self._wanted:
                        return
                    self._at_work += 1
                    generation = self._generation
            if self._rests(is_alone):
                return
            try:
                call = waiting.popleft()
            except IndexError:  # another thread has taken it
                continue
            self._begun += 1
            if call.is_awaited():
                cpu_s = self._cpu_s()
                making[thread] = call
                call.make(self._now_s)
                del making[thread]
                self._has_cost(call.seconds, self._cpu_s() - cpu_s)
                is_alone, self._last = self._last in (0, thread), thread
            self._through.append(call)
            del call  # it holds a record
            if (self._wanted > 1 or not waiting) and not self._is_told:
                self._is_told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:  # the loop is closed
                    return

    def _rests(self, is_alone: bool) -> bool:
        """Whether a thread stops: there is nothing to do, or too many are at work, and others that get on with it."""
        is_too_much = self._at_work > self._wanted and not is_alone
        if self._waiting and not is_too_much:
            return False
        with self._guard:
            if self._waiting and not is_too_much:
                return False
            self._at_work -= 1
        return True

    def _has_cost(self, wall_s: float, cpu_s: float) -> None:
        cost = self._cost
        cost.count(wall_s, cpu_s)
        self._wanted = threads_wanted(cost, self._at_work, self.most, PROCESSORS)
