"""The orders to stop that a process gets: signals, and words of a parent process."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count

from .processes.child import SIBLING

logger = logging.getLogger("keylanes")


def obey(app: str, stop: Callable[[], object], at_once: Callable[[], object], abort: Callable[[], object]) -> None:
    """Call ``stop``, ``at_once`` and ``abort`` on the running loop: at signals in turn, or by a parent's words."""
    loop, numbers = asyncio.get_running_loop(), count()

    def on_signal(sent: signal.Signals) -> None:
        match next(numbers):
            case 0:
                logger.info("%s: %s: stopping in order; once more releases at once", app, sent.name)
                stop()
            case 1:
                logger.warning("%s: %s again: releasing at once; once more aborts", app, sent.name)
                at_once()
            case _:
                abort()

    if SIBLING is not None:
        SIBLING.listen(*(partial(loop.call_soon_threadsafe, call) for call in (stop, at_once, abort)))

    # Only the main thread may handle signals; on Windows no thread can, and Ctrl+C raises KeyboardInterrupt.
    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sent, on_signal, sent)
