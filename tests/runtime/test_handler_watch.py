"""What ``app.test()`` says of handlers that make no error and still are wrong."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from keylanes import App, Codec, Context, MapState, Retry, Settings, State, Store

from ..stage.limited import settings_of


def sleeping(*, is_async: bool, slept_s: float = 0.25, **options: Any) -> App:
    """An application whose handler sleeps behind a wait, in real time."""
    app = App("sleeping", broker="embedded:never-opened", settings=settings_of(loop_lag_ms=200))

    async def sleeps(value: int) -> int:
        await asyncio.sleep(10)
        time.sleep(slept_s)  # noqa: ASYNC251  # what must not be done, and is noticed
        return value

    def waits(value: int) -> int:
        time.sleep(slept_s)
        return value

    app.handler("in", to="out", **options)(sleeps if is_async else waits)
    return app


@pytest.mark.parametrize("options", [{}, {"own_task": True}, {"retry": Retry(attempts=1), "max_in_flight": 1}])
async def test_an_async_handler_that_blocks_the_loop_is_named(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As in a run: by the setting ``loop_lag_ms``, in real time, though virtual time stands still; once for each
    handler. The health has the longest step.
    """
    app = sleeping(is_async=True, **options)
    async with app.test() as broker:
        for value in range(3):
            await broker.send("in", value, key="k")
        assert await broker.read("out", int) == [0, 1, 2]
        assert app.health().loop_lag_ms_max >= 250
    (said,) = [text for text in caplog.messages if "has not turned" in text]
    assert re.match(r"the event loop has not turned for \d+ ms, so .*: the async handler .*sleeps blocks it", said)


async def test_no_handler_is_named_that_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A plain function may block: it runs on a thread. A handler that waits, however long, blocks nobody."""
    for app in (sleeping(is_async=False), sleeping(is_async=True, slept_s=0.0)):
        async with app.test() as broker:
            await broker.send("in", 1, key="k")
            assert await broker.read("out", int) == [1]
    assert "has not turned" not in caplog.text


# --- what is changed in place ----------------------------------------------------------------------------------------


class Cart(msgspec.Struct):
    """A value that can be changed."""

    items: list[str]
    open: bool = True


Carts = State[Cart]
Archive = MapState[str, Cart]
Use = Callable[[Carts, Archive], object]


def filled(use: Use, *, is_async: bool = True, attempts: int = 1) -> App:
    """An application whose first record of a key fills both stores, and whose others use them."""
    app = App("shop", broker="embedded:never-opened", settings=Settings.of())

    def work(value: int, cart: Carts, archive: Archive) -> str:
        if value == 0:
            cart.put(Cart(["secret"]))
            for name in ("old", "older"):
                archive.put(name, Cart([name]))
        elif value > 0:
            use(cart, archive)
        return str((cart.get(), list(archive.items())))

    async def on_order(value: int, cart: Carts, ctx: Context, archive: Archive) -> str:
        return work(value, cart, archive)

    def on_order_in_thread(value: int, ctx: Context, cart: Carts, archive: Archive) -> str:
        return work(value, cart, archive)

    options: dict[str, Any] = {"to": "out", "retry": Retry(attempts=attempts)}
    app.handler("orders", **options)(on_order if is_async else on_order_in_thread)
    return app


async def lost(app: App, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said of changes that are lost; the state is as it was put then."""
    async with app.test() as broker:
        for value in (0, 1, 1, -1):
            await broker.send("orders", value, key="customer")
        first, *_, last = await broker.read("out", str)
    said = [record.getMessage() for record in caplog.records if "in place" in record.message]
    assert {record.levelname for record in caplog.records if "in place" in record.message} <= {"WARNING"}
    if said:
        assert first == last, "it is lost"
    return said


def first_of(archive: Archive) -> Cart:
    """An entry of a listing."""
    return next(archive.values())


def change(cart: Cart | None) -> Cart:
    """Change a value in place."""
    assert cart is not None, "it was put"
    cart.items.append("new")
    return cart


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("use", "store"),
    [
        (lambda cart, archive: change(cart.get()), "cart"),
        (lambda cart, archive: setattr(cart.get(), "open", {object()}), "cart"),
        (lambda cart, archive: change(archive.get("old")), "archive"),
        (lambda cart, archive: [change(each) for _, each in archive.items()], "archive"),
        (lambda cart, archive: change(first_of(archive)), "archive"),
    ],
    ids=["get", "what can't be written", "get of a map", "items", "values"],
)
async def test_a_value_that_is_changed_in_place_is_told(
    use: Use, store: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each handler and store, with their names, and nothing of the key or the value."""
    (said,) = await lost(filled(use, is_async=is_async), caplog)
    assert re.search(rf"handler .*on_order\S* changed a value of store '{store}' in place, .* put\(\)", said)
    assert not re.search("secret|new|old|customer|Cart", said)


def fail_first(cart: Carts, attempts: list[Cart]) -> None:
    """The first attempt changes a value and fails."""
    if not attempts:
        attempts.append(change(cart.get()))
        raise RuntimeError("again")


@pytest.mark.parametrize(
    "use",
    [
        lambda cart, archive: (cart.get(), archive.get("old"), list(archive.values())),
        lambda cart, archive: cart.put(change(cart.get())),
        lambda cart, archive: [archive.put(name, change(each)) for name, each in archive.items()],
        lambda cart, archive: (change(cart.get()), cart.put(Cart([]))),
        lambda cart, archive: (change(archive.get("old")), archive.delete("old")) if "old" in archive else None,
        lambda cart, archive: (change(cart.get()), cart.delete()) if cart.get() else None,
        lambda cart, archive: archive.put("new", change(cart.get())),
    ],
    ids=["unchanged", "put", "items put", "replaced", "deleted from a map", "deleted", "put elsewhere"],
)
async def test_a_change_that_is_meant_is_not_told(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is put, or whose place is written, or that was only read."""
    assert await lost(filled(use), caplog) == []


async def test_a_failed_attempt_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """All that it did is left out, and the next one begins anew."""
    attempts: list[Cart] = []
    assert await lost(filled(lambda cart, _: fail_first(cart, attempts), attempts=2), caplog) == []
    assert attempts


class Salted:
    """A codec that writes other bytes each time, as one that encrypts does."""

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """See Codec."""
        return lambda data: msgspec.json.decode(data[8:], type=annotation)

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        return secrets.token_bytes(8) + msgspec.json.encode(value)


async def test_stores_are_what_they_are_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """For who asks for their types, names their arguments and iterates over them; a codec that adds chance says nothing
    of changes.
    """
    app = App("shop", broker="embedded:never-opened", settings=Settings.of())
    codec: Codec = Salted()

    @app.handler("in", to="out")
    async def uses(value: int, cart: Annotated[Carts, Store(codec=codec)], archive: Archive) -> list[str]:
        assert isinstance(cart, State)
        assert isinstance(archive, MapState)
        cart.put(value=Cart(["a"]))
        assert cart.get() == Cart(["a"])
        archive.put(key="x", value=Cart([]))
        assert archive.get(key="x") == Cart([])
        return [*archive, *archive.keys(), *(name for name, _ in archive.items())]

    async with app.test() as broker:
        await broker.send("in", 1, key="k")
        assert await broker.read("out", str) == ["x", "x", "x"]
    assert "in place" not in caplog.text
