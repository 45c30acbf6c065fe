"""One test of many cases: every case has its own time, and every case that fails is named at the end."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pytest


class Overdue(KeyboardInterrupt):
    """A case has used up its time. An application would catch any other error, and go on."""


class Named(Protocol):
    """A case is named in the complaint about it."""

    @property
    def name(self) -> str:
        """As people look it up."""


Case = TypeVar("Case", bound=Named)


@contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """Raise ``Overdue`` in what takes longer, and again in its cleaning up. Main thread only.

    The clock of a limit around this one stands still meanwhile: pytest-timeout uses the same signal.
    """

    def ring(number: int, frame: object) -> None:
        raise Overdue(f"it takes longer than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    left = signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)


def complaints(cases: Iterable[Case], check: Callable[[Case, pytest.MonkeyPatch], Any], limit_s: float) -> list[str]:
    """Check every case with a patch of its own; one line for each that fails."""
    found = []
    for case in cases:
        with pytest.MonkeyPatch.context() as patch:
            try:
                with limited(limit_s):
                    check(case, patch)
            except (Exception, pytest.fail.Exception, Overdue) as error:  # noqa: BLE001  # the others are checked, too
                found.append(f"{case.name}: {type(error).__name__}: {error}")
    return found
