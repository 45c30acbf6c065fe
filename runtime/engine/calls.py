"""A handler is called in a context of its own: what an attempt sets of context variables ends with it.

A context can be entered for a step only: there is no other way in Python. So each step that a handler takes on the loop
is taken inside of ``Context.run``: the first one when it is called, the others when what it waits for has come. What
it begins meanwhile, tasks and callbacks, inherits its context, as everywhere in asyncio. Nobody looks whether a handler
has set anything: to copy a context is cheaper than to find that out, and only the copy is sure.

What takes the steps is one generator for many calls, and runs in the context of whoever asks it for the next step.
"""

from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from typing import Any, Final

NOTHING: Final[list[Any]] = []
"""Behind the value a handler is called with no more."""

_NEXT: Final = next
"""Compiled, a builtin is looked up by its name each time, and a constant is not."""


class Outcome:
    """What a handler is called with, then what it returned or raised (``failed``)."""

    __slots__ = ("failed", "further", "result", "value")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.further: Sequence[Any] = NOTHING
        self.result: Any = None
        self.failed: BaseException | None = None


class LoopCalls:
    """Calls of one handler on the loop, one after the other: ``begin``, and ``await`` the rest if it is not through.

    ``within``: the context that each call's is a copy of. ``context``: the last call's.
    """

    __slots__ = ("_outcome", "_steps", "_waits_for", "context", "within")

    def __init__(self, function: Callable[..., Any], decode: Callable[[bytes | None], Any], within: Context) -> None:
        self.within, self.context = within, within
        self._outcome = Outcome()
        self._steps = _steps(function, decode, self._outcome)
        self._waits_for: Any = None

    def begin(self, value: bytes | None, further: Sequence[Any]) -> bool:
        """Call the handler with a value, which is decoded, and with what stands behind it; whether it is through.

        Raises nothing that the handler raises: see ``failed``.
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
        """Wait until a call that was begun is through."""
        waits_for, self._waits_for = self._waits_for, None
        return _rest(self.context, self._steps, self._outcome, waits_for)

    def failed(self) -> BaseException | None:
        """What the last call raised; None: nothing. Says it once."""
        outcome = self._outcome
        failed = outcome.failed
        if failed is not None:
            outcome.failed = None
        return failed

    def result(self) -> Any:
        """What the last call returned. Says it once."""
        outcome = self._outcome
        result = outcome.result
        outcome.result = None
        return result

    def end(self) -> None:
        """Let go of what the last call had."""
        outcome = self._outcome
        outcome.value, outcome.further = None, NOTHING
        self.context = self.within


def _steps(
    function: Callable[..., Any], decode: Callable[[bytes | None], Any], outcome: Outcome
) -> Generator[Any, None, None]:
    """Calls, as often as it is asked for; the outcome itself behind each, before that what the handler waits for."""
    while True:
        try:
            further = outcome.further
            if not further:
                outcome.result = yield from function(decode(outcome.value)).__await__()
            elif len(further) == 1:  # the usual case; to unpack them takes a while
                outcome.result = yield from function(decode(outcome.value), further[0]).__await__()
            else:
                outcome.result = yield from function(decode(outcome.value), *further).__await__()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  # what it means is said where it is known whose it is
            outcome.failed = error
        yield outcome


def _rest(
    context: Context, steps: Generator[Any, None, None], outcome: Outcome, waits_for: Any
) -> Generator[Any, Any, None]:
    while waits_for is not outcome:
        try:
            yield waits_for
        except GeneratorExit:
            context.run(steps.close)
            raise
        except BaseException as error:  # noqa: BLE001  # it is for the handler
            waits_for = context.run(steps.throw, error)
        else:
            waits_for = context.run(_NEXT, steps)
