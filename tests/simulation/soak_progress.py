"""How far a slice is: a bar for a person, a line now and then for a log."""

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 30.0


class Progress:
    """``show`` it as often as you like."""

    def __init__(self, console: Console, what: str, done: int, wanted: int) -> None:
        self.console, self.what, self.wanted = console, what, wanted
        self.shown_s = -math.inf
        self.bar: Bar | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self.bar = Bar(*columns, TextColumn("{task.fields[state]}"), console=console)
            self.task = self.bar.add_task(what, total=wanted, completed=done, state="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, done: int, state: str) -> None:
        """So many are done in all; ``state``: what else there is to say."""
        if self.bar is not None:
            self.bar.update(self.task, completed=done, state=state)
        elif time.monotonic() - self.shown_s >= LINE_EVERY_S:
            self.shown_s = time.monotonic()
            self.console.print(f"{done:,} of {self.wanted:,} {self.what}; {state}")
