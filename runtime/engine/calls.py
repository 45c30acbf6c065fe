"""Calls of a handler on the loop, each in a context of its own: context variables set by an attempt end with the call.

Python lets code enter a context only for the time of a call (``Context.run``). So each step of a handler on the loop
runs inside of ``Context.run``: the first step at the call, every other step when the awaited result has come. Tasks and
callbacks that the handler begins inherit the context, as everywhere in asyncio. Nothing checks whether a handler has
set a variable: to copy a context is cheaper than to check, and only the copy is sure.

One generator takes the steps of many calls. A generator has no context of its own: each step runs in the context of the
caller that asks for the step.
"""

from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from typing import Any, Final

NOTHING: Final[list[Any]] = []
"""The arguments behind the value, for a handler without further arguments."""

_NEXT: Final = next
"""In compiled code a builtin is looked up by its name each time, and a constant is not."""


class Outcome:
    """The arguments of a call, then its result or its exception (``failed``)."""

    __slots__ = ("failed", "further", "result", "value")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.further: Sequence[Any] = NOTHING
        self.result: Any = None
        self.failed: BaseException | None = None


class LoopCalls:
    """Calls of one handler on the loop, one after the other: ``begin`` a call, ``await`` the object if the call is not
    finished, then take ``take_exception`` and ``result``.

    ``within``: each call gets a copy of this context. ``context``: the last call's context.
    """

    __slots__ = ("_outcome", "_steps", "_waits_for", "context", "within")

    def __init__(self, function: Callable[..., Any], decode: Callable[[bytes | None], Any], within: Context) -> None:
        self.within = within
        self.context = within
        self._outcome = Outcome()
        self._steps = _steps(function, decode, self._outcome)
        self._waits_for: Any = None

    def begin(self, value: bytes | None, further: Sequence[Any]) -> bool:
        """Call the handler with the decoded value and ``further`` arguments. Returns whether the call is finished.

        Raises nothing that the handler raises: see ``take_exception``.
        """
        outcome = self._outcome
        outcome.value, outcome.further = value, further
        self.context = context = self.within.copy()
        waits_for = context.run(_NEXT, self._steps)
        if waits_for is outcome:
            return True
        self._waits_for = waits_for
        return False

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until the call that was begun is finished."""
        waits_for, self._waits_for = self._waits_for, None
        return _rest(self.context, self._steps, self._outcome, waits_for)

    def take_exception(self) -> BaseException | None:
        """The exception of the last call; None: no exception. A second request returns None."""
        outcome = self._outcome
        failed = outcome.failed
        if failed is not None:
            outcome.failed = None
        return failed

    def result(self) -> Any:
        """The result of the last call. A second request returns None."""
        outcome = self._outcome
        result = outcome.result
        outcome.result = None
        return result

    def end(self) -> None:
        """Let go of the last call's arguments and context."""
        outcome = self._outcome
        outcome.value, outcome.further = None, NOTHING
        self.context = self.within


def _steps(
    function: Callable[..., Any], decode: Callable[[bytes | None], Any], outcome: Outcome
) -> Generator[Any, None, None]:
    """A generator of calls, with their arguments in ``outcome``. Yields everything that the handler yields, then
    ``outcome`` at the end of each call.
    """
    while True:
        try:
            further = outcome.further
            if not further:
                outcome.result = yield from function(decode(outcome.value)).__await__()
            elif len(further) == 1:  # the usual case; unpacking takes longer
                outcome.result = yield from function(decode(outcome.value), further[0]).__await__()
            else:
                outcome.result = yield from function(decode(outcome.value), *further).__await__()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  # the caller judges the error, with the record at hand
            outcome.failed = error
        yield outcome


def _rest(
    context: Context, steps: Generator[Any, None, None], outcome: Outcome, waits_for: Any
) -> Generator[Any, Any, None]:
    """The further steps of a call that was suspended at ``waits_for``, each in the call's context."""
    while waits_for is not outcome:
        try:
            yield waits_for
        except GeneratorExit:
            context.run(steps.close)
            raise
        except BaseException as error:  # noqa: BLE001  # the error is for the handler
            waits_for = context.run(steps.throw, error)
        else:
            waits_for = context.run(_NEXT, steps)
