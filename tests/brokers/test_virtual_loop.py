"""The virtual loop: time that jumps, order from a seed, deadlocks that say so."""

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

from keylanes.brokers.simulated.virtual_loop import TIME_AT_START, VirtualDeadlock, VirtualLoop, run_virtual

from ..tiers.marks import tier

pytestmark = tier("check")


def trace(seed: int, *, shuffle: bool = True) -> list[tuple[int, int, float]]:
    """Five tasks that take turns: who ran which step, and when."""
    seen: list[tuple[int, int, float]] = []

    async def worker(number: int) -> None:
        for step in range(4):
            seen.append((number, step, asyncio.get_running_loop().time()))
            await asyncio.sleep(step % 2)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(worker(number))

    run_virtual(main(), seed=seed, shuffle=shuffle)
    return seen


def test_time_jumps() -> None:
    """An hour of sleep passes at once, and the clock shows exactly that hour."""

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    begin = time.monotonic()
    assert run_virtual(main()) == TIME_AT_START + 3600
    assert time.monotonic() - begin < 10


def test_timers_fire_in_their_order() -> None:
    """Sleepers wake in the order of their deadlines, each at its own time."""

    async def sleeper(delay: float) -> float:
        await asyncio.sleep(delay)
        return asyncio.get_running_loop().time() - TIME_AT_START

    async def main() -> list[float]:
        tasks = [asyncio.create_task(sleeper(delay)) for delay in (3.0, 1.0, 2.0, 1.5)]
        return [await task for task in asyncio.as_completed(tasks)]

    assert run_virtual(main()) == pytest.approx([1.0, 1.5, 2.0, 3.0])


def test_a_seed_repeats() -> None:
    """The same seed gives the same run, and different seeds give different orders of steps."""
    assert trace(3) == trace(3)
    assert len({tuple(trace(seed)) for seed in range(10)}) > 5


def test_a_seed_repeats_in_another_process() -> None:
    """Sets of tasks are walked in the same order in every process, whatever addresses its objects have."""
    program = """
import asyncio, os, sys
from keylanes.brokers.simulated.virtual_loop import run_virtual
ballast = [bytearray(int(sys.argv[1])) for _ in range(100)]
seen = []
async def worker(number):
    try:
        await asyncio.sleep(9)
    finally:
        seen.append(number)
async def main():
    tasks = {asyncio.create_task(worker(number)) for number in range(20)}
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks)
    seen.extend(task.get_name() for task in done)
run_virtual(main(), seed=5)
print(seen)
"""
    outputs = {
        subprocess.run([sys.executable, "-c", program, size], capture_output=True, text=True, check=True).stdout
        for size in ("1", "333", "70000")
    }
    assert len(outputs) == 1


def test_without_shuffle_tasks_take_turns_in_order() -> None:
    """``shuffle=False`` keeps asyncio's own order."""
    assert [number for number, step, _ in trace(1, shuffle=False) if step == 0] == [0, 1, 2, 3, 4]


def test_callbacks_keep_their_order() -> None:
    """What is given to ``call_soon`` runs first in, first out, also between steps of tasks."""
    seen: list[int] = []

    async def noise() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        others = [asyncio.create_task(noise()) for _ in range(5)]
        for number in range(50):
            loop.call_soon(seen.append, number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*others)

    for seed in range(5):
        seen.clear()
        run_virtual(main(), seed=seed)
        assert seen == list(range(50))


def test_queues_and_locks_work_under_every_seed() -> None:
    """A queue keeps its order and a lock excludes, however steps are shuffled."""

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock, inside = asyncio.Lock(), 0
        got: list[int] = []

        async def locked() -> None:
            nonlocal inside
            async with lock:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        async def consume() -> None:
            while len(got) < 30:
                got.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for _ in range(10):
                group.create_task(locked())
            for number in range(30):
                await queue.put(number)
        return got

    for seed in range(20):
        assert run_virtual(main(), seed=seed) == list(range(30))


def test_timeouts_count_virtual_time() -> None:
    """``asyncio.timeout`` ends a wait after its virtual seconds, not before."""

    async def main() -> float:
        try:
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        except TimeoutError:
            return asyncio.get_running_loop().time()
        return 0.0

    assert run_virtual(main()) == pytest.approx(TIME_AT_START + 30)


def test_threads_are_played_in_this_thread() -> None:
    """``to_thread`` runs the function here and now; result and error are delivered after others had a turn."""

    async def main() -> tuple[int, list[str]]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "another")
        ident = await asyncio.to_thread(threading.get_ident)
        seen.append("result")
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return ident, seen

    assert run_virtual(main()) == (threading.get_ident(), ["another", "result"])


def test_a_deadlock_names_its_tasks() -> None:
    """Nothing ready and no timer raises VirtualDeadlock with the names of those that wait."""

    async def main() -> None:
        waiting = asyncio.create_task(asyncio.Event().wait(), name="waits-for-godot")
        await waiting

    with pytest.raises(VirtualDeadlock, match="waits-for-godot"):
        run_virtual(main())


def test_a_live_lock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that spin while the clock stands still end in an error, not in a hang."""
    monkeypatch.setattr("keylanes.brokers.simulated.virtual_loop._PASSES_MAX", 10_000)  # a million take some seconds

    async def main() -> None:
        while True:  # noqa: ASYNC110  # the defect itself
            await asyncio.sleep(0)

    with pytest.raises(VirtualDeadlock, match="without the clock moving"):
        run_virtual(main())


def test_close_lets_tasks_clean_up() -> None:
    """What ``main`` left pending is cancelled, and its clean-up may take (virtual) time."""
    seen: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            await asyncio.sleep(5)
            seen.append("cleaned")

    async def main() -> str:
        seen.append(asyncio.create_task(left_over()).get_name())
        await asyncio.sleep(0)
        return "done"

    assert run_virtual(main()) == "done"
    assert seen[1:] == ["cleaned"]


def test_an_error_of_main_comes_out() -> None:
    """The exception of ``main`` is raised, and the loop is closed."""

    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


def test_the_loop_serves_a_runner() -> None:
    """``asyncio.Runner`` with this loop works as with any other, one run after the other."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(1)) as runner:
        assert runner.run(asyncio.sleep(100, "one")) == "one"
        assert runner.run(asyncio.sleep(100, "two")) == "two"


@pytest.mark.skipif(not hasattr(signal, "raise_signal") or sys.platform == "win32", reason="needs Unix signals")
def test_signals_reach_their_handlers() -> None:
    """A signal that comes while everything waits wakes its handler instead of being taken for a deadlock."""

    async def main() -> str:
        loop, got = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, got.set)
        loop.call_later(1, signal.raise_signal, signal.SIGUSR1)
        await got.wait()
        loop.remove_signal_handler(signal.SIGUSR1)
        return "woken"

    assert run_virtual(main()) == "woken"
