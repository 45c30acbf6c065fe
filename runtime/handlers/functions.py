"""PURE. Functions of users: find the function below partials and decorators, and whether the function is async."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from ...errors import SettingsError


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial function calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def function_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs when a partial function, an object or a function is called."""
    function = _inner(function)
    return function if inspect.isroutine(function) else type(function).__call__


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, as far as inspection shows."""
    return inspect.iscoroutinefunction(function_called(function))


def function_wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function below decorators, found by the trace of ``functools.wraps``."""
    found: Callable[..., Any] = inspect.unwrap(_inner(function))
    return found


def codes_of(function: Callable[..., Any]) -> Iterator[CodeType]:
    """The code objects that run when a function is called: of the decorators, and of the function."""
    below: Any = function
    while below is not None:
        function = _inner(below)
        if (code := getattr(function, "__code__", None)) is not None:
            yield code
        below = getattr(function, "__wrapped__", None)
    if not inspect.isroutine(function):
        yield type(function).__call__.__code__


def hints_of(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """The annotations of a function; raises SettingsError for unreadable annotations."""
    try:
        return typing.get_type_hints(function_called(function), include_extras=True)
    except Exception as error:  # noqa: BLE001  # any annotation may fail to evaluate, in any way
        raise SettingsError(f"{where}: its annotations can't be read: {error}") from None
