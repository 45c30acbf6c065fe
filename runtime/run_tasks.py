"""The tasks of a run: an error in any of them ends the run."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import InvariantBroken


class RunTasks:
    """The tasks of a run of the application ``app``. ``fail`` is called with the error of a task. ``has_ended``: the
    run has ended, and tasks may be cancelled.
    """

    def __init__(self, app: str, fail: Callable[[BaseException], None], has_ended: Callable[[], bool]) -> None:
        self.app = app
        self._fail = fail
        self._has_ended = has_ended
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin a task."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self.app}: {getattr(work, '__qualname__', work)}")
        self._tasks.append(task)
        task.add_done_callback(self._note_end)
        return task

    def drop(self, task: "asyncio.Task[None]") -> None:
        """Cancel a task before the end of the run."""
        self._tasks.remove(task)
        task.remove_done_callback(self._note_end)
        task.cancel()

    async def end(self, limit_s: float) -> None:
        """Cancel all tasks, and wait for their ends, ``limit_s`` at most."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            if not self._has_ended():  # else a reader, say, would be missing without an error
                self._fail(InvariantBroken(f"{task.get_name()} was cancelled by somebody else"))
        elif (error := task.exception()) is not None:
            self._fail(error)
