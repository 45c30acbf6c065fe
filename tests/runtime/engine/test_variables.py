"""Context variables: what a record's handler sets ends with it, and nobody else ever sees it."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, Retry, State

from ...stage.ground import Ground

WAIT_S = 30.0
user: ContextVar[str | None] = ContextVar("user", default=None)
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def _greet(name: str) -> str:
    """Who is greeted, and who was before, as a handler would find it out that forgets to clean up."""
    before = user.get()
    user.set(name)
    return f"{name} saw {before}"


async def _straight(name: str) -> str:
    return _greet(name)


async def _suspending(name: str) -> str:
    before = user.get()
    await asyncio.sleep(0)
    user.set(name)
    await asyncio.sleep(0.001)
    assert user.get() == name, "it goes on in the context that it began in"
    return f"{name} saw {before}"


async def _late(name: str) -> str:
    """Suspends behind the variable, for every other name: the others run straight, then in its task."""
    said = _greet(name)
    if name == "bob":
        await asyncio.sleep(0)
    return said


async def _with_context(name: str, ctx: Context) -> str:
    return _greet(name)


async def _with_state(name: str, seen: State[int]) -> str:
    seen.put(1)
    return _greet(name)


def _thread(name: str) -> str:
    return _greet(name)


def _thread_with_context(name: str, ctx: Context) -> str:
    return _greet(name)


async def saw_nobody(ground: Ground, handler: Callable[..., Any], factor: int) -> None:
    """Each of three records with keys of their own is greeted as if it were the first."""
    names = ["ann", "bob", "eve"]
    await asyncio.to_thread(ground.fill, [(name.encode(), name.encode()) for name in names])
    app = ground.app(threads=1)
    declared = app.handler(
        ground.source, to=ground.late, parallelising_factor=factor, on_failure=DeadLetter(ground.dead)
    )
    declared(handler)
    await asyncio.to_thread(app.run, until="level")
    said = [value.decode() for value in await asyncio.to_thread(ground.values, ground.late) if value is not None]
    assert sorted(said) == ["ann saw None", "bob saw None", "eve saw None"]


HANDLERS = [_straight, _suspending, _late, _with_context, _with_state, _thread, _thread_with_context]


@pytest.mark.parametrize("factor", [1, 256])
@pytest.mark.parametrize("handler", HANDLERS)
async def test_no_record_sees_what_another_one_set(ground: Ground, handler: Callable[..., Any], factor: int) -> None:
    """Whether they run straight, queued behind each other, suspended or in a thread: bob does not see ann."""
    await saw_nobody(ground, handler, factor)


async def test_bob_does_not_see_ann_on_the_loop(ground: Ground) -> None:
    """The usual case: an async handler that does not suspend."""
    await saw_nobody(ground, _straight, 1)


async def test_bob_does_not_see_ann_in_a_thread(ground: Ground) -> None:
    """One thread runs them all."""
    await saw_nobody(ground, _thread, 1)


async def test_what_a_handler_begins_keeps_its_variables() -> None:
    """A task that a handler began goes on in that record's context when other records have come and gone."""
    app = App("greeting", broker="embedded:unused")
    told: list[tuple[str, str | None]] = []
    tasks: list[asyncio.Task[None]] = []

    async def tell(name: str) -> None:
        await asyncio.sleep(5)
        told.append((name, user.get()))

    @app.handler("names")
    async def greet(name: str) -> None:
        user.set(name)
        tasks.append(asyncio.create_task(tell(name)))

    async with app.test() as broker:
        for name in ("ann", "bob", "eve"):
            await broker.send("names", name, key=name)
        assert len(await broker.read("names")) == 3
        await broker.advance(10)
    assert sorted(told) == [("ann", "ann"), ("bob", "bob"), ("eve", "eve")]


@pytest.mark.parametrize("is_async", [True, False])
async def test_each_attempt_begins_anew(is_async: bool) -> None:
    """An attempt that failed leaves nothing, of variables neither; nor does a record that became a dead letter."""
    app = App("greeting", broker="embedded:unused")
    seen: list[tuple[str, int, str | None]] = []

    def fail(name: str, ctx: Context) -> None:
        seen.append((name, ctx.attempt, user.get()))
        user.set(name)
        if name == "ann":
            raise ValueError(name)

    async def fail_later(name: str, ctx: Context) -> None:
        await asyncio.sleep(0.01)
        fail(name, ctx)

    app.handler("names", parallelising_factor=1, retry=Retry(attempts=2, backoff_ms=1), on_failure=DeadLetter("dead"))(
        fail_later if is_async else fail
    )
    async with app.test() as broker:
        for name in ("ann", "bob"):
            await broker.send("names", name, key=name, partition=0)
        assert len(await broker.read("dead")) == 1
    assert seen == [("ann", 1, None), ("ann", 2, None), ("bob", 1, None)]


async def test_a_handler_sees_the_applications_variables(ground: Ground) -> None:
    """What was set where the application is run; what handlers make of it is theirs alone, and does not come back."""
    await asyncio.to_thread(ground.fill, [(b"ann", b"ann"), (b"bob", b"bob")])
    app = ground.app()
    seen: list[str] = []

    @app.handler(ground.source, parallelising_factor=1)
    async def greet(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)
        if len(seen) == 2:
            through.set()

    through = asyncio.Event()
    tenant.set("house")
    async with app, asyncio.timeout(WAIT_S):
        tenant.set("too late")
        await through.wait()
    assert seen == ["house", "house"]
    assert tenant.get() == "too late"


async def test_a_test_sees_them_too() -> None:
    """A simulated application has the variables of the test that starts it."""
    app = App("greeting", broker="embedded:unused")

    @app.handler("names", to="said")
    async def greet(name: str) -> str:
        return tenant.get()

    tenant.set("house")
    async with app.test() as broker:
        await broker.send("names", "ann", key="ann")
        assert await broker.read("said", str) == ["house"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_partitioner_sets_ends_with_its_record(is_async: bool) -> None:
    """A function of the user's own that places outputs is called in the context of their record."""
    seen: list[str | None] = []

    def place(key: bytes, partitions: int) -> int:
        seen.append(user.get())
        user.set("whoever was placed last")
        return 0

    app = App("placing", broker="embedded:unused", partitioners={"said": place})

    async def greet_later(name: str) -> str:
        return _greet(name)

    app.handler("names", to="said", parallelising_factor=1)(greet_later if is_async else _greet)
    async with app.test() as broker:
        for name in ("ann", "bob"):
            await broker.send("names", name, key=name, partition=0)
        assert await broker.read("said", str) == ["ann saw None", "bob saw None"]
    assert seen == ["ann", "bob"]


class Signing:
    """Notes at reading whose value it is, and signs at writing with what the handler made of that."""

    name = "signing"

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """See Codec."""

        def decode(value: bytes) -> str:
            before, (name, _, _) = user.get(), value.decode().partition(", signed")
            user.set(name)
            return f"{name} behind {before}"

        return decode

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        is_sent = tenant.get() == "nobody"  # by the test itself, outside of any handler
        return (value if is_sent else f"{value}, signed {tenant.get()}").encode()


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_codec_runs_in_the_context_of_the_record(is_async: bool, outputs: int) -> None:
    """Reading and writing are the record's own: what reading sets the handler sees, and writing what that has set."""
    app = App("greeting", broker="embedded:unused")

    def sign(name: str) -> list[str] | str:
        tenant.set(f"for {user.get()}")
        return name if outputs == 1 else [name] * outputs

    async def sign_later(name: str) -> list[str] | str:
        return sign(name)

    app.handler("names", to="said", parallelising_factor=1, codec=Signing())(sign_later if is_async else sign)
    async with app.test() as broker:
        for name in ("ann", "bob"):
            await broker.send("names", name, key=name, partition=0)
        said = [(record.value or b"").decode() for record in await broker.records("said")]
    assert sorted(said) == sorted(f"{n} behind None, signed for {n}" for n in ("ann", "bob") * outputs)


async def test_one_that_is_cancelled_cleans_up_in_its_context() -> None:
    """A handler that runs over its time sees what it set while it is ended."""
    app = App("greeting", broker="embedded:unused")
    cleaned: list[str | None] = []

    @app.handler("names", retry=Retry(attempts=1), on_failure=DeadLetter("dead"))
    async def hang(name: str) -> None:
        user.set(name)
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.append(user.get())

    async with app.test() as broker:
        for name in ("ann", "bob"):
            await broker.send("names", name, key=name)
        assert len(await broker.read("dead")) == 2
    assert sorted(str(name) for name in cleaned) == ["ann", "bob"]
