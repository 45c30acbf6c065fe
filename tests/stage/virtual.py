"""Tests that run in virtual time."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from keylanes.brokers.simulated.virtual_loop import run_virtual

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop of its own, whose clock jumps. A parameter ``seed`` is the loop's seed, too."""

    @functools.wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        run_virtual(test(*given, **named), seed=named.get("seed", 0))  # type: ignore[arg-type]  # an int

    return run
