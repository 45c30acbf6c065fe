"""Handlers as users write them by mistake."""

import asyncio
import datetime as dt
import time
from typing import Any

from keylanes import MapState, Record, State


async def connects(value: bytes) -> None:
    """Asks somebody else."""
    await asyncio.open_connection("127.0.0.1", 1)


async def sleeps(value: bytes) -> None:
    """Keeps the loop."""
    time.sleep(0.15)  # noqa: ASYNC251  # what must not be done, and is noticed


async def changes_in_place(value: bytes, seen: State[list[bytes]]) -> None:
    """It is lost."""
    if (before := seen.get()) is None:
        seen.put([])
    else:
        before.append(value)


async def passes_on(value: bytes) -> bytes:
    """Nothing is wrong with it."""
    return value


class Order:
    """Not a type of data."""


class Model:
    """Looks like a model of pydantic."""

    @classmethod
    def model_validate_json(cls, text: bytes) -> "Model":
        """As there."""
        return cls()


class Service:
    """Its handler is a method."""

    def on_order(self, value: bytes) -> None:
        """Of an object."""


def takes_order(value: Order) -> None:
    """Of a type that is no data."""


def takes_model(value: Model) -> None:
    """Of a type with another way to read it."""


def takes_two(value: bytes, v: int) -> None:
    """One too many."""


def yields(value: bytes) -> Any:
    """A generator."""
    yield value


def returns_text(value: bytes) -> str:
    """With nowhere to send it."""
    return ""


def bare_state(value: bytes, seen: State) -> None:  # type: ignore[type-arg]  # as users may write it
    """Of nothing."""


def optional_state(value: bytes, seen: State[int | None]) -> None:
    """None is no value."""


def map_of_tuples(value: bytes, seen: MapState[tuple[int, int], int]) -> None:  # type: ignore[type-var]  # as users may write it
    """Its keys have no order of bytes."""


def counts(value: bytes, seen: State[int]) -> None:
    """Uses its state."""
    seen.put(1)


def puts_text(value: bytes, seen: State[int]) -> None:
    """Not what was declared."""
    seen.put("x")  # type: ignore[arg-type]  # as users may write it


def puts_none(value: bytes, seen: State[int]) -> None:
    """In place of delete()."""
    seen.put(None)  # type: ignore[arg-type]  # as users may write it


async def fetch() -> bytes:
    """Is awaited."""
    return b""


async def forgets_to_await(value: bytes) -> Any:
    """Returns the coroutine."""
    return fetch()


def calls_async(value: bytes) -> Any:
    """Looks like a plain def, as a lambda does."""
    return fetch()


def takes_batch(orders: list[bytes]) -> None:
    """Several records, it thinks."""


def returns_model(value: bytes) -> Model:
    """Of a type with another way to write it."""
    return Model()


def returns_nan(value: bytes) -> float:
    """No number of JSON."""
    return float("nan")


def returns_pair(value: bytes):  # type: ignore[no-untyped-def]  # as users may write it
    """A topic and a value, it thinks."""
    return "other", value


def returns_set(value: bytes) -> Record | None:
    """Several values, it thinks."""
    return {1, 2}  # type: ignore[return-value]  # as users may write it


def number_as_key(value: bytes) -> Record:
    """A key is text or bytes."""
    return Record(value, key=5)  # type: ignore[arg-type]  # as users may write it


def text_in_header(value: bytes) -> Record:
    """A header is a pair of text and bytes."""
    return Record(value, headers=[("trace", "text")])  # type: ignore[list-item]  # as users may write it


def datetime_as_timestamp(value: bytes) -> Record:
    """It is in milliseconds."""
    return Record(value, timestamp=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))  # type: ignore[arg-type]  # as users may write it
