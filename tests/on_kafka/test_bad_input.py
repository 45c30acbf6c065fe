"""The rows of docs/bad-input.md, on the embedded broker and on a real Kafka: nothing lost, nothing silently skipped."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from keylanes import App, Context, DeadLetter, Retry, SettingsError
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import (
    BrokerUnavailable,
    EmbeddedInUse,
    HandlerFailed,
    SourceError,
    StoreError,
)
from keylanes.runtime.connect import connect
from keylanes.runtime.settings import Settings

from ..stage.feeding import stops_with
from ..stage.ground import Ground
from ..stage.waiting import reached
from ..tiers.marks import tier
from ..tiers.names import fresh


class Flight(msgspec.Struct):
    """What most handlers here ask for."""

    delay: float


GOOD = b'{"delay":20.0}'
Handles = TypeVar("Handles", bound=Callable[..., Any])


def handling(ground: Ground, app: App, attempts: int = 1, factor: int = 4) -> Callable[[Handles], Handles]:
    """The declaration of a handler that publishes; what fails is a dead letter."""
    retry, dead = Retry(attempts=attempts, backoff_ms=1), DeadLetter(ground.dead)
    return app.handler(ground.source, to=ground.late, parallelising_factor=factor, retry=retry, on_failure=dead)


def with_letters(ground: Ground, app: App) -> None:
    """A handler that publishes every flight, and dead-letters what fails."""

    @handling(ground, app, attempts=2)
    async def publish(flight: Flight) -> Flight:
        return flight


def cause(ground: Ground) -> str:
    """The cause in the header of the only dead letter."""
    (letter,) = ground.read(ground.dead)
    return (dict(letter.headers)["kl-error"] or b"").decode()


def test_undecodable_value(ground: Ground) -> None:
    """It goes to the dead letters at once with its key and value; the records around it are processed."""
    ground.fill([(b"a", GOOD), (b"a", b"junk"), (b"a", GOOD)])
    app = ground.app()
    with_letters(ground, app)
    app.run(until="level")
    assert ground.values(ground.late) == [GOOD, GOOD]
    (letter,) = ground.read(ground.dead)
    assert (letter.key, letter.value) == (b"a", b"junk")
    assert cause(ground).startswith("DecodeFailed: the value (4 bytes) is no Flight")
    assert dict(letter.headers)["kl-attempts"] == b"1"


def test_undecodable_value_without_dead_letters(ground: Ground) -> None:
    """The application stops with its own exit code; a mended handler goes on at that record, nothing is lost."""
    ground.fill([(b"a", GOOD), (b"a", b"junk"), (b"a", GOOD)])
    app = ground.app()

    @app.handler(ground.source, to=ground.late, parallelising_factor=4)
    async def publish(flight: Flight) -> Flight:
        return flight

    stops_with(HandlerFailed, app, f"{ground.source}[0] offset 1")
    mended = ground.app()

    @mended.handler(ground.source, to=ground.late, parallelising_factor=4)
    async def publish_any(value: bytes) -> bytes:
        return value

    mended.run(until="level")
    assert ground.values(ground.late) == [GOOD, b"junk", GOOD]


def test_null_key_and_empty_key(ground: Ground) -> None:
    """Both are processed; an empty key stays one, no key stays none."""
    ground.fill([(None, GOOD), (b"", GOOD), (None, GOOD)])
    app = ground.app()
    with_letters(ground, app)
    app.run(until="level")
    assert sorted(r.key is None for r in ground.read(ground.late)) == [False, True, True]
    assert b"" in [r.key for r in ground.read(ground.late)]


def test_null_value(ground: Ground) -> None:
    """A handler that allows None gets it; for any other the record is dead-lettered with its null value."""
    ground.fill([(b"a", None)])
    seen: list[object] = []
    asks = ground.app(f"{ground.name}-asks")

    @asks.handler(ground.source, parallelising_factor=4)
    async def note(value: Flight | None) -> None:
        seen.append(value)

    asks.run(until="level")
    assert seen == [None]
    app = ground.app()
    with_letters(ground, app)
    app.run(until="level")
    assert [r.value for r in ground.read(ground.dead)] == [None]
    assert "the record has no value" in cause(ground)


def test_oversize_output(ground: Ground) -> None:
    """It fails its record, not the transaction: the others' outputs are there."""
    ground.create(ground.late, 1, max_message_bytes="2000")
    ground.fill([(b"a", b"1"), (b"b", b"5000"), (b"c", b"1")])
    app = ground.app()

    @handling(ground, app, attempts=2)
    async def blow_up(size: int) -> bytes:
        return b"x" * size

    app.run(until="level")
    assert ground.values(ground.late) == [b"x", b"x"]
    assert cause(ground).startswith("OutputRefused: output 1 of 1 has")


def test_output_without_a_topic(ground: Ground) -> None:
    """A handler that returns something it has no topic for fails the record."""
    ground.fill([(b"a", b"1")])
    app = ground.app()

    @app.handler(ground.source, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def confused(value: int) -> None:
        return value  # type: ignore[return-value]  # what the test is about

    app.run(until="level")
    assert "there is no to=" in cause(ground)


def test_a_tuple_or_a_set_that_is_returned(ground: Ground) -> None:
    """It looks like a topic and a value, or like several outputs; where it is annotated it is a value."""
    ground.fill([(b"a", b"1")])
    app = ground.app()

    @handling(ground, app)
    async def confused(value: int):  # type: ignore[no-untyped-def]  # what the test is about
        return ground.late, value

    app.run(until="level")
    assert "OutputRefused: the handler returned a tuple, which would be sent as one array" in cause(ground)


def test_a_coroutine_that_is_returned(ground: Ground) -> None:
    """What was called and not awaited is no value, and is named."""
    ground.fill([(b"a", b"1")])
    app = ground.app()

    async def fetch() -> bytes:
        return b""

    @handling(ground, app)
    async def forgetful(value: int) -> object:
        return fetch()

    app.run(until="level")
    assert "is a coroutine, seen fetch(…), which was called and not awaited" in cause(ground)


def test_handler_raises(ground: Ground) -> None:
    """It is tried as often as Retry says, each attempt with a context of its own; what a failed one sent is gone."""
    ground.fill([(b"a", b"1"), (b"a", b"2")])
    app = ground.app()
    attempts: list[tuple[int, int]] = []

    @handling(ground, app, attempts=3)
    async def moody(value: int, ctx: Context) -> int:
        attempts.append((value, ctx.attempt))
        ctx.send(ground.late, value * 10, key=ctx.key)
        if value == 1 or ctx.attempt < 2:
            raise RuntimeError("not today")
        return value

    app.run(until="level")
    assert attempts == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert ground.values(ground.late) == [b"20", b"2"]
    assert cause(ground) == "RuntimeError: not today"


def test_async_handler_hangs(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """It is named, cancelled and dead-lettered, while other keys go on."""
    ground.fill([(b"a", b"1"), *((b"k%d" % i, b"2") for i in range(20))])
    app = ground.app(handler_timeout_ms=100)

    @handling(ground, app, factor=64)
    async def hang(value: int) -> int:
        if value == 1:
            await asyncio.Event().wait()
        return value

    app.run(until="level")
    assert ground.values(ground.late) == [b"2"] * 20
    assert cause(ground).startswith("HandlerTimeout")
    assert f"takes longer than 100 ms at {ground.source}[0] offset 0" in caplog.text


def test_sync_handler_hangs(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """It is named; its range waits until the thread returns, and the attempt has failed then."""
    ground.fill([(b"a", b"1"), (b"a", b"2")])
    app = ground.app(handler_timeout_ms=100)
    order: list[int] = []

    @app.handler(ground.source, parallelising_factor=4, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    def hang(value: int) -> None:
        if value == 1:
            time.sleep(0.4)
        order.append(value)

    app.run(until="level")
    assert order == [1, 2]
    assert cause(ground).startswith("HandlerTimeout")
    assert "its thread can't be stopped" in caplog.text


def test_async_handler_blocks_the_loop(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """It is named aloud with the line it hangs in."""
    ground.fill([(b"a", b"1")])
    app = ground.app(loop_lag_ms=100)

    @app.handler(ground.source, parallelising_factor=4)
    async def block(value: int) -> None:
        time.sleep(0.6)  # noqa: ASYNC251  # what must not be done, and is noticed

    app.run(until="level")
    assert "the event loop has not turned for 100 ms" in caplog.text
    assert "time.sleep(0.6)" in caplog.text


def test_unknown_source_topic(ground: Ground) -> None:
    """It is refused at the start."""
    ground.create("another")
    app = ground.app()
    with_letters(ground, app)
    stops_with(SourceError, app, "does not exist", "`keylanes topics MODULE:APP --partitions N --create`")


def test_missing_output_topic(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """It is made like the source, and told; with create_topics off the start is refused, naming it."""
    ground.fill([(b"a", GOOD)])
    strict = ground.app(create_topics=False)
    with_letters(ground, strict)
    says = ("topics are missing and create_topics is off: ", ground.late, f"{ground.name}.offsets")
    stops_with(SettingsError, strict, *says)
    caplog.set_level(logging.INFO, "keylanes")
    app = ground.app()
    with_letters(ground, app)
    app.run(until="level")
    assert ground.values(ground.late) == [GOOD]
    assert f"created topic {ground.late} with 1 partition" in caplog.text


def test_an_output_to_a_topic_that_does_not_exist(ground: Ground) -> None:
    """It is asked for for some seconds, and made by nobody; that of ``sends`` is made at the start."""
    ground.fill([(b"a", b"1")])
    app, missing = ground.app(), fresh("missing")

    @app.handler(ground.source, sends=(ground.late,), retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def mistype(value: int, ctx: Context) -> None:
        ctx.send(missing, value)

    app.run(until="level")
    assert cause(ground).startswith(f"OutputRefused: topic '{missing}' does not exist; a handler makes no topic while")
    stops_with(SourceError, reading(ground, missing), "does not exist")
    assert ground.values(ground.late) == []


def reading(ground: Ground, topic: str) -> App:
    """Reads a topic, which is not made for it."""
    app = ground.app(f"{ground.name}-reading")
    app.handler(topic)(lambda value: None)
    return app


def test_broker_away_at_start() -> None:
    """The application stops within its limits with its own exit code."""
    ground = Ground("kafka://127.0.0.1:1")
    app = ground.app(request_timeout_ms=500, default_api_timeout_ms=500, start_timeout_ms=3_000)
    with_letters(ground, app)
    said = stops_with(BrokerUnavailable, app)
    assert said.startswith("starting took longer than 3000 ms: connecting to Kafka at 127.0.0.1:1")


@pytest.mark.broker
@tier("proof", "starting-brokers")
def test_broker_away_in_the_middle(tmp_path: Path) -> None:
    """The application waits while the broker is away, which it says, and goes on: all is there once."""
    server = KafkaServer(tmp_path / "kafka")
    seen, waiting = threading.Event(), threading.Event()

    def notice(record: logging.LogRecord) -> bool:
        if "the broker does not answer, trying for 120000 ms" in record.getMessage():
            waiting.set()
        return True

    logging.getLogger("keylanes").addFilter(notice)
    server.start()
    try:
        ground = Ground(f"kafka://{server.bootstrap}")
        ground.fill([(b"k%d" % (i % 50), b"%d" % i) for i in range(2_000)])
        app = ground.app(broker_retry_ms=120_000)

        @app.handler(ground.source, to=ground.late, parallelising_factor=8)
        async def slow(value: int) -> int:
            await asyncio.sleep(0.005)
            if value == 300:
                seen.set()
            return value

        def bounce() -> None:
            seen.wait()
            server.kill()
            waiting.wait(60)
            server.start()

        bouncing = threading.Thread(target=bounce)
        bouncing.start()
        app.run(until="level")
        bouncing.join()
        assert waiting.is_set()
        values = [int(v or b"") for v in ground.values(ground.late)]
        assert sorted(values) == list(range(2_000))
    finally:
        logging.getLogger("keylanes").removeFilter(notice)
        server.stop()


def test_foreign_folder(tmp_path: Path) -> None:
    """A folder that holds something else is left alone."""
    (tmp_path / "precious").write_text("not a database")
    ground = Ground(f"embedded:{tmp_path}")
    app = ground.app()
    with_letters(ground, app)
    stops_with(StoreError, app)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """The second process is refused, naming the folder, who has it, and what more than one need; the first goes on."""
    ground = Ground(f"embedded:{tmp_path / 'data'}")
    ground.fill([(b"a", GOOD)])
    app = ground.app()
    with_letters(ground, app)

    async def hold() -> subprocess.CompletedProcess[str]:
        broker = connect(ground.address, Settings(), "first")
        await broker.open()
        try:
            code = (
                "from keylanes import App\n"
                f"app = App('second', broker={ground.address!r})\n"
                f"app.handler({ground.source!r})(lambda value: None)\n"
                "app.run(until='level')\n"
            )
            return await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            await broker.close()

    second = asyncio.run(hold())
    assert second.returncode == EmbeddedInUse.exit_code == 2, second.stderr
    assert f"{tmp_path / 'data'} is in use by another process (pid {os.getpid()})" in second.stderr
    assert "The embedded broker is for one process" in second.stderr
    assert "`keylanes broker` starts one" in second.stderr
    app.run(until="level")
    assert ground.values(ground.late) == [GOOD]


@pytest.mark.broker
def test_two_processes_of_one_application(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """The second joins and has its share; when the first leaves it has all; nothing doubles, nothing is lost."""
    caplog.set_level(logging.INFO, "keylanes")
    ground = Ground(kafka.address)
    ground.scatter([(i % 2, b"k%d" % (i % 40), b"%d" % i) for i in range(3_000)], 2)
    first, second = ground.app(), ground.app()
    started = asyncio.Event()

    def declare(app: App) -> None:
        @app.handler(ground.source, to=ground.late, parallelising_factor=8)
        async def slow(value: int) -> int:
            await asyncio.sleep(0.002)
            if value >= 200:
                started.set()
            return value

    def held(app: App) -> list[int]:
        return [partition.partition for partition in app.statistics().partitions]

    async def share() -> None:
        async with AsyncExitStack() as later, asyncio.timeout(60):
            async with first:
                await started.wait()
                await later.enter_async_context(second)
                await reached(lambda: sorted(held(first) + held(second)) == [0, 1] and bool(held(second)))
                assert len(held(first)) == 1
            await reached(lambda: [p.offset_least for p in second.statistics().partitions] == [1_500] * 2)

    declare(first)
    declare(second)
    asyncio.run(share())
    assert f"{ground.name}: joined as incarnation 2" in caplog.text
    assert f"{ground.name}: working on {ground.source}: 2 partitions" in caplog.text
    values = [int(one.value or b"") for partition in (0, 1) for one in ground.read(ground.late, partition)]
    assert sorted(values) == list(range(3_000))


def test_wrong_settings_and_declarations() -> None:
    """Each is refused where it is written, with the value seen and what is allowed."""
    with pytest.raises(SettingsError, match=r"threads is a whole number from 1 to 1024; seen 0"):
        Settings(threads=0)
    with pytest.raises(SettingsError, match=r"KEYLANES_THREADS is a whole number .* seen 'many'"):
        Settings.from_env({"KEYLANES_THREADS": "many"})
    with pytest.raises(SettingsError, match="kafka://host:port"):
        App("a", broker="localhost:9092")
    app = App("a", broker="embedded:nowhere")
    with pytest.raises(SettingsError, match="parallelising_factor is 1 to 16384; seen 0"):
        app.handler("t", parallelising_factor=0)(lambda value: None)
    with pytest.raises(SettingsError, match="no to= to send it to"):

        @app.handler("t")
        async def returns(value: bytes) -> bytes:
            return value

    with pytest.raises(SystemExit) as ended:
        app.run()
    assert ended.value.code == SettingsError.exit_code


def test_python_without_assertions() -> None:
    """Under -O the guards are gone: the application refuses to be made."""
    code = "from keylanes import App; App('a', broker='embedded:x')"
    run = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    assert "does not run under python -O" in run.stderr
