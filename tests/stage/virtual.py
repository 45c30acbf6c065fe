"""Tests that are coroutines and run in virtual time."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

from keylanes.brokers.simulated.virtual_loop import run_virtual

P = ParamSpec("P")
W = TypeVar("W")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        run_virtual(test(*given, **named), seed=1)

    return run


def virtual_in(
    make: Callable[[], AbstractAsyncContextManager[W]],
) -> Callable[[Callable[Concatenate[W, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a test in virtual time, in a world that is made for it: its first argument. Its ``seed`` is the loop's, too."""

    def decorate(test: Callable[Concatenate[W, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*given: P.args, **named: P.kwargs) -> None:
            async def main() -> None:
                async with make() as world:
                    await test(world, *given, **named)

            seed = named.get("seed", 1)
            assert isinstance(seed, int)
            run_virtual(main(), seed=seed)

        known = inspect.signature(test)
        run.__signature__ = known.replace(parameters=[*known.parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorate
