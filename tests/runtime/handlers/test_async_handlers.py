"""Which handlers are awaited, and how one is told that can't work as it is declared."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from keylanes import App, DeadLetter, HandlerMisdeclared


async def double(value: int) -> int:
    """An async handler."""
    await asyncio.sleep(0)
    return 2 * value


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as many write it: a plain def that passes the call on."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


def without_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets ``functools.wraps``."""

    def call(value: int) -> Any:
        return function(value)

    return call


def finishing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that makes a plain function of an async one."""

    @functools.wraps(function)
    def call(value: int) -> int:
        return 2 * value

    return call


class Keeping:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, value: int) -> Any:
        """Pass the call on."""
        return self.function(value)


def made(handler: Callable[..., Any]) -> App:
    """An application with a handler; what fails goes to the dead letters."""
    app = App("doubling", broker="embedded:never-opened")
    app.handler("numbers", to="doubled", on_failure=DeadLetter("dead"))(handler)
    return app


async def stops(handler: Callable[..., Any], said: str) -> None:
    """The first record stops the application."""
    async with made(handler).test() as broker:
        await broker.send("numbers", 21, key="a")
        with pytest.raises(HandlerMisdeclared, match=said):
            await broker.read("dead")


@pytest.mark.parametrize(
    "handler",
    [double, plainly(double), plainly(plainly(double)), Keeping(double), functools.partial(plainly(double))],
    ids=["bare", "decorated", "decorated twice", "by a class", "partial"],
)
async def test_what_is_async_below_its_decorators_is_awaited(handler: Callable[..., Any]) -> None:
    """A decorator that is a plain def makes no plain handler of it."""
    async with made(handler).test() as broker:
        await broker.send("numbers", 21, key="a")
        assert await broker.read("doubled", int) == [42]


@pytest.mark.parametrize(
    "handler", [without_trace(double), lambda value: double(value)], ids=["a decorator without wraps", "a lambda"]
)
async def test_a_coroutine_of_a_plain_handler_stops_the_application(handler: Callable[..., Any]) -> None:
    """At the first record, because all would fail; nothing becomes a dead letter."""
    handler.__annotations__["value"] = int
    await stops(handler, r"returned a coroutine.*put functools\.wraps on its decorator")


async def test_a_decorator_that_leaves_nothing_to_await_stops_the_application() -> None:
    """It looks async, and is not."""
    await stops(finishing(double), "returned a int; nothing there can be awaited")


class Model:
    """Looks like a model of pydantic."""

    @classmethod
    def model_validate_json(cls, text: bytes) -> "Model":
        """As there."""
        return cls()


async def test_a_model_of_pydantic_that_was_not_declared_stops_the_application() -> None:
    """Nothing but its first record tells; every other one would fail, too."""

    async def handle(value: int) -> Any:
        return Model()

    await stops(handle, "a model of pydantic needs a codec of its own")
