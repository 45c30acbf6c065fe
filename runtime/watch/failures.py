"""The count of all failures, and a sample of failures for the log: a storm of failures must not drown other lines.

The log has the first failure of a kind at once, and then one failure in an interval. Each line says how many failures
of the kind came since the line before. After the last line of a kind, no line tells of further failures: only the count
has these.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

from ...brokers.protocol import BrokerError
from ...errors import DecodeFailed, HandlerFailed, KeylanesError, OutputRefused

PYTHONS_OWN: Final = contextlib.__file__.removesuffix("contextlib.py")
"""The folder of the standard library; installed packages may lie below."""

KINDS_MAX: Final = 1_000
"""How many kinds are known at most; the kind with the oldest line is forgotten first, and then has a line at once."""


class FailureKind(NamedTuple):
    """A kind of similar failures: of the handler of a topic, with a type of error and a consequence."""

    topic: str
    error: str
    consequence: str


class FailureSample:
    """Decides which failures get a line. ``interval_s``: the least time between two lines of a kind."""

    def __init__(self, interval_s: float, kinds_max: int = KINDS_MAX) -> None:
        self._interval_s = interval_s
        self._kinds_max = kinds_max
        self._said: dict[FailureKind, tuple[float, int]] = {}
        """By kind, the time of the last line and the failures since; in the order of the times."""

    def look(self, kind: FailureKind, now_s: float) -> int | None:
        """The number of failures without a line since the kind's last line; None: this failure gets no line either."""
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
    """The failures of a run: failed ``attempts``, the ``retries`` behind, and records that became ``dead_letters``."""

    def __init__(self, interval_ms: int) -> None:
        self.attempts = 0
        self.retries = 0
        self.dead_letters = 0
        self._sample = FailureSample(interval_ms / 1000)

    def line_end(self, topic: str, error: str, consequence: str, now_s: float) -> str | None:
        """The end of the line about a failure: "", or the number of failures without a line. None: no line."""
        unsaid = self._sample.look(FailureKind(topic, error, consequence), now_s)
        return None if unsaid is None else and_more(unsaid)


def failure_text(error: BaseException) -> str:
    """The type of an error and its text; for an error without text, the line that raised the error. For an error from
    the standard library, the line is the caller's.
    """
    kind, text = type(error).__name__, str(error)
    if text.strip():
        return f"{kind}: {text}"
    frames = list(_frames(error.__traceback__))
    called = [(file, line) for file, line in frames if not _is_pythons_own(file)] or frames
    return f"{kind} ({called[-1][0]}:{called[-1][1]})" if called else kind


def foreign_in(error: BaseException) -> BaseException | None:
    """The error of foreign code (a handler, a codec) behind an error that ended the run: the log shows its stack. None:
    keylanes raised the error, and the text says everything.
    """
    if not isinstance(error, HandlerFailed):
        return None if isinstance(error, KeylanesError) else error
    cause = error.__cause__
    if isinstance(cause, DecodeFailed | OutputRefused):  # a codec may have raised the cause
        return cause.__cause__
    return None if isinstance(cause, BrokerError) else cause


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _is_pythons_own(file: str) -> bool:
    return file.startswith("<") or (file.startswith(PYTHONS_OWN) and "-packages/" not in file)


def and_more(unsaid: int) -> str:
    """The number of further failures, for the end of a line."""
    return f" (and {unsaid:,} more like it)" if unsaid else ""
