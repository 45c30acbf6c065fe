"""Tests that are coroutines and run in virtual time."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from keylanes.brokers.simulated.virtual_loop import run_virtual

Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
Decorator: TypeAlias = Callable[[Test], Callable[..., None]]


def virtual(test: Test) -> Callable[..., None]:
    """Run a test in virtual time. The loop has the test's ``seed``."""

    @functools.wraps(test)
    def run(**named: Any) -> None:
        run_virtual(test(**named), seed=named.get("seed", 1))

    return run


def virtual_in(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Decorator:
    """The same, with a world as the test's first argument that is made for it."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**named: Any) -> None:
            async def main() -> None:
                async with make() as world:
                    await test(world, **named)

            run_virtual(main(), seed=named.get("seed", 1))

        known = inspect.signature(test)
        run.__signature__ = known.replace(parameters=[*known.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate
