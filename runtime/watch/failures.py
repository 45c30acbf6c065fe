"""Failures are counted, all of them, and said in a sample: a storm of them must not drown everything else in the log.

The first failure of a kind is said at once, and then one in an interval, which says how many like it came before it and
were not said. What is never followed by another one stays unsaid, and counted.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

from ...brokers.protocol import BrokerError
from ...errors import DecodeFailed, HandlerFailed, KeylanesError, OutputRefused

PYTHONS_OWN: Final = contextlib.__file__.removesuffix("contextlib.py")
"""Where the standard library is; what is installed may lie below it."""

KINDS_MAX: Final = 1_000
"""So many kinds are known at once; the one that was said longest ago is forgotten first, and is then said at once."""


class FailureKind(NamedTuple):
    """Failures that are like each other: of one topic's handler, with one type of error and the same consequence."""

    topic: str
    error: str
    consequence: str


class FailureSample:
    """Which failures are said. ``interval_s``: at least so long lies between two that are, of each kind."""

    def __init__(self, interval_s: float, kinds_max: int = KINDS_MAX) -> None:
        self._interval_s, self._kinds_max = interval_s, kinds_max
        self._said: dict[FailureKind, tuple[float, int]] = {}
        """When one was said last, and how many there were since; in the order of these times."""

    def look(self, kind: FailureKind, now_s: float) -> int | None:
        """How many like it were not said since the last that was; None: it is not to be said itself."""
        said_s, unsaid = self._said.get(kind, (None, 0))
        if said_s is not None and now_s - said_s < self._interval_s:
            self._said[kind] = said_s, unsaid + 1
            return None
        self._said.pop(kind, None)
        if len(self._said) >= self._kinds_max:
            del self._said[next(iter(self._said))]
        self._said[kind] = now_s, 0
        return unsaid


class Failures:
    """What failed in a run: ``attempts``, the ``retries`` that followed, and records that became ``dead_letters``."""

    def __init__(self, interval_ms: int) -> None:
        self.attempts = 0
        self.retries = 0
        self.dead_letters = 0
        self._sample = FailureSample(interval_ms / 1000)

    def said(self, topic: str, error: str, consequence: str, now_s: float) -> str | None:
        """What stands behind the line about a failure: nothing, or how many like it there were. None: no line."""
        unsaid = self._sample.look(FailureKind(topic, error, consequence), now_s)
        return None if unsaid is None else and_more(unsaid)


def failure_text(error: BaseException) -> str:
    """The type of an error and its text; where it has none, the line that raised it. Of the standard library, which
    raises for others, that is the line of who called it.
    """
    kind, text = type(error).__name__, str(error)
    if text.strip():
        return f"{kind}: {text}"
    frames = list(_frames(error.__traceback__))
    called = [(file, line) for file, line in frames if not _is_pythons_own(file)] or frames
    return f"{kind} ({called[-1][0]}:{called[-1][1]})" if called else kind


def foreign_in(error: BaseException) -> BaseException | None:
    """Of an error that ended a run what somebody else's code raised, whose stack is looked at; ours say all in their
    text, and have none.
    """
    if not isinstance(error, HandlerFailed):
        return None if isinstance(error, KeylanesError) else error
    cause = error.__cause__
    if isinstance(cause, DecodeFailed | OutputRefused):  # of a value: by its codec
        return cause.__cause__
    return None if isinstance(cause, BrokerError) else cause


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _is_pythons_own(file: str) -> bool:
    return file.startswith("<") or (file.startswith(PYTHONS_OWN) and "-packages/" not in file)


def and_more(unsaid: int) -> str:
    """How many more there were, for the end of a line."""
    return f" (and {unsaid:,} more like it)" if unsaid else ""
