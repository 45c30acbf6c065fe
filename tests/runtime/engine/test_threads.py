"""Threads that run handlers: how many are at work, and that each call is made once, whatever the others do."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

import pytest

from keylanes.runtime.engine.threads import (
    LONG_S,
    TAKE_MOST,
    AwaitedCall,
    CallCost,
    HandlerThreads,
    ThreadCall,
    threads_wanted,
)
from keylanes.runtime.partition.worker import Worker

WAIT_S = 30.0
MOST = 4


@pytest.fixture
async def threads() -> AsyncIterator[HandlerThreads]:
    """Of their own for each test."""
    threads = HandlerThreads(MOST, "test-slot", time.monotonic, time.thread_time)
    yield threads
    threads.close()


def call(function: Callable[..., Any], *arguments: Any) -> AwaitedCall:
    """Of a worker of its own."""
    return AwaitedCall(Worker(0, 0, 1, 0, 0), copy_context(), function, arguments)


async def made(threads: HandlerThreads, calls: list[AwaitedCall]) -> list[Any]:
    """Begin all of them; what they returned."""
    for one in calls:
        threads.begin(one)
    async with asyncio.timeout(WAIT_S):
        for one in calls:
            await one.through(asyncio.get_running_loop().time)
    return [one.result for one in calls]


@pytest.mark.parametrize(
    ("cost", "at_work", "expected"),
    [
        (CallCost(0.0001, 0.0001, 0.0), 1, 1),  # computes, and is short
        (CallCost(0.0016, 0.0001, 0.02), 16, 1),  # the same, with sixteen that pass the lock around
        (CallCost(0.0016, 0.0001, 0.02), 1, 1),  # the same, beside an event loop that has much to do
        (CallCost(0.02, 0.0002, 1.0), 1, 16),  # waits for something
        (CallCost(0.02, 0.0002, 1.0), 16, 16),
        (CallCost(0.002, 0.00006, 0.1), 16, 16),  # one of ten does, and the others are short
        (CallCost(0.06, 0.004, 1.0), 1, 16),  # waits, and computes some time
        (CallCost(0.005, 0.005, 0.0), 1, 2),  # computes for long, perhaps without the lock
        (CallCost(0.048, 0.003, 0.6), 16, 2),  # the same, with sixteen that pass it around
        (CallCost(0.0009, 0.0, 0.0), 1, 1),  # not worth a thread each
    ],
)
def test_how_many_are_at_work(cost: CallCost, at_work: int, expected: int) -> None:
    """As many as there are where calls wait, one or one for each processor where they compute."""
    assert threads_wanted(cost, at_work, 16, 2) == expected


def test_the_mean_forgets_what_was() -> None:
    """What calls cost at the start, when all are taken for long, and what they did before they became quick."""
    cost = CallCost(0.0, 0.0, 1.0)
    for _ in range(100):
        cost.count(0.0001, 0.0001)
    assert threads_wanted(cost, 16, 16, 2) == 1
    for _ in range(10):
        cost.count(0.02, 0.0001)
    assert threads_wanted(cost, 1, 16, 2) == 16


async def test_short_calls_are_made_once_each_in_turn(threads: HandlerThreads) -> None:
    """However many there are; what they return and raise comes back, and how long they took."""
    seen: list[int] = []

    def work(number: int) -> int:
        seen.append(number)
        if number % 7 == 3:
            raise ValueError(number)
        return number

    calls = [call(work, number) for number in range(5_000)]
    await made(threads, calls)
    assert sorted(seen) == list(range(5_000))
    for number, one in enumerate(calls):
        assert isinstance(one.failed, ValueError) if number % 7 == 3 else one.result == number
        assert 0 <= one.seconds < WAIT_S


async def test_calls_that_wait_run_at_once(threads: HandlerThreads) -> None:
    """As many as there may be threads: each waits here for the others, before anything was measured and after that."""
    for _ in range(3):
        together = threading.Barrier(MOST)
        await made(threads, [call(together.wait, WAIT_S) for _ in range(MOST)])
        await made(threads, [call(int) for _ in range(100)])


async def test_calls_that_wait_get_their_threads_back_behind_short_ones(threads: HandlerThreads) -> None:
    """Short ones are left to one thread; when some wait again, and nothing moves, others come to help."""
    await made(threads, [call(int) for _ in range(1_000)])
    together = threading.Barrier(MOST)
    await made(threads, [call(together.wait, WAIT_S) for _ in range(MOST)])


async def test_one_that_never_ends_holds_up_nobody(threads: HandlerThreads) -> None:
    """It keeps its thread; all others are made."""
    await made(threads, [call(int) for _ in range(1_000)])
    ended = threading.Event()
    stuck = call(ended.wait)
    threads.begin(stuck)
    assert await made(threads, [call(lambda n=n: n) for n in range(500)]) == list(range(500))
    assert not stuck.future.done()
    begun = threading.Event()
    threads.begin(call(begun.set))
    assert begun.wait(WAIT_S), "it has a thread at once: the loop stands still here, and looks after nothing"
    ended.set()
    await stuck.through(asyncio.get_running_loop().time)


async def test_threads_that_compute_give_way_to_each_other(threads: HandlerThreads) -> None:
    """Short calls that compute end in one thread: the lock would be passed around for nothing."""
    names: list[str] = []

    def compute() -> None:
        until = time.thread_time() + LONG_S / 20
        while time.thread_time() < until:
            pass
        names.append(threading.current_thread().name)

    await made(threads, [call(compute) for _ in range(3_000)])
    assert len({*names[-500:]}) == 1


async def test_a_call_that_nobody_waits_for_any_more_is_not_made(threads: HandlerThreads) -> None:
    """It was cancelled before a thread came to it."""
    gate, seen = threading.Event(), list[int]()
    blocking = [call(gate.wait) for _ in range(MOST)]
    for one in blocking:
        threads.begin(one)
    late = call(seen.append, 1)
    threads.begin(late)
    late.future.cancel()
    gate.set()
    await made(threads, [call(seen.append, 2)])
    assert seen == [2]


async def test_what_is_closed_begins_nothing(threads: HandlerThreads) -> None:
    """It says so."""
    threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        threads.begin(call(int))


async def test_idle_threads_end_when_they_are_closed() -> None:
    """None is left behind."""
    threads = HandlerThreads(MOST, "ending-slot", time.monotonic, time.thread_time)
    together = threading.Barrier(MOST)
    await made(threads, [call(together.wait, WAIT_S) for _ in range(MOST)])
    own = [thread for thread in threading.enumerate() if thread.name.startswith("ending-slot")]
    threads.close()
    assert len(own) == MOST
    for thread in own:
        thread.join(WAIT_S)
        assert not thread.is_alive()


class Chained(ThreadCall):
    """Begins another call when it is through."""

    def __init__(self, threads: HandlerThreads, left: list[int]) -> None:
        super().__init__(Worker(0, 0, 1, 0, 0), copy_context(), left.pop, ())
        self.threads, self.left = threads, left

    def end(self) -> None:
        """See ThreadCall."""
        if self.left:
            self.threads.begin(Chained(self.threads, self.left))


@pytest.mark.interpreted
async def test_calls_that_begin_the_next_one_leave_turns_to_others(threads: HandlerThreads) -> None:
    """Whatever is through, the loop goes round: nobody waits for the end of such a chain."""
    left = [*range(50 * TAKE_MOST)]
    for _ in range(2 * TAKE_MOST):
        threads.begin(Chained(threads, left))
    seen: list[int] = []
    while left:
        seen.append(len(left))
        await asyncio.sleep(0)
    assert len({*seen}) >= 3


async def test_what_threads_are_at_is_known(threads: HandlerThreads) -> None:
    """Of each the call that it makes, and no other; the clock of its worker's record runs from then on."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        ended.wait(WAIT_S)

    assert not threads.calls_under_way()
    one = call(work)
    threads.begin(one)
    await asyncio.to_thread(begun.wait, WAIT_S)
    clock = asyncio.get_running_loop().time
    assert threads.calls_under_way() == [one]
    assert one.worker.started_s <= clock()
    ended.set()
    await one.through(clock)
    assert not threads.calls_under_way()
    assert one.worker.started_s <= clock() - one.seconds
