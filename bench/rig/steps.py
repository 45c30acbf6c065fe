"""How far a long bench is: a bar for a person at a terminal, plain lines for a log."""

import sys
import time
from types import TracebackType
from typing import Any, Self


class Steps:
    """One line for each run; as a context."""

    def __init__(self, count: int) -> None:
        self.count, self.number, self.name = count, 0, ""
        self.began_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns)
            self._bar.start()
            self._task = self._bar.add_task("", total=self.count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, name: str) -> None:
        """A run begins."""
        self.number, self.name = self.number + 1, name
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def end(self, outcome: str) -> None:
        """It is through."""
        line = f"{self.name}: {outcome}"
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
            self._bar.advance(self._task)
            return
        print(f"  {time.monotonic() - self.began_s:5.0f} s  {self.number}/{self.count}  {line}", flush=True)
