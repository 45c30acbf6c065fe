"""Threads for handlers, for work that may wait for a disk, and for a loop's own jobs. No thread keeps a process alive.

At its end the interpreter joins the threads of a ``ThreadPoolExecutor``: one handler without an end would keep a
stopped process for ever. The threads here are daemons: a stop waits for a thread until the limits of the stop are over,
and then leaves the thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias

Job: TypeAlias = "tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None"


class DaemonThreads(ThreadPoolExecutor):
    """At most ``threads`` threads, made when there is work. A loop takes the pool as default executor, too."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self.threads = threads
        self.name = name
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._made: list[Thread] = []
        self._free = 0  # threads without a call, less the calls that wait for a thread
        self._guard = Lock()
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Queue a call; raises RuntimeError after ``shutdown``."""
        future: Future[Any] = Future()
        with self._guard:
            if self._is_closed:
                raise RuntimeError("these threads were shut down")
            self._jobs.put((future, fn, args, kwargs))
            self._free -= 1
            if self._free < 0 and len(self._made) < self.threads:
                self._free += 1
                thread = Thread(target=self._run, name=f"{self.name}-{len(self._made)}", daemon=True)
                self._made.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # never waits
        """Take no more calls; a thread ends after the last call. Returns at once, whatever ``wait`` says."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            if cancel_futures:
                while not self._jobs.empty():
                    job = self._jobs.get()
                    if job is not None:
                        job[0].cancel()
            for _ in self._made:
                self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args, kwargs = job
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:  # noqa: BLE001  # the future raises the error where somebody waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, function, args, kwargs
            with self._guard:
                self._free += 1
