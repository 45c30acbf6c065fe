"""A process that keeps state and kills itself, as ``kill -9`` would, at a point that it is told.

Arguments, as one JSON object: ``address``, ``name``, ``source``, ``late``, ``settings``; ``limits``: constants of
modules (module:NAME) and their values; ``point``: ``step NAME``, ``before module:Class.method`` or ``after …``;
``count``: which time it is there.
"""

import asyncio
import functools
import importlib
import inspect
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keylanes import App, Context, MapState, State

SLOTS = 5
RESET = 7


PAUSE_S = 0.01


def declare(app: App, source: str, late: str, gate: asyncio.Event | None = None, pause_s: float = 0.0) -> None:
    """A total for each key, which some values reset, and the totals at the last values in a map, of which some go."""

    @app.handler(source, to=late, parallelising_factor=8)
    async def add(value: int, ctx: Context, total: State[int], last: MapState[int, int]) -> dict[str, int]:
        if gate is not None:
            await gate.wait()
        if pause_s:
            await asyncio.sleep(pause_s)
        now = (total.get() or 0) + value
        if value % RESET == 0:
            total.delete()
        else:
            total.put(now)
        last.put(value % SLOTS, now)
        last.delete((value + 2) % SLOTS)
        return {"value": value, "total": now}


class Countdown:
    """Kills the process at the ``count``-th call, from whatever thread."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Once more."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def arrange(point: str, count: int) -> Callable[[str], None]:
    """Have the process die at a point; returns who hears the steps of the commit cycle."""
    when, _, name = point.partition(" ")
    reached = Countdown(count)
    if when == "step":
        return lambda step: reached() if step == name else None
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    found = getattr(importlib.import_module(module), owner)
    setattr(found, method, _around(getattr(found, method), reached, is_before=when == "before"))
    return lambda step: None


def _around(function: Callable[..., Any], reached: Countdown, *, is_before: bool) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            if is_before:
                reached()
            result = await function(*arguments, **named)
            if not is_before:
                reached()
            return result

        return awaited

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if is_before:
            reached()
        result = function(*arguments, **named)
        if not is_before:
            reached()
        return result

    return called


def main() -> None:
    """Run until level, if it is not dead before."""
    if TYPE_CHECKING:
        from .limited import settings_of
    else:
        from limited import settings_of  # this is run as a script

    told = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    for name, value in told["limits"].items():
        module, _, constant = name.partition(":")
        setattr(importlib.import_module(module), constant, value)
    on_step = arrange(told["point"], told["count"])
    app = App(told["name"], broker=told["address"], settings=settings_of(**told["settings"]))
    declare(app, told["source"], told["late"], pause_s=PAUSE_S)
    app.run(until="level", on_step=on_step)


if __name__ == "__main__":
    main()
