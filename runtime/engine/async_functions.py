"""An async handler as a function to call and await, with or without a decorator."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ...errors import HandlerMisdeclared
from ..handlers.handler import Handler


def async_function(handler: Handler) -> Callable[..., Any]:
    """The function of an async handler, to be called and awaited. A decorator with a plain def has to return something
    awaitable: a call raises HandlerMisdeclared otherwise. With ``own_task`` each call runs in a task of its own.
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
