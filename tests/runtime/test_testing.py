"""An application tested by its user: the real engine on a simulated broker, in virtual time, crashes included."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from keylanes import App, Context, DeadLetter, HandlerFailed, KeylanesError, Record, Retry, Settings
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange


class Flight(msgspec.Struct):
    """A source value."""

    arr_delay: float | None


class Late(msgspec.Struct):
    """An output value."""

    minutes: float


def flights(**settings: Any) -> App:
    """The application of the first page."""
    app = App("flights", broker="embedded:never-opened", settings=Settings.of(**settings))

    @app.handler(
        "flights",
        to="late",
        parallelising_factor=16,
        retry=Retry(attempts=5, backoff_ms=100),
        on_failure=DeadLetter("flights.dead"),
    )
    async def on_flight(flight: Flight, ctx: Context) -> Late | None:
        if flight.arr_delay is not None and flight.arr_delay > 15:
            ctx.send("audit", ctx.offset, key=ctx.key)
            return Late(flight.arr_delay)
        return None

    return app


async def test_late_flight_across_a_crash() -> None:
    """What was sent before a crash is there once after it, with all that belongs to it."""
    app = flights()
    async with app.test(seed=7) as broker:
        await broker.send("flights", Flight(20.0), key=b"N14228")
        await broker.crash()
        await broker.restart()
        assert await broker.read("late", Late) == [Late(20.0)]
        (audit,) = await broker.records("audit")
        assert (audit.key, audit.value) == (b"N14228", b"0")


async def test_crash_in_the_middle_doubles_nothing() -> None:
    """Crashes at whatever moment: each output once, each key in order; no time passes but virtual time."""
    app = flights(commit_interval_ms=50)
    started = time.monotonic()
    for seed in range(5):
        async with app.test(seed=seed) as broker:
            for i in range(60):
                await broker.send("flights", Flight(16.0 + i), key=f"N{i % 7}", partition=0)
                if i % 20 == 19:
                    await broker.advance(0.013 * (seed + 1))
                    await broker.crash()
                    await broker.restart()
            assert sorted(late.minutes for late in await broker.read("late", Late)) == [16.0 + i for i in range(60)]
            await broker.advance(30)
    assert time.monotonic() - started < 60


async def test_same_seed_same_run() -> None:
    """A seed names a run: records, their order and their times."""

    async def run(seed: int) -> list[tuple[bytes | None, bytes | None, int, int]]:
        async with flights().test(seed=seed) as broker:
            for i in range(40):
                await broker.send("flights", Flight(16.0 + i), key=b"k%d" % i)
            return [(r.key, r.value, r.offset, r.timestamp) for r in await broker.records("late")]

    assert await run(3) == await run(3)


async def test_visible_waits_for_nothing() -> None:
    """`visible` shows what a committed reader would see at this moment: nothing before the commit."""
    app = flights(commit_interval_ms=5_000)
    async with app.test() as broker:
        await broker.send("flights", Flight(16.0), key=b"k")
        await broker.advance(0.5)
        assert await broker.visible("late") == []
        assert await broker.visible("no such topic") == []
        assert await broker.read("late", Late) == [Late(16.0)]
        assert len(await broker.visible("late")) == 1


async def test_dead_letters_and_tombstones() -> None:
    """Failures and null values go the way they go on a real broker."""
    app = App("tested", broker="embedded:never-opened")

    @app.handler("in", to="out", retry=Retry(attempts=2, backoff_ms=5_000), on_failure=DeadLetter("dead"))
    async def handle(value: int | None) -> Any:
        if value == 13:
            raise RuntimeError("bad luck")
        return Record(value, headers=[("seen", b"1")])

    async with app.test() as broker:
        await broker.send("in", 13, key="a")
        await broker.send("in", None, key="b", headers=[("x", b"y")], timestamp=1_000)
        await broker.send("in", "no int", key="c")
        (out,) = await broker.records("out")
        assert (out.key, out.value, out.timestamp, dict(out.headers)["seen"]) == (b"b", None, 1_000, b"1")
        assert sorted(letter.value or b"" for letter in await broker.records("dead")) == [b"13", b"no int"]


def failing() -> App:
    """An application that stops at its first record."""
    app = App("failing", broker="embedded:never-opened")

    @app.handler("in", retry=Retry(attempts=1))
    async def handle(value: int) -> None:
        raise RuntimeError("no")

    return app


async def test_fatal_error_is_told_by_read() -> None:
    """The error that stopped the application comes out where its result is asked for, and only there."""
    async with failing().test() as broker:
        await broker.send("in", 1)
        with pytest.raises(HandlerFailed, match="no"):
            await broker.read("out")


async def test_fatal_error_nobody_asked_for() -> None:
    """A test that never reads hears of it at the end of the block; not when the test has failed already."""
    with pytest.raises(HandlerFailed, match="no"):  # noqa: PT012  # it is raised where the block ends
        async with failing().test() as broker:
            await broker.send("in", 1)
            await broker.advance(1)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # of the two errors the first one comes out
        async with failing().test() as broker:
            await broker.send("in", 1)
            await broker.advance(1)
            raise ZeroDivisionError


async def test_wrong_order_of_calls_is_told() -> None:
    """Starting what runs, crashing what does not, reading from what crashed."""
    async with flights().test() as broker:
        with pytest.raises(KeylanesError, match="runs already"):
            await broker.restart()
        await broker.crash()
        for call in (broker.crash, lambda: broker.read("late")):
            with pytest.raises(KeylanesError, match="restart"):
                await call()


def test_on_any_loop() -> None:
    """A test's own loop may be any: it only waits for the simulation's."""

    async def check() -> None:
        async with flights().test() as broker:
            await broker.send("flights", Flight(20.0), key=b"k")
            assert await broker.read("late", Late) == [Late(20.0)]

    asyncio.run(check())


async def test_sync_handlers_are_simulated_too() -> None:
    """A plain function runs in the simulation as it does on threads, one after the other."""
    app = App("sync", broker="embedded:never-opened")

    @app.handler("in", to="out")
    def double(value: int) -> int:
        return 2 * value

    async with app.test(seed=1) as broker:
        for i in range(20):
            await broker.send("in", i, key=f"k{i % 3}")
        assert sorted(await broker.read("out", int)) == [2 * i for i in range(20)]


async def test_every_partition_has_its_turn_when_a_transaction_is_full() -> None:
    """Where the limit of records ends a transaction, the last partition does not wait for the first to be through."""
    app = App("turns", broker="embedded:never-opened", settings=Settings(generation_records_max=5))

    @app.handler("in", to="out", parallelising_factor=4)
    async def same(value: int) -> int:
        return value

    async with app.test() as broker:
        for number in range(400):
            await broker.send("in", number, partition=number % 2)
        await broker.advance(2.0)
        seen = [int(record.value or b"") for record in await broker.visible("out")]
        odd = sum(value % 2 for value in seen)
        assert 20 < len(seen) < 400, "some transactions, not all"
        assert len(seen) / 3 < odd < len(seen) * 2 / 3


async def test_what_is_asked_of_the_application_is_asked_of_the_simulated_run() -> None:
    """Health, statistics and changes of ranges are those of the run, in its virtual time, and over after the block."""
    app = flights()
    whole = KeyRange(0, SPACE_END)
    assert app.health().state == "idle"
    async with app.test(seed=3) as broker:
        assert (app.health().state, app.health().is_good) == ("running", True)
        for n in range(20):
            await broker.send("flights", Flight(20.0), key=b"%d" % n, partition=0)
        assert len(await broker.read("late", Late)) == 20
        told = app.statistics()
        assert (told.records_done, [part.workers for part in told.partitions]) == (20, [16, 16])
        assert told.last_commit_age_s is not None
        assert 0 <= told.last_commit_age_s < 60
        await broker.advance(100)
        later = app.statistics().last_commit_age_s
        assert later is not None
        assert later >= told.last_commit_age_s + 99
        await app.split("flights", 0, at=12_345)
        assert app.statistics().partitions[0].workers == 17
        await app.merge("flights", 0, KeyRange(0, SPACE_END // 16))
        assert app.statistics().partitions[0].workers == 16
        await app.release("flights", 0, whole)
        assert app.statistics().partitions[0].workers == 0
        await app.grant("flights", 0, whole)
        assert app.statistics().partitions[0].workers == 16
        await broker.crash()
        assert app.health().state == "idle"
        with pytest.raises(ValueError, match="does not run"):
            await app.split("flights", 0, at=12_345)
        await broker.restart()
        assert app.health().is_good
    assert app.health().state == "idle"


async def test_a_simulated_run_that_failed_says_so() -> None:
    """A handler without a policy for failures ends the run: health names the cause."""
    app = App("failing", broker="embedded:never-opened", settings=Settings.of())

    @app.handler("in", parallelising_factor=1, retry=Retry(attempts=1))
    async def fails(value: bytes) -> None:
        raise ValueError("no")

    async with app.test() as broker:
        await broker.send("in", b"x", key="k")
        with pytest.raises(HandlerFailed):
            await broker.read("in")
        assert (app.health().state, app.health().is_good) == ("failed", False)
        assert "no" in (app.health().cause or "")


async def test_a_simulated_handler_may_split_its_own_partition() -> None:
    """What a handler asks of its application is carried out on the loop that it runs on."""
    app = App("own", broker="embedded:never-opened", settings=Settings.of())
    asked: list[asyncio.Task[None]] = []

    @app.handler("in", parallelising_factor=1)
    async def splits(value: bytes, ctx: Context) -> None:
        asked.append(asyncio.get_running_loop().create_task(app.split("in", ctx.partition, at=77)))

    async with app.test() as broker:
        await broker.send("in", b"x", key="k", partition=0)
        await broker.read("in")
        await broker.advance(1)
        (task,) = asked
        assert task.done()
        assert task.exception() is None
        assert app.statistics().partitions[0].workers == 2
