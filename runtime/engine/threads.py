"""Threads that run sync handlers: each thread takes waiting calls, one after the other.

To hand a call to a thread and back costs as much as a short handler, for Python's threads share a lock, the GIL. So a
working thread takes the next call by itself, and the loop takes all finished calls in one go. How many threads work at
once depends on the cost of calls (``threads_wanted``). Where calls only compute, one more thread gains nothing: the
thread waits for the lock, and interrupts the thread with the lock. Where calls wait for something, each call has a
thread, up to the limit. Where calls wait and no thread takes one, the working threads are given up for lost: another
thread takes their place, and a lost thread does not count until its own call is finished.
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
"""Shorter calls are not worth a thread each."""
SLICE_S: Final = 0.005
"""How long a thread has the lock while others want the lock (``sys.getswitchinterval``)."""
WAITING: Final = 0.03
WAITING_MOST: Final = 0.8
"""A call stands still for the time that it takes beyond its processor time. Calls count as waiting for something where
the part of calls that stand still for ``LONG_S`` is greater than ``WAITING + 3 * processor time of a call / SLICE_S``:
computing calls stand still, too, when another thread has the lock. A part greater than ``WAITING_MOST`` is enough in
any case.
"""
LOOK_S: Final = 0.002
"""The longest wait of a finished call for the loop, while a thread goes on with short calls."""
TAKE_MOST: Final = 256
"""At most this number of finished calls go on in one turn of the loop."""
STANDS_STILL: Final = 3
"""After this number of looks in a row without a new call, the working threads are given up for lost, and another thread
takes their place. After a single look the threads may just have had no lock.
"""
WEIGHT: Final = 1 / 16
"""The weight of the newest call in the mean cost of calls."""
PROCESSORS: Final = os.cpu_count() or 1
BUSY: Final = 0.7
"""The processor is the bottleneck where all threads together compute for this part of their calls' time."""


class CallCost:
    """The mean cost of a call: its duration (``wall_s``), its processor time (``cpu_s``), and the part of calls that
    stand still for ``LONG_S`` (``waiting``). Several threads count at once: a count that another thread overwrites is
    lost.
    """

    __slots__ = ("cpu_s", "waiting", "wall_s")

    def __init__(self, wall_s: float, cpu_s: float, waiting: float) -> None:
        self.wall_s = wall_s
        self.cpu_s = cpu_s
        self.waiting = waiting

    def count(self, wall_s: float, cpu_s: float) -> None:
        """Count a call."""
        self.wall_s += (wall_s - self.wall_s) * WEIGHT
        self.cpu_s += (cpu_s - self.cpu_s) * WEIGHT
        self.waiting += ((1.0 if wall_s - cpu_s >= LONG_S else 0.0) - self.waiting) * WEIGHT


def threads_wanted(cost: CallCost, at_work: int, most: int, processors: int) -> int:
    """How many threads should work at once, by the cost of calls while ``at_work`` threads worked."""
    waits = cost.waiting > min(WAITING + 3 * cost.cpu_s / SLICE_S, WAITING_MOST)
    if waits and cost.cpu_s * at_work < BUSY * cost.wall_s:
        return most
    return min(most, processors) if cost.cpu_s >= LONG_S else 1


class ThreadCall(ABC):
    """A call that waits for a thread, runs or is finished. ``seconds``: how long the call ran."""

    __slots__ = ("arguments", "context", "failed", "function", "result", "seconds", "worker")

    def __init__(
        self, worker: Worker, context: Context, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> None:
        self.worker = worker
        self.context = context
        self.function = function
        self.arguments = arguments
        self.result: Any = None
        self.failed: BaseException | None = None
        self.seconds = 0.0

    def is_awaited(self) -> bool:
        """Whether the result is still wanted. Threads call this method, too."""
        return True

    def make(self, now_s: Callable[[], float]) -> None:
        """Make the call, in the current thread."""
        worker = self.worker
        worker.started_s = began_s = now_s()  # the wait for a thread is not the handler's time
        try:
            self.result = self.context.run(self.function, *self.arguments)
        except StopIteration as error:  # no coroutine can raise StopIteration
            self.failed = caused(RuntimeError("the handler raised StopIteration"), error)
        except BaseException as error:  # noqa: BLE001  # raised again where the call is awaited
            self.failed = error
        self.seconds = now_s() - began_s
        worker.started_s = math.inf

    @abstractmethod
    def end(self) -> None:
        """Go on after the finished call, on the loop."""


class AwaitedCall(ThreadCall):
    """A call with a waiting task."""

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
        if not self.future.done():  # else the waiting task was cancelled
            self.future.set_result(None)

    async def through(self, clock: Callable[[], float]) -> None:
        """Wait for the call. Afterwards the worker's record counts as finished just now."""
        await self.future
        self.worker.started_s = clock() - self.seconds


class HandlerThreads:
    """At most ``most`` threads of one loop. The loop makes the threads: in the simulation a call is made where it is
    begun. No thread keeps a process alive: a handler may never return. ``now_s``: the loop's time, for any thread;
    ``cpu_s``: the processor time of the calling thread.
    """

    def __init__(self, most: int, name: str, now_s: Callable[[], float], cpu_s: Callable[[], float]) -> None:
        self.most = most
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads(most, name)
        self._waiting: deque[ThreadCall] = deque()
        self._through: deque[ThreadCall] = deque()
        self._making: dict[int, ThreadCall] = {}
        """The call that each thread makes."""
        self._guard = Lock()
        """Guards the next three fields, and a stopping thread's look for waiting calls."""
        self._at_work = self._lost = 0
        """Working threads, and threads given up for lost until their calls are finished."""
        self._generation = 0
        """How often threads were given up for lost."""
        self._is_closed = False
        self._wanted = most
        self._cost = CallCost(0.0, 0.0, 1.0)
        self._begun = self._seen = 0
        """About how many calls were begun, now and at the last look."""
        self._stood_still = 0
        """The number of looks in a row without a new call."""
        self._last = 0
        """The thread that finished a call last."""
        self._is_told = self._is_looking = False
        """A call of ``_tell`` is due on the loop; a call of ``_look`` is due."""

    def begin(self, call: ThreadCall) -> None:
        """Have a call made; the loop calls ``end`` of the finished call. Raises RuntimeError after ``close``."""
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

    def calls_under_way(self) -> list[ThreadCall]:
        """The calls that threads make now. May be called from any thread."""
        return list(self._making.values())  # a single step for the interpreter

    def close(self) -> None:
        """Begin no more calls. Nothing waits for calls under way."""
        self._is_closed = True
        self._waiting.clear()
        self._threads.shutdown()

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take finished calls; give working threads up for lost when calls wait and no thread takes a call."""
        self._take()
        if self._is_closed or not self._waiting:  # a thread tells the loop when its call is finished
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
        """Take finished calls, as a thread has asked for."""
        self._is_told = False
        self._take()

    def _take(self) -> None:
        """End finished calls: only the calls there are now, for each end may begin another call."""
        through = self._through
        for _ in range(min(len(through), TAKE_MOST)):
            through.popleft().end()
        if through and not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._tell)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _work(self, generation: int) -> None:
        """Make calls as long as calls wait and the thread is wanted."""
        waiting, making, thread, is_alone = self._waiting, self._making, get_ident(), True
        while True:
            if generation != self._generation:  # this thread was given up for lost, and its call is finished
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
            except IndexError:  # another thread has taken the call
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
            del call  # the call refers to a record
            if (self._wanted > 1 or not waiting) and not self._is_told:
                self._is_told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:  # the loop is closed
                    return

    def _rests(self, is_alone: bool) -> bool:
        """Whether a thread stops: no call waits, or too many threads work and others go on."""
        is_too_much = self._at_work > self._wanted and not is_alone
        if self._waiting and not is_too_much:
            return False
        with self._guard:
            if self._waiting and not is_too_much:
                return False
            self._at_work -= 1
        return True

    def _has_cost(self, wall_s: float, cpu_s: float) -> None:
        """Count the cost of a call, and decide anew how many threads work."""
        cost = self._cost
        cost.count(wall_s, cpu_s)
        self._wanted = threads_wanted(cost, self._at_work, self.most, PROCESSORS)
