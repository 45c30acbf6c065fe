"""A fresh process for each arm, so that memory and garbage are its own; and what a process knows of itself."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rig.errors import WrongRun

T = TypeVar("T")
CHILD_SECONDS_MAX = 600.0


def in_child(function: Callable[..., T], *arguments: Any, limit_s: float = CHILD_SECONDS_MAX) -> T:
    """The result of a function in a fresh process; raises WrongRun when it fails or does not end."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_and_send, args=(sender, function, arguments))
    child.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise WrongRun(f"{function.__name__} did not end within {limit_s:g} s")
        result: T = receiver.recv()
    except EOFError:
        raise WrongRun(f"{function.__name__} failed, see above") from None
    except BaseException:
        child.kill()
        raise
    finally:
        child.join()
    return result


def _run_and_send(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    quiet()
    sender.send(function(*arguments))


def quiet() -> None:
    """Warnings only."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run on the kind of loop that an application gets."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.run(work)
    return asyncio.run(work)


def resident_bytes() -> int:
    """The memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
