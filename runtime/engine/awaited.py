"""An async handler as one function that is called and awaited, whatever was put around it."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ...errors import HandlerMisdeclared
from ..handlers.handler import Handler


def async_function(handler: Handler) -> Callable[..., Any]:
    """The function of an async handler. Below a decorator that is a plain def it is known by what that returns; in a
    task of its own it runs where ``own_task`` asks for that.
    """
    function = handler.function
    if not (handler.is_decorated or handler.own_task):
        return function

    async def call(*arguments: Any) -> Any:
        result = function(*arguments)
        if not inspect.isawaitable(result):
            raise HandlerMisdeclared(
                f"handler {handler.name} of topic {handler.topic!r} is async below its decorator, which returned a "
                f"{type(result).__name__}; nothing there can be awaited: write the decorator's function as async def, "
                "or the handler as a plain def"
            )
        return await (asyncio.ensure_future(result) if handler.own_task else result)

    return call
