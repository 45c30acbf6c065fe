"""A process for an application alone: the event loop, the garbage collection, the freed memory."""

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..brokers.patience import abandon
from ..brokers.threads import DaemonThreads
from ..errors import SettingsError

COLLECTED_AFTER: Final = (200_000, 20, 100)
"""The thresholds of Python's garbage collection in a process of ``run``. Queued records are many, live for seconds and
are in no reference cycles: with Python's own thresholds the collector took a third of the time.
"""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""How much freed memory the process keeps at the end of the heap: room for some of the largest answers of a broker (4
to 16 MiB), raw and parsed.
"""

MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A block from this size on gets pages of its own; freeing the block gives the pages back at once."""

OWN_WISHES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Environment variables that set glibc's malloc. Where a user has set one of these, or malloc in ``GLIBC_TUNABLES``,
keylanes leaves malloc alone.
"""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # the numbers of malloc.h


def keep_memory() -> bool:
    """Let the process keep freed memory, up to ``KEPT_BYTES``; False where nothing was changed.

    glibc gives memory back to the system as soon as some hundred kB at the end of the heap are free, and for the next
    answer of a broker the kernel maps and clears the memory again, page by page. With values of 100 kB the mapping took
    half of the time. The change can't be undone: glibc does not tell its own thresholds.
    """
    if any(name in os.environ for name in OWN_WISHES) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # a C library without mallopt, or a system without ctypes.CDLL(None)
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:  # uvloop is no dependency on some platforms
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_in_own_loop(main: Coroutine[Any, Any, None], left_s: Callable[[float], float]) -> None:
    """Run ``main`` as asyncio.run does, but with a bounded end: neither a handler that ignores its cancellation nor a
    handler that waits for a thread can hold the process up. ``left_s``: the seconds left for the end, at a time of the
    loop.
    """
    factory = _loop_factory() or asyncio.new_event_loop
    loop = factory()
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_AFTER)
    keep_memory()
    loop.set_default_executor(DaemonThreads(min(32, (os.cpu_count() or 1) + 4), "keylanes-default"))
    try:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main)
        finally:
            unfinished = asyncio.all_tasks(loop)
            for task in unfinished:
                task.cancel()
            if unfinished:
                _, pending = loop.run_until_complete(asyncio.wait(unfinished, timeout=left_s(loop.time())))
                for task in pending:
                    abandon(task)
            ending = loop.create_task(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.wait([ending], timeout=left_s(loop.time())))
            loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        gc.set_threshold(*before)
        asyncio.set_event_loop(None)
        loop.close()


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises SettingsError for a loop that begins a task within ``create_task``: keylanes gives a task its work, and
    notes the task, only after ``create_task`` has returned.
    """
    began: list[bool] = []

    async def begin() -> None:
        began.append(True)

    task = loop.create_task(begin())
    if began:
        raise SettingsError(
            f"this event loop begins tasks at once; seen the task factory {loop.get_task_factory()!r}, allowed are "
            "those whose tasks begin in a later turn: leave asyncio.eager_task_factory out, or run keylanes on a loop "
            "of its own"
        )
    task.cancel()
