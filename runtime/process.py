"""A process that is an application's own: its event loop, its garbage collection, the memory that it keeps."""

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..brokers.threads import DaemonThreads
from ..brokers.waiting import abandon
from ..errors import SettingsError

COLLECTED_AFTER: Final = (200_000, 20, 100)
"""Python's garbage collection while ``run`` has the process to itself. Queued records are many, live for seconds and
are in no circles: with Python's own thresholds a third of the time went into looking at them again and again.
"""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""So much may be free at the end of the heap: some of the largest answers (4 to 16 MiB), as they came and parsed."""

MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A block from this size on gets pages of its own, which its end gives back at once."""

OWN_WISHES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""What a user says here is left as it is, and so is anything about malloc in ``GLIBC_TUNABLES``."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory() -> bool:
    """Let the process keep what it frees, up to ``KEPT_BYTES``; False where nothing was changed.

    glibc gives memory back to the system as soon as some hundred kB at the end of the heap are free, and the next
    answer of a broker has it mapped and cleared again, page by page. With values of 100 kB that took half of the time.
    It can't be taken back: what glibc would have done by itself can't be asked for.
    """
    if any(name in os.environ for name in OWN_WISHES) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:  # it is no dependency on every platform
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_in_own_loop(main: Coroutine[Any, Any, None], left_s: Callable[[float], float]) -> None:
    """What asyncio.run does, but its end is bounded: neither a handler that ignores its cancellation nor one that waits
    for a thread can keep the process. ``left_s``: the time for that, at a time of the loop.
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
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                _, pending = loop.run_until_complete(asyncio.wait(left, timeout=left_s(loop.time())))
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
    """Raises SettingsError for a loop whose tasks begin at once: a task is told what it works on behind its making."""
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
