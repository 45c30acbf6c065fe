"""An application tested by its user: the real engine on a simulated broker, in virtual time, crashes included."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from keylanes import (
    App,
    Codec,
    Context,
    DeadLetter,
    HandlerFailed,
    KeylanesError,
    KeyRange,
    MsgpackCodec,
    NotSimulated,
    OutputRefused,
    Record,
    Retry,
    Settings,
    SettingsError,
    State,
)
from keylanes.brokers.partitioner import partition_by_crc32, partition_of_key
from keylanes.keyrange.hashing import SPACE_END
from keylanes.state.changelog import changelog_topic

from ..stage.limited import settings_of


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
        sends=("audit",),
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


@pytest.mark.parametrize("is_started_again", [True, False])
async def test_who_was_killed_says_nothing(caplog: pytest.LogCaptureFixture, is_started_again: bool) -> None:
    """From the crash on; others that write to the log meanwhile do."""
    caplog.set_level(logging.DEBUG, "keylanes")
    app = flights()
    async with app.test(seed=3) as broker:
        await broker.send("flights", Flight(20.0), key=b"N1")
        await broker.advance(0.03)
        caplog.clear()
        await broker.crash()
        await broker.advance(60)
        assert caplog.messages == []
        if is_started_again:
            await broker.restart()
            assert "starting" in caplog.messages[0]
    assert any("stopped in order" in message for message in caplog.messages) is is_started_again


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
    """The error that stopped the application comes out where its result is asked for, and only there; the health names
    it as the cause.
    """
    app = failing()
    async with app.test() as broker:
        await broker.send("in", 1)
        with pytest.raises(HandlerFailed, match="no"):
            await broker.read("out")
        assert (app.health().state, app.health().is_good) == ("failed", False)
        assert "no" in (app.health().cause or "")


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


async def test_a_topic_that_nobody_knows_is_refused() -> None:
    """A misspelt name would be empty in every test: it is said, with the name that was meant and how to have a topic
    that no handler declares.
    """
    said = r"\(did you mean flights\?\): correct .*or name the topic in app.test\(partitions=\{\"flihgts\": 2\}\)"
    async with flights().test() as broker:
        with pytest.raises(KeylanesError, match=said):
            await broker.send("flihgts", Flight(20.0))
        for call in (broker.read, broker.records, broker.visible):
            with pytest.raises(KeylanesError, match=r"declare, audit, flights, flights\.dead, late; seen 'nowhere'"):
                await call("nowhere")
    async with flights().test(partitions={"elsewhere": 3}) as broker:
        await broker.send("elsewhere", 1, partition=2)
        assert await broker.read("elsewhere", int) == [1]


async def test_what_handlers_declare_is_known_from_the_start() -> None:
    """And the logs; also across a crash."""
    app = App("known", broker="embedded:never-opened", settings=Settings.of())

    @app.handler("in", to="out", sends=("sent", "returned"), on_failure=DeadLetter("dead"))
    async def parts(value: int, ctx: Context, seen: State[int]) -> Record:
        seen.put(value)
        ctx.send("sent", value)
        return Record(value, topic="returned")

    async with app.test() as broker:
        for topic in ("in", "out", "sent", "dead", "known.offsets", changelog_topic("known", "in")):
            await broker.read(topic)
        await broker.send("in", 1, key="k")
        assert [await broker.read(topic, int) for topic in ("sent", "returned")] == [[1], [1]]
        await broker.crash()
        await broker.restart()
        assert await broker.read("sent", int) == [1]


async def test_wrong_order_of_calls_is_told() -> None:
    """Starting what runs, crashing what does not, reading from what crashed."""
    async with flights().test() as broker:
        with pytest.raises(KeylanesError, match="runs already"):
            await broker.restart()
        await broker.crash()
        for call in (broker.crash, lambda: broker.read("late")):
            with pytest.raises(KeylanesError, match="restart"):
                await call()


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
    app = App("turns", broker="embedded:never-opened", settings=settings_of(generation_records_max=5))

    @app.handler("in", to="out", parallelising_factor=4)
    async def same(value: int) -> int:
        return value

    async with app.test() as broker:
        for number in range(400):
            await broker.send("in", number, partition=number % 2)
        await broker.advance(0.2)
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
        await app.grant("flights", 0, whole)
        assert sorted((part.partition, part.workers) for part in app.statistics().partitions) == [(0, 16), (1, 16)]
        await broker.crash()
        assert app.health().state == "idle"
        with pytest.raises(ValueError, match="does not run"):
            await app.split("flights", 0, at=12_345)
        await broker.restart()
        assert app.health().is_good
    assert app.health().state == "idle"


async def test_read_waits_for_what_was_released() -> None:
    """However level all that is held is."""
    app = flights()
    async with app.test(seed=3) as broker:
        for n in range(20):
            await app.release("flights", 0, KeyRange(0, SPACE_END))
            await broker.send("flights", Flight(20.0), key=b"%d" % n, partition=0)
            assert len(await broker.read("late", Late)) == n + 1


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


# --- the codec of a topic --------------------------------------------------------------------------------------------


class Point:
    """A class that msgspec knows nothing of."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


class PointCodec:
    """Reads and writes points."""

    name = "points"

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """Of a point."""
        assert annotation is Point

        def decode(data: bytes) -> Point:
            return Point(*json.loads(data)["at"])

        return decode

    def encode(self, value: Any) -> bytes:
        """The bytes of a point."""
        return json.dumps({"at": [value.x, value.y]}).encode()


async def test_send_and_read_use_the_codec_of_the_handler() -> None:
    """Of the one that reads the topic, else of the one that writes to it: results and dead letters; else JSON."""
    app = App("points", broker="embedded:never-opened", settings=Settings.of())
    own: Codec = PointCodec()

    @app.handler("in", to="out", codec=own, retry=Retry(attempts=1), on_failure=DeadLetter("dead"))
    async def mirror(at: Point) -> Point:
        if at.x < 0:
            raise ValueError("outside")
        return Point(at.y, at.x)

    async with app.test(partitions={"other": 1}) as broker:
        await broker.send("in", Point(1, 2), key="a")
        await broker.send("in", Point(-1, 2), key="b")
        assert await broker.read("out", Point) == [Point(2, 1)]
        assert await broker.read("dead", Point) == [Point(-1, 2)]
        assert await broker.read("in", Point) in ([Point(1, 2), Point(-1, 2)], [Point(-1, 2), Point(1, 2)])
        assert await broker.read("out") == [b'{"at": [2, 1]}'], "without a type: as it is"
        await broker.send("other", {"at": 1})
        assert await broker.read("other", dict[str, int]) == [{"at": 1}]


async def test_msgpack_is_sent_and_read_as_it_is_handled() -> None:
    """Also where a value is text or bytes, which JSON leaves as they are."""
    app = App("packed", broker="embedded:never-opened", settings=Settings.of())

    @app.handler("in", to="out", codec=MsgpackCodec())
    async def double(value: str) -> str:
        return value * 2

    async with app.test() as broker:
        await broker.send("in", "ab", key="k")
        await broker.send("out", None, key="k")
        assert await broker.read("out") in ([b"\xa4abab", None], [None, b"\xa4abab"])
        assert [value for value in await broker.read("out", str) if value is not None] == ["abab"]


async def test_send_is_refused_as_by_the_application() -> None:
    """What can't be a record is said at once."""
    async with flights().test() as broker:
        with pytest.raises(OutputRefused, match="has partitions 0 to 1; seen 7"):
            await broker.send("flights", Flight(1.0), key="k", partition=7)
        with pytest.raises(OutputRefused, match="a key is bytes, str or None; seen int"):
            await broker.send("flights", Flight(1.0), key=5)  # type: ignore[arg-type]  # as the test wants it


# --- partitions ------------------------------------------------------------------------------------------------------


async def test_topics_of_a_test_have_the_partitions_that_are_asked_for() -> None:
    """All of them, or some by name and the others two; keys lie where the topic's partitioner puts them."""
    app = App("wide", broker="embedded:never-opened", partitioners={"in": "crc32"}, settings=Settings.of())

    @app.handler("in", to="out", sends=["beside"], parallelising_factor=4)
    async def same(value: int, ctx: Context) -> int:
        ctx.send("beside", value)
        return value

    keys = [b"k%d" % n for n in range(60)]
    for asked, given in ((8, (8, 8, 8)), ({"in": 8, "beside": 3}, (8, 2, 3)), ({}, (2, 2, 2))):
        async with app.test(partitions=asked) as broker:
            for n, key in enumerate(keys):
                await broker.send("in", n, key=key)
            found = {r.key: r.partition for r in await broker.records("in")}
            assert found == {key: partition_by_crc32(key, given[0]) for key in keys}
            assert {r.key: r.partition for r in await broker.records("out")} == {
                key: partition_of_key(key, given[1]) for key in keys
            }
            assert {r.partition for r in await broker.records("beside")} == set(range(given[2]))
            assert len(app.statistics().partitions) == given[0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (0, "the partitions are a whole number from 1 to 1000; seen 0: write partitions=8 for all topics"),
        ("8", "seen '8'"),
        (True, "seen True"),
        ({"in": 1_001}, "the partitions of 'in' are a whole number from 1 to 1000; seen 1001"),
        ({"in": None}, "the partitions of 'in' .* seen None"),
        ({"in put": 2}, "a topic name has .* seen 'in put'"),
    ],
)
def test_wrong_partitions_of_a_test_are_refused(asked: Any, says: str) -> None:
    """Where they are written, with what to write."""
    with pytest.raises(SettingsError, match=says):
        flights().test(partitions=asked)


# --- nothing real ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """A server on this machine that would take a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


def reaching(reach: Callable[[], Awaitable[Any]]) -> App:
    """An application whose handler reaches out of the simulation; a failed record is a dead letter."""
    app = App("reaching", broker="embedded:never-opened", settings=Settings.of())

    @app.handler("in", to="out", retry=Retry(attempts=3, backoff_ms=100), on_failure=DeadLetter("dead"))
    async def reaches(value: int) -> int:
        await reach()
        return value

    return app


async def refused(app: App, *, stops: bool = True) -> str:
    """What reading raises, and only that; ``stops``: the application stops with it, and no letter is written."""
    began = time.monotonic()
    async with app.test() as broker:
        await broker.send("in", 1, key="k")
        with pytest.raises(NotSimulated) as caught:
            await broker.read("out")
        if stops:
            assert (app.health().state, app.health().cause) == ("failed", str(caught.value))
            assert await broker.visible("dead") == []
    assert time.monotonic() - began < 10, "at once"
    return str(caught.value)


async def test_a_handler_that_waits_for_a_real_socket_ends_the_test(server: tuple[str, int]) -> None:
    """At once, also where a server listens: with what it waits for, the address, what is allowed and what to do."""

    async def by_stream() -> None:
        await asyncio.open_connection(*server)

    async def by_socket() -> None:
        with socket.socket() as connecting:
            connecting.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connecting, server)

    host, port = server
    for reach in (by_stream, by_socket):
        said = await refused(reaching(reach))
        assert re.search(
            rf"a handler waits for a connection, .*seen .*'{host}', {port}\b.*, allowed are .*: give the", said
        )
        assert "a fake client, or run it against the real service with app.run()" in said


@pytest.mark.parametrize(
    ("reach", "seen"),
    [
        (lambda loop: loop.getaddrinfo("api.example.com", 443), r"the address of a host, .*'api.example.com', 443"),
        (lambda loop: loop.create_connection(asyncio.Protocol, host="h", port=1), r"a connection, .*\('h', 1\)"),
        (lambda loop: loop.create_datagram_endpoint(asyncio.Protocol, remote_addr=("h", 1)), r"a datagram, .*'h', 1"),
        (lambda loop: asyncio.create_subprocess_exec(sys.executable, "-V"), "a process, .*python"),
        (lambda loop: asyncio.create_subprocess_shell("true"), "a process, .*'true'"),
        (lambda loop: loop.add_reader(0, print), r"a descriptor, .*add_reader\(0\)"),
    ],
)
async def test_what_else_is_real_is_refused(reach: Callable[[Any], Any], seen: str) -> None:
    """Host names, datagrams, processes and bare descriptors, as drivers of databases use them."""

    async def reaches() -> None:
        await reach(asyncio.get_running_loop())

    assert re.search(f"a handler waits for {seen}", await refused(reaching(reaches)))


async def test_a_refusal_ends_the_test_also_when_it_is_caught() -> None:
    """A client may wrap it in a group, or a handler go on without its answer: the test is told all the same."""

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.open_connection("127.0.0.1", 1))

    async def caught() -> None:
        with contextlib.suppress(Exception):
            await asyncio.open_connection("127.0.0.1", 1)

    for reach in (in_a_group, caught):
        assert "'127.0.0.1', 1" in await refused(reaching(reach), stops=False)
    with pytest.raises(NotSimulated):  # noqa: PT012  # a test that never reads is told at the end of the block
        async with reaching(caught).test() as broker:
            await broker.send("in", 1)
            await broker.advance(1)
            await broker.crash()


async def test_a_plain_function_may_block_on_a_real_socket(server: tuple[str, int]) -> None:
    """As on a thread: the test waits for it."""
    app = App("blocking", broker="embedded:never-opened", settings=Settings.of())

    @app.handler("in", to="out")
    def connects(value: int) -> int:
        with socket.create_connection(server, timeout=10):
            return value

    async with app.test() as broker:
        await broker.send("in", 1, key="k")
        assert await broker.read("out", int) == [1]
