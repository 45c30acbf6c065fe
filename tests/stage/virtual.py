"""Tests that are coroutines and run in virtual time. What still works behind a test is stopped."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from keylanes.brokers.simulated.virtual_loop import run_virtual

from .engine import AT_WORK, Engine

Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
Decorator: TypeAlias = Callable[[Test], Callable[..., None]]


def virtual(test: Test) -> Callable[..., None]:
    """Run a test in virtual time. The loop has the test's ``seed``."""

    @functools.wraps(test)
    def run(**named: Any) -> None:
        async def main() -> None:
            at_work: list[Engine] = []
            AT_WORK.set(at_work)
            await test(**named)
            for engine in reversed(at_work):
                if not engine.is_over:
                    await engine.stop()

        run_virtual(main(), seed=named.get("seed", 1))

    return run


def virtual_in(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Decorator:
    """The same, with a world as the test's first argument that is made for it."""

    def decorate(test: Test) -> Callable[..., None]:
        async def in_world(**named: Any) -> None:
            async with make() as world:
                await test(world, **named)

        run = virtual(functools.wraps(test)(in_world))
        given = [*inspect.signature(test).parameters.values()][1:]
        run.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]  # for pytest
        return run

    return decorate


def virtual_with(make: Callable[[], Any]) -> Decorator:
    """The same, with a world that has no end of its own."""
    return virtual_in(lambda: contextlib.nullcontext(make()))
