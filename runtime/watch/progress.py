"""The progress of a long step, on standard error: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 5.0


class ProgressShown:
    """``with ProgressShown("loading", total=…) as shown: shown.move(done)``. Needs rich on a terminal only."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._said_s = 0.0

    def __enter__(self) -> Self:
        self._said_s = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
            self._bar = (bar, bar.add_task(self.what, total=self.total))
        return self

    def move(self, done: int, total: int | None = None) -> None:
        """Show that ``done`` is reached; ``total`` replaces the total. Never moves back, never beyond the total."""
        self.total = self.total if total is None else total
        self.done = max(self.done, min(done, self.total))
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=self.done, total=self.total)
        elif time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._said_s = time.monotonic()
            sys.stderr.write(f"{self.what}: {self.done:,} of {self.total:,}\n")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()
