"""The loop of the simulation: processes that stand still, and disks that are slow."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from ..tiers.marks import tier
from .loop import PausingLoop, context_of

pytestmark = tier("check")

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop: PausingLoop) -> T:
    """Run on a loop and close it."""
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def test_who_stands_still_does_nothing_and_others_go_on() -> None:
    """A paused task neither runs nor times out; what it was told, and timers that ran out, come when it goes on."""
    loop = PausingLoop()
    seen: list[tuple[str, float]] = []

    async def tick(name: str, told: asyncio.Event) -> None:
        began = loop.time()
        await asyncio.sleep(1.0)
        seen.append((f"{name} woke", round(loop.time() - began, 3)))
        await told.wait()
        seen.append((f"{name} heard", round(loop.time() - began, 3)))

    async def main() -> None:
        told = asyncio.Event()
        tasks = [loop.create_task(tick(name, told), context=context_of(name)) for name in ("a", "b")]
        await asyncio.sleep(0.5)
        loop.pause("a")
        told.set()
        await asyncio.sleep(4.5)
        loop.resume("a")
        await asyncio.gather(*tasks)

    run(main(), loop)
    assert seen == [("b woke", 1.0), ("b heard", 1.0), ("a woke", 5.0), ("a heard", 5.0)]


def test_who_is_stopped_in_the_middle_of_a_pass_takes_nothing_from_it() -> None:
    """What is ready beside the one that is stopped runs in the same pass; what is stopped runs when it goes on."""
    loop = PausingLoop()
    seen: list[str] = []

    async def main() -> None:
        context = context_of("a")
        loop.call_soon(loop.pause, "a")
        for name in ("first", "second"):
            loop.call_soon(seen.append, name, context=context)
        loop.call_soon(seen.append, "beside")
        await asyncio.sleep(1)
        assert seen == ["beside"]
        loop.resume("a")
        await asyncio.sleep(1)
        assert seen == ["beside", "first", "second"]

    run(main(), loop)


def test_what_a_paused_owner_is_told_is_kept_in_order() -> None:
    """Callbacks for somebody who stands still run after ``resume``, in the order in which they came."""
    loop = PausingLoop()
    seen: list[int] = []

    async def main() -> None:
        context = context_of("a")
        loop.pause("a")
        for number in range(3):
            loop.call_soon(seen.append, number, context=context)
        await asyncio.sleep(1)
        assert seen == []
        loop.resume("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(main(), loop)
    assert seen == [0, 1, 2]


def test_a_slow_disk_works_when_its_time_has_come() -> None:
    """A job takes as long as the disk does, has its effect at the end, and raises where it is awaited."""
    loop = PausingLoop()
    loop.disk_s = lambda owner: 2.0 if owner == "a" else 0.0
    done: list[str] = []

    async def work(name: str) -> float:
        began = loop.time()
        await loop.run_in_executor(None, done.append, name)
        return round(loop.time() - began, 3)

    async def main() -> list[float]:
        slow = loop.create_task(work("a"), context=context_of("a"))
        fast = loop.create_task(work("b"), context=context_of("b"))
        took_fast = await fast
        assert done == ["b"]
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return [took_fast, await slow]

    assert run(main(), loop) == [0.0, 2.0]
    assert done == ["b", "a"]
